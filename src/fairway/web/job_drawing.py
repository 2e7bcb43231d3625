"""A job's life as a drawing: when it waited, ran and held how much, in parts of the whole width. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fairway.api import job_wire as wire
from fairway.model.job import OPEN_JOBS, Ending, JobState
from fairway.web.words import duration

MOST_DRAWN: Final = 200
"""Attempts; of more, the last ones."""
_THINNEST: Final = 0.3
"""Percent of the width: what was short is still seen."""
_LEAST_LABELLED: Final = 4.0
_HEIGHT: Final = 48
_WENT_WRONG: Final = (Ending.FAILED, Ending.TIMED_OUT, Ending.NODE_LOST, Ending.LOST)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a job's life."""

    kind: str
    """`waits`, `back-off` or `runs`; a run also says how it ended: `taken`, `wrong`, `ended`."""
    start: float
    width: float
    """In percent."""
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Held:
    """Devices held for a while."""

    start: float
    width: float
    top: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """All of it, from when to when."""

    start: datetime
    end: datetime
    stretches: tuple[Stretch, ...]
    held: tuple[Held, ...]
    most: int
    """Devices, at the top of the plot."""
    words: str
    """The same for those who do not see it."""
    left_out: int
    """Attempts before those that are drawn."""


def drawing(job: wire.JobDetail, now: datetime) -> Drawing | None:
    """None: there is nothing to draw, for it was over before it ran."""
    attempts = job.each_attempt[-MOST_DRAWN:]
    left_out = len(job.each_attempt) - len(attempts)
    start = attempts[0].started_at if left_out else min([job.submitted_at, *(a.started_at for a in attempts)])
    ends = [a.ended_at or now for a in attempts]
    end = now if job.state in OPEN_JOBS else max([job.ended_at or start, *ends])
    if end <= start:
        return None
    scale = _Scale(start, end)
    stretches: list[Stretch] = []
    before, kind = start, "waits"
    for attempt in attempts:
        stretches += scale.idle(before, attempt.started_at, kind)
        stretches.append(scale.run(attempt, now))
        before = attempt.ended_at or now
        kind = "back-off" if attempt.ending in _WENT_WRONG else "waits"
    if job.state in OPEN_JOBS and job.state is not JobState.RUNNING:
        stretches += scale.idle(before, now, kind)
    most = max([1, job.devices, *(a.devices for a in attempts)])
    return Drawing(
        start,
        end,
        tuple(stretches),
        tuple(scale.held(a, most, now) for a in attempts if a.devices),
        most,
        "; ".join(s.title for s in stretches[-20:]) or "nothing yet",
        left_out,
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    start: datetime
    end: datetime

    def at(self, moment: datetime) -> float:
        part = (moment - self.start) / (self.end - self.start)
        return round(100 * min(max(part, 0), 1), 3)

    def idle(self, start: datetime, end: datetime, kind: str) -> list[Stretch]:
        if end - start < timedelta(seconds=1):
            return []
        at, to = self.at(start), self.at(end)
        said = "backs off" if kind == "back-off" else "waits"
        return [Stretch(kind, at, max(to - at, _THINNEST), "", f"{said} {duration(end - start)}")]

    def run(self, attempt: wire.Attempt, now: datetime) -> Stretch:
        end = attempt.ended_at or now
        at, to = self.at(attempt.started_at), self.at(end)
        width = max(to - at, _THINNEST)
        label = str(attempt.number) if width >= _LEAST_LABELLED else ""
        how = attempt.ending.value if attempt.ending else "runs"
        title = f"attempt {attempt.number} {how}, {duration(end - attempt.started_at)}"
        return Stretch(_run_kind(attempt.ending), at, width, label, title)

    def held(self, attempt: wire.Attempt, most: int, now: datetime) -> Held:
        at, to = self.at(attempt.started_at), self.at(attempt.ended_at or now)
        height = round(_HEIGHT * attempt.devices / most, 1)
        title = f"{attempt.devices} held in attempt {attempt.number}"
        return Held(at, max(to - at, _THINNEST), _HEIGHT - height, height, title)


def _run_kind(ending: Ending | None) -> str:
    if ending is None:
        return "runs"
    if ending in _WENT_WRONG:
        return "wrong"
    return "taken" if ending in (Ending.PREEMPTED, Ending.REQUEUED) else "ended"


def waited(job: wire.JobDetail) -> Sequence[timedelta]:
    """How long before each attempt."""
    starts = [a.started_at for a in job.each_attempt]
    ends = [job.submitted_at, *(a.ended_at or a.started_at for a in job.each_attempt)]
    return [max(timedelta(), start - end) for start, end in zip(starts, ends, strict=False)]
