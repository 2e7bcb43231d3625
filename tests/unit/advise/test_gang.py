"""A GPU that differs from the others of its job is marked; GPUs that are alike are not."""

from __future__ import annotations

import pytest

from fairway.advise.gang import outliers
from fairway.model.gpu_use import GangMark, MetricCode


def marks(*engines: float | None) -> list[GangMark | None]:
    gang = [{} if engine is None else {MetricCode.ENGINE: engine} for engine in engines]
    return [found.mark if found else None for found in outliers(gang)]


@pytest.mark.parametrize(
    "engines",
    [(), (0.0,), (0.9, 0.9), (0.95, 0.9, 0.85, 0.92), (0.02, 0.0, 0.01, 0.05), (0.9, None), (0.6, 0.4)],
)
def test_alike(engines: tuple[float | None, ...]) -> None:
    assert marks(*engines) == [None] * len(engines)


def test_one_that_does_little_lags() -> None:
    assert marks(0.9, 0.1) == [None, GangMark.LAGS]
    assert marks(*[0.9] * 7, 0.3) == [None] * 7 + [GangMark.LAGS]
    assert marks(0.9, 0.9, 0.0, 0.0) == [None, None, GangMark.LAGS, GangMark.LAGS]


def test_one_that_the_others_wait_for_is_ahead() -> None:
    assert marks(*[0.6] * 7, 0.99) == [None] * 7 + [GangMark.AHEAD]
    assert marks(0.9, 0.0, 0.0, 0.0) == [GangMark.AHEAD, None, None, None]
    assert marks(0.9, 0.9, 0.5, 0.5, 0.5) == [None] * 5, "two of five are no exception"


def test_engines_that_are_alike_may_hide_a_difference_in_what_is_done() -> None:
    busy = {MetricCode.ENGINE: 1.0, MetricCode.SM: 0.6, MetricCode.TENSOR: 0.4}
    *_, last = outliers([busy, busy, busy, busy | {MetricCode.TENSOR: 0.05}])
    assert last is not None
    assert (last.mark, last.text) == (GangMark.LAGS, "tensor cores 5 % busy, the others 40 %")
