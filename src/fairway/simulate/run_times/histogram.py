"""Count how long jobs of a group ran, in bins of ten a decade, in which recent jobs weigh more."""

from __future__ import annotations

import math
import struct
from typing import Final

BINS: Final = 64
"""Ten a decade from one second: 29 days. The last one has no upper end."""
PER_DECADE: Final = 10
_UNITS: Final = 256
"""Stored weights are whole multiples of 1/256."""
_HEADER: Final = struct.Struct(">BIB")
_ENTRY: Final = struct.Struct(">BH")
_VERSION: Final = 1
_MAX_COUNT: Final = 2**32 - 1
MAX_MEMORY: Final = 250
"""The most jobs a histogram remembers: its weights fit into 16 bits."""
SPREAD: Final = 0.1
"""The part of each job that counts in the bin before, and in the one after."""


def position(seconds: float) -> float:
    """Return where in the bins a run time is, 0 to 64: the whole part is its bin."""
    return min(max(PER_DECADE * math.log10(seconds), 0.0), float(BINS)) if seconds > 1 else 0.0


def seconds_at(place: float) -> float:
    """Return the run time at a position in the bins."""
    return float(10 ** (place / PER_DECADE))


class Histogram:
    """The run times of the jobs of a group: how many ended in each bin, and how many were cut off in it."""

    __slots__ = ("count", "cut", "ended")

    def __init__(self) -> None:
        self.count = 0
        """The jobs ever learnt; of a few, the last ones carry all weight."""
        self.ended = [0.0] * BINS
        self.cut = [0.0] * BINS
        """Jobs that would have run longer: they reached their limit."""

    @property
    def total(self) -> float:
        """Return the weight of all jobs."""
        return sum(self.ended) + sum(self.cut)

    def learn(self, seconds: float, *, cut_off: bool, memory: int) -> None:
        """Add a job; the weight of all before shrinks so that about the last `memory` jobs count."""
        if self.count >= memory:
            keep = 1 - 1 / memory
            self.ended = [weight * keep for weight in self.ended]
            self.cut = [weight * keep for weight in self.cut]
        place = min(int(position(seconds)), BINS - 1)
        if cut_off:
            self.cut[place] += 1.0
        else:
            # A bin's edge is not an edge of what is likely.
            self.ended[place] += 1 - 2 * SPREAD
            self.ended[max(place - 1, 0)] += SPREAD
            self.ended[min(place + 1, BINS - 1)] += SPREAD
        self.count = min(self.count + 1, _MAX_COUNT)

    def encode(self) -> bytes:
        """Return it as bytes: three for each bin that is not empty."""
        ended = [(i, round(w * _UNITS)) for i, w in enumerate(self.ended) if w * _UNITS >= 0.5]
        cut = [(i, round(w * _UNITS)) for i, w in enumerate(self.cut) if w * _UNITS >= 0.5]
        entries = b"".join(_ENTRY.pack(i, w) for i, w in (*ended, *cut))
        return _HEADER.pack(_VERSION, self.count, len(ended)) + entries

    @classmethod
    def decode(cls, data: bytes) -> Histogram:
        """Return the histogram that `encode` wrote. Raises ValueError for anything else."""
        try:
            version, count, ended = _HEADER.unpack_from(data)
            entries = list(_ENTRY.iter_unpack(data[_HEADER.size :]))
        except struct.error as error:
            raise ValueError(f"no histogram: {error}") from None
        if version != _VERSION:
            raise ValueError(f"a histogram of version {version}")
        found = cls()
        found.count = count
        for number, (place, weight) in enumerate(entries):
            if place >= BINS:
                raise ValueError(f"a histogram with a bin {place}")
            (found.ended if number < ended else found.cut)[place] = weight / _UNITS
        return found
