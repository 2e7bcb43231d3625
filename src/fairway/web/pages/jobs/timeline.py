"""Compute the drawing of a job's timeline: when it waited and ran, and the devices it held. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from fairway.model.job import OPEN_JOBS, Ending, JobState
from fairway.model.text import count
from fairway.web.format import duration
from fairway.wire import jobs as wire

MAX_DRAWN: Final = 200
"""The most attempts to draw; of more, the last ones."""
_MIN_WIDTH: Final = 0.3
"""Percent of the width: short attempts must remain visible."""
_MIN_LABELLED_WIDTH: Final = 4.0
_HEIGHT: Final = 48
MAX_TICKS: Final = 6
_TICK_MARGIN: Final = 6
"""Percent of the width without labels at both ends, where the whole times are."""
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 5, 10, 30, 60, 180)),
)
"""Seconds between labelled times."""
_WENT_WRONG: Final = (Ending.FAILED, Ending.TIMED_OUT, Ending.NODE_LOST, Ending.LOST)


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A time with its label, in percent of the width."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class TimelineSegment:
    """A segment of the timeline."""

    kind: str
    """`waits`, `back-off` or `runs`; an ended run by its outcome: `taken`, `wrong`, `ended`."""
    start: float
    width: float
    """In percent."""
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """Devices held for a time."""

    start: float
    width: float
    top: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class TimelineDrawing:
    """The whole drawing, from start to end."""

    start: datetime
    end: datetime
    segments: tuple[TimelineSegment, ...]
    held: tuple[HeldSpan, ...]
    max_devices: int
    """Devices at the top of the plot."""
    description: str
    """A description for screen readers."""
    left_out: int
    """The number of earlier attempts that are not drawn."""
    ticks: tuple[TimeTick, ...] = ()
    """Labelled times between start and end."""


def draw_timeline(job: wire.JobDetail, now: datetime) -> TimelineDrawing | None:
    """Compute the drawing. Returns None if there is nothing to draw: the job ended before it ran."""
    if job.replicas is not None:
        return _draw_replicas(job, now)
    attempts = job.attempts[-MAX_DRAWN:]
    left_out = len(job.attempts) - len(attempts)
    start = attempts[0].started_at if left_out else min([job.submitted_at, *(a.started_at for a in attempts)])
    ends = [a.ended_at or now for a in attempts]
    end = now if job.state in OPEN_JOBS else max([job.ended_at or start, *ends])
    if end <= start:
        return None
    scale = _Scale(start, end)
    segments: list[TimelineSegment] = []
    before, kind = start, "waits"
    for attempt in attempts:
        segments += scale.idle(before, attempt.started_at, kind)
        segments.append(scale.run(attempt, now))
        before = attempt.ended_at or now
        kind = "back-off" if attempt.ending in _WENT_WRONG else "waits"
    if job.state in OPEN_JOBS and job.state is not JobState.RUNNING:
        segments += scale.idle(before, now, kind)
    max_devices = max([1, job.devices, *(a.devices for a in attempts)])
    return TimelineDrawing(
        start,
        end,
        tuple(segments),
        tuple(scale.held(a, max_devices, now) for a in attempts if a.devices),
        max_devices,
        "; ".join(s.title for s in segments[-20:]) or "nothing yet",
        left_out,
        time_ticks(start, end),
    )


def _draw_replicas(job: wire.JobDetail, now: datetime) -> TimelineDrawing | None:
    """Compute the drawing of a job whose replicas run at once: when any ran, and what they held together."""
    newest = sorted(job.attempts, key=lambda a: a.number)[-MAX_DRAWN:]
    left_out = job.attempt_count - len(newest)
    # Of one with earlier replicas, from where the drawn ones are complete: some of them may run since long.
    starts = [a.started_at for a in newest]
    start = min(starts) if left_out else min([job.submitted_at, *starts])
    end = (
        now if job.state in OPEN_JOBS else max([job.ended_at or start, *(a.ended_at or now for a in newest)])
    )
    if end <= start:
        return None
    scale = _Scale(start, end)
    steps = _held_steps(job.attempts, start, end)
    max_devices = max([1, job.gpus * job.nodes, *(devices for _, _, devices, _ in steps)])
    segments: list[TimelineSegment] = []
    for kind, begin, until in _busy_spans(steps):
        segments += scale.idle(begin, until, kind) if kind == "waits" else [scale.busy(begin, until)]
    return TimelineDrawing(
        start,
        end,
        tuple(segments),
        tuple(scale.step(*step, max_devices) for step in steps if step[2]),
        max_devices,
        "; ".join(s.title for s in segments[-20:]) or "nothing yet",
        left_out,
        time_ticks(start, end),
    )


def _held_steps(
    attempts: Sequence[wire.Attempt], start: datetime, end: datetime
) -> list[tuple[datetime, datetime, int, int]]:
    """Return the spans between which nothing starts or ends, each with the devices and replicas in it."""
    changes: dict[datetime, tuple[int, int]] = {start: (0, 0), end: (0, 0)}
    for a in attempts:
        begin, until = max(a.started_at, start), min(a.ended_at or end, end)
        if begin < until:
            for moment, sign in ((begin, 1), (until, -1)):
                devices, replicas = changes.get(moment, (0, 0))
                changes[moment] = (devices + sign * a.devices, replicas + sign)
    moments = sorted(changes)
    steps: list[tuple[datetime, datetime, int, int]] = []
    devices = replicas = 0
    for begin, until in pairwise(moments):
        devices, replicas = devices + changes[begin][0], replicas + changes[begin][1]
        steps.append((begin, until, devices, replicas))
    return steps


def _busy_spans(
    steps: Sequence[tuple[datetime, datetime, int, int]],
) -> list[tuple[str, datetime, datetime]]:
    """Return when at least one replica ran, and when none did."""
    spans: list[tuple[str, datetime, datetime]] = []
    for begin, until, _, replicas in steps:
        kind = "runs" if replicas else "waits"
        if spans and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], until)
        else:
            spans.append((kind, begin, until))
    return spans


def time_ticks(start: datetime, end: datetime) -> tuple[TimeTick, ...]:
    """Return round times between start and end, at most MAX_TICKS, away from both ends."""
    seconds = (end - start).total_seconds()
    step = next((s for s in _STEPS if seconds / s <= MAX_TICKS), None)
    if step is None or seconds <= 0:
        return ()
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%m-%d"
    first = -(-int(start.timestamp()) // step) * step
    found = []
    for moment in range(first, int(end.timestamp()) + 1, step):
        part = 100 * (moment - start.timestamp()) / seconds
        if _TICK_MARGIN <= part <= 100 - _TICK_MARGIN:
            found.append(TimeTick(round(part, 2), datetime.fromtimestamp(moment, UTC).strftime(form)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Scale:
    start: datetime
    end: datetime

    def at(self, moment: datetime) -> float:
        part = (moment - self.start) / (self.end - self.start)
        return round(100 * min(max(part, 0), 1), 3)

    def idle(self, start: datetime, end: datetime, kind: str) -> list[TimelineSegment]:
        if end - start < timedelta(seconds=1):
            return []
        at, to = self.at(start), self.at(end)
        state = "waiting to retry" if kind == "back-off" else "waiting"
        title = f"{state} for {duration(end - start)}"
        return [TimelineSegment(kind, at, max(to - at, _MIN_WIDTH), "", title)]

    def busy(self, start: datetime, end: datetime) -> TimelineSegment:
        at, to = self.at(start), self.at(end)
        title = f"replicas ran for {duration(end - start)}"
        return TimelineSegment("runs", at, max(to - at, _MIN_WIDTH), "", title)

    def step(self, start: datetime, end: datetime, devices: int, replicas: int, most: int) -> HeldSpan:
        at, to = self.at(start), self.at(end)
        height = round(_HEIGHT * devices / most, 1)
        title = f"{devices} held by {count(replicas, 'replica')} for {duration(end - start)}"
        return HeldSpan(at, max(to - at, _MIN_WIDTH), _HEIGHT - height, height, title)

    def run(self, attempt: wire.Attempt, now: datetime) -> TimelineSegment:
        end = attempt.ended_at or now
        at, to = self.at(attempt.started_at), self.at(end)
        width = max(to - at, _MIN_WIDTH)
        label = str(attempt.number) if width >= _MIN_LABELLED_WIDTH else ""
        how = f"{attempt.ending.value} after" if attempt.ending else "running for"
        title = f"attempt {attempt.number} {how} {duration(end - attempt.started_at)}"
        return TimelineSegment(_run_kind(attempt.ending), at, width, label, title)

    def held(self, attempt: wire.Attempt, max_devices: int, now: datetime) -> HeldSpan:
        at, to = self.at(attempt.started_at), self.at(attempt.ended_at or now)
        height = round(_HEIGHT * attempt.devices / max_devices, 1)
        title = f"{attempt.devices} held in attempt {attempt.number}"
        return HeldSpan(at, max(to - at, _MIN_WIDTH), _HEIGHT - height, height, title)


def _run_kind(ending: Ending | None) -> str:
    if ending is None:
        return "runs"
    if ending in _WENT_WRONG:
        return "wrong"
    return "taken" if ending in (Ending.PREEMPTED, Ending.REQUEUED) else "ended"


def waiting_times(job: wire.JobDetail) -> Sequence[timedelta]:
    """Return the waiting time before each attempt."""
    starts = [a.started_at for a in job.attempts]
    ends = [job.submitted_at, *(a.ended_at or a.started_at for a in job.attempts)]
    return [max(timedelta(), start - end) for start, end in zip(starts, ends, strict=False)]
