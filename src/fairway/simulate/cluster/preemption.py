"""Select the running jobs to preempt so that a job can start: few devices, and never a protected job."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import accumulate, combinations, islice
from typing import Final

from fairway.simulate.cluster.accounting import Accounting
from fairway.simulate.cluster.jobs import SimJob, TeamQuota
from fairway.simulate.cluster.nodes import DeviceIndex

MAX_EXACT = 10
"""With up to this many candidates, every subset of them is compared."""
MAX_WEIGHED = 400
"""Candidates to consider at most; in a large cluster a good choice is found long before."""
MAX_PLACES = 16
"""Nodes to compare where preemptible jobs suffice: these expect preemption, so a fast choice will do."""
_NO_PREEMPTIBLE_JOB: Final = (1, 0)

Victims = tuple[SimJob, ...]


class PreemptionScope(IntEnum):
    """Which jobs may be preempted. Each scope includes those before it; the first that suffices is used."""

    PREEMPTIBLE = 0
    """Jobs of a preemptible priority, of any team."""
    LENT = 1
    """What teams hold beyond their guarantee, except urgent jobs; no team falls below its guarantee."""
    LENT_URGENT = 2
    LENT_LARGE = 3
    """Also a job that is partly within the guarantee: its team falls below, but was above."""
    OUTRANKED = 4
    """Jobs of the same team with a lower rank."""


class VictimSearch:
    """A search for the jobs to preempt for one job, within a scope that grows."""

    def __init__(self, job: SimJob, accounting: Accounting, now: float) -> None:
        self.job: Final = job
        """Never a preemptible job: those preempt nothing."""
        self.index: Final = accounting.index
        self.preemptible: Final = accounting.preemptible_running
        self.urgent_above: Final = accounting.urgent_above
        self.borrowers: Final = find_borrowers(job)
        shortfalls = ((q, q.held + job.devices - q.ceiling) for q in job.quota.path)
        self.shortfalls: Final = [(quota, need) for quota, need in shortfalls if need > 0]
        """Quotas whose ceiling blocks the job, each with the devices that must be freed below it."""
        self.now: Final = now
        self.scope = PreemptionScope.PREEMPTIBLE
        self.firm_victims: list[SimJob] = []
        """Candidates within the scope that are not preemptible, the least harmful to preempt first."""
        self.firm_devices: dict[int, int] = {}
        """Devices that they hold, by place."""

    def set_scope(self, scope: PreemptionScope) -> None:
        """Find the candidates within a scope. O(candidates)."""
        self.scope = scope
        self.firm_victims = self._lent() if self.borrowers and scope >= PreemptionScope.LENT else []
        if scope >= PreemptionScope.OUTRANKED:
            self.firm_victims += self._outranked()
        firm_devices = self.firm_devices = {}
        for job in self.firm_victims:
            devices = job.per_node
            for place in job.places:
                firm_devices[place] = firm_devices.get(place, 0) + devices

    def _lent(self) -> list[SimJob]:
        found: list[SimJob] = []
        own, now, any_rank = self.job.quota, self.now, self.scope >= PreemptionScope.LENT_URGENT
        for quota in sorted(self.borrowers, key=lambda q: (-q.borrowed / q.share, q.name)):
            if quota is own:
                continue
            for rank in sorted(quota.running):
                if any_rank or rank <= self.urgent_above:
                    jobs = reversed(quota.running[rank])
                    found += [j for j in jobs if not (j.preemptible or j.protected or j.requeued_at == now)]
            if len(found) >= MAX_WEIGHED:
                return found[:MAX_WEIGHED]
        return found

    def _outranked(self) -> list[SimJob]:
        now, weaker = self.now, self.job.quota.weakest_first(self.job.rank)
        return list(islice((j for j in weaker if not j.preemptible and j.requeued_at != now), MAX_WEIGHED))

    def is_candidate(self, job: SimJob) -> bool:
        """Return whether this running job may be preempted, regardless of other victims."""
        if job.requeued_at == self.now:
            return False  # at most once at the same simulated time
        if job.preemptible:
            return True
        if self.scope < PreemptionScope.LENT:
            return False
        if job.quota is self.job.quota:
            return self.scope >= PreemptionScope.OUTRANKED and job.rank < self.job.rank
        if job.protected or job.quota not in self.borrowers:
            return False
        return self.scope >= PreemptionScope.LENT_URGENT or job.rank <= self.urgent_above

    def preference(self, place: int) -> tuple[int, int]:
        """Return a sort key for otherwise equal places: the one with the youngest preemptible job first."""
        if self.index.available[place] == self.index.free[place]:
            return _NO_PREEMPTIBLE_JOB
        jobs = (j for j in self.index.jobs_on[place] if j.preemptible and j.requeued_at != self.now)
        return min([(-j.start_number, j.places.index(place)) for j in jobs], default=_NO_PREEMPTIBLE_JOB)

    def could_fit_on(self, place: int) -> bool:
        """Return whether the job's part fits on the place once all candidates there are preempted."""
        available = self.index.available[place] + self.firm_devices.get(place, 0)
        return self.index.listed[place] and available >= self.job.per_node

    def has_enough_places(self) -> bool:
        """Return whether enough places could be freed, judged by counts alone. O(candidates)."""
        index, need = self.index, self.job.per_node
        available, listed = index.available, index.listed
        missing = self.job.nodes - index.available_at_least[need]
        if missing > 0:
            for place, devices in self.firm_devices.items():
                if listed[place] and available[place] < need <= available[place] + devices:
                    missing -= 1
        return missing <= 0

    def candidates(self) -> list[SimJob]:
        """Return all candidates, the least harmful to preempt first."""
        now, preemptible = self.now, reversed(self.preemptible)
        if len(self.preemptible) + len(self.firm_victims) <= MAX_WEIGHED:
            return [job for job in preemptible if job.requeued_at != now] + self.firm_victims
        # Preemptible jobs that free nothing where it is needed must not fill the list.
        short = {quota for quota, _ in self.shortfalls}
        useful = (
            job
            for job in preemptible
            if job.requeued_at != now
            and (any(map(self.could_fit_on, job.places)) or not short.isdisjoint(job.quota.path))
        )
        return list(islice(useful, MAX_WEIGHED)) + self.firm_victims

    def keeps_guarantees(self, victims: Sequence[SimJob]) -> bool:
        """Return whether these jobs may be preempted together: no team loses what it is guaranteed."""
        taken: dict[TeamQuota, tuple[int, int]] = {}
        own_path = self.job.quota.path
        for job in victims:
            if job.preemptible or job.quota is self.job.quota:
                continue
            for quota in job.quota.path:
                if quota in own_path:
                    break
                total, largest = taken.get(quota, (0, 0))
                taken[quota] = (total + job.devices, max(largest, job.devices))
        if self.scope >= PreemptionScope.LENT_LARGE:
            # Preempted one by one, the largest last, each is taken from a team above its guarantee.
            return all(total - top < q.firm - q.guarantee for q, (total, top) in taken.items())
        return all(total <= q.firm - q.guarantee for q, (total, _) in taken.items())

    def suffices(self, victims: Sequence[SimJob]) -> bool:
        """Return whether the job can start once these are preempted."""
        for quota, need in self.shortfalls:
            if sum(job.devices for job in victims if quota in job.quota.path) < need:
                return False
        return _fits_without(self.job, self.index, victims)


