"""How much time a sample stands for is the usual time between two, whatever failed in between."""

from __future__ import annotations

import pytest

from fairway.telemetry.prometheus import Labels, MatrixRow
from fairway.telemetry.reader import usual_gap


def row(*times: float) -> MatrixRow:
    return MatrixRow(Labels(), tuple((at, "1") for at in times))


@pytest.mark.parametrize(
    ("times", "interval"),
    [
        ([0, 15, 30, 45, 60], 15),
        ([0, 15, 30, 600, 615, 630], 15),  # an outage
        ([0, 30, 45, 75, 90, 120, 135, 165], 15),  # every other scrape fails
        ([0, 300, 600], None),  # too few to tell
        ([], None),
    ],
)
def test_the_usual_gap(times: list[float], interval: float | None) -> None:
    assert usual_gap([row(*times)]) == interval


def test_of_several_series_the_longest_tells() -> None:
    assert usual_gap([row(0, 600), row(*range(0, 300, 30))]) == 30
