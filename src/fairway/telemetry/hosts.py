"""Attribute what hosts did in one window to the jobs that held GPUs there. Pure.

CPUs are measured by job: by Slurm's cgroup, or by pod. Waits for storage are measured by node.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairway.model.gpu_use import HostUse, JobDevices
from fairway.model.job import JobId
from fairway.telemetry.attribution import Holders


def attribute_hosts(
    busy_cores: Mapping[str, float],
    given_cores: Mapping[str, float],
    waits: Mapping[str, float],
    jobs: JobDevices,
    holders: Holders,
) -> dict[JobId, HostUse]:
    """Return what the hosts of each job did; cores are by holder, ratios of time in waits by node.

    A holder of which only one of both numbers of cores is known counts as not measured.
    """
    seconds = holders.window.seconds
    cores: dict[JobId, tuple[float, float]] = {}
    for holder in busy_cores.keys() & given_cores.keys():
        for job in holders.by_name(holder):
            busy, given = cores.get(job, (0.0, 0.0))
            cores[job] = (busy + min(busy_cores[holder], given_cores[holder]), given + given_cores[holder])
    found: dict[JobId, HostUse] = {}
    for job, devices in jobs.items():
        busy, given = cores.get(job, (0.0, 0.0))
        waited = [waits[node] for node in {device.node for device in devices} if node in waits]
        if given or waited:
            found[job] = HostUse(
                cpu=busy * seconds,
                cpu_given=given * seconds,
                cpu_seconds=float(seconds) if given else 0.0,
                io_wait=sum(min(1.0, ratio) for ratio in waited) * seconds,
                io_wait_seconds=float(seconds * len(waited)),
            )
    return found
