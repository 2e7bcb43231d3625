"""Measure service level objectives: judge jobs, count them by time, compute budgets and burn rates. Pure.

Each event is counted once, at the time when its verdict is certain and does not change any more: so counts
are only ever added to, and a job need not be read again. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.model.slo import DAY, SLOT_SECONDS, DeliveredWithin, Slo, StartsWithin

HOUR: Final = 3600
SHORT_BURN: Final = HOUR // 2
BURN_WINDOWS: Final = (SHORT_BURN, HOUR, 6 * HOUR, DAY)
"""The windows of burn rates, as in the SRE workbook's alerts on several of them."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a job did not wait for GPUs: on hold, for a dependency, or as it can never start."""

    start: float
    end: float | None = None
    """None: it still does not."""


@dataclass(frozen=True, slots=True)
class Run:
    """An attempt of a job."""

    start: float
    end: float | None
    devices: int


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What is known of a job that an objective counts."""

    submitted: float
    devices: int
    runs: tuple[Run, ...] = ()
    """Oldest first."""
    ended: float | None = None
    limit_seconds: float | None = None
    pauses: tuple[Pause, ...] = ()
    """In order, without overlap."""
    refused: bool = False
    """Whether it was rejected: it could never start, and is no event."""
    gpu_part: float = 1.0
    """The part of a GPU that one of its devices is."""

    @property
    def started(self) -> float | None:
        """Return when it first started."""
        return self.runs[0].start if self.runs else None


@dataclass(frozen=True, slots=True)
class Counts:
    """Good and bad events: jobs, or GPU-seconds."""

    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        return self.good + self.bad

    @property
    def compliance(self) -> float | None:
        """Return the good part; None without an event."""
        return self.good / self.total if self.total else None

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.good + other.good, self.bad + other.bad)


Slots = Mapping[int, Counts]
"""Counts by the start of their slot."""
NO_COUNTS: Final = Counts()


def slot_of(at: float) -> int:
    """Return the start of the slot that contains a time."""
    return int(at // SLOT_SECONDS) * SLOT_SECONDS


def due(job: JobHistory, seconds: float) -> float | None:
    """Return when a job has waited for `seconds`, pauses apart. Returns None if it is paused before that."""
    at, left = job.submitted, seconds
    for pause in job.pauses:
        waited = max(0.0, pause.start - at)
        if waited >= left:
            break
        left -= waited
        if pause.end is None:
            return None
        at = max(at, pause.end)
    return at + left


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a job counts as, and from when on that is certain."""

    at: float
    counts: Counts


def judge_start(promise: StartsWithin, job: JobHistory) -> Verdict | None:
    """Judge whether a job started in time. Returns None if that is open, or if it does not count.

    It is good at its first start, or bad when its time is over. A job that ended before either is no event.
    """
    if job.refused:
        return None
    latest, started = due(job, promise.seconds), job.started
    if started is not None and (latest is None or started <= latest):
        return Verdict(started, Counts(good=1))
    if latest is None or (job.ended is not None and job.ended <= latest):
        return None
    return Verdict(latest, Counts(bad=1))


@dataclass(frozen=True, slots=True)
class Demand:
    """The GPU-seconds that a job demanded by the time they were due, and those it held by then."""

    due: float
    wanted: int
    delivered: int


def demand_of(promise: DeliveredWithin, job: JobHistory) -> Demand | None:
    """Return what a job demanded within the time of the promise. Returns None if it is not due yet.

    A job that ended by then demanded what it held. One that did not demanded what its time limit allows, but
    no more than it could have held by then.
    """
    latest = due(job, promise.seconds)
    if latest is None or job.refused:
        return None
    held = sum(
        run.devices * max(0.0, (latest if run.end is None else min(run.end, latest)) - run.start)
        for run in job.runs
    )
    wanted = held
    if job.ended is None or job.ended > latest:
        limit = promise.seconds if job.limit_seconds is None else min(job.limit_seconds, promise.seconds)
        wanted = max(held, job.devices * limit)
    return Demand(latest, round(wanted * job.gpu_part), round(held * job.gpu_part))


def count(
    slo: Slo, jobs: Iterable[JobHistory], after: float, until: float, earlier: Slots
) -> dict[int, Counts]:
    """Count the jobs whose verdict became certain after `after`, up to `until`, by slot.

    `earlier` are the counts before that: of a promise of GPU-hours, those of its last period are needed.
    """
    counts: dict[int, Counts] = {}
    match slo.promise:
        case StartsWithin() as promise:
            for job in jobs:
                verdict = judge_start(promise, job)
                if verdict is not None and after < verdict.at <= until:
                    slot = slot_of(verdict.at)
                    counts[slot] = counts.get(slot, NO_COUNTS) + verdict.counts
        case DeliveredWithin() as promise:
            demands = (demand_of(promise, job) for job in jobs)
            falling_due = [d for d in demands if d is not None and after < d.due <= until]
            _count_demands(promise, sorted(falling_due, key=lambda d: d.due), earlier, counts)
    return counts


