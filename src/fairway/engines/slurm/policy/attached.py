"""Check that slurmctld gets what slurmdbd stores.

slurmdbd sends changes to the address that slurmctld registered, and clears the address when the connection of
a slurmctld closes. If the next slurmctld has registered before that, the address is lost for good: slurmdbd
stores every change and slurmctld gets none, though both answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fairway.engines.port import Unreachable
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.policy.objects import Action, Change

CONTROL_HOST: Final = "slurmdbd/ControlHost"
"""The setting with slurmctld's address as slurmdbd knows it; empty if it knows none."""
MAX_NAMED: Final = 3
MAX_SHARE: Final = 1_000_000
"""A larger share is one of Slurm's words for "that of the parent"."""
ACCOUNT, ASSOCIATION = "account", "association"

_CLUSTERS: Final = "/slurmdb/v0.0.42/clusters/"
_SHARES: Final = "/slurm/v0.0.42/shares"


async def control_host(rest: SlurmRest) -> str | None:
    """Return slurmctld's address as slurmdbd knows it. Returns None if there is no slurmdbd to ask."""
    reply = await rest.get_if_served(_CLUSTERS)
    return None if reply is None else address_in(reply)


def address_in(reply: Mapping[str, Any]) -> str | None:
    """Return `host:port` of the cluster that replied, empty if there is none. None: it is not listed."""
    name = ((reply.get("meta") or {}).get("slurm") or {}).get("cluster")
    for cluster in reply.get("clusters") or ():
        if cluster.get("name") == name:
            controller = cluster.get("controller") or {}
            host, port = controller.get("host") or "", controller.get("port") or 0
            return f"{host}:{port}" if host and port else ""
    return None


def detached() -> Unreachable:
    """Return the error for a cluster whose slurmctld gets nothing from slurmdbd."""
    return Unreachable(
        "AccountingDetached",
        "slurmdbd has no address of slurmctld (ControlHost is empty): it stores changes of accounts, QOS and "
        "limits, and slurmctld gets none of them",
        "have slurmctld register again:  scontrol reconfigure;  then:  "
        "sacctmgr show cluster format=cluster,controlhost,controlport",
    )


async def confirm(rest: SlurmRest, changes: Iterable[Change]) -> None:
    """Raise Unreachable unless slurmdbd can reach slurmctld, and slurmctld has these changes."""
    if await control_host(rest) == "":
        raise detached()
    associations = [
        c for c in changes if c.key.kind in (ACCOUNT, ASSOCIATION) and c.action is not Action.ADOPT
    ]
    if not associations:
        return
    reply = await rest.get_if_served(_SHARES)
    if reply is None:
        return
    behind = missing_changes(reply, associations)
    if behind:
        more = f" and {len(behind) - MAX_NAMED} more" if len(behind) > MAX_NAMED else ""
        raise Unreachable(
            "ControllerBehind",
            f"slurmdbd stored them, but slurmctld does not have {', '.join(behind[:MAX_NAMED])}{more} yet",
            "compare what slurmctld has:  scontrol show assoc_mgr flags=assoc; then:  scontrol reconfigure",
        )


def missing_changes(reply: Mapping[str, Any], changes: Iterable[Change]) -> list[str]:
    """Return the accounts and associations that slurmctld's fair-share tree has otherwise than written."""
    shares: dict[tuple[str, str], int] = {}
    for row in (reply.get("shares") or {}).get("shares") or ():
        user = "USER" in (row.get("type") or ())
        key = (ASSOCIATION, f"{row['parent']}/{row['name']}") if user else (ACCOUNT, row["name"])
        shares[key] = int((row.get("shares") or {}).get("number") or 0)
    return [str(c.key) for c in changes if not _has(shares, c)]


def _has(shares: Mapping[tuple[str, str], int], change: Change) -> bool:
    found = shares.get((change.key.kind, change.key.name))
    if change.action is Action.DELETE:
        return found is None
    wanted = (change.wanted or {}).get("Fairshare")
    return found is not None and (not isinstance(wanted, int) or wanted > MAX_SHARE or found == wanted)
