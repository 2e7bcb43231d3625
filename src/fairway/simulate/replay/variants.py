"""Vary when the jobs of a trace are submitted, which shows how much of a difference may be chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

from fairway.model.trace import TraceJob
from fairway.simulate.replay.chance import uniform

JITTER_SECONDS: Final = 2 * 3600.0
"""The most by which a submission moves, to either side."""
_BURST_SECONDS: Final = 600.0
"""Jobs that a user submits within the same ten minutes move together: an array stays an array."""


def variant(
    trace: Sequence[TraceJob], seed: int, begin: float, end: float, jitter: float = JITTER_SECONDS
) -> Sequence[TraceJob]:
    """Return the trace with submissions moved at random; seed 0 is the trace itself.

    Jobs submitted before `begin` stay: they are the state that the measured time begins with. No job leaves
    the time from `begin` to `end`. The load, and who submits what, is the same in all variants. O(n log n).
    """
    return trace if seed == 0 else sorted(_moved(trace, seed, begin, end, jitter), key=lambda job: job.at)


def _moved(
    trace: Iterable[TraceJob], seed: int, begin: float, end: float, jitter: float
) -> Iterable[TraceJob]:
    for job in trace:
        if not begin <= job.at <= end:
            yield job
            continue
        user = crc32(f"{job.team}/{job.user}".encode())
        offset = jitter * (2 * uniform(seed, user, int(job.at // _BURST_SECONDS)) - 1)
        yield replace(job, at=_inside(job.at + offset, begin, end), started=None)


def _inside(at: float, begin: float, end: float) -> float:
    """Reflect a time at both ends, so that jobs do not gather there."""
    at = begin + abs(at - begin)
    return max(begin, end - abs(end - at))
