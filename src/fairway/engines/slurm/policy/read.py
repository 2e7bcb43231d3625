"""Read a cluster's policy: a handful of requests, whatever its size."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.policy import advice, records
from fairway.engines.slurm.policy.attached import CONTROL_HOST, control_host
from fairway.engines.slurm.policy.names import (
    DEFAULT_ACCOUNT,
    ROOT_ACCOUNT,
    ROOT_DEFAULT_QOS,
    ROOT_QOS,
    is_created,
    is_marked,
)
from fairway.engines.slurm.policy.partition_settings import node_settings
from fairway.engines.slurm.policy.site_fields import SiteFields
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.engines.slurm.rest.versions import CONF_PATH
from fairway.policy.objects import FoundPolicy

DB: Final = "/slurmdb/v0.0.42"
CTL: Final = "/slurm/v0.0.42"
LATEST_CTL: Final = "/slurm/v0.0.45"

ACCOUNTING, NO_ACCOUNTING = "AccountingStorageType", "accounting_storage/none"

OWN_LIMITS: Final = "Exclude limits from parents"
"""The API's own name of the option; without it a limit of the parent looks like one of the child."""


def associations_path(cluster: str, **filters: str) -> str:
    """Return the path of associations of one cluster, each with its own limits only."""
    return f"{DB}/associations/?{urlencode({'cluster': cluster, OWN_LIMITS: 'true', **filters})}"


async def find_policy(rest: SlurmRest) -> FoundPolicy:
    """Read every QOS, account, association and user, and the visible part of the running configuration."""
    partitions = await rest.request("GET", f"{CTL}/partitions/")
    cluster = cluster_of(partitions)
    nodes, qos, conf = await asyncio.gather(
        rest.nodes(), rest.get_if_served(f"{DB}/qos/"), rest.get_if_served(CONF_PATH)
    )
    shown = advice.found_settings(partitions, conf) | node_settings(nodes.nodes)
    version = f"slurm {partitions['meta']['slurm']['release']}"
    if qos is None:  # slurmrestd serves no accounting where slurm.conf has none
        return FoundPolicy(version, (), shown | {ACCOUNTING: NO_ACCOUNTING})
    accounts, associations, users, address = await asyncio.gather(
        rest.request("GET", f"{DB}/accounts/"),
        rest.request("GET", associations_path(cluster)),
        rest.request("GET", f"{DB}/users/"),
        control_host(rest),
    )
    marked, created = marked_accounts(accounts), _created_accounts(accounts)
    all_rows = (associations or {}).get("associations") or ()
    rows = [a for a in all_rows if a["account"] != ROOT_ACCOUNT]
    objects = (
        *map(records.found_qos, qos.get("qos") or ()),
        *(records.found_association(record, marked, created) for record in rows),
        *map(records.found_user, (users or {}).get("users") or ()),
    )
    settings = shown | _default_accounts(rows) | _root_qos(all_rows)
    if address is not None:
        settings[CONTROL_HOST] = address
    settings |= SiteFields.of(objects, settings).settings()
    return FoundPolicy(version, objects, settings)


def cluster_of(reply: Mapping[str, Any]) -> str:
    """Return the cluster's name in slurm.conf, which every reply has; associations belong to it."""
    return str(reply["meta"]["slurm"]["cluster"])


def marked_accounts(reply: Mapping[str, Any] | None) -> set[str]:
    """Return the accounts that have Fairway's mark."""
    accounts = (reply or {}).get("accounts") or ()
    return {a["name"] for a in accounts if is_marked(a.get("description") or "")}


def _created_accounts(reply: Mapping[str, Any] | None) -> set[str]:
    accounts = (reply or {}).get("accounts") or ()
    return {a["name"] for a in accounts if is_created(a.get("description") or "")}


def _root_qos(associations: Iterable[records.Record]) -> dict[str, str]:
    """Return the QOS that accounts inherit from the root account."""
    roots = [a for a in associations if a["account"] == ROOT_ACCOUNT and not a.get("user")]
    fields = records.read_fields(records.ASSOCIATION, roots[0]) if roots else {}
    listed = fields.get("QOS")
    qos = ",".join(map(str, listed)) if isinstance(listed, tuple) else ""
    return {ROOT_QOS: qos, ROOT_DEFAULT_QOS: str(fields.get("DefaultQOS") or "")}


def _default_accounts(associations: Iterable[records.Record]) -> dict[str, str]:
    """Return the default account of users who have several."""
    of_users = [record for record in associations if record.get("user")]
    counts = Counter(record["user"] for record in of_users)
    return {
        f"{DEFAULT_ACCOUNT}{record['user']}": record["account"]
        for record in of_users
        if record.get("is_default") and counts[record["user"]] > 1
    }
