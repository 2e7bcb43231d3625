"""Which running jobs give way so that one can start: the fewest devices that do, none that is protected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import accumulate, combinations, islice
from typing import Final

from fairway.engines.virtual.simulator.accounting import Accounting
from fairway.engines.virtual.simulator.jobs import SimJob, TeamQuota
from fairway.engines.virtual.simulator.nodes import DeviceIndex

MOST_EXACT = 10
"""Up to so many jobs that could give way, every set of them is weighed."""
MOST_WEIGHED = 400
"""More are not looked at: on a cluster of thousands of lent jobs a good choice is found long before."""
ENOUGH_PLACES = 16
"""So many nodes that could be had are weighed for what is preemptible always: it expects to go, and often."""
_FIRM: Final = (1, 0)


class Reach(IntEnum):
    """Whose jobs may give way. Each reach includes those before it; the first that suffices is taken."""

    LOW = 0
    """Jobs that are preemptible always, anybody's."""
    LENT = 1
    """What teams hold beyond their guarantee, but nothing urgent; no team falls below its guarantee."""
    LENT_URGENT = 2
    LENT_LARGE = 3
    """Also a lent job that straddles the guarantee: its team falls below, but was above."""
    OUTRANKED = 4
    """Lower jobs of its own team."""


class VictimSearch:
    """What one search may touch."""

    __slots__ = ("firm", "index", "job", "leaving", "low", "now", "over", "reach", "urgent_above")

    def __init__(self, job: SimJob, accounting: Accounting, over: AbstractSet[TeamQuota], now: float) -> None:
        self.job: Final = job
        """Not itself preemptible always: such a job takes nothing from anybody."""
        self.index: Final = accounting.index
        self.low: Final = accounting.low_running
        self.urgent_above: Final = accounting.urgent_above
        self.over: Final = over
        """Branches whose own jobs may be taken back: they and all above them are over their guarantee."""
        self.now: Final = now
        self.reach = Reach.LOW
        self.firm: list[SimJob] = []
        """Within reach, besides what is preemptible always; those first whose going hurts least."""
        self.leaving: dict[int, int] = {}
        """How many devices of each place those hold."""

    def widen(self, reach: Reach) -> None:
        """Find who is within this reach. O(those found)."""
        self.reach = reach
        self.firm = self._lent() if self.over and reach >= Reach.LENT else []
        if reach >= Reach.OUTRANKED:
            self.firm += self._outranked()
        leaving = self.leaving = {}
        for job in self.firm:
            devices = job.per_node
            for place in job.places:
                leaving[place] = leaving.get(place, 0) + devices

    def _lent(self) -> list[SimJob]:
        found: list[SimJob] = []
        mine, now, any_rank = self.job.quota, self.now, self.reach >= Reach.LENT_URGENT
        for quota in sorted(self.over, key=lambda b: (-b.beyond / b.share, b.name)):
            if quota is mine:
                continue
            for rank in sorted(quota.running):
                if any_rank or rank <= self.urgent_above:
                    jobs = reversed(quota.running[rank])
                    found += [j for j in jobs if not (j.low or j.kept or j.barred_at == now)]
            if len(found) >= MOST_WEIGHED:
                return found[:MOST_WEIGHED]
        return found

    def _outranked(self) -> list[SimJob]:
        now, weaker = self.now, self.job.quota.weakest_first(self.job.rank)
        return list(islice((j for j in weaker if not j.low and j.barred_at != now), MOST_WEIGHED))

    def may_go(self, job: SimJob) -> bool:
        """Whether this running job may give way, as far as it is seen alone."""
        if job.barred_at == self.now:
            return False  # once a moment is enough
        if job.low:
            return True
        if self.reach < Reach.LENT:
            return False
        if job.quota is self.job.quota:
            return self.reach >= Reach.OUTRANKED and job.rank < self.job.rank
        if job.kept or job.quota not in self.over:
            return False
        return self.reach >= Reach.LENT_URGENT or job.rank <= self.urgent_above

    def hurts(self, place: int) -> tuple[int, int]:
        """Of places that are equal otherwise, least where the youngest is that is preemptible always."""
        if self.index.loose_at[place] == self.index.free[place]:
            return _FIRM
        now, here = self.now, self.index.jobs_on[place]
        low = [(-j.turn, j.places.index(place)) for j in here if j.low and j.barred_at != now]
        return min(low, default=_FIRM)

    def could_have(self, place: int) -> bool:
        """Whether the place has room for the job's part, should all leave who may."""
        index = self.index
        return index.listed[place] and index.loose_at[place] + self.leaving.get(place, 0) >= self.job.per_node

    def has_places(self) -> bool:
        """Whether enough places could be had, as far as a count tells. O(those within reach)."""
        index, need = self.index, self.job.per_node
        loose_at, listed = index.loose_at, index.listed
        missing = self.job.nodes - index.loose_at_least[need]
        if missing > 0:
            for place, devices in self.leaving.items():
                if listed[place] and loose_at[place] < need <= loose_at[place] + devices:
                    missing -= 1
        return missing <= 0

    def candidates(self, short: Sequence[tuple[TeamQuota, int]]) -> list[SimJob]:
        """Everybody that may go, those first whose going hurts least."""
        now, low = self.now, reversed(self.low)
        if len(self.low) + len(self.firm) <= MOST_WEIGHED:
            return [job for job in low if job.barred_at != now] + self.firm
        # So many run on idle devices that those must not fill the list who make no room where it is needed.
        useful = (
            job
            for job in low
            if job.barred_at != now
            and (any(map(self.could_have, job.places)) or any(quota in job.quota.path for quota, _ in short))
        )
        return list(islice(useful, MOST_WEIGHED)) + self.firm

    def allowed(self, some: Sequence[SimJob]) -> bool:
        """Whether they may go together: no team within its guarantee loses anything on the way."""
        taken: dict[TeamQuota, tuple[int, int]] = {}
        mine = self.job.quota.path
        for job in some:
            if job.low or job.quota is self.job.quota:
                continue
            for quota in job.quota.path:
                if quota in mine:
                    break
                total, largest = taken.get(quota, (0, 0))
                taken[quota] = (total + job.devices, max(largest, job.devices))
        if self.reach >= Reach.LENT_LARGE:
            # Taken one after the other, the largest last, each is taken from a team above its guarantee.
            return all(total - top < b.firm - b.guarantee for b, (total, top) in taken.items())
        return all(total <= b.firm - b.guarantee for b, (total, _) in taken.items())

    def short_of_quota(self) -> list[tuple[TeamQuota, int]]:
        """Ceilings in the way, each with how much must go beneath it."""
        job = self.job
        short = ((b, b.held + job.devices - b.ceiling) for b in job.quota.path)
        return [(quota, need) for quota, need in short if need > 0]

    def suffices(self, some: Sequence[SimJob], short: Sequence[tuple[TeamQuota, int]]) -> bool:
        """Whether the job can start once they are gone."""
        for quota, need in short:
            if sum(job.devices for job in some if quota in job.quota.path) < need:
                return False
        return _fits_without(self.job, self.index, some)


