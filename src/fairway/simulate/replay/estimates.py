"""Estimate a figure from several seeds: the mean and its 95 % confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
               2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""The two-sided 95 % quantile of Student's t by degrees of freedom, from 1; then it is about 2."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of a figure over seeds, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float | None = None
    """None: a single seed tells nothing about chance."""


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values and its confidence interval, by Student's t."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    freedom = len(values) - 1
    variance = sum((value - mean) ** 2 for value in values) / freedom
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 2.0
    return Estimate(mean, quantile * sqrt(variance / len(values)))
