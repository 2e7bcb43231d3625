"""Replay a trace under a fleet's rules, and measure what became of it: the model behind what-if. Pure."""

from fairway.simulate.replay.estimates import Estimate, estimate
from fairway.simulate.replay.mapping import LeftOut
from fairway.simulate.replay.metrics import JobStats, PoolStats, RunMetrics, SizeClass, TeamStats, measure
from fairway.simulate.replay.observed import ObservedMetrics, ObservedTeam, measure_observed
from fairway.simulate.replay.options import ReplayOptions, SpotAssumption
from fairway.simulate.replay.run import JobOutcome, RunResult, replay
from fairway.simulate.replay.scenario import Scenario, ScenarioRun, run_scenario
from fairway.simulate.replay.sizes import PoolSizes, size_of, sizes_of, with_sizes
from fairway.simulate.replay.variants import variant

__all__ = [
    "Estimate",
    "JobOutcome",
    "JobStats",
    "LeftOut",
    "ObservedMetrics",
    "ObservedTeam",
    "PoolSizes",
    "PoolStats",
    "ReplayOptions",
    "RunMetrics",
    "RunResult",
    "Scenario",
    "ScenarioRun",
    "SizeClass",
    "SpotAssumption",
    "TeamStats",
    "estimate",
    "measure",
    "measure_observed",
    "replay",
    "run_scenario",
    "size_of",
    "sizes_of",
    "variant",
    "with_sizes",
]