def over_guarantee(job: SimJob) -> set[TeamQuota]:
    """Branches whose jobs are lent as seen from `job`: it is within a guarantee that they are beyond.

    Seen from the lowest team both are inside of: its quota stays within its guarantee with the job, while
    theirs, and every team between, is beyond its own.
    """
    found: set[TeamQuota] = set()
    for quota in job.quota.path:
        above = quota.parent
        if above is None or quota.firm + job.devices > quota.guarantee:
            continue
        if above.path:
            found.add(above)  # jobs of the team above itself: its guarantee is its children's first
        for sibling in above.children:
            if sibling is not quota:
                _collect_over(sibling, found)
    return found


def _collect_over(quota: TeamQuota, found: set[TeamQuota]) -> None:
    if quota.firm > quota.guarantee:
        found.add(quota)
        for child in quota.children:
            _collect_over(child, found)


def select_victims(job: SimJob, accounting: Accounting, now: float) -> tuple[SimJob, ...] | None:
    """Who gives way so that `job` can start; None: nobody can make room for it."""
    over = over_guarantee(job)
    search = VictimSearch(job, accounting, over, now)
    short = search.short_of_quota()
    if accounting.low_running:
        found = _least(search, short)
        if found is not None:
            return found
    if over:
        for reach in (Reach.LENT, Reach.LENT_URGENT, Reach.LENT_LARGE):
            search.widen(reach)
            found = _least(search, short)
            if found is not None:
                return found
    if job.quota.runs_between(accounting.lowest_firm, job.rank):
        search.widen(Reach.OUTRANKED)
        return _least(search, short)
    return None


