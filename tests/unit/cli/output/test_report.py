"""Reports as tables and pages: within 100 columns, complete, and safe to mail."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import click
import polars as pl
import pytest
from click.testing import CliRunner

from fairway.cli.commands.price import price
from fairway.cli.commands.report import ReportFormat, _target, labels_param
from fairway.cli.output.format import TableView, cell_width, table
from fairway.cli.output.report import (
    commitments_view,
    cost_view,
    efficiency_view,
    prices_view,
    statements_view,
    usage_view,
    waste_view,
)
from fairway.cli.output.report_files import parquet_bytes
from fairway.cli.output.report_html import (
    cost_page,
    daily_values,
    efficiency_page,
    usage_page,
    waste_page,
)
from fairway.cli.output.svg import NARROW, WIDE, SvgSeries, columns_plot
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Label
from fairway.model.fleet import Capacity
from fairway.model.gpu_use import HeldKind
from fairway.views.cost_records import csv_text, report_records, statement_records
from fairway.wire import costs as wire

LONG = "research-and-development-of-all-things"
BIG = Decimal("12345678.90")
WINDOW = wire.Window(
    first_day=date(2026, 10, 1),
    last_day=date(2026, 10, 31),
    start=datetime(2026, 10, 1, tzinfo=UTC),
    end=datetime(2026, 11, 1, tzinfo=UTC),
    timezone="America/Argentina/ComodRivadavia",
)


def cost_row(*labels: str, kind: ChargeKind | None = None, others: int = 0) -> wire.CostRow:
    return wire.CostRow(
        labels=list(labels),
        kind=kind,
        others=others,
        gpu_hours=BIG,
        usage=BIG,
        idle=BIG,
        overhead=BIG,
        total=3 * BIG,
    )


def cost_report(by: list[Label], rows: list[wire.CostRow]) -> wire.CostReport:
    return wire.CostReport(
        fleet="acme", currency="USD", window=WINDOW, by=by, of_teams=None, rows=rows, total=cost_row()
    )


COST = cost_report(
    [Label.TEAM, Label.USER, Label.POOL],
    [
        cost_row(LONG, "somebody.with.a.long.login@example.com", "us-east-1-h100-reserved-2026"),
        cost_row("", "", "hpc-a100"),
        cost_row("", "", "", others=1234),
        cost_row("", "", "hpc-a100", kind=ChargeKind.COMMITMENT),
        cost_row("", "", "", kind=ChargeKind.OVERHEAD),
    ],
)

COST_OF_UNITS = COST.model_copy(
    update={
        "per": "1000:tokens",
        "by": COST.by[:2],
        "rows": [
            row.model_copy(
                update={
                    "labels": row.labels[:2],
                    "count": None if n else 123_456_789_012,
                    "per_unit": None if n else Decimal("12.345678"),
                }
            )
            for n, row in enumerate(COST.rows)
        ],
    }
)


def usage_row(*labels: str) -> wire.UsageRow:
    return wire.UsageRow(
        labels=list(labels),
        gpu_hours=BIG,
        slice_hours=BIG,
        device_seconds=44444444444,
        slice_seconds=44444444444,
    )


USAGE = wire.UsageReport(
    fleet="acme",
    currency="USD",
    window=WINDOW,
    by=[Label.TEAM, Label.SLICE],
    of_teams=["nlp"],
    rows=[usage_row(LONG, "1g.10gb"), usage_row("", "")],
    total=usage_row(),
)


def waste_row(*labels: str) -> wire.WasteRow:
    each = dict.fromkeys(UNUSED_KINDS, Decimal("123456.78"))
    return wire.WasteRow(
        labels=list(labels), capacity_hours=BIG, used_hours=BIG / 10, hours=each, amounts=each, amount=BIG
    )


WASTE = wire.WasteReport(
    fleet="acme",
    currency="USD",
    window=WINDOW,
    by=[Label.POOL],
    of_teams=None,
    rows=[waste_row("us-east-1-h100-reserved-2026")],
    total=waste_row(),
)


def efficiency_row(*labels: str, measured: bool = True) -> wire.EfficiencyRow:
    kinds = list(HeldKind) if measured else [HeldKind.UNMEASURED]
    each = dict.fromkeys(kinds, BIG)
    mean = 0.4567 if measured else None
    return wire.EfficiencyRow(
        labels=list(labels),
        held_hours=len(kinds) * BIG,
        measured_hours=(len(kinds) - 1) * BIG,
        hours=each,
        amount=len(kinds) * BIG,
        amounts=each,
        engine=mean,
        sm=mean,
        tensor=mean,
        memory_gib=mean,
        memory_peak_gib=mean,
        watts=mean,
        energy_kwh=BIG if measured else Decimal(0),
        co2_kg=BIG,
    )


def efficiency_report(by: list[Label], *rows: wire.EfficiencyRow) -> wire.EfficiencyReport:
    return wire.EfficiencyReport(
        fleet="acme",
        currency="USD",
        window=WINDOW,
        by=by,
        of_teams=None,
        rows=list(rows),
        total=efficiency_row(),
    )


EFFICIENCY = efficiency_report(
    [Label.USER], efficiency_row("somebody.with.a.long.login@example.com"), efficiency_row("", measured=False)
)
EFFICIENCY_FINE = efficiency_report(
    [Label.TEAM, Label.USER, Label.POOL], efficiency_row(LONG, "somebody.with.a.long.login", "us-east-1-h100")
)


def line(used_in: str, kind: ChargeKind, pool: str, amount: str) -> wire.StatementLine:
    return wire.StatementLine(
        used_in=used_in,
        kind=kind,
        cluster="hpc",
        pool=pool,
        slice="1g.10gb" if pool else "",
        hours=BIG,
        amount=Decimal(amount),
    )


STATEMENTS = wire.Statements(
    fleet="acme",
    month="2026-10",
    currency="USD",
    timezone="UTC",
    closed_at=datetime(2026, 11, 3, 9, tzinfo=UTC),
    closed_by="finance",
    over=True,
    of_teams=None,
    statements=[
        wire.TeamStatement(
            team=LONG,
            lines=[
                line("2026-10", ChargeKind.USAGE, "us-east-1-h100-reserved-2026", "100.00"),
                line("2026-10", ChargeKind.OVERHEAD, "", "10.00"),
                line("2026-09", ChargeKind.USAGE, "hpc-mig", "-7.25"),
            ],
            corrections=Decimal("-7.25"),
            total=Decimal("102.75"),
        ),
        wire.TeamStatement(team="", lines=[], corrections=Decimal(0), total=Decimal(0)),
    ],
    total=Decimal("102.75"),
)
PRICES = wire.Prices(
    currency="USD",
    day=date(2026, 10, 1),
    pools=[
        wire.PoolPrice(
            pool="us-east-1-h100-reserved-2026",
            cluster="us-east-1-production",
            gpu="H100-80GB",
            capacity=Capacity.RESERVED,
            list_price=Decimal("3.4567"),
            discount=Decimal("0.125"),
            spot=None,
            spot_at=None,
            slices={"1g.10gb": Decimal("0.55")},
            committed_gpus=128,
            commitment_price=Decimal("1.99"),
            next_price=Decimal("3.10"),
            next_since=date(2027, 1, 1),
        )
    ],
)
VIEWS = [
    cost_view(COST, wide=False),
    cost_view(COST_OF_UNITS, wide=False),
    usage_view(USAGE, wide=False),
    waste_view(WASTE, wide=False),
    efficiency_view(EFFICIENCY, wide=False),
    efficiency_view(EFFICIENCY_FINE, wide=False),
    statements_view(STATEMENTS),
    prices_view(PRICES),
]


@pytest.mark.parametrize(
    "view", VIEWS, ids=["cost", "units", "usage", "waste", "efficiency", "finer", "statements", "prices"]
)
def test_tables_fit_100_columns(view: TableView) -> None:
    lines = table(view.columns, view.rows, 100)
    assert max(map(cell_width, lines)) <= 100, "\n".join(lines)


def test_rows_say_what_they_are() -> None:
    cells = cost_view(COST, wide=False).rows
    assert cells[1][:3] == ["(no team)", "(no user)", "hpc-a100"]
    assert cells[2][:3] == ["(1234 more rows)", "", ""]
    assert cells[3][:3] == ["(unused commitment)", "", "hpc-a100"]
    assert cells[4][:3] == ["(overhead)", "", ""]
    assert cells[-1][0] == "TOTAL"
    assert usage_view(USAGE, wide=False).rows[1][:2] == ["(no team)", "whole GPUs"]
    assert "Only the teams that you may see: nlp" in usage_view(USAGE, wide=False).notes[1]


def test_what_is_not_measured_is_a_dash_and_never_zero() -> None:
    for wide in (False, True):
        view = efficiency_view(EFFICIENCY, wide=wide)
        cells = dict(zip([c.title for c in view.columns], view.rows[1], strict=True))
        assert cells["USER"] == "(no user)"
        assert {cells[name] for name in ("ENG%", "SM%", "TENSOR%")} == {"-"}
        assert {cells[name] for name in ("POOR", "IDLE", *(("BUSY",) if wide else ()))} == {"-"}
        assert cells["UNMEAS."] != "-"
    assert any(note.startswith("held: not measured ") for note in view.notes)
    record = report_records(EFFICIENCY)[1]
    assert record["engine"] == ""
    assert record["not_measured_hours"] == record["held_hours"]


def test_waste_of_measured_pools_tells_what_became_of_the_used_hours() -> None:
    assert not any("held" in note for note in waste_view(WASTE, wide=False).notes)
    each = dict.fromkeys(HeldKind, Decimal("1.50"))
    row = waste_row("hpc").model_copy(update={"held_hours": each, "held_amounts": each})
    report = WASTE.model_copy(update={"rows": [row], "total": row})
    notes = waste_view(report, wide=False).notes
    assert "used: idle 1.50 hours, 1.50 USD" in notes
    assert "used: not measured 1.50 hours, 1.50 USD" in notes
    titles = [c.title for c in waste_view(report, wide=True).columns]
    assert titles[-2:] == ["HELD BUT IDLE USD", "NOT MEASURED USD"]
    assert report_records(report)[0]["held_poorly_used_amount"] == Decimal("1.50")


def test_corrections_are_plain_to_see() -> None:
    view = statements_view(STATEMENTS)
    (row,) = [r for r in view.rows if "correction" in r[2]]
    assert row[1] == "2026-09"
    assert row[-1] == "-7.25"
    assert any("does not change" in note for note in view.notes)


def test_nothing_to_show_says_what_to_do_next() -> None:
    for view in (
        cost_view(cost_report([Label.TEAM], []), wide=False),
        statements_view(STATEMENTS.model_copy(update={"statements": []})),
    ):
        assert view.rows == []
        assert "2026-10" in view.empty
        assert "fairway get" in view.hint


class Links(HTMLParser):
    """Whatever a page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed"):
            self.found.append(tag)
        self.found += [
            f"{k}={v}" for k, v in attrs if k in ("src", "href", "xlink:href", "onload", "onclick")
        ]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag != "meta":
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class HTMLText(HTMLParser):
    """What a page says, entities resolved."""

    said = ""

    def handle_data(self, data: str) -> None:
        self.said += data


