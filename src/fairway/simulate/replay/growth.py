"""Grow the demand of a trace: repeat jobs, so that a larger demand contains every smaller one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Final
from zlib import crc32

from fairway.model.trace import TraceJob
from fairway.simulate.replay.chance import uniform

_DAY: Final = 86_400.0
_BURST_SECONDS: Final = 600.0
"""Jobs that a user submits within the same ten minutes are repeated together: an array stays an array."""
_DRAW: Final = 7_919
"""Keeps these draws apart from those of `variant`."""


def grown(trace: Sequence[TraceJob], factor: float, begin: float, end: float) -> Sequence[TraceJob]:
    """Return the trace with `factor` times as many jobs; 1 is the trace itself.

    What a user submits together is repeated, or left out below 1, as a whole, at the same time of another
    day. Jobs submitted before `begin` are the state that the measured time begins with, and grow alike. The
    jobs of a factor are among those of every larger one. O(n log n).
    """
    if factor == 1.0:
        return trace
    return sorted(_repeated(trace, factor, begin, end), key=lambda job: job.at)


def _repeated(trace: Sequence[TraceJob], factor: float, begin: float, end: float) -> Iterator[TraceJob]:
    days = max(1, int((end - begin) // _DAY))
    for job in trace:
        user, burst = crc32(f"{job.team}/{job.user}".encode()), int(job.at // _BURST_SECONDS)
        copies = max(0, ceil(factor - uniform(_DRAW, user, burst)))
        if copies:
            yield job
        for copy in range(1, copies):
            moved = int(uniform(_DRAW, user, burst, copy) * days) * _DAY
            at = job.at
            if begin <= at <= end:
                at = begin + (at - begin + moved) % max(_DAY, days * _DAY)
            started = job.started if at == job.at else None
            yield replace(job, at=at, started=started)
