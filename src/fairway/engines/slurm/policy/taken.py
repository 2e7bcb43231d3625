"""Find what a policy takes from accounts and users of a cluster, and who used it in the last 30 days.

slurmdbd has sums by association, resource and day: two small requests, however many jobs there were. It sums
up full hours, so the hour that has just begun is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.activity import in_parts
from fairway.engines.slurm.policy.read import DB
from fairway.engines.slurm.policy.translate import UNTYPED, PolicyContext
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.fleet import ExistingWorkloads, SlurmConnection
from fairway.model.text import first_few
from fairway.policy.objects import Action, Change, FoundObject
from fairway.policy.recent_use import DAYS, RecentUse, TakenAway

MAX_LISTED: Final = 20
"""Accounts or users of one kind that have a line each; the others share one."""
_MAX_NAMED: Final = 5
_DAY: Final = 86_400

Use = Mapping[tuple[str, str, str], int]
"""Device-seconds by account, user and resource, as `gres/gpu:a100`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that an account, or one user of it, can no longer do."""

    what: str
    several: str
    """The same of several, with `{}` for their names."""
    name: str
    account: str
    tres: str = UNTYPED
    user: str | None = None
    team: str | None = None
    unknown: str = ""
    """Why its use cannot be told; empty if it can."""


@dataclass(slots=True)
class _Shared:
    """The losses of one kind that share a line."""

    losses: list[Loss] = field(default_factory=list)
    seconds: dict[str, int] = field(default_factory=dict)


def find_losses(
    context: PolicyContext,
    connection: SlurmConnection,
    found: Iterable[FoundObject],
    changes: Iterable[Change],
) -> tuple[Loss, ...]:
    """List what accounts and users lose. Pure."""
    accounts = {o.key.name: o for o in found if o.key.kind == "account"}
    counted = any(k.endswith("/TRES") and UNTYPED in v for k, v in context.settings.items())
    losses = (
        *_refused_accounts(context, connection),
        *_deleted(changes),
        *_pools_without_grant(context, accounts),
    )
    if counted:
        return losses
    unknown = f"Slurm counts no GPUs: AccountingStorageTRES has no {UNTYPED}"
    return tuple(Loss(o.what, o.several, o.name, o.account, o.tres, o.user, o.team, unknown) for o in losses)


def _refused_accounts(context: PolicyContext, connection: SlurmConnection) -> Iterator[Loss]:
    if connection.existing_workloads is ExistingWorkloads.LEAVE:
        return
    teams = {team.account_name.lower() for team in context.teams}
    for key in sorted(context.settings):
        account = key.removeprefix(names.SITE_ACCOUNT)
        if key.startswith(names.SITE_ACCOUNT) and account not in teams:
            yield Loss(
                f"GPU jobs of account {account}, which is no team",
                "GPU jobs of accounts {}, which are no teams",
                account,
                account,
            )


def _deleted(changes: Iterable[Change]) -> Iterator[Loss]:
    """Yield the accounts that are deleted, and the users that are deleted from accounts which stay."""
    deleted = [c for c in changes if c.action is Action.DELETE]
    gone = {c.key.name: c.team for c in deleted if c.key.kind == "account"}
    for account, team in sorted(gone.items()):
        yield Loss(f"jobs in account {account}", "jobs in accounts {}", account, account, team=team)
    for change in deleted:
        account, _, rest = change.key.name.partition("/")
        user, _, partition = rest.partition("/")
        if change.key.kind == "association" and user and not partition and account not in gone:
            yield Loss(
                f"jobs of {user} in account {account}",
                "jobs of {}",
                f"{user} in {account}",
                account,
                user=user,
                team=change.team,
            )


def _pools_without_grant(context: PolicyContext, accounts: Mapping[str, FoundObject]) -> Iterator[Loss]:
    """Yield the supplies that a team may not use, until its account is written for the first time."""
    types = [site.gres for site in context.sites]
    for team in context.teams:
        found = accounts.get(team.account_name)
        listed = found.fields.get("QOS") if found is not None else None
        if found is None or found.created or names.LENT in (listed if isinstance(listed, tuple) else ()):
            continue
        for site in context.sites:
            if context.may_use(team, site.supply):
                continue
            typed = site.is_limited and types.count(site.gres) == 1
            yield Loss(
                f"{site.supply} for account {team.account_name}, whose team has no grant on it",
                "{}, whose teams have no grants on them",
                f"{site.supply} for account {team.account_name}",
                team.account_name,
                tres=site.tres if typed else UNTYPED,
                team=team.name,
                unknown=""
                if typed
                else f"Slurm does not count its GPUs apart ({site.gres or 'no GRES type'})",
            )


def taken_away(losses: Sequence[Loss], use: Use, unknown: str = "") -> tuple[TakenAway, ...]:
    """Say who used what is lost: a line for each that was used, one for all others of a kind. Pure.

    `unknown`: why the use could not be read.
    """
    by_user: dict[tuple[str, str], dict[str, int]] = {}
    for (account, user, tres), used_seconds in use.items():
        by_user.setdefault((account, tres), {})[user] = used_seconds
    result: list[TakenAway] = []
    shared: dict[tuple[str, str], _Shared] = {}
    listed: dict[str, int] = {}
    found = [(loss, _of(loss, by_user.get((loss.account, loss.tres), {}))) for loss in losses]
    for loss, seconds in sorted(found, key=lambda pair: -sum(pair[1].values())):
        why = loss.unknown or unknown
        listed[loss.several] = listed.get(loss.several, 0) + 1
        if seconds and not why and listed[loss.several] <= MAX_LISTED:
            result.append(TakenAway(loss.what, RecentUse.of(seconds), loss.team, loss.user))
            continue
        others = shared.setdefault((loss.several, why), _Shared())
        others.losses.append(loss)
        for user, n in seconds.items():
            others.seconds[user] = others.seconds.get(user, 0) + n
    for (several, why), others in shared.items():
        used = RecentUse(unknown=why) if why else RecentUse.of(others.seconds)
        if len(others.losses) == 1:
            loss = others.losses[0]
            result.append(TakenAway(loss.what, used, loss.team, loss.user))
        else:
            named = first_few([loss.name for loss in others.losses], _MAX_NAMED)
            result.append(TakenAway(several.format(named), used))
    return tuple(result)


def _of(loss: Loss, seconds: Mapping[str, int]) -> dict[str, int]:
    return {user: n for user, n in seconds.items() if n > 0 and loss.user in (None, user)}


async def read_use(rest: SlurmRest, cluster: str, accounts: Iterable[str], midnight: int, now: int) -> Use:
    """Read what users of these accounts used in the last 30 days.

    Days before `midnight` come from slurmdbd's sums by day if its day begins then too, else by hour.
    """
    spans = ((midnight - DAYS * _DAY, midnight), (midnight, now + 3600))
    paths = [
        f"{DB}/associations/?"
        + urlencode(
            {
                "cluster": cluster,
                "account": ",".join(part),
                "Include usage": "true",
                "usage_start": start,
                "usage_end": end,
            }
        )
        for part in in_parts(sorted(set(accounts)))
        for start, end in spans
    ]
    replies: list[Any] = []
    for at in range(0, len(paths), 2):
        replies += await asyncio.gather(*(rest.request("GET", path) for path in paths[at : at + 2]))
    return sum_use(record for reply in replies for record in (reply or {}).get("associations") or ())


def sum_use(associations: Iterable[Mapping[str, Any]]) -> Use:
    """Sum the GPUs of users; an account's own record has those of all its users once more. Pure."""
    found: dict[tuple[str, str, str], int] = {}
    for record in associations:
        for row in record.get("accounting") or () if record.get("user") else ():
            tres = row["TRES"]
            if tres["type"] == "gres" and str(tres["name"]).partition(":")[0] == "gpu":
                key = (record["account"], record["user"], f"gres/{tres['name']}")
                found[key] = found.get(key, 0) + int(row["allocated"]["seconds"])
    return found
