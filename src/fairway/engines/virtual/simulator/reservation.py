"""Places kept for a job that is next but does not fit yet, so that smaller ones cannot starve it."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from fairway.engines.virtual.simulator.jobs import FOREVER, SimJob
from fairway.engines.virtual.simulator.nodes import DeviceIndex

MOST_EXACT: Final = 64
"""Up to so many places, it is found for each when just enough of it is free."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places that wait for one job. Only what ends before it can start there may still go in."""

    job: SimJob
    places: tuple[int, ...]
    until: float
    """When the last of the places is free at the latest, by the time limits of what runs there."""


def reserve(job: SimJob, index: DeviceIndex, now: float) -> Reservation | None:
    """The places that are free soonest, by time limits; None: too few places are open.

    O(places), but once for a job, not at each event: places stay reserved until it starts. On a large cluster
    a place counts as busy until all of it is free, though less may do.
    """
    need, exact = job.per_node, len(index.nodes) <= MOST_EXACT
    free, total, sick, busy = index.free, index.total, index.sick, index.busy_until
    ready = [
        # Of equals the emptiest.
        (now if free[p] >= need else _ready_at(index, p, need, now) if exact else busy[p], -free[p], p)
        for p, open_ in enumerate(index.open)
        if open_ and total[p] - sick[p] >= need
    ]
    if not job.together:
        chosen = nsmallest(job.nodes, ready)
        return _made(job, chosen) if len(chosen) == job.nodes else None
    racks: dict[int, list[tuple[float, int, int]]] = {}
    for entry in ready:
        racks.setdefault(index.rack(entry[2]), []).append(entry)
    whole = (nsmallest(job.nodes, places) for places in racks.values() if len(places) >= job.nodes)
    best = min(whole, key=lambda places: places[-1], default=None)
    return None if best is None else _made(job, best)


def _made(job: SimJob, chosen: list[tuple[float, int, int]]) -> Reservation:
    return Reservation(job, tuple(place for _, _, place in chosen), chosen[-1][0])


def _ready_at(index: DeviceIndex, place: int, need: int, now: float) -> float:
    """When so many devices are free there; what is preemptible always does not count as in the way."""
    free = index.free[place]
    ends = sorted((now if job.low else job.ends, job.per_node) for job in index.jobs_on[place])
    for at, devices in ends:
        free += devices
        if free >= need:
            return at
    return FOREVER  # held by something that is no job: nobody knows
