"""Plan capacity: search the smallest sizes of pools that meet objectives, on all cores.

Each round replays the next size of every search at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from fairway.cli.shared.simulations import run_study
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.slo import Slo
from fairway.model.trace import TraceJob
from fairway.simulate.capacity import SizeSearch, meets, with_nodes
from fairway.simulate.replay import PoolSizes, ReplayOptions, Scenario, ScenarioRun

_ROOM: Final = 1.5
"""More nodes than this many times the peak of what could run at once change nothing."""
_ROUNDS: Final = 8
"""Rounds that a plan usually takes; for the progress."""


@dataclass(frozen=True, slots=True)
class CapacityStudy:
    """What to plan for."""

    fleet: Fleet
    sizes: PoolSizes
    """Of every pool."""
    slos: tuple[Slo, ...]
    pools: tuple[PoolName, ...]
    factors: tuple[float, ...]
    """The demand of each month, as a part of that of the trace."""
    begin: float
    end: float
    keep_limits: bool


@dataclass(frozen=True, slots=True)
class PlannedSize:
    """The result for a pool and a month."""

    pool: PoolName
    month: int
    nodes: int | None
    """None: no size meets the objectives."""
    tried: int
    """The most nodes that were tried."""
    run: ScenarioRun
    """With so many nodes, or with the most that were tried."""


class CapacityPlanner:
    """Runs the replays of a study, and keeps their results."""

    def __init__(
        self, study: CapacityStudy, trace: Sequence[TraceJob], on_progress: Callable[[float], None]
    ) -> None:
        self._study = study
        self._trace = trace
        self._on_progress = on_progress
        self._peak = _peak_devices(trace)
        self._runs: dict[tuple[PoolName, int], dict[int, ScenarioRun]] = {}
        """By pool, month and nodes."""
        self._rounds = 0

    def plan(self) -> list[PlannedSize]:
        """Return the smallest size of each pool in each month, with all other pools as they are.

        A month needs no less than the month before it, whose demand it contains.
        """
        study = self._study
        targets = {slo.name: slo.target for slo in study.slos}
        searches = {
            (pool, month): self._search(pool, factor)
            for pool in study.pools
            for month, factor in enumerate(study.factors)
        }
        while wanted := {key: n for key, one in searches.items() if (n := one.next_size()) is not None}:
            self._replay([(*key, nodes) for key, nodes in wanted.items()])
            for key, nodes in wanted.items():
                searches[key].tell(nodes, meets=meets(self._runs[key][nodes].objectives, targets))
        # Of two schedules, that with more nodes may be the worse one by chance.
        needed: dict[tuple[PoolName, int], int | None] = {}
        for (pool, month), search in searches.items():
            before = needed.get((pool, month - 1))
            needed[pool, month] = None if search.found is None else max(search.found, before or 0)
        shown = {key: nodes or max(self._runs[key]) for key, nodes in needed.items()}
        self._replay([(*key, nodes) for key, nodes in shown.items() if nodes not in self._runs[key]])
        return [
            PlannedSize(*key, nodes, max(self._runs[key]), self._runs[key][shown[key]])
            for key, nodes in needed.items()
        ]

    def _search(self, pool: PoolName, factor: float) -> SizeSearch:
        """Begin the search of a pool, from what its largest jobs need to what all jobs would at once."""
        place = self._study.sizes[pool]
        per_node = place.gpus_per_node
        # Jobs that do not fit into the present pool are left out of every replay.
        needs = (max(job.nodes, ceil(job.devices / per_node)) for job in self._trace)
        largest = max((need for need in needs if need <= place.nodes), default=1)
        most = ceil(_ROOM * factor * self._peak / per_node) + largest
        return SizeSearch(place.nodes, most, largest)

    def _replay(self, tasks: Sequence[tuple[PoolName, int, int]]) -> None:
        """Replay sizes of pools in months, and keep the results."""
        if not tasks:
            return
        before, self._rounds = self._rounds, self._rounds + 1

        def advance(part: float) -> None:
            self._on_progress(min(0.99, (before + part) / _ROUNDS))

        scenarios = [self._scenario(*task) for task in tasks]
        for (pool, month, nodes), studied in zip(
            tasks, run_study(scenarios, self._trace, 1, advance), strict=True
        ):
            self._runs.setdefault((pool, month), {})[nodes] = studied.runs[0]

    def _scenario(self, pool: PoolName, month: int, nodes: int) -> Scenario:
        study, place = self._study, self._study.sizes[pool]
        fleet, sizes = with_nodes(study.fleet, study.sizes, pool, nodes, keep_limits=study.keep_limits)
        now = float(place.nodes * place.gpus_per_node)
        options = ReplayOptions(study.begin, study.end, growth=study.factors[month], beyond={pool: now})
        return Scenario(f"{pool} {month} {nodes}", replace(fleet, slos=study.slos), sizes, options)


def _peak_devices(trace: Sequence[TraceJob]) -> int:
    """Return the most GPUs that jobs would hold at once if none of them waited."""
    changes = sorted(
        change
        for job in trace
        for change in ((job.at, job.devices), (job.at + max(job.seconds, 1.0), -job.devices))
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
