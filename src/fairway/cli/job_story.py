"""One job as people read it: what was asked, where it went and why, and all that happened, in order. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from fairway.api import job_wire as wire
from fairway.api.job_words import BAD, Moment, facts, headline, next_step, timeline
from fairway.cli.layout import Line, fold
from fairway.model.job import JobState
from fairway.model.wording import clean

_LABEL: Final = 14
COLOURS: Final = {JobState.RUNNING: "green", **dict.fromkeys(BAD, "red")}
_TONES: Final = {"good": "green", "warn": "yellow", "bad": "red"}


def story(job: wire.JobDetail, tasks: wire.TaskCounts | None, now: datetime, width: int | None) -> list[Line]:
    """The whole screen."""
    lines = [Line(headline(job, now), COLOURS.get(job.state)), Line()]
    for label, text in facts(job, tasks):
        lines += _labelled(label, text, width)
    happened = timeline(job)
    if happened:
        lines += [Line(), Line("Timeline (UTC)")]
        lines += [line for m in happened for line in _moment(m, happened[0].at, width)]
    helpful = next_step(job)
    return [*lines, Line(), *(Line(text) for text in helpful)] if helpful else lines


def _labelled(label: str, text: str, width: int | None) -> list[Line]:
    """A fact beside its label; what does not fit goes on beneath itself."""
    lines = [part for line in text.split("\n") for part in _folded(clean(line), width)]
    return [
        Line(f"  {label if i == 0 else '':<{_LABEL}}{line}".rstrip()) for i, line in enumerate(lines or [""])
    ]


def _folded(text: str, width: int | None) -> list[str]:
    if width is None or len(text) + _LABEL + 2 <= width:
        return [text]
    return [line.strip() for line in fold(text, max(30, width - _LABEL - 2))]


def _moment(m: Moment, first: datetime, width: int | None) -> list[Line]:
    day = f"{m.at:%Y-%m-%d} " if m.at.date() != first.date() else ""
    lines = _folded(m.text, None if width is None else width - 12)
    head = f"  {day}{m.at:%H:%M:%S}  {m.what:<12}"
    return [
        Line((head if i == 0 else " " * len(head)) + line, _TONES.get(m.tone or "") if i == 0 else None)
        for i, line in enumerate(lines or [""])
    ]
