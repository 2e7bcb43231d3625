"""Run one scenario of a what-if study: a fleet, sizes and assumptions, with one variant of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from fairway.model.fleet import Fleet, VirtualPlace
from fairway.model.names import PoolName
from fairway.model.trace import TraceJob
from fairway.policy.slo import Counts
from fairway.simulate.replay.growth import grown
from fairway.simulate.replay.metrics import RunMetrics, measure
from fairway.simulate.replay.objectives import count_objectives, held_beyond
from fairway.simulate.replay.observed import ObservedMetrics, measure_observed
from fairway.simulate.replay.options import DEFAULT_OPTIONS, ReplayOptions
from fairway.simulate.replay.run import replay
from fairway.simulate.replay.variants import variant


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet to replay a trace on."""

    name: str
    fleet: Fleet
    sizes: Mapping[PoolName, VirtualPlace] = field(default_factory=lambda: MappingProxyType({}))
    options: ReplayOptions = DEFAULT_OPTIONS
    settings: tuple[str, ...] = ()
    """What a sweep changed in the fleet file: `half_life=1d`."""


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """The figures of a scenario with one seed."""

    seed: int
    metrics: RunMetrics
    observed: ObservedMetrics | None
    """What really happened, where the trace tells it; of seed 0, which is the trace as it was."""
    objectives: Mapping[str, Counts] = field(default_factory=dict)
    """Good and bad events of each objective of the fleet file, by its name."""
    beyond: Mapping[PoolName, float] = field(default_factory=dict)
    """GPU-hours that were held beyond the GPUs of `ReplayOptions.beyond`."""


def run_scenario(
    scenario: Scenario,
    trace: Sequence[TraceJob],
    seed: int,
    on_progress: Callable[[float], None] = lambda _part: None,
) -> ScenarioRun:
    """Replay a variant of a trace on a scenario's fleet, and measure it."""
    options = scenario.options
    begin = trace[0].at if options.begin is None and trace else options.begin or 0.0
    end = trace[-1].at if options.end is None and trace else options.end or 0.0
    demand = grown(trace, options.growth, begin, end)
    varied = variant(demand, seed, begin, end)
    result = replay(scenario.fleet, varied, scenario.sizes, seed, options, on_progress)
    metrics = measure(result)
    observed = measure_observed(result, metrics) if seed == 0 and demand is trace else None
    objectives = count_objectives(result, scenario.fleet.slos)
    return ScenarioRun(seed, metrics, observed, objectives, held_beyond(result, options.beyond))
