"""Compare reports, statements, FOCUS files and budgets of a server with `bench.recompute`."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bench.figure import Figure
from bench.live import start_demo
from bench.recompute import Recomputed
from bench.recompute_rows import Key, Lines, RawLedger
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.wire.costs import CostReport

LABELS: Final = ("day", "cluster", "pool", "slice", "team", "user", "priority", "name")
GROUPINGS: Final = (
    *("team", "user", "pool", "day", "cluster", "priority", "slice", "team,pool", "team,day", "pool,day"),
    *("user,pool", "team,user", "cluster,day", "team,priority,day", "pool,slice,team,day"),
)
FINEST: Final = ("name", "team,name")
COLUMN: Final = defaultdict(lambda: "idle", usage="usage", overhead="overhead")
MOST: Final = 20_000
PATIENCE: Final = 180.0
CENT: Final = 0.01
NO_TEAM: Final = "(no team)"
"""The sub-account of jobs of no team in FOCUS files."""


@dataclass
class Comparison:
    """How many figures were compared, and the largest difference of each source."""

    figures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    largest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    where: dict[str, str] = field(default_factory=dict)

    def add(self, source: str, theirs: Mapping[Key, float], *ours: Mapping[Key, float]) -> None:
        """Of several looks of our own, a figure must lie between the least and the most."""
        keys = set(theirs).union(*ours)
        self.figures[source] += len(keys)
        for key in keys:
            each, told = [one.get(key, 0.0) for one in ours], theirs.get(key, 0.0)
            apart = max(0.0, min(each) - told, told - max(each))
            if apart > self.largest[source]:
                self.largest[source] = apart
                self.where[source] = f"{key}: {told}, recomputed {each}"

    def merge(self, other: Comparison, prefix: str) -> None:
        """Add the figures of another comparison under names of their own."""
        for source, count in other.figures.items():
            name = prefix + source
            self.figures[name] += count
            if other.largest[source] > self.largest[name]:
                self.largest[name], self.where[name] = other.largest[source], other.where[source]

    def figure(self, size: str) -> Figure:
        """The largest difference of any amount, against a cent."""
        money = [apart for source, apart in self.largest.items() if "hours" not in source]
        details = {
            source: f"{count} figures, largest difference {self.largest[source]:.6f}"
            + (f" at {self.where[source]}" if self.largest[source] >= CENT else "")
            for source, count in self.figures.items()
        }
        total: dict[str, object] = {"figures": sum(self.figures.values())}
        limits = "rounding: each figure shown is whole cents, and parts sum to the whole"
        return Figure("recompute", size, max(money, default=0.0), CENT, "USD", 1.0, limits, total | details)


def grouped(lines: Lines, by: Key) -> dict[Key, float]:
    """As a report has it: by labels, the kind of a line that nobody pays, and column."""
    found: dict[Key, float] = defaultdict(float)
    places = [LABELS.index(label) for label in by]
    for line, (amount, _) in lines.items():
        kind = "" if line.paid else line.kind
        found[(*(line.labels[n] for n in places), kind, COLUMN[line.kind])] += amount
    return found


def hours_of(lines: Lines, by: Key) -> dict[Key, float]:
    """GPU-hours by labels."""
    found: dict[Key, float] = defaultdict(float)
    for line, (_, hours) in lines.items():
        found[tuple(line.labels[LABELS.index(label)] for label in by)] += hours
    return found


def billed(lines: Lines) -> dict[Key, float]:
    """As a statement has it: by team, kind and place."""
    found: dict[Key, float] = defaultdict(float)
    for line, (amount, _) in lines.items():
        found[(line.labels[4], line.kind, *line.place)] += amount
    return found


def exported(lines: Lines) -> dict[Key, float]:
    """As a FOCUS file has it: by day, kind, place, team, user and priority."""
    found: dict[Key, float] = defaultdict(float)
    for line, (amount, _) in lines.items():
        day, *_, team, user, priority, _name = line.labels
        found[day, line.kind, *line.place, team, user, priority] += amount
    return found


def reports(client: Client, window: str, groupings: Sequence[str], found: Comparison, *ours: Lines) -> None:
    """Compare `report cost` by each grouping, amounts and GPU-hours."""
    for text in groupings:
        by = tuple(text.split(","))
        report(client.report_cost(window=window, by=by, most=MOST), by, found, *ours)


def report(told: CostReport, by: Key, found: Comparison, *ours: Lines) -> None:
    """Compare the amounts and GPU-hours of a report."""
    amounts: dict[Key, float] = defaultdict(float)
    hours: dict[Key, float] = defaultdict(float)
    for row in told.rows:
        if row.others:
            raise SystemExit(f"error: the report by {', '.join(by)} has more than {MOST} rows")
        for column in ("usage", "idle", "overhead"):
            amounts[*row.labels, row.kind or "", column] += float(getattr(row, column))
        hours[tuple(row.labels)] += float(row.gpu_hours)
    found.add("report cost", amounts, *(grouped(lines, by) for lines in ours))
    found.add("GPU-hours", hours, *(hours_of(lines, by) for lines in ours))


def statements(client: Client, ledger: RawLedger, found: Comparison, months: Sequence[str]) -> None:
    """Compare each month with its statement and every later correction of it."""
    told: dict[str, dict[Key, float]] = defaultdict(lambda: defaultdict(float))
    for month in months:
        for team in client.statements(month).statements:
            for line in team.lines:
                key = (team.team, line.kind.value, line.cluster, line.pool, line.slice)
                told[line.used_in][key] += float(line.amount)
    for month in months[:-1]:  # the last is not over
        found.add("statements", told[month], billed(month_lines(ledger, month, int(time.time()))))


def days_lines(ledger: RawLedger, first: date, until: date, now: int) -> Lines:
    """Recompute some days, up to the end of the running hour."""
    end = min(ledger.midnight(until), now - now % 3600 + 3600)
    return Recomputed(ledger, ledger.midnight(first), end, min(now, end)).lines()


def month_lines(ledger: RawLedger, month: str, now: int) -> Lines:
    """Recompute a month."""
    first = date.fromisoformat(f"{month}-01")
    return days_lines(ledger, first, (first + timedelta(days=32)).replace(day=1), now)


def focus(client: Client, window: str, found: Comparison, ours: Lines) -> dict[str, float]:
    """Compare a FOCUS file row by row, without corrections. Returns its sums by team, with them."""
    text = b"".join(client.export_focus(window)).decode()
    rows: dict[Key, float] = defaultdict(float)
    sums: dict[str, float] = defaultdict(float)
    for row in csv.DictReader(io.StringIO(text)):
        payer = row["SubAccountId"].replace(NO_TEAM, "")
        sums[payer] += float(row["BilledCost"])
        if row["ChargeCategory"] == "Usage" and not row["ChargeClass"]:  # neither rounding nor corrections
            day = datetime.fromisoformat(row["ChargePeriodStart"]).astimezone(UTC)
            place = (row["x_Cluster"], row["x_Pool"], row["x_Slice"])
            who = (payer, row["x_User"], row["x_Priority"])
            rows[day.date().isoformat(), row["x_Kind"], *place, *who] += float(row["BilledCost"])
    found.add("FOCUS rows", rows, exported(ours))
    return sums


def budgets(client: Client, url: str, found: Comparison) -> None:
    """Compare what budgets count: each lies between the looks before and after it was counted."""
    before, asked = RawLedger(url), time.time()
    while True:
        told = [(one, one.checked_at, one.spent) for one in client.budgets().budgets]
        if all(at is not None and at.timestamp() > asked + 2 for _, at, _ in told):
            break
        if time.time() > asked + PATIENCE:
            raise SystemExit("error: the budgets were not counted")
        time.sleep(1)
    after = RawLedger(url)
    for one, at, spent in told:
        assert at is not None and spent is not None
        looks = [
            days_lines(ledger, one.period, one.until, now)
            for ledger in (before, after)
            for now in (int(asked), int(at.timestamp()) + 1)
        ]
        sums = [[amount for line, (amount, _) in each.items() if one.team in line.teams] for each in looks]
        team: Key = (one.team,)
        found.add("budgets", {team: float(spent)}, *({team: math.fsum(each)} for each in sums))


def today(client: Client, url: str, groupings: Sequence[str], found: Comparison) -> None:
    """Compare the reports of today: each figure lies between the looks before and after."""
    for text in groupings:
        before, asked = RawLedger(url), int(time.time())
        parts = Comparison()
        day = datetime.fromtimestamp(asked, before.zone).date()
        late: list[Lines] = []
        told = client.report_cost(window=day.isoformat(), by=text.split(","), most=MOST)
        over, after = int(time.time()) + 1, RawLedger(url)
        for ledger in (before, after):
            late += [days_lines(ledger, day, day + timedelta(days=1), now) for now in (asked - 1, over)]
        report(told, tuple(text.split(",")), parts, *late)
        found.merge(parts, "today, ")


def history(client: Client, url: str, found: Comparison) -> None:
    """Compare every whole day since the first apply, the statements, the last week and today."""
    ledger, now = RawLedger(url), int(time.time())
    first = datetime.fromtimestamp(ledger.since[0], ledger.zone).date()
    day = datetime.fromtimestamp(now, ledger.zone).date()
    yesterday, week = day - timedelta(days=1), max(first, day - timedelta(days=7))
    reports(client, f"{first}..{yesterday}", GROUPINGS, found, days_lines(ledger, first, day, now))
    lines = days_lines(ledger, week, day, now)
    reports(client, f"{week}..{yesterday}", FINEST, found, lines)
    focus(client, f"{week}..{yesterday}", found, lines)
    months = sorted({f"{first + timedelta(days=n):%Y-%m}" for n in range((day - first).days + 1)})
    statements(client, ledger, found, months)
    for month in months[:-1]:
        told: dict[Key, float] = {(t.team,): float(t.total) for t in client.statements(month).statements}
        sums = focus(client, month, found, month_lines(ledger, month, now))
        found.add("FOCUS against statements", {(team,): amount for team, amount in sums.items()}, told)
    today(client, url, ("team", "pool", "team,user", "pool,slice"), found)
    budgets(client, url, found)


def lab_day(client: Client, url: str) -> Comparison:
    """Compare today's reports, FOCUS rows of usage and budgets on any server with applied fleets."""
    found = Comparison()
    today(client, url, ("team", "user", "pool", "team,pool,user", "name", "pool,slice"), found)
    budgets(client, url, found)
    return found


async def compared(size: str) -> Figure:
    """Compare a demo, or for `lab` the server of the current context and the ledger of FAIRWAY_LEDGER_URL."""
    if size == "lab":
        with Client() as client:
            found = await asyncio.to_thread(lab_day, client, os.environ["FAIRWAY_LEDGER_URL"])
        return found.figure(size)
    found = Comparison()
    with tempfile.TemporaryDirectory(prefix="fw-bench-") as home:
        Path(home).chmod(0o711)
        demo = await start_demo(home, 8 if size == "small" else int(size))
        try:
            state = next(Path(home).glob("fairway-demo*/state"))
            url = f"postgresql://fairway@/postgres?host={quote(str(state / 'postgres/socket'), safe='')}"
            server = Path(home, "log").read_text().split(" on ", 1)[1].split()[0]
            with Client(Target(server, (state / "admin.token").read_text().strip())) as client:
                await asyncio.to_thread(history, client, url, found)
        finally:
            with suppress(ProcessLookupError):
                demo.send_signal(signal.SIGINT)
            await asyncio.wait_for(demo.wait(), 60)
    return found.figure(size)
