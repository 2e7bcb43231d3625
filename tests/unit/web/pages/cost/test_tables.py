"""What the pages of cost say beside a figure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial

import pytest

from fairway.model.charge import Label
from fairway.web.pages.cost.query import comparison
from fairway.web.pages.cost.tables import change_text, compared
from fairway.wire import costs as wire


@pytest.mark.parametrize(
    ("now", "before", "then", "text"),
    [
        ("112", "100", "the 7 days before", "12 % more than the 7 days before"),
        ("88", "100", "the 7 days before", "12 % less than the 7 days before"),
        ("2500", "100", "the 2 days before", "2,400 % more than the 2 days before"),
        ("0", "100", "the day before", "100 % less than the day before"),
        ("100.4", "100", "the 7 days before", "same as the 7 days before"),
        ("100.5", "100", "the 7 days before", "same as the 7 days before"),
        ("100.6", "100", "the 7 days before", "1 % more than the 7 days before"),
        ("5", "0", "the 7 days before", ""),
    ],
)
def test_how_a_figure_compares(now: str, before: str, then: str, text: str) -> None:
    assert compared(Decimal(now), Decimal(before), then) == text


def test_hours_of_today_are_not_compared_with_a_whole_day() -> None:
    """Capacity that costs the same every day has not become cheaper at 6 in the morning."""
    days = [date(2026, 11, 10) + timedelta(days=n) for n in range(7)]
    amounts = [Decimal(100)] * 6 + [Decimal(25)]  # the last is today, and not over
    zero = Decimal(0)
    row = partial(wire.CostRow, usage=zero, idle=zero, overhead=zero, gpu_hours=zero)
    window = wire.Window(
        first_day=days[0],
        last_day=days[-1],
        start=datetime(2026, 11, 10, tzinfo=UTC),
        end=datetime(2026, 11, 16, 6, tzinfo=UTC),
        timezone="UTC",
    )
    report = partial(wire.CostReport, fleet="", of_teams=None, window=window, currency="USD")
    daily = report(
        by=[Label.DAY],
        rows=[row(labels=[f"{d}"], total=a) for d, a in zip(days, amounts, strict=True)],
        total=row(labels=[], total=sum(amounts)),
    )
    over = comparison(window, date(2026, 11, 16))
    assert over is not None
    before = report(by=[], rows=[], total=row(labels=[], total=Decimal(600)))
    assert change_text(daily, over, before) == "same as the 6 days before"