def _least(search: VictimSearch, short: Sequence[tuple[TeamQuota, int]]) -> tuple[SimJob, ...] | None:
    if not search.has_places():
        return None
    if not short and search.job.nodes == 1:
        return _least_on_one_node(search)
    candidates = search.candidates(short)
    if not search.suffices(candidates, short):
        return None
    if len(candidates) <= MOST_EXACT:
        return _least_of_few(search, candidates, short)
    return _good_of_many(search, candidates, short)


def _least_on_one_node(search: VictimSearch) -> tuple[SimJob, ...] | None:
    """For each node that somebody may leave, the cheapest set of leavers; the cheapest node of all."""
    index, need = search.index, search.job.per_node
    free, jobs_on, may_go = index.free, index.jobs_on, search.may_go
    bound = max(1, need - index.most_free)  # no node can do with less
    best: tuple[SimJob, ...] | None = None
    best_cost = 1 << 60
    for place in _loose_places(search) if search.reach is Reach.LOW else _places_to_weigh(search):
        lacks = need - free[place]
        if lacks >= best_cost:
            continue
        here = [job for job in jobs_on[place] if may_go(job)]
        found = _least_here(search, here, lacks, best_cost)
        if found is not None:
            best, best_cost = found, sum([job.devices for job in found])
            if best_cost <= bound:
                return best
    return best


def _loose_places(search: VictimSearch) -> Iterator[int]:
    """Listed places with room once all that is preemptible always has left; where the youngest is first."""
    index, need = search.index, search.job.per_node
    loose_at, listed = index.loose_at, index.listed
    seen: set[int] = set()
    left = ENOUGH_PLACES
    for job in reversed(search.low):
        for place in job.places:
            if loose_at[place] >= need and listed[place]:
                if place not in seen:
                    seen.add(place)
                    yield place
                left -= 1
                if not left:
                    return


def _places_to_weigh(search: VictimSearch) -> Iterator[int]:
    """Listed places with room once whoever may leave them has, the emptiest first."""
    index, need = search.index, search.job.per_node
    loose_at, listed, free = index.loose_at, index.listed, index.free
    equals: dict[int, list[int]] = {}
    for place, devices in search.leaving.items():
        if loose_at[place] + devices >= need and listed[place]:
            equals.setdefault(free[place], []).append(place)
    for count in sorted(equals, reverse=True):
        places = equals[count]
        if len(places) > 1:
            places.sort(key=search.hurts)  # stable: else those first who should leave first
        yield from places


def _least_here(search: VictimSearch, here: list[SimJob], need: int, below: int) -> tuple[SimJob, ...] | None:
    """The cheapest set of these jobs on one node that frees so much of it and costs less than `below`."""
    sizes = sorted([job.per_node for job in here], reverse=True)
    freed = list(accumulate(sizes))
    if not freed or freed[-1] < need:
        return None
    here.sort(key=lambda job: (not job.low, job.rank, -job.started, job.id))
    if len(here) > MOST_EXACT:  # many slices: take from the largest down, then give back what is not needed
        found = _pruned(here, need)
        return found if sum(j.devices for j in found) < below and search.allowed(found) else None
    best: tuple[SimJob, ...] | None = None
    fewest = bisect_left(freed, need) + 1
    for count in range(fewest, len(here) + 1):
        for some in combinations(here, count):
            if sum([job.per_node for job in some]) < need:
                continue
            cost = sum([job.devices for job in some])
            if cost < below and search.allowed(some):
                best, below = some, cost
                if cost == need:
                    return best
    return best


