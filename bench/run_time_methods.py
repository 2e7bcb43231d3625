"""Methods of predicting run times for the benchmark: ours, and those that it is compared with."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairway.simulate.run_times import FinishedRun, JobTraits, RunTimes

PARTS = (0.1, 0.5, 0.8, 0.9)
NO_LIMIT = 0.999
"""A job that ran for this part of its limit reached it: schedulers end it some seconds early or late."""
UNKNOWN = 3600.0
"""What those who know nothing assume."""
NOTHING = -1.0
"""What is not known, among features."""
FITTED: Mapping[str, float] = {
    "max_iter": 100,
    "max_leaf_nodes": 4,
    "min_samples_leaf": 60,
    "learning_rate": 0.05,
}
"""Chosen on the same jobs as our constants; larger trees fit what does not come again."""
INCREMENTS = (60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000, 10**6, 10**7)
"""By which a prediction that has passed is raised, after Tsafrir, Etsion and Feitelson (2007)."""

Quantiles = list[float]


@dataclass(frozen=True, slots=True)
class Question:
    """A job of which the run time is asked, when it was submitted or while it runs."""

    number: int
    traits: JobTraits
    hour: float
    elapsed: float = 0.0


class Method(Protocol):
    """Predicts the quantiles `PARTS` of run times."""

    def learn(self, number: int, traits: JobTraits, seconds: float) -> None:
        """Add a job that ended."""
        ...

    def predict(self, question: Question) -> Quantiles:
        """Return a quantile for each of `PARTS`; complete after `finish`."""
        ...

    def finish(self) -> None:
        """Complete all answers: some methods answer many questions at once."""
        ...


class Fairway:
    """Predicts as `fairway why` does."""

    def __init__(self) -> None:
        self._model = RunTimes()

    def learn(self, number: int, traits: JobTraits, seconds: float) -> None:
        """Add a job that ended; one that reached its limit would have run longer."""
        limit = traits.limit_seconds
        self._model.learn(FinishedRun(traits, seconds, limit is not None and seconds >= NO_LIMIT * limit))

    def predict(self, question: Question) -> Quantiles:
        """Return a quantile for each of `PARTS`."""
        forecast = self._model.predict(question.traits, question.elapsed)
        return [forecast.quantile(part) for part in PARTS]

    def finish(self) -> None:
        """Do nothing: all answers are complete."""


class TimeLimit:
    """Predicts the limit, or the longest run so far: what schedulers plan with."""

    def __init__(self) -> None:
        self._longest = UNKNOWN

    def learn(self, number: int, traits: JobTraits, seconds: float) -> None:
        """Remember the longest run."""
        self._longest = max(self._longest, seconds)

    def predict(self, question: Question) -> Quantiles:
        """Return the same for each of `PARTS`."""
        limit = question.traits.limit_seconds
        return [max(self._longest if limit is None else limit, question.elapsed + 1)] * len(PARTS)

    def finish(self) -> None:
        """Do nothing: all answers are complete."""


class LastTwo:
    """Predicts the average of the user's last two jobs, of the team's where users are not known."""

    def __init__(self) -> None:
        self._last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))

    def learn(self, number: int, traits: JobTraits, seconds: float) -> None:
        """Remember the run."""
        self._last[traits.user or traits.team].append(seconds)

    def predict(self, question: Question) -> Quantiles:
        """Return the same for each of `PARTS`."""
        traits = question.traits
        last = self._last.get(traits.user or traits.team)
        expected = sum(last) / len(last) if last else traits.limit_seconds or UNKNOWN
        expected = next(
            (e for more in (0, *INCREMENTS) if (e := expected + more) > question.elapsed), expected
        )
        if traits.limit_seconds is not None:
            expected = min(expected, traits.limit_seconds)
        return [max(expected, question.elapsed + 1)] * len(PARTS)

    def finish(self) -> None:
        """Do nothing: all answers are complete."""


@dataclass(slots=True)
class _Seen:
    """The jobs of a group so far, by the logarithm of their run times."""

    last: deque[float] = field(default_factory=lambda: deque(maxlen=2))
    count: int = 0
    mean: float = NOTHING

    def add(self, log: float) -> None:
        self.last.append(log)
        self.count += 1
        self.mean = log if self.count == 1 else self.mean + max(1 / self.count, 0.02) * (log - self.mean)


class Boosting:
    """Predicts by gradient-boosted trees, one ensemble for each quantile, fitted anew after each tenth."""

    def __init__(self, refit_after: int) -> None:
        """Raises ImportError without scikit-learn and numpy."""
        import numpy as np  # type: ignore[import-not-found]
        from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-not-found]

        self._numpy: Any = np
        self._regressor: Any = HistGradientBoostingRegressor
        self._refit_after = refit_after
        self._seen: dict[tuple[str, ...], _Seen] = defaultdict(_Seen)
        self._asked: dict[int, list[tuple[float, list[float]]]] = defaultdict(list)
        """By job, the elapsed seconds and features of each question, until the job ends."""
        self._rows: list[list[float]] = []
        self._logs: list[float] = []
        self._new = 0
        self._models: list[Any] = []
        self._open: list[tuple[Question, list[float], Quantiles]] = []

    def learn(self, number: int, traits: JobTraits, seconds: float) -> None:
        """Add the questions about a job that ended, with their answer."""
        log = math.log(max(seconds, 1.0))
        for _, features in self._asked.pop(number, ()):
            self._rows.append(features)
            self._logs.append(log)
        for group in _groups(traits):
            self._seen[group].add(log)
        self._new += 1
        if self._new >= self._refit_after:
            self._fit()

    def predict(self, question: Question) -> Quantiles:
        """Return a quantile for each of `PARTS`."""
        features = self._features(question)
        self._asked[question.number].append((question.elapsed, features))
        answer = [UNKNOWN] * len(PARTS)
        self._open.append((question, features, answer))
        return answer

    def finish(self) -> None:
        """Answer what was asked since the trees were fitted."""
        if self._models and self._open:
            rows = self._numpy.array([features for _, features, _ in self._open])
            logs = [model.predict(rows) for model in self._models]
            for number, (question, _, answer) in enumerate(self._open):
                limit = question.traits.limit_seconds
                found = sorted(math.exp(float(one[number])) for one in logs)
                answer[:] = [max(min(x, limit or x), question.elapsed + 1) for x in found]
        self._open.clear()

    def _fit(self) -> None:
        self.finish()
        rows, logs = self._numpy.array(self._rows), self._numpy.array(self._logs)
        self._models = [
            self._regressor(loss="quantile", quantile=part, **FITTED).fit(rows, logs) for part in PARTS
        ]
        self._new = 0

    def _features(self, question: Question) -> list[float]:
        traits = question.traits
        found = [
            math.log(traits.devices),
            NOTHING if traits.limit_seconds is None else math.log(max(traits.limit_seconds, 1.0)),
            question.hour,
            math.log(question.elapsed + 1),
        ]
        for group in _groups(traits):
            seen = self._seen[group]
            last: Sequence[float] = (*seen.last, NOTHING, NOTHING)
            found += [last[0], last[1], float(seen.count), seen.mean]
        return found


def _groups(traits: JobTraits) -> tuple[tuple[str, ...], ...]:
    size = str(traits.devices)
    return (
        ("all",),
        ("team", traits.team),
        ("team", traits.team, size),
        ("user", traits.user),
        ("user", traits.user, size),
        ("user", traits.user, str(traits.limit_seconds), ""),
    )
