"""Replay a trace on the clusters of a fleet.

    result = replay(fleet, trace, sizes, seed=0)
    measure(result).total.p95_wait

All pools are simulated together: what a team holds of one supply has no effect on another, so clusters need
not be apart. The replay begins with empty clusters, but for jobs that ran when the measured time begins
(`ReplayOptions.begin`): they are submitted when they really started. Each job waits, runs for as long as it
really ran, and starts from the beginning after a preemption. After the last submission the replay goes on
until all jobs have ended. It depends on nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf, isnan
from typing import Final

from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Fleet, VirtualPlace
from fairway.model.names import NodeName, PoolName, TeamName
from fairway.model.team import Supply
from fairway.model.trace import TraceJob
from fairway.simulate.cluster import Simulator, requeue_seconds_of
from fairway.simulate.replay.chance import exponential
from fairway.simulate.replay.fair import FairDivision
from fairway.simulate.replay.mapping import LeftOut, RequestMapping, TraceTeams, terms_for
from fairway.simulate.replay.options import DEFAULT_OPTIONS, ReplayOptions
from fairway.simulate.replay.recorder import Recorder, SupplySamples
from fairway.simulate.replay.sizes import PoolSizes, size_of, with_sizes

_PROGRESS_EVERY: Final = 500
_SHORTEST: Final = 1.0
"""A job that the trace lets run for no time runs for this long."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job in a replay."""

    job: TraceJob
    team: TeamName
    supply: Supply
    submitted: float
    started: float | None
    """Its first start. None: it never started."""
    ended: float | None
    attempts: int

    @property
    def wait(self) -> float | None:
        """Return the seconds from its submission to its first start."""
        return None if self.started is None else self.started - self.submitted


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of every job of a replay, and of the devices. `measure` makes figures of it."""

    fleet: Fleet
    """With the sizes that were simulated."""
    trace: Sequence[TraceJob]
    seed: int
    begin: float
    end: float
    """Waits are of jobs submitted from `begin` to `end`; hours are of the time between."""
    finished_at: float
    """When the last job ended."""
    options: ReplayOptions
    supplies: tuple[Supply, ...]
    records: Recorder
    """Columns by the job's place in `trace`, and sums by team and supply."""
    samples: tuple[SupplySamples, ...]
    """By supply."""
    gpu_seconds: Mapping[PoolName, tuple[float, float]]
    """GPU-seconds that were available at the pool's price, and at its price as spot."""
    left_out: tuple[LeftOut, ...]
    """Jobs that could not be replayed, by reason, most first."""

    def outcomes(self, *, counted: bool = True) -> Iterator[JobOutcome]:
        """Generate the outcome of each replayed job; `counted`: only of jobs of the measured time."""
        records, teams = self.records, self.fleet.teams
        for place, job in enumerate(self.trace):
            cell = records.cell[place]
            if cell < 0 or (counted and not self.begin <= job.at <= self.end):
                continue
            supply, team = divmod(cell, records.teams)
            yield JobOutcome(
                job,
                teams[team].name,
                self.supplies[supply],
                records.submitted[place],
                _known(records.first_start[place]),
                _known(records.ended[place]),
                records.attempts[place],
            )


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def replay(
    fleet: Fleet,
    trace: Sequence[TraceJob],
    sizes: PoolSizes | None = None,
    seed: int = 0,
    options: ReplayOptions = DEFAULT_OPTIONS,
    on_progress: Callable[[float], None] = lambda _part: None,
) -> RunResult:
    """Replay a trace, sorted by time, on a fleet.

    `sizes` are those of pools whose size the file does not state, and override those that it does. `seed`
    decides when spot nodes are lost; see `variants` for others of the trace. Raises Refused if a size is
    missing. O(events), as the Simulator; in memory O(jobs).
    """
    return _Replay(with_sizes(fleet, sizes or {}), fleet, trace, seed, options, on_progress).run()


def _requeue_seconds(fleet: Fleet, options: ReplayOptions) -> Mapping[PoolName, float]:
    if options.requeue_seconds is None:
        return requeue_seconds_of(fleet)
    return dict.fromkeys((pool.name for pool in fleet.pools), options.requeue_seconds)