def find_borrowers(job: SimJob) -> set[TeamQuota]:
    """Find the quotas from which `job` may reclaim devices: they are over a guarantee that it is within.

    This is decided at the lowest team that contains both: the job's branch below it stays within its
    guarantee, while the borrower, and every team between, is over its own.
    """
    found: set[TeamQuota] = set()
    for quota in job.quota.path:
        above = quota.parent
        if above is None or quota.firm + job.devices > quota.guarantee:
            continue
        if above.path:
            found.add(above)  # the parent team's own jobs: its guarantee is first for its children
        for sibling in above.children:
            if sibling is not quota:
                _collect_borrowers(sibling, found)
    return found


def _collect_borrowers(quota: TeamQuota, found: set[TeamQuota]) -> None:
    if quota.firm > quota.guarantee:
        found.add(quota)
        for child in quota.children:
            _collect_borrowers(child, found)


def select_victims(job: SimJob, accounting: Accounting, now: float) -> Victims | None:
    """Select the jobs to preempt so that `job` can start. Returns None if preemption cannot help."""
    search = VictimSearch(job, accounting, now)
    found: Victims | None = None
    if accounting.preemptible_running:
        found = _find_cheapest(search)
    if search.borrowers:
        for scope in (PreemptionScope.LENT, PreemptionScope.LENT_URGENT, PreemptionScope.LENT_LARGE):
            if found is None:
                search.set_scope(scope)
                found = _find_cheapest(search)
    if found is None and job.quota.runs_between(accounting.min_firm_rank, job.rank):
        search.set_scope(PreemptionScope.OUTRANKED)
        found = _find_cheapest(search)
    return found