def _pruned(here: Sequence[SimJob], need: int) -> tuple[SimJob, ...]:
    chosen: list[SimJob] = []
    freed = 0
    for job in sorted(here, key=lambda job: (not job.low, job.rank, -job.per_node, -job.started)):
        if freed >= need:
            break
        chosen.append(job)
        freed += job.per_node
    for job in sorted(chosen, key=lambda job: -job.devices):
        if freed - job.per_node >= need:
            chosen.remove(job)
            freed -= job.per_node
    return tuple(chosen)


def _least_of_few(
    search: VictimSearch, candidates: Sequence[SimJob], short: Sequence[tuple[TeamQuota, int]]
) -> tuple[SimJob, ...] | None:
    sets = [some for n in range(1, len(candidates) + 1) for some in combinations(candidates, n)]
    sets.sort(key=lambda some: sum(job.devices for job in some))  # stable: of equals, those that hurt least
    return next((s for s in sets if search.suffices(s, short) and search.allowed(s)), None)


def _good_of_many(
    search: VictimSearch, candidates: Sequence[SimJob], short: Sequence[tuple[TeamQuota, int]]
) -> tuple[SimJob, ...] | None:
    """Greedy: what ceilings ask, then the cheapest nodes; then whoever is not needed after all stays."""
    chosen: dict[SimJob, None] = {}
    for quota, need in short:
        left = need - sum(job.devices for job in chosen if quota in job.quota.path)
        inside = [job for job in candidates if quota in job.quota.path and job not in chosen]
        while left > 0 and inside:
            enough = [job for job in inside if job.devices >= left]
            job = min(enough, key=lambda j: j.devices) if enough else max(inside, key=lambda j: j.devices)
            inside.remove(job)
            if search.allowed([*chosen, job]):
                chosen[job] = None
                left -= job.devices
    if not _fits_without(search.job, search.index, list(chosen)):
        for some in _cheapest_places(search, candidates):
            fresh = [job for job in some if job not in chosen]
            if not search.allowed([*chosen, *fresh]):
                continue
            chosen.update(dict.fromkeys(fresh))
            if _fits_without(search.job, search.index, list(chosen)):
                break
        else:
            return None
    for job in sorted(chosen, key=lambda job: -job.devices):
        rest = [other for other in chosen if other is not job]
        if search.suffices(rest, short):
            del chosen[job]
    found = tuple(chosen)
    return found if found and search.suffices(found, short) and search.allowed(found) else None


def _cheapest_places(search: VictimSearch, candidates: Sequence[SimJob]) -> list[tuple[SimJob, ...]]:
    """For each node that is not free enough: the cheapest set that makes it so. The cheapest first."""
    index, need = search.index, search.job.per_node
    sets: list[tuple[int, int, tuple[SimJob, ...]]] = []
    for place in {place: None for job in candidates for place in job.places}:
        if index.free[place] < need and search.could_have(place):
            here = [job for job in index.jobs_on[place] if search.may_go(job)]
            found = _least_here(search, here, need - index.free[place], 1 << 60)
            if found is not None:
                sets.append((sum(job.devices for job in found), place, found))
    return [found for _, _, found in sorted(sets, key=lambda entry: entry[:2])]


def _fits_without(job: SimJob, index: DeviceIndex, gone: Sequence[SimJob]) -> bool:
    """Whether the job has room on listed places once these are gone. O(places freed), but for one rack."""
    need = job.per_node
    freed: dict[int, int] = {}
    for other in gone:
        for place in other.places:
            freed[place] = freed.get(place, 0) + other.per_node
    fresh = [p for p, n in freed.items() if index.listed[p] and index.free[p] < need <= index.free[p] + n]
    if not job.together:
        return len(fresh) + index.at_least[need] >= job.nodes
    racks: dict[int, int] = {}
    for place in (*fresh, *(p for bucket in index.buckets[need:] for p in bucket)):
        racks[index.rack(place)] = racks.get(index.rack(place), 0) + 1
    return max(racks.values(), default=0) >= job.nodes
