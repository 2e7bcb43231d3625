"""Draw numbers that look random from integers alone, so that a run depends on nothing but its seed.

The same seed gives the same numbers whatever policy is simulated, so that two policies meet the same chance.
"""

from __future__ import annotations

from math import log
from typing import Final

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


def mixed(*values: int) -> int:
    """Mix integers into one of 64 bits (splitmix64, a step for each value)."""
    state = 0
    for value in values:
        state = (state + value + _GAMMA) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*values: int) -> float:
    """Draw from [0, 1)."""
    return (mixed(*values) >> 11) / (1 << 53)


def exponential(mean: float, *values: int) -> float:
    """Draw from the exponential distribution with this mean."""
    return -mean * log(1.0 - uniform(*values))