def _find_cheapest(search: VictimSearch) -> Victims | None:
    if not search.has_enough_places():
        return None
    if not search.shortfalls and search.job.nodes == 1:
        return _cheapest_on_one_node(search)
    candidates = search.candidates()
    if not search.suffices(candidates):
        return None
    if len(candidates) <= MAX_EXACT:
        return _cheapest_of_few(search, candidates)
    return _cheap_of_many(search, candidates)


def _cheapest_on_one_node(search: VictimSearch) -> Victims | None:
    """Find the cheapest victims on each node with candidates, and return those of the cheapest node."""
    index, need = search.index, search.job.per_node
    free, jobs_on, is_candidate = index.free, index.jobs_on, search.is_candidate
    bound = max(1, need - index.max_free)  # no node needs less
    best: Victims | None = None
    best_cost = 1 << 60
    preemptible_only = search.scope is PreemptionScope.PREEMPTIBLE
    for place in _available_places(search) if preemptible_only else _candidate_places(search):
        missing = need - free[place]
        if missing >= best_cost:
            continue
        candidates = [job for job in jobs_on[place] if is_candidate(job)]
        found = _cheapest_on_place(search, candidates, missing, best_cost)
        if found is not None:
            best, best_cost = found, sum([job.devices for job in found])
            if best_cost <= bound:
                return best
    return best


def _available_places(search: VictimSearch) -> Iterator[int]:
    """Generate listed places that suffice without their preemptible jobs; the one with the youngest first."""
    index, need = search.index, search.job.per_node
    available, listed = index.available, index.listed
    yielded: set[int] = set()
    remaining = MAX_PLACES
    for job in reversed(search.preemptible):
        for place in job.places:
            if available[place] >= need and listed[place]:
                if place not in yielded:
                    yielded.add(place)
                    yield place
                remaining -= 1
                if not remaining:
                    return


def _candidate_places(search: VictimSearch) -> Iterator[int]:
    """Generate listed places that suffice without their candidates, the emptiest first."""
    index, need = search.index, search.job.per_node
    available, listed, free = index.available, index.listed, index.free
    by_free: dict[int, list[int]] = {}
    for place, devices in search.firm_devices.items():
        if available[place] + devices >= need and listed[place]:
            by_free.setdefault(free[place], []).append(place)
    for count in sorted(by_free, reverse=True):
        places = by_free[count]
        if len(places) > 1:
            places.sort(key=search.preference)  # stable: among equals, the order of candidates is kept
        yield from places


def _cheapest_on_place(
    search: VictimSearch, candidates: list[SimJob], need: int, max_cost: int
) -> Victims | None:
    """Find the cheapest of these jobs on one node that free `need` devices of it, below `max_cost`."""
    sizes = sorted([job.per_node for job in candidates], reverse=True)
    freed = list(accumulate(sizes))
    if not freed or freed[-1] < need:
        return None
    candidates.sort(key=lambda job: (not job.preemptible, job.rank, -job.started, job.id))
    if len(candidates) > MAX_EXACT:
        found = _greedy_on_place(candidates, need)
        return found if sum(j.devices for j in found) < max_cost and search.keeps_guarantees(found) else None
    best: Victims | None = None
    fewest = bisect_left(freed, need) + 1
    for count in range(fewest, len(candidates) + 1):
        for victims in combinations(candidates, count):
            if sum([job.per_node for job in victims]) < need:
                continue
            cost = sum([job.devices for job in victims])
            if cost < max_cost and search.keeps_guarantees(victims):
                best, max_cost = victims, cost
                if cost == need:
                    return best
    return best


