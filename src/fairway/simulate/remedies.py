"""Verify what would help a waiting job: play each change forward, and keep those that clearly help. Pure.

The job as it is and each changed one meet the same futures (`starts`), so that the difference between them is
that of the change. A change is tried in few futures first, and those that do not help there are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Final

from fairway.model.job import JobId
from fairway.model.job_change import JobChange
from fairway.model.names import ClusterName, PriorityName
from fairway.model.team import Supply
from fairway.simulate.calibration import Calibration
from fairway.simulate.cluster.jobs import JobRequest
from fairway.simulate.run_times import PredictsRunTimes
from fairway.simulate.snapshot import ClusterSnapshot, WaitingJob
from fairway.simulate.starts import Futures, quantile

FUTURES: Final = 20
_TRIED: Final = 5
"""Futures in which a change is tried first."""
HORIZON_SECONDS: Final = 3 * 86_400.0
MAX_WAITING: Final = 400
"""Waiting jobs that are played with the job: those before it, and the first of those behind."""
MAX_EVENTS: Final = 4_000
"""Starts, ends and arrivals in one future."""
NOW_SECONDS: Final = 60.0
"""A start within this time is one at once."""
_CLEAR_SECONDS: Final = 300.0
_CLEAR_PART: Final = 0.2
"""A change clearly helps if it saves as much of the wait on average, and at least `_CLEAR_SECONDS`…"""
_SURE: Final = 0.8
"""…and if it helps in this part of the futures."""
_PROMISED: Final = 0.95
"""The part of the futures in which a job starts within the time that is stated. It should be kept in 9 of 10
cases; futures know neither all that an engine does nor who submits next."""
NOT_CALIBRATED: Final[Mapping[ClusterName, Calibration]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of a waiting job that may help."""

    change: JobChange
    request: JobRequest
    """The whole request after the change."""
    elsewhere: ClusterSnapshot | None = None
    """The other cluster to which the job would be submitted again; None: it is changed in its own."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that lets a job start sooner. Seconds from the moment of the snapshot on."""

    candidate: Candidate
    within: float
    """It starts within this time in 19 of 20 futures."""
    expected: float
    """The median."""
    sooner: float
    """How much earlier than without the change, on average, as far as the futures reach."""

    @property
    def starts_now(self) -> bool:
        """Return whether the job starts at once."""
        return self.within <= NOW_SECONDS


def remedies(
    snapshot: ClusterSnapshot,
    job: JobId,
    candidates: Sequence[Candidate],
    predictor: PredictsRunTimes,
    *,
    futures: int = FUTURES,
    seed: int = 0,
    horizon: float = HORIZON_SECONDS,
    calibrations: Mapping[ClusterName, Calibration] = NOT_CALIBRATED,
) -> list[Remedy]:
    """Return the candidates that clearly help, in their order, with a time calibrated as their cluster's.

    O((candidates x `_TRIED` + candidates that help x `futures`) x (jobs + nodes of the supply + events)).
    """
    waiting = next((one for one in snapshot.waiting if one.job == job), None)
    if waiting is None:
        return []
    base = _Waits(focused(snapshot, waiting), job, predictor, seed, horizon)
    if all(base.wait(n) <= NOW_SECONDS for n in range(_TRIED)):
        return []
    found: list[Remedy] = []
    for candidate in candidates:
        changed = _Waits(_changed(snapshot, waiting, candidate), job, predictor, seed, horizon)
        if not _helps(base, changed, _TRIED):
            continue
        if _helps(base, changed, futures):
            within, expected = changed.quantile(futures, _PROMISED), changed.quantile(futures, 0.5)
            if within is not None and expected is not None:
                there = snapshot if candidate.elsewhere is None else candidate.elsewhere
                known = calibrations.get(there.cluster, Calibration())
                saving = _mean_saving(base, changed, futures)
                found.append(Remedy(candidate, known.latest_wait(within), expected, saving))
    return found


def distinct(found: Sequence[Remedy], most: int) -> list[Remedy]:
    """Return the remedies that are worth offering beside each other, the best first.

    Of several that change the same, those that were proposed first ask for the least; one that asks for more
    has to start clearly sooner.
    """
    kept: list[Remedy] = []
    for remedy in found:
        same = [one for one in kept if _changes_same(one, remedy)]
        if all(remedy.within < one.within - _CLEAR_SECONDS for one in same):
            kept.append(remedy)
    return sorted(kept, key=_usefulness)[:most]


def _changes_same(one: Remedy, other: Remedy) -> bool:
    def fields(remedy: Remedy) -> frozenset[str]:
        change = remedy.candidate.change
        what = "size" if change.gpus is not None or change.nodes is not None else str(change.pool)
        return frozenset({what, str(change.time_seconds is None), str(change.priority is None)})

    return fields(one) == fields(other)


def _usefulness(remedy: Remedy) -> tuple[bool, float]:
    return not remedy.starts_now, -remedy.sooner