def _count_demands(
    promise: DeliveredWithin, demands: Iterable[Demand], earlier: Slots, counts: dict[int, Counts]
) -> None:
    """Count of each demand what the promise covers: in any period of `seconds`, the first `gpu_seconds`."""
    covered = {slot: counted.total for slot, counted in earlier.items()}
    total, current = 0, None
    for demand in demands:
        slot = slot_of(demand.due)
        if slot != current:  # both the window and the sum change by slot only
            oldest = slot_of(demand.due - promise.seconds)
            covered = {at: amount for at, amount in covered.items() if at > oldest}
            total, current = sum(covered.values()), slot
        counted = min(demand.wanted, max(0, promise.gpu_seconds - total))
        if not counted:
            continue
        good = min(counted, demand.delivered)
        counts[slot] = counts.get(slot, NO_COUNTS) + Counts(good, counted - good)
        covered[slot] = covered.get(slot, 0) + counted
        total += counted


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast the error budget is spent, measured over a window."""

    seconds: int
    rate: float
    """1: exactly the whole budget in the objective's window; 0: nothing is spent."""
    spent: float
    """The part of the whole window's budget that was spent in this window."""


@dataclass(frozen=True, slots=True)
class SloStatus:
    """An objective as measured."""

    slo: Slo
    counts: Counts
    """Over its window."""
    since: float
    """From when on events are counted; later than the window's start if the history or the SLO is younger."""
    until: float
    """Up to when events are counted: the time of the oldest report of its clusters."""
    burns: tuple[Burn, ...] = ()
    """One for each of `BURN_WINDOWS`."""
    outlook: Outlook | None = None
    """None: nothing was counted in the last day."""

    @property
    def compliance(self) -> float | None:
        """Return the good part; None without an event."""
        return self.counts.compliance

    @property
    def met(self) -> bool | None:
        """Return whether the target is met; None without an event."""
        part = self.compliance
        return None if part is None else part >= float(self.slo.target)

    @property
    def budget_left(self) -> float | None:
        """Return the part of the error budget that is left, below 0 if overspent; None without an event."""
        allowed = self.counts.total * float(1 - self.slo.target)
        return 1 - self.counts.bad / allowed if allowed else None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What becomes of an objective if the last day goes on, as old events leave its window."""

    missed_at: float | None
    """When its compliance falls below the target; None: not within one window from now."""
    compliance: float
    """In one window from now: that of the last day."""


def measure(slo: Slo, slots: Slots, since: float, until: float) -> SloStatus:
    """Compute compliance, error budget and burn rates from the counts of an objective."""
    first = until - slo.window_seconds
    inside = {slot: counted for slot, counted in slots.items() if first <= slot <= until}
    total = _sum(inside.values())
    allowed = float(1 - slo.target)
    burns = []
    for seconds in BURN_WINDOWS:
        recent = _sum(counted for slot, counted in inside.items() if slot >= until - seconds)
        rate = recent.bad / recent.total / allowed if recent.total else 0.0
        spent = recent.bad / (total.total * allowed) if total.total else 0.0
        burns.append(Burn(seconds, rate, spent))
    return SloStatus(slo, total, max(since, first), until, tuple(burns), _outlook(slo, inside, until))


def _sum(counts: Iterable[Counts]) -> Counts:
    good = bad = 0
    for one in counts:
        good += one.good
        bad += one.bad
    return Counts(good, bad)


def _outlook(slo: Slo, slots: Slots, until: float) -> Outlook | None:
    day = _sum(counted for slot, counted in slots.items() if slot >= until - DAY)
    if day.compliance is None:
        return None
    ordered: Sequence[tuple[int, Counts]] = sorted(slots.items())
    left = _sum(slots.values())
    gone, target = 0, float(slo.target)
    for step in range(slo.window_seconds // HOUR + 1):
        first = until - slo.window_seconds + step * HOUR
        while gone < len(ordered) and ordered[gone][0] < first:
            left = Counts(left.good - ordered[gone][1].good, left.bad - ordered[gone][1].bad)
            gone += 1
        part = step * HOUR / DAY
        good, bad = left.good + day.good * part, left.bad + day.bad * part
        if good + bad and good / (good + bad) < target:
            return Outlook(until + step * HOUR, day.compliance)
    return Outlook(None, day.compliance)
