"""Requeue a running job, on every version of Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fairway.engines.slurm.policy.names import INTERVENTION_JOB
from fairway.engines.slurm.policy.read import CTL, LATEST_CTL
from fairway.engines.slurm.rest.client import SlurmRest

SCRIPT_SECONDS: Final = 60
LATE_SECONDS: Final = 30


async def requeue_job(
    rest: SlurmRest, job: int | str, partition: str | None, check: str, clock: Callable[[], float]
) -> None:
    """Requeue one job. 26.05 has it in its API; before that, a small job of Fairway's own does it.

    `check` is a shell command of that job that must succeed. The job is gone rather than late.
    """
    if await rest.get_if_served(f"{LATEST_CTL}/job/{job}/requeue") is not None:
        return
    script = f"#!/bin/sh\n{check} && scontrol requeue {job}\n"
    helper: dict[str, Any] = {
        "name": INTERVENTION_JOB,
        "current_working_directory": "/",
        "environment": ["PATH=/usr/bin:/bin:/usr/local/bin"],
        "standard_output": "/dev/null",
        "memory_per_node": {"set": True, "number": 16},
        "time_limit": {"set": True, "number": SCRIPT_SECONDS // 60},
        "deadline": int(clock()) + SCRIPT_SECONDS + LATE_SECONDS,
    }
    if partition is not None:
        helper["partition"] = partition
    await rest.request("POST", f"{CTL}/job/submit", {"script": script, "job": helper})