def test_pages_load_nothing_and_run_nothing() -> None:
    evil = '<script>alert("x")</script>'
    daily = daily_values(
        cost_report(
            [Label.DAY, Label.TEAM],
            [cost_row(f"2026-10-{d:02d}", t) for d in range(1, 32) for t in (evil, *map(str, range(12)))],
        )
    )
    report = cost_report([Label.TEAM], [cost_row(evil), cost_row("", kind=ChargeKind.IDLE)])
    waste_days = WASTE.model_copy(
        update={"by": [Label.DAY], "rows": [waste_row("2026-10-01"), waste_row("2026-10-02")]}
    )
    pages = [
        cost_page(report, daily),
        usage_page(USAGE, daily),
        waste_page(WASTE, daily_values(waste_days)),
        efficiency_page(
            efficiency_report([Label.TEAM], efficiency_row(evil)),
            daily_values(efficiency_report([Label.DAY], *map(efficiency_row, ("2026-10-01", "2026-10-02")))),
        ),
    ]
    for page in pages:
        links = Links()
        links.feed(page)
        assert links.found == []
        assert links.open == []
        assert not re.search(r"url\(|@import|https?://", page)
        assert 'name="viewport"' in page
    assert "&lt;script&gt;" in pages[0]
    assert "2 others" in pages[0]


