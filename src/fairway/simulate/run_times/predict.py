"""Learn run times from finished jobs, and predict those of others. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.simulate.run_times.distribution import FLAT, Distribution, Learnt, updated
from fairway.simulate.run_times.histogram import Histogram
from fairway.simulate.run_times.traits import JobGroup, JobTraits, Level, RunTimeKey, keys_of

MAX_KEYS: Final = 200_000
"""Groups in memory: about 1.3 kB each; the one that was not used for longest is dropped."""
_OF_USER: Final = frozenset(level for level in Level if level.name.startswith("USER"))
_OF_TEAM: Final = frozenset(level for level in Level if level.name.startswith("TEAM"))
_NAMED: Final = frozenset(level for level in Level if "NAME" in level.name)
_LIMITED: Final = frozenset(level for level in Level if "LIMIT" in level.name)
_SIZED: Final = frozenset(level for level in Level if "SIZE" in level.name)
_ENOUGH: Final = 3
"""The jobs of a group from which on a forecast names it as its source."""


@dataclass(frozen=True, slots=True)
class _Tuning:
    memory: int
    """About how many of its last jobs a group remembers."""
    weight: float
    """How many jobs the wider groups count as in it."""
    share: float
    """How much of a job they count as in addition for each of its own. Jobs that end one after another are
    alike, and say less of the next ones than their number suggests."""


TUNING: Final[Mapping[Level, _Tuning]] = {
    Level.ALL: _Tuning(250, 2, 0),
    Level.SIZE: _Tuning(250, 5, 0),
    Level.LIMIT: _Tuning(250, 20, 0),
    Level.TEAM: _Tuning(250, 5, 0.2),
    Level.TEAM_SIZE: _Tuning(100, 10, 0.2),
    Level.TEAM_NAME: _Tuning(100, 5, 0.2),
    Level.USER: _Tuning(60, 10, 0.8),
    Level.USER_LIMIT: _Tuning(100, 8, 0.8),
    Level.USER_SIZE: _Tuning(250, 20, 0.8),
    Level.USER_NAME: _Tuning(30, 2, 0.2),
    Level.USER_NAME_SIZE: _Tuning(30, 2, 0.2),
    Level.USER_LATELY: _Tuning(2, 4, 0.8),
}
"""Chosen on the CPU jobs of the MIT trace; `python -m bench run_times` measures the others."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that ended by itself, or that its limit ended."""

    traits: JobTraits
    seconds: float
    timed_out: bool = False


class RunTimes:
    """Predicts run times from histograms of groups of jobs; learning a job takes the same time always."""

    def __init__(
        self, known: Mapping[RunTimeKey, Histogram | bytes] | None = None, max_keys: int = MAX_KEYS
    ) -> None:
        """`known` are histograms, or as they are stored: those are decoded when they are used."""
        self._known: OrderedDict[RunTimeKey, Histogram | bytes] = OrderedDict(known or {})
        self._max_keys = max_keys
        self._combined: dict[tuple[RunTimeKey, ...], list[float]] = {}
        self._learnt: dict[JobGroup, Learnt] = {}

    def learn(self, run: FinishedRun) -> None:
        """Add a finished run to every group it belongs to."""
        self._learnt.clear()
        self._combined.clear()
        for level, key in keys_of(JobGroup.of(run.traits)):
            histogram = self._histogram(key)
            if histogram is None:
                histogram = self._known[key] = Histogram()
            histogram.learn(run.seconds, cut_off=run.timed_out, memory=TUNING[level].memory)
            self._known.move_to_end(key)
        while len(self._known) > self._max_keys:
            self._known.popitem(last=False)

    def histograms(self) -> Iterator[tuple[RunTimeKey, Histogram]]:
        """Generate what is known of each group, the one that was not used for longest first."""
        for key in list(self._known):
            histogram = self._histogram(key)
            if histogram is not None:
                yield key, histogram

    def _histogram(self, key: RunTimeKey) -> Histogram | None:
        """Return the histogram of a group. Returns None if nothing is known, or another release wrote it."""
        found = self._known.get(key)
        if isinstance(found, bytes):
            try:
                found = self._known[key] = Histogram.decode(found)
            except ValueError:
                del self._known[key]
                return None
        return found

    def predict(self, traits: JobTraits, elapsed: float = 0.0) -> Distribution:
        """Return the distribution of the run time of a job that has already run for `elapsed` seconds.

        Every quantile exceeds `elapsed` and is at most the job's limit, if that is still to come.
        """
        group = JobGroup.of(traits)
        learnt = self._learnt.get(group)
        if learnt is None:
            learnt = self._learnt[group] = self._combine(group)
        return Distribution(learnt, elapsed, traits.limit_seconds)

    def _combine(self, group: JobGroup) -> Learnt:
        used: tuple[RunTimeKey, ...] = ()
        parts: list[float] = list(FLAT)
        samples, source = 0, Level.ALL
        for level, key in keys_of(group):
            histogram = self._histogram(key)
            if histogram is None:
                continue
            used = (*used, key)
            found = self._combined.get(used)
            if found is None:
                weight = TUNING[level].weight + TUNING[level].share * histogram.total
                found = self._combined[used] = updated(parts, histogram, weight)
            parts = found
            # The narrowest group with a few jobs gives the forecast its name.
            if level is not Level.USER_LATELY and (histogram.count >= _ENOUGH or not samples):
                samples, source = histogram.count, level
        return Learnt.of(parts, samples, _in_words(source, group) if samples else "")


def _in_words(level: Level, group: JobGroup) -> str:
    """Return whose jobs are in a group: `jobs of alice named train-*`."""
    whose = "all jobs"
    if level in _OF_USER:
        whose = f"jobs of {group.user}"
    elif level in _OF_TEAM:
        whose = f"jobs of team {group.team}"
    named = f" named {group.pattern}" if level in _NAMED else ""
    limited = " with this time limit" if level in _LIMITED else ""
    sized = " of this size" if level in _SIZED else ""
    return f"{whose}{named}{limited}{sized}"
