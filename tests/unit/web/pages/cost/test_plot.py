"""What the plot of cost shows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from fairway.model.charge import ChargeKind, Label
from fairway.web.pages.cost.plot import Plot, cost_plot, parts_plot, usage_plot, waste_plot
from fairway.wire import costs as wire

ZERO = Decimal(0)


def window(days: int) -> wire.Window:
    first = date(2026, 1, 1)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return wire.Window(
        first_day=first,
        last_day=first + timedelta(days=days - 1),
        start=start,
        end=start + timedelta(days=days),
        timezone="UTC",
    )


def row(
    labels: list[str], usage: str = "0", idle: str = "0", kind: ChargeKind | None = None, others: int = 0
) -> wire.CostRow:
    total = Decimal(usage) + Decimal(idle)
    return wire.CostRow(
        labels=labels,
        kind=kind,
        others=others,
        gpu_hours=Decimal(1),
        usage=Decimal(usage),
        idle=Decimal(idle),
        overhead=ZERO,
        total=total,
    )


def report(by: list[Label], rows: list[wire.CostRow], days: int = 3) -> wire.CostReport:
    return wire.CostReport(
        fleet="acme", currency="EUR", window=window(days), by=by, of_teams=None, rows=rows, total=row([])
    )


def told(plot: Plot) -> dict[str, list[str]]:
    return {s.name: [str(v) for v in s.values] for s in plot.series}


def test_names_by_size_and_what_nobody_carries_last() -> None:
    plot = cost_plot(
        report(
            [Label.TEAM, Label.DAY],
            [
                row(["nlp", "2026-01-01"], "1.50"),
                row(["vision", "2026-01-01"], "2.00"),
                row(["nlp", "2026-01-03"], "4.00"),
                row(["", "2026-01-02"], idle="9.00", kind=ChargeKind.IDLE),
            ],
        )
    )
    assert told(plot) == {
        "nlp": ["1.50", "0", "4.00"],
        "vision": ["2.00", "0", "0"],
        "idle (unallocated)": ["0", "9.00", "0"],
    }
    assert plot.days == ("2026-01-01", "2026-01-02", "2026-01-03")
    assert plot.totals == [Decimal("3.50"), Decimal("9.00"), Decimal("4.00")]
    assert plot.data()["series"][0]["values"] == ["1.50", "0", "4.00"]


def test_a_team_called_idle_is_a_team() -> None:
    plot = cost_plot(report([Label.TEAM, Label.DAY], [row(["idle", "2026-01-01"], "1.00")]))
    assert [(s.name, s.colour) for s in plot.series] == [("idle", "t0")]


def test_too_many_names_are_one() -> None:
    rows = [row([f"t{n}", "2026-01-01"], f"{10 + n}") for n in range(16)]
    plot = cost_plot(report([Label.TEAM, Label.DAY], rows))
    assert [s.name for s in plot.series] == [f"t{n}" for n in range(15, 4, -1)] + ["all others"]
    assert plot.total == sum(r.total for r in rows)


def test_a_team_keeps_its_colour_whatever_its_rank() -> None:
    days = [["nlp", "2026-01-01"], ["vision", "2026-01-01"]]
    numbers = {"vision": 0, "nlp": 5}
    for amounts in (("1", "2"), ("2", "1")):
        rows = [row(labels, amount) for labels, amount in zip(days, amounts, strict=True)]
        plot = cost_plot(report([Label.TEAM, Label.DAY], rows), numbers)
        assert {s.name: s.colour for s in plot.series} == {"vision": "t0", "nlp": "t5"}


def test_days_alone_are_told_by_part() -> None:
    plot = parts_plot(report([Label.DAY], [row(["2026-01-02"], "1.00", "2.00")]))
    assert {s.name: (s.colour, s.total) for s in plot.series} == {
        "used": ("used", Decimal(1)),
        "idle": ("idle", Decimal(2)),
    }


def test_long_windows_are_told_by_week_and_month() -> None:
    days = [row(["t", (date(2026, 1, 1) + timedelta(days=n)).isoformat()], "1") for n in range(900)]
    weeks = cost_plot(report([Label.TEAM, Label.DAY], days[:200], 200))
    assert (weeks.every, weeks.days[:2]) == ("week", ("2025-12-29", "2026-01-05"))
    assert weeks.series[0].values[:2] == (Decimal(4), Decimal(7))
    months = cost_plot(report([Label.TEAM, Label.DAY], days, 900))
    assert (months.every, months.series[0].values[:2]) == ("month", (Decimal(31), Decimal(28)))
    assert months.total == 900


def test_hours_and_waste() -> None:
    used = wire.UsageReport(
        fleet="acme",
        currency="EUR",
        window=window(2),
        by=[Label.DAY],
        of_teams=None,
        rows=[
            wire.UsageRow(
                labels=["2026-01-02"],
                gpu_hours=Decimal("7.25"),
                slice_hours=ZERO,
                device_seconds=1,
                slice_seconds=0,
            )
        ],
        total=wire.UsageRow(
            labels=[], gpu_hours=Decimal("7.25"), slice_hours=ZERO, device_seconds=1, slice_seconds=0
        ),
    )
    assert told(usage_plot(used)) == {"all": ["0", "7.25"]}
    lost = wire.WasteRow(
        labels=["2026-01-01"],
        capacity_hours=Decimal(9),
        used_hours=ZERO,
        hours={ChargeKind.DOWN: Decimal(9)},
        amounts={ChargeKind.DOWN: Decimal("3.30"), ChargeKind.IDLE: ZERO},
        amount=Decimal("3.30"),
    )
    wasted = wire.WasteReport(
        fleet="acme",
        currency="EUR",
        window=window(2),
        by=[Label.DAY],
        of_teams=None,
        rows=[lost],
        total=lost,
    )
    assert [(s.name, s.colour) for s in waste_plot(wasted).series] == [("down", "down")]