def test_pages_escape_what_they_are_given_everywhere() -> None:
    """In titles, figures, legends, plots, tables and notes; the style stays as it is."""
    evil = "<i>'\"&"
    days = [cost_row(f"2026-10-{d:02d}", evil) for d in (1, 2)]
    report = cost_report([Label.TEAM], [cost_row(evil)])
    report = report.model_copy(update={"fleet": evil, "user": evil, "currency": evil, "notes": [evil]})
    page = cost_page(report, daily_values(cost_report([Label.DAY, Label.TEAM], days)))
    assert "<i>" not in page
    assert page.count(evil.replace("<i>", "")) == 0
    text = HTMLText()
    text.feed(page)
    assert text.said.count(evil) >= 12
    style = (files("fairway.cli") / "templates" / "report.css").read_text()
    assert style.strip() in page


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_plot_is_drawn_within_its_width(width: int) -> None:
    days = [f"2026-{m:02d}-{d:02d}" for m in (7, 8, 9) for d in range(1, 31)]
    plot = columns_plot(days, [SvgSeries("a", [Decimal(i) for i in range(90)], "t0")], "USD", width)
    bars = [shape.attributes for shape in plot.shapes if shape.tag == "rect"]
    assert len(bars) == 89  # a day without anything has none
    assert all(float(bar["x"]) + float(bar["width"]) <= width for bar in bars)
    texts = [shape.attributes for shape in plot.shapes if shape.tag == "text"]
    labels = [float(text["x"]) for text in texts if text["text-anchor"] == "middle"]
    assert min(b - a for a, b in itertools.pairwise(labels)) > 35  # readable, not over each other