def _greedy_on_place(candidates: Sequence[SimJob], need: int) -> Victims:
    """Take the largest jobs of a node with many slices first, then give back those that are not needed."""
    chosen: list[SimJob] = []
    freed = 0
    for job in sorted(candidates, key=lambda j: (not j.preemptible, j.rank, -j.per_node, -j.started)):
        if freed >= need:
            break
        chosen.append(job)
        freed += job.per_node
    for job in sorted(chosen, key=lambda job: -job.devices):
        if freed - job.per_node >= need:
            chosen.remove(job)
            freed -= job.per_node
    return tuple(chosen)


def _cheapest_of_few(search: VictimSearch, candidates: Sequence[SimJob]) -> Victims | None:
    sets = [victims for n in range(1, len(candidates) + 1) for victims in combinations(candidates, n)]
    sets.sort(key=lambda victims: sum(job.devices for job in victims))  # stable: the least harmful of equals
    return next((s for s in sets if search.suffices(s) and search.keeps_guarantees(s)), None)


def _cheap_of_many(search: VictimSearch, candidates: Sequence[SimJob]) -> Victims | None:
    """Search greedily: free what ceilings require, then the cheapest nodes, then drop unneeded victims."""
    chosen: dict[SimJob, None] = {}
    for quota, need in search.shortfalls:
        remaining = need - sum(job.devices for job in chosen if quota in job.quota.path)
        inside = [job for job in candidates if quota in job.quota.path and job not in chosen]
        while remaining > 0 and inside:
            enough = [job for job in inside if job.devices >= remaining]
            job = min(enough, key=lambda j: j.devices) if enough else max(inside, key=lambda j: j.devices)
            inside.remove(job)
            if search.keeps_guarantees([*chosen, job]):
                chosen[job] = None
                remaining -= job.devices
    if not _fits_without(search.job, search.index, list(chosen)):
        for victims in _cheapest_places(search, candidates):
            added = [job for job in victims if job not in chosen]
            if not search.keeps_guarantees([*chosen, *added]):
                continue
            chosen.update(dict.fromkeys(added))
            if _fits_without(search.job, search.index, list(chosen)):
                break
        else:
            return None
    for job in sorted(chosen, key=lambda job: -job.devices):
        if search.suffices([other for other in chosen if other is not job]):
            del chosen[job]
    found = tuple(chosen)
    return found if found and search.suffices(found) and search.keeps_guarantees(found) else None


def _cheapest_places(search: VictimSearch, candidates: Sequence[SimJob]) -> Iterator[Victims]:
    """Generate the cheapest victims for each node that has too few free devices. The cheapest node first.

    No node costs less than the devices that it is short of: the search goes by these, and only as far as the
    caller asks.
    """
    index, need = search.index, search.job.per_node
    free, jobs_on, is_candidate = index.free, index.jobs_on, search.is_candidate
    short = sorted(
        [
            (need - free[place], place)
            for place in {place: None for job in candidates for place in job.places}
            if free[place] < need and search.could_fit_on(place)
        ]
    )
    found: list[tuple[int, int, Victims]] = []
    for missing, place in short:
        while found and found[0][:2] <= (missing, place):
            yield heappop(found)[2]
        victims = _cheapest_on_place(
            search, [job for job in jobs_on[place] if is_candidate(job)], missing, 1 << 60
        )
        if victims is not None:
            heappush(found, (sum([job.devices for job in victims]), place, victims))
    while found:
        yield heappop(found)[2]


def _fits_without(job: SimJob, index: DeviceIndex, victims: Sequence[SimJob]) -> bool:
    """Return whether the job fits on listed places without these. O(places freed), except in one rack."""
    need = job.per_node
    freed: dict[int, int] = {}
    for other in victims:
        for place in other.places:
            freed[place] = freed.get(place, 0) + other.per_node
    added = [p for p, n in freed.items() if index.listed[p] and index.free[p] < need <= index.free[p] + n]
    if not job.together:
        return len(added) + index.free_at_least[need] >= job.nodes
    racks: dict[int, int] = {}
    for place in (*added, *(p for bucket in index.buckets[need:] for p in bucket)):
        racks[index.rack(place)] = racks.get(index.rack(place), 0) + 1
    return max(racks.values(), default=0) >= job.nodes
