"""Predict how long a job will run from how long jobs like it ran, as a distribution. Pure."""

from fairway.simulate.run_times.histogram import Histogram
from fairway.simulate.run_times.predict import FinishedRun, RunTimes
from fairway.simulate.run_times.traits import (
    JobGroup,
    JobTraits,
    PredictsRunTimes,
    RunTimeDistribution,
    RunTimeKey,
    keys_of,
    name_pattern,
)

__all__ = [
    "FinishedRun",
    "Histogram",
    "JobGroup",
    "JobTraits",
    "PredictsRunTimes",
    "RunTimeDistribution",
    "RunTimeKey",
    "RunTimes",
    "keys_of",
    "name_pattern",
]