def test_files_sum_to_the_report() -> None:
    records = report_records(COST)
    frame = pl.read_parquet(BytesIO(parquet_bytes(records)))
    assert frame["total"].sum() == 15 * BIG
    assert frame.columns[:3] == ["team", "user", "pool"]
    assert csv_text(records).splitlines()[0].startswith("team,user,pool,kind,others,gpu_hours,usage")
    amounts = pl.read_parquet(BytesIO(parquet_bytes(statement_records(STATEMENTS))))["amount"]
    assert amounts.sum() == Decimal("102.75")


def test_the_shape_is_what_was_said_or_the_files() -> None:
    assert _target(None, None).shape is ReportFormat.TABLE
    assert _target(None, Path("a.parquet")).shape is ReportFormat.PARQUET
    assert _target("csv", Path("a.html")).shape is ReportFormat.CSV
    with pytest.raises(click.UsageError):
        _target(None, Path("a.pdf"))


def test_labels_are_read_with_commas() -> None:
    labels = labels_param(list(Label))
    assert labels.convert("team, user,team", None, None) == ("team", "user")
    with pytest.raises(click.BadParameter, match="any of team"):
        labels.convert("team,colour", None, None)


def owned(*arguments: str) -> str:
    done = CliRunner().invoke(price, ["owned", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_price_of_owned_gpus_shows_its_formula() -> None:
    said = owned("--purchase", "250,000", "--gpus", "8", "--lifetime", "4y")
    assert "250,000" in said
    assert "0.8912" in said  # 250000 ÷ (8 × 4 × 8766)
    assert "In the fleet file:  price: 0.8912" in said
    more = owned(
        *("--purchase", "250000", "--gpus", "8", "--lifetime", "48mo", "--power", "700W", "--pue", "1.3"),
        *("--electricity", "0.18", "--utilisation", "70%", "--currency", "EUR"),
    )
    assert "1.0059 EUR" in more  # and 0.7 kW × 0.7 × 1.3 × 0.18
    assert "1.4370 EUR" in more  # ÷ 0.7


@pytest.mark.parametrize("value", ["NaN", "1e999", "many", "--", ""])
def test_prices_that_are_none_are_refused(value: str) -> None:
    done = CliRunner().invoke(price, ["owned", "--purchase", value, "--gpus", "8", "--lifetime", "4y"])
    assert done.exit_code == 2
    assert "is not an amount" in done.output


def test_commitments_fit_a_terminal_and_one_that_does_not_pay_is_marked() -> None:
    day = datetime(2026, 11, 1, tzinfo=UTC)
    window = wire.Window(
        first_day=day.date(), last_day=day.date(), start=day, end=day, timezone="Europe/Berlin"
    )
    row = wire.CommitmentRow(
        pool="cloud-h100",
        id="reservation-0a1b2c3d4e5f67890",
        gpus=1024,
        since=date(2026, 1, 1),
        until=date(2029, 1, 1),
        price=Decimal("2.9512"),
        list_price=Decimal("4.1235"),
        used_hours=Decimal("123456.78"),
        idle_hours=Decimal("23456.78"),
        absent_hours=Decimal(0),
        uncovered_hours=Decimal("1.5"),
        coverage=Decimal("99.9"),
        utilisation=Decimal("71.3"),
        break_even=None,
        saved=Decimal("-1234567.89"),
    )
    report = wire.CommitmentReport(fleet="acme", currency="USD", window=window, commitments=[row])
    view = commitments_view(report, wide=False)
    lines = table(view.columns, view.rows, 100)
    assert view.alarming == {0}
    assert "100 %" in lines[1] and "71 %" in lines[1] and "-1,234,567.89" in lines[1]
    assert all(cell_width(line) <= 100 for line in lines)
    assert len(commitments_view(report, wide=True).columns) == len(view.columns) + 4
