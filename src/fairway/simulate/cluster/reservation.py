"""Reserve places for the next job that does not fit yet, so that smaller jobs cannot starve it."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from fairway.simulate.cluster.jobs import FOREVER, SimJob
from fairway.simulate.cluster.nodes import DeviceIndex

MAX_EXACT: Final = 64
"""With up to this many places, the time at which just enough devices are free is computed for each."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places reserved for one job. Other jobs use them only if they end before it can start there."""

    job: SimJob
    places: tuple[int, ...]
    until: float
    """When the last of the places is free, by the time limits of the jobs there."""


def reserve(job: SimJob, index: DeviceIndex, now: float) -> Reservation | None:
    """Reserve the places that become free soonest, by time limits. Returns None if too few are open.

    O(places), but once for a job, not at each event: places stay reserved until it starts. In a large cluster
    a place counts as busy until all its devices are free, though fewer may suffice.
    """
    need, exact = job.per_node, len(index.nodes) <= MAX_EXACT
    free, total, unhealthy, busy = index.free, index.total, index.unhealthy, index.busy_until
    ready = [
        # Among equals, the emptiest.
        (now if free[p] >= need else _ready_at(index, p, need, now) if exact else busy[p], -free[p], p)
        for p, open_ in enumerate(index.open)
        if open_ and total[p] - unhealthy[p] >= need
    ]
    groups: dict[int, list[tuple[float, int, int]]] = {}
    for entry in ready:
        groups.setdefault(index.rack(entry[2]) if job.together else 0, []).append(entry)
    soonest = (nsmallest(job.nodes, group) for group in groups.values() if len(group) >= job.nodes)
    best = min(soonest, key=lambda places: places[-1], default=None)
    return None if best is None else Reservation(job, tuple(place for _, _, place in best), best[-1][0])


def _ready_at(index: DeviceIndex, place: int, need: int, now: float) -> float:
    """Return when `need` devices of a place are free; preemptible jobs count as gone now."""
    free = index.free[place]
    jobs = index.jobs_on[place]
    for at, devices in sorted((now if j.preemptible else j.latest_end, j.per_node) for j in jobs):
        free += devices
        if free >= need:
            return at
    return FOREVER  # held by something other than jobs, for an unknown time