def of_supplies(snapshot: ClusterSnapshot, supplies: Collection[Supply]) -> ClusterSnapshot:
    """Return the part of a snapshot that has to do with some supplies."""
    return replace(
        snapshot,
        nodes=tuple(node for node in snapshot.nodes if node.supply in supplies),
        running=tuple(one for one in snapshot.running if one.request.supply in supplies),
        waiting=tuple(one for one in snapshot.waiting if one.request.supply in supplies),
        arrivals=tuple(one for one in snapshot.arrivals if one.request.supply in supplies),
    )


def focused(snapshot: ClusterSnapshot, job: WaitingJob, most: int = MAX_WAITING) -> ClusterSnapshot:
    """Return the part of a snapshot that a job's start depends on: its supply, and the jobs before it."""
    part = of_supplies(snapshot, {job.request.supply})
    place = next((n for n, one in enumerate(part.waiting) if one.job == job.job), len(part.waiting))
    begin = max(0, place + 1 - most)
    return replace(part, waiting=part.waiting[begin : begin + most])


def _changed(snapshot: ClusterSnapshot, job: WaitingJob, candidate: Candidate) -> ClusterSnapshot:
    """Return the snapshot in which a job is changed, or submitted again on another cluster."""
    if candidate.elsewhere is not None:
        last = replace(job, request=candidate.request, submitted=candidate.elsewhere.at)
        there = candidate.elsewhere
        return focused(replace(there, waiting=(*there.waiting, last)), last)
    changed = replace(job, request=candidate.request)
    if candidate.request.priority == job.request.priority:
        waiting = tuple(changed if one.job == job.job else one for one in snapshot.waiting)
    else:
        waiting = _with_rank(changed, snapshot)
    return focused(replace(snapshot, waiting=waiting), changed)


def _with_rank(job: WaitingJob, snapshot: ClusterSnapshot) -> tuple[WaitingJob, ...]:
    """Return the waiting jobs with one of them where its new priority and its age place it."""
    ranks = {priority.name: priority.rank for priority in snapshot.terms.priorities}

    def order(one: WaitingJob) -> tuple[int, float]:
        return -ranks.get(one.request.priority or PriorityName(""), 0), one.submitted

    others = [one for one in snapshot.waiting if one.job != job.job]
    place = next((n for n, one in enumerate(others) if order(one) > order(job)), len(others))
    return (*others[:place], job, *others[place:])


class _Waits:
    """How long one job waits in each future of a snapshot; futures are played when they are asked for."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        job: JobId,
        predictor: PredictsRunTimes,
        seed: int,
        horizon: float,
    ) -> None:
        self._futures: Final = Futures(snapshot, predictor, seed)
        self._job: Final = job
        self._at: Final = snapshot.at
        self._until: Final = snapshot.at + horizon
        self._known: Final[list[float]] = []
        self._reach = horizon
        """How far the shortest future reaches in which the job does not start."""

    def wait(self, future: int) -> float:
        """Return the seconds until the job starts; infinite if it does not within the horizon."""
        while len(self._known) <= future:
            played = self._futures.play(len(self._known), (self._job,), self._until, MAX_EVENTS)
            start = played.at.get(self._job)
            if start is None:
                self._reach = min(self._reach, played.now - self._at)
            self._known.append(inf if start is None else start - self._at)
        return self._known[future]

    def at_least(self, future: int) -> float:
        """Return the seconds until the job starts, or how far the futures reach without its start."""
        wait = self.wait(future)
        return self._reach if wait == inf else wait

    def quantile(self, futures: int, part: float) -> float | None:
        """Return a quantile of the waits. Returns None if it is beyond the futures."""
        return quantile(sorted(self.wait(n) for n in range(futures)), part)


def _savings(base: _Waits, changed: _Waits, futures: int) -> Iterator[float]:
    """Generate how much earlier the changed job starts in each future, as far as it is known."""
    for n in range(futures):
        wait = changed.wait(n)
        yield -inf if wait == inf else base.at_least(n) - wait


def _mean_saving(base: _Waits, changed: _Waits, futures: int) -> float:
    finite = [saving for saving in _savings(base, changed, futures) if saving > -inf]
    return sum(finite) / len(finite) if finite else 0.0


def _helps(base: _Waits, changed: _Waits, futures: int) -> bool:
    """Return whether a change clearly helps."""
    savings = list(_savings(base, changed, futures))
    mean_wait = sum(base.at_least(n) for n in range(futures)) / futures
    clear = max(_CLEAR_SECONDS, _CLEAR_PART * mean_wait)
    surely = sum(saving > NOW_SECONDS for saving in savings) >= _SURE * futures
    return surely and _mean_saving(base, changed, futures) >= clear


def smaller_sizes(request: JobRequest) -> Iterator[JobChange]:
    """Generate smaller requests that are worth a try: a half, a quarter, an eighth of the GPUs or nodes."""
    sizes = (request.gpus >> by for by in (1, 2, 3))
    for gpus in dict.fromkeys(size for size in sizes if size > 0):
        yield JobChange(gpus=gpus)
    for nodes in dict.fromkeys(request.nodes >> by for by in (1, 2) if request.nodes >> by > 0):
        if nodes < request.nodes:
            yield JobChange(nodes=nodes)
