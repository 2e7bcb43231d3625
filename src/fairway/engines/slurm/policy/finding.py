"""One look at a cluster's policy: a handful of requests, whatever its size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.client import SlurmRest
from fairway.engines.slurm.policy import records, settings
from fairway.engines.slurm.policy.names import ROOT_ACCOUNT
from fairway.policy.objects import FoundObject, FoundPolicy

DB: Final = "/slurmdb/v0.0.42"
CTL: Final = "/slurm/v0.0.42"
LATEST_CTL: Final = "/slurm/v0.0.45"

OWN_LIMITS: Final = "Exclude limits from parents"
"""The API's own name of the option; without it a limit of the parent looks like one of the child."""


def associations_path(cluster: str, **filters: str) -> str:
    """Where associations of one cluster are asked for, each with its own limits only."""
    return f"{DB}/associations/?{urlencode({'cluster': cluster, OWN_LIMITS: 'true', **filters})}"


async def find_policy(rest: SlurmRest) -> FoundPolicy:
    """Every QOS, account, association and user, and what is shown of the running configuration."""
    partitions = await rest.policy("GET", f"{CTL}/partitions/")
    cluster = cluster_of(partitions)
    qos, associations, users, conf = await asyncio.gather(
        rest.policy("GET", f"{DB}/qos/"),
        rest.policy("GET", associations_path(cluster)),
        rest.policy("GET", f"{DB}/users/"),
        rest.serves(f"{LATEST_CTL}/conf"),
    )
    objects = (
        *map(records.found_qos, (qos or {}).get("qos") or ()),
        *_known(map(records.found_association, (associations or {}).get("associations") or ())),
        *map(records.found_user, (users or {}).get("users") or ()),
    )
    release = partitions["meta"]["slurm"]["release"]
    running = settings.found_settings(partitions, conf)
    return FoundPolicy(f"slurm {release}", objects, running)


def cluster_of(reply: Mapping[str, Any]) -> str:
    """What the cluster is called in slurm.conf, as every reply says; associations belong to it."""
    return str(reply["meta"]["slurm"]["cluster"])


def _known(found: Iterable[FoundObject]) -> Iterable[FoundObject]:
    """Slurm's own root is nobody's policy."""
    return (o for o in found if o.key.name.partition("/")[0] != ROOT_ACCOUNT)
