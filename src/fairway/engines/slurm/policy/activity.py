"""How many jobs run and wait under accounts, associations and QOS: asked for by filter, never all jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.client import SlurmRest
from fairway.engines.slurm.policy.finding import DB
from fairway.policy.objects import Activity, ObjectKey

NAMES_A_REQUEST: Final = 100
"""Keeps the address well below what slurmrestd takes in one line."""
RUNNING, WAITING = "RUNNING", "PENDING"
_SUBMITTED: Final = {"usage_time_as_submit_time": "true"}
_NOW: Final = {"start_time": "now"}


async def active_jobs(rest: SlurmRest, state: str, **filters: str) -> list[Any]:
    """Jobs in one state, without their steps. The API takes one state a request.

    What waits is asked for by the time it was submitted, and without one: in a time of its own the accounting
    leaves out whatever is not eligible, as a job that is held or whose QOS is gone.
    """
    when = _SUBMITTED if state == WAITING else _NOW
    query = urlencode({"state": state, "skip_steps": "true", **when, **filters})
    reply = await rest.policy("GET", f"{DB}/jobs/?{query}")
    # a state can have changed between the accounting's rows and its answer
    return [j for j in (reply or {}).get("jobs") or () if state in j["state"]["current"]]


async def count_jobs(rest: SlurmRest, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
    """Jobs by account, by account and user, and by QOS."""
    accounts = {k.name.partition("/")[0] for k in keys if k.kind in ("account", "association")}
    qos = {k.name for k in keys if k.kind == "qos"}
    running, waiting = Counter[ObjectKey](), Counter[ObjectKey]()
    for state, counted in ((RUNNING, running), (WAITING, waiting)):
        for some in in_parts(sorted(accounts)):
            for job in await active_jobs(rest, state, account=",".join(some)):
                counted[ObjectKey("account", job["account"])] += 1
                counted[ObjectKey("association", f"{job['account']}/{job['user']}")] += 1
        for some in in_parts(await _ids(rest, qos)):
            for job in await active_jobs(rest, state, qos=",".join(some)):
                counted[ObjectKey("qos", job["qos"])] += 1
    return {k: Activity(running[k], waiting[k]) for k in keys if running[k] or waiting[k]}


async def _ids(rest: SlurmRest, qos: set[str]) -> list[str]:
    """The API filters jobs by a QOS's number; by its name it finds none, and says nothing."""
    if not qos:
        return []
    reply = await rest.policy("GET", f"{DB}/qos/")
    return sorted(str(q["id"]) for q in reply["qos"] if q["name"] in qos)


def in_parts(of: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one address may name."""
    for at in range(0, len(of), NAMES_A_REQUEST):
        yield of[at : at + NAMES_A_REQUEST]