class _Replay:
    """One run: a Simulator, an agenda of what else happens, and the Recorder."""

    def __init__(
        self,
        fleet: Fleet,
        named: Fleet,
        trace: Sequence[TraceJob],
        seed: int,
        options: ReplayOptions,
        on_progress: Callable[[float], None],
    ) -> None:
        self._fleet, self._trace, self._seed, self._options = fleet, trace, seed, options
        self._on_progress: Final = on_progress
        first = trace[0].at if trace else 0.0
        self._begin: Final = first if options.begin is None else options.begin
        last = trace[-1].at if trace else 0.0
        self._end: Final = max(self._begin, last if options.end is None else options.end)
        teams = TraceTeams(named)
        supplies = [supply for pool in fleet.pools for supply in pool.supplies]
        self._supplies: Final = tuple(supplies)
        self._numbers: Final = {supply: number for number, supply in enumerate(supplies)}
        self._team_numbers: Final = {team.name: number for number, team in enumerate(fleet.teams)}
        self._records: Final = Recorder(len(trace), len(fleet.teams), len(supplies), self._begin, self._end)
        start = min((self._arrival(job) for job in trace), default=0.0)
        self._simulator: Final = Simulator(
            fleet.pools,
            terms_for(fleet, trace, teams),
            start,
            history_size=0,
            reserve_after_seconds=options.reserve_after_seconds,
            start_seconds=options.start_seconds,
            requeue_seconds=_requeue_seconds(fleet, options),
            observer=self._records,
        )
        self._mapping: Final = RequestMapping(named, fleet, teams, self._simulator)
        self._division: Final = FairDivision(fleet.teams)
        self._samples: Final = tuple(SupplySamples(len(fleet.teams)) for _ in supplies)
        self._sample_seconds: Final = max((self._end - self._begin) / max(1, options.samples), 1.0)
        self._agenda: Final[list[tuple[float, int, Callable[[float], None]]]] = []
        self._agenda_number = 0
        self._sizes: Final = [self._size(supply) for supply in supplies]
        self._up: Final = [float(nodes * per_node) for nodes, per_node in self._sizes]
        """Devices of each supply on nodes that are there."""
        self._up_since: Final = [start] * len(supplies)
        self._gpus: Final = {pool.name: [float(self._gpus_of(pool.name)), 0.0] for pool in fleet.pools}
        """GPUs that are there now, at the pool's price and at its price as spot."""
        self._gpus_since: Final = dict.fromkeys(self._gpus, start)
        self._gpu_seconds: Final = {pool.name: [0.0, 0.0] for pool in fleet.pools}
        self._left_out: Final[dict[str, LeftOut]] = {}

    def _size(self, supply: Supply) -> tuple[int, int]:
        place = self._place_of(supply.pool)
        cut = 1 if supply.slice is None else place.slices_per_gpu[supply.slice]
        return place.nodes, place.gpus_per_node * cut

    def _place_of(self, pool: PoolName) -> VirtualPlace:
        return size_of(self._fleet.pool(pool))

    def _gpus_of(self, pool: PoolName) -> int:
        place = self._place_of(pool)
        return place.nodes * place.gpus_per_node

    # the run

    def run(self) -> RunResult:
        self._plan(self._begin + self._sample_seconds / 2, self._sample)
        self._plan_spot()
        order = self._order()
        for count, (at, place) in enumerate(order):
            self._advance(at)
            self._submit(place, at)
            if count % _PROGRESS_EVERY == 0:
                self._on_progress(0.95 * count / len(order))
        self._advance(self._end)
        self._drain()
        finished = self._simulator.now
        self._records.finish(finished)
        for number in range(len(self._supplies)):
            self._count_available(number, finished)
        for pool in self._gpus:
            self._count_gpus(pool, finished)
        self._on_progress(1.0)
        left_out = sorted(self._left_out.values(), key=lambda found: (-found.jobs, found.code))
        return RunResult(
            self._fleet,
            self._trace,
            self._seed,
            self._begin,
            self._end,
            finished,
            self._options,
            self._supplies,
            self._records,
            self._samples,
            {pool: (usual, spot) for pool, (usual, spot) in self._gpu_seconds.items()},
            tuple(left_out),
        )

    def _arrival(self, job: TraceJob) -> float:
        """Return when a job is submitted: one that ran as the measured time began, when it started."""
        if job.at >= self._begin or job.started is None:
            return job.at
        return min(job.started, self._begin)

    def _order(self) -> Sequence[tuple[float, int]]:
        arrivals = [(self._arrival(job), place) for place, job in enumerate(self._trace)]
        arrivals.sort()  # all but sorted: linear
        return arrivals

    def _submit(self, place: int, at: float) -> None:
        job = self._trace[place]
        seconds = max(job.seconds, _SHORTEST) if job.cancelled_after is None else inf
        records = self._records
        try:
            request = self._mapping.request(job, seconds, self._load)
            supply = self._numbers.get(request.supply)
            if supply is None or request.team is None:
                self._simulator.check(request)  # which refuses it, and says why
                raise AssertionError(f"{request} was not refused")
            cell = supply * records.teams + self._team_numbers[request.team]
            records.arrive(place, cell, request.gpus * request.nodes, at)
            try:
                number = self._simulator.submit(request)
            except Refused:
                records.withdraw(place)
                raise
        except Refused as refused:
            self._leave_out(job, refused)
            return
        if job.cancelled_after is not None:
            self._plan(max(at, job.at + job.cancelled_after), lambda now: self._cancel(number, place, now))

    def _cancel(self, number: int, place: int, at: float) -> None:
        """Cancel a job when its user did, whether it waits here or runs; it may have ended at its limit."""
        if not isnan(self._records.ended[place]):
            return
        if not self._records.runs(place):
            self._records.give_up(place, at)
        self._simulator.cancel(number)

    def _load(self, supply: Supply) -> float:
        number = self._numbers[supply]
        return self._records.supply_wanted[number] / (self._up[number] or 1e-9)

    def _leave_out(self, job: TraceJob, refused: Refused) -> None:
        if not self._begin <= job.at <= self._end:
            return
        hours = job.devices * job.seconds / 3600
        found = self._left_out.get(refused.code)
        if found is None:
            self._left_out[refused.code] = LeftOut(refused.code, refused.message, 1, hours)
        else:
            self._left_out[refused.code] = replace(
                found, jobs=found.jobs + 1, gpu_hours=found.gpu_hours + hours
            )

    # the agenda

    def _plan(self, at: float, what: Callable[[float], None]) -> None:
        self._agenda_number += 1
        heappush(self._agenda, (at, self._agenda_number, what))

    def _advance(self, until: float) -> None:
        agenda, simulator = self._agenda, self._simulator
        while agenda and agenda[0][0] <= until:
            at, _, what = heappop(agenda)
            simulator.advance(at)
            what(at)
        if until > simulator.now or simulator.next_at() is not None:
            simulator.advance(until)

    def _drain(self) -> None:
        """Go on until all jobs have ended, or no more can start."""
        horizon = self._end + 10 * max(self._end - self._begin, 30 * 24 * 3600.0)
        while any(self._records.supply_wanted):
            following = self._simulator.next_at()
            planned = self._agenda[0][0] if self._agenda else inf
            at = min(planned, inf if following is None else following)
            if at > horizon:
                return
            self._advance(at)

    # samples

    def _sample(self, at: float) -> None:
        smallest: Mapping[Supply, int] | None = None
        records, teams = self._records, self._records.teams
        for number, supply in enumerate(self._supplies):
            held, wanted = records.supply_held[number], records.supply_wanted[number]
            if wanted <= held:
                continue
            if smallest is None:
                smallest = self._simulator.smallest_waiting()
            cells = slice(number * teams, (number + 1) * teams)
            self._samples[number].add(
                self._sample_seconds,
                max(0.0, self._up[number] - held),
                self._up[number],
                records.held[cells],
                records.wanted[cells],
                self._division,
                startable=supply in smallest,
            )
        if at + self._sample_seconds <= self._end:
            self._plan(at + self._sample_seconds, self._sample)

    # spot nodes

    def _plan_spot(self) -> None:
        self._spot_nodes: dict[NodeName, int] = {}
        """Spot nodes, and how often each was lost."""
        parts = self._options.spot_parts
        for pool_number, pool in enumerate(self._fleet.pools):
            whole = 1.0 if pool.capacity is Capacity.SPOT else 0.0
            place = self._place_of(pool.name)
            count = round(parts.get(pool.name, whole) * place.nodes)
            names = [node for node, found in self._simulator.nodes().items() if found.pool.name == pool.name]
            if not whole:
                self._gpus[pool.name][0] -= count * place.gpus_per_node
                self._gpus[pool.name][1] += count * place.gpus_per_node
            for number, node in enumerate(names[len(names) - count :]):
                self._spot_nodes[node] = 0
                self._plan_loss(node, pool_number * 1_000_000 + number, self._simulator.now)

    def _plan_loss(self, node: NodeName, key: int, now: float) -> None:
        at = now + exponential(self._options.spot.up_seconds, self._seed, key, 2 * self._spot_nodes[node])
        self._plan(at, lambda then: self._lose(node, key, then))

    def _lose(self, node: NodeName, key: int, at: float) -> None:
        self._change_up(node, at, -1)
        self._simulator.lose(node)
        draw = 2 * self._spot_nodes[node] + 1
        seconds = exponential(self._options.spot.down_seconds, self._seed, key, draw)
        self._spot_nodes[node] += 1
        self._plan(at + seconds, lambda then: self._recover(node, key, then))

    def _recover(self, node: NodeName, key: int, at: float) -> None:
        self._change_up(node, at, 1)
        self._simulator.recover(node)
        self._plan_loss(node, key, at)

    def _change_up(self, node: NodeName, at: float, sign: int) -> None:
        pool = self._simulator.nodes()[node].pool
        for number, supply in enumerate(self._supplies):
            if supply.pool == pool.name:
                self._count_available(number, at)
                self._up[number] += sign * self._sizes[number][1]
        self._count_gpus(pool.name, at)
        column = 0 if pool.capacity is Capacity.SPOT else 1
        self._gpus[pool.name][column] += sign * self._place_of(pool.name).gpus_per_node

    def _count_available(self, number: int, until: float) -> None:
        since, self._up_since[number] = self._up_since[number], until
        seconds = min(until, self._end) - max(since, self._begin)
        if seconds > 0:
            self._samples[number].available += self._up[number] * seconds

    def _count_gpus(self, pool: PoolName, until: float) -> None:
        since, self._gpus_since[pool] = self._gpus_since[pool], until
        seconds = min(until, self._end) - max(since, self._begin)
        if seconds > 0:
            usual, spot = self._gpus[pool]
            self._gpu_seconds[pool][0] += usual * seconds
            self._gpu_seconds[pool][1] += spot * seconds
