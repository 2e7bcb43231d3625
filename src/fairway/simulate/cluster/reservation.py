"""Reserve places for the next job that does not fit yet, so that smaller jobs cannot starve it.

Slurm's backfill plans the start of every waiting job, not only of the next one; a `Plan` is what that means
for preemptible jobs, which it starts only where they delay nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from fairway.simulate.cluster.accounting import Accounting
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
    need = job.per_node
    free, total, unhealthy = index.free, index.total, index.unhealthy
    ready = [
        # Among equals, the emptiest.
        (now if free[p] >= need else free_at(index, p, need, now), -free[p], p)
        for p, open_ in enumerate(index.open)
        if open_ and total[p] - unhealthy[p] >= need
    ]
    groups: dict[int, list[tuple[float, int, int]]] = {}
    for entry in ready:
        groups.setdefault(index.rack(entry[2]) if job.together else 0, []).append(entry)
    soonest = (nsmallest(job.nodes, group) for group in groups.values() if len(group) >= job.nodes)
    best = min(soonest, key=lambda places: places[-1], default=None)
    return None if best is None else Reservation(job, tuple(place for _, _, place in best), best[-1][0])


def free_at(index: DeviceIndex, place: int, need: int, now: float) -> float:
    """Return when `need` devices of a place are free, by time limits; preemptible jobs count as gone now."""
    if len(index.nodes) > MAX_EXACT:
        return index.busy_until[place]
    free = index.free[place]
    jobs = index.jobs_on[place]
    for at, devices in sorted((now if j.preemptible else j.latest_end, j.per_node) for j in jobs):
        free += devices
        if free >= need:
            return at
    return FOREVER  # held by something other than jobs, for an unknown time


class Plan:
    """When some waiting job would start on each place, by the time limits of the jobs there."""

    def __init__(self, index: DeviceIndex, now: float, needs: Iterable[int] = (), jobs: int = 0) -> None:
        """`needs`: what the waiting jobs need on a place. `jobs`: how many places they need together."""
        self._index: Final = index
        self._now: Final = now
        self._needs: Final = sorted(needs)
        self._jobs: Final = jobs
        self._last = -1.0

    def is_free_until(self, place: int, end: float) -> bool:
        """Return whether no waiting job would start on a place before `end`."""
        at = self._fits_at(place)
        return end <= at or at > self._last_start()

    def _fits_at(self, place: int) -> float:
        """Return when a place has enough free devices for one of the jobs."""
        index, free = self._index, self._index.free[place]
        need = next((n for n in self._needs if n > free), None)
        if need is None or need > index.total[place] - index.unhealthy[place]:
            return FOREVER
        return free_at(index, place, need, self._now)

    def _last_start(self) -> float:
        """Return when the last of the jobs starts: places that fit one later are planned for none."""
        if self._last < 0.0:
            index = self._index
            places = [p for p, open_ in enumerate(index.open) if open_]
            if self._jobs >= len(places):
                self._last = FOREVER
            elif len(index.nodes) > MAX_EXACT:
                self._last = nsmallest(self._jobs, [index.busy_until[p] for p in places])[-1]
            else:
                self._last = nsmallest(self._jobs, map(self._fits_at, places))[-1]
        return self._last


def plan_starts(accounting: Accounting, now: float) -> Plan:
    """Plan the starts of the waiting jobs that are blocked by places only.

    O(queues), and O(places) if they are fewer than the places.
    """
    needs, jobs = set[int](), 0
    for quota in accounting.queued:
        headroom = 0 if quota.stopped else quota.headroom()
        for queue in quota.queues.firm.values():
            if queue.devices <= headroom:
                needs.add(queue.per_node)
                jobs += queue.count * queue.nodes
    return Plan(accounting.index, now, needs, jobs)
