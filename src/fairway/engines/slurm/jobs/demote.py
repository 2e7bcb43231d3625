"""Make running jobs give way on Slurm: by a nice value, or by a requeue.

Slurm never changes the QOS of a running job, and chooses whom to preempt by QOS. So a lowered job gets the
largest nice value, with which it waits behind all others if it ever waits again, and the lowest priority's
name in its admin comment. When Fairway itself makes room for a team's urgent job, it takes such jobs first
(`policy/intervene.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fairway.engines.port import RequeueRequest
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.policy.read import CTL
from fairway.engines.slurm.policy.requeue import requeue_job
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId

NICE: Final = 1_000_000
"""Larger than any weight of a priority factor that the rendered slurm.conf has; no user sets it by chance."""
RESUMES: Final = "fairway:resumes"
"""A word in the comment of a native job that can resume: `sbatch --comment=fairway:resumes`."""
_RUNNING: Final = "RUNNING"


async def lower(rest: SlurmRest, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
    """Lower running jobs. Returns those that were refused."""
    lowest = min(fleet.priorities, key=lambda p: p.rank)
    update = {"nice": NICE, "admin_comment": f"fairway:{lowest.name}"}
    refused: dict[EngineId, Refused] = {}
    for engine_id in ids:
        job = await _running_job(rest, engine_id)
        if job is None:
            continue
        if _stands_for_array(job):
            refused[engine_id] = Refused(
                "TaskOfArray",
                f"Slurm's API changes whole arrays only, and {engine_id} is a task of one",
                f"scontrol update jobid={engine_id} nice={NICE}",
            )
            continue
        try:
            await rest.request("POST", f"{CTL}/job/{job['job_id']}", update)
        except Refused as refusal:
            refused[engine_id] = refusal
    return refused


async def requeue(
    rest: SlurmRest,
    jobs: Sequence[RequeueRequest],
    lent_partition: Callable[[str], str | None],
    clock: Callable[[], float],
) -> Mapping[EngineId, Refused]:
    """Requeue running jobs. Returns those that were refused."""
    refused: dict[EngineId, Refused] = {}
    for request in jobs:
        job = await _running_job(rest, request.engine_id) if request.begin else None
        if job is None or _started(job) >= request.started_before.timestamp():
            continue
        refusal = _refusal(job, request)
        if refusal is not None:
            refused[request.engine_id] = refusal
            continue
        # Once more where it runs: by then the job may have been requeued, and its next run is left alone.
        check = f"scontrol show job {request.engine_id} | grep -q 'Restarts={job['restart_cnt']} '"
        await requeue_job(rest, request.engine_id, lent_partition(job["partition"]), check, clock)
    return refused


async def lowered_jobs(commands: SlurmCommands, account: str) -> frozenset[int]:
    """Return the running jobs of an account that were lowered: one `squeue`."""
    listed = await commands.run(
        "squeue", ["--noheader", "--states=RUNNING", f"--account={account}", "--format=%A|%y"]
    )
    rows = (line.split("|") for line in listed.decode(errors="replace").splitlines() if "|" in line)
    return frozenset(int(job) for job, nice in rows if job.isdecimal() and nice.strip() == str(NICE))


async def _running_job(rest: SlurmRest, engine_id: EngineId) -> Mapping[str, Any] | None:
    reply = await rest.get_if_served(f"{CTL}/job/{engine_id}")
    jobs = (job for job in (reply or {}).get("jobs") or () if _RUNNING in job["job_state"])
    return next(jobs, None)


def _started(job: Mapping[str, Any]) -> float:
    return float(job["start_time"]["number"])


def _stands_for_array(job: Mapping[str, Any]) -> bool:
    """Return whether a change of this id would change every task of its array."""
    array = job.get("array_job_id") or {}
    return bool(array.get("number")) and array["number"] == job["job_id"]


def _refusal(job: Mapping[str, Any], request: RequeueRequest) -> Refused | None:
    if not request.resumes and RESUMES not in (job.get("comment") or ""):
        return Refused(
            "NotResumable",
            f"job {request.engine_id} does not say that it can resume",
            f"if it can:  sbatch --comment={RESUMES}, or  scontrol update jobid=ID comment={RESUMES}",
        )
    if not job["requeue"]:
        return Refused(
            "NotResumable",
            f"job {request.engine_id} was submitted with --no-requeue",
            "submit it with --requeue",
        )
    return None
