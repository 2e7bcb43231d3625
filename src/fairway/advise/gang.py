"""Find the GPUs of a job that differ from its others: a straggler, an unused one, one that others wait for.

Pure. The GPUs of a gang do the same work, so their figures should be alike. One whose engine, multiprocessors
or tensor cores do less than half of the median lags. One that is far above the median, with at most a quarter
of the gang, is what the others may wait for: a GPU that is throttled is busy all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Final, NamedTuple

from fairway.model.gpu_use import GangMark, MetricCode

LAG_PART: Final = 0.5
"""Of the median: less than this lags."""
MIN_LAG: Final = 0.1
"""Below the median, as a ratio of time."""
MIN_LEAD: Final = 0.15
MAX_AHEAD_PART: Final = 0.25
_MIN_GANG_AHEAD: Final = 3
"""Of two GPUs, which one is as it should be cannot be told."""
_METRICS: Final = {
    MetricCode.ENGINE: "engine",
    MetricCode.SM: "SM",
    MetricCode.TENSOR: "tensor cores",
}


class Outlier(NamedTuple):
    """How a GPU differs, and in which figure."""

    mark: GangMark
    text: str


def outliers(gang: Sequence[Mapping[MetricCode, float]]) -> list[Outlier | None]:
    """Compare the means of a job's GPUs. Returns for each how it differs; None if it does not."""
    found: list[Outlier | None] = [None] * len(gang)
    for code, name in _METRICS.items():
        values = {i: means[code] for i, means in enumerate(gang) if code in means}
        if len(values) < 2:
            continue
        middle = median_high(values.values())
        above = [i for i, value in values.items() if value - middle >= MIN_LEAD]
        few = len(values) >= _MIN_GANG_AHEAD and len(above) <= MAX_AHEAD_PART * len(values)
        for i, value in values.items():
            if found[i] is not None:
                continue
            beside = f"{name} {100 * value:.0f} % busy, the others {100 * middle:.0f} %"
            if value < LAG_PART * middle and middle - value >= MIN_LAG:
                found[i] = Outlier(GangMark.LAGS, beside)
            elif few and i in above:
                found[i] = Outlier(GangMark.AHEAD, beside)
    return found
