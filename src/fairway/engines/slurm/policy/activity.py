"""Count running and waiting jobs under accounts, associations and QOS: queried by filter, never all jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.policy.read import DB
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.policy.objects import Activity, ObjectKey

NAMES_A_REQUEST: Final = 100
"""Keeps the URL well below the longest that slurmrestd accepts."""
RUNNING, WAITING = "RUNNING", "PENDING"


async def active_jobs(rest: SlurmRest, state: str, **filters: str) -> list[Any]:
    """Return jobs in one state, without their steps. The API accepts one state per request.

    Waiting jobs are queried by the time they were submitted, and without one: in a time window the accounting
    leaves out whatever is not eligible, such as a job that is held or whose QOS is gone.
    """
    when = {"usage_time_as_submit_time": "true"} if state == WAITING else {"start_time": "now"}
    query = urlencode({"state": state, "skip_steps": "true", **when, **filters})
    reply = await rest.request("GET", f"{DB}/jobs/?{query}")
    # a state can have changed between the accounting's rows and its answer
    return [j for j in (reply or {}).get("jobs") or () if state in j["state"]["current"]]


async def count_jobs(rest: SlurmRest, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
    """Count jobs by account, by account and user, and by QOS."""
    accounts = {k.name.partition("/")[0] for k in keys if k.kind in ("account", "association")}
    qos = {k.name for k in keys if k.kind == "qos"}
    running, waiting = Counter[ObjectKey](), Counter[ObjectKey]()
    for state, counts in ((RUNNING, running), (WAITING, waiting)):
        for part in in_parts(sorted(accounts)):
            for job in await active_jobs(rest, state, account=",".join(part)):
                counts[ObjectKey("account", job["account"])] += 1
                counts[ObjectKey("association", f"{job['account']}/{job['user']}")] += 1
        for part in in_parts(await qos_ids(rest, qos)):
            for job in await active_jobs(rest, state, qos=",".join(part)):
                counts[ObjectKey("qos", job["qos"])] += 1
    return {k: Activity(running[k], waiting[k]) for k in keys if running[k] or waiting[k]}


async def qos_ids(rest: SlurmRest, qos: set[str]) -> list[str]:
    """Return the ids of these QOS: the API filters jobs by id; by name it finds none, without an error."""
    if not qos:
        return []
    reply = await rest.request("GET", f"{DB}/qos/")
    return sorted(str(q["id"]) for q in reply["qos"] if q["name"] in qos)


def in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many names at a time as one URL may contain."""
    for at in range(0, len(names), NAMES_A_REQUEST):
        yield names[at : at + NAMES_A_REQUEST]
