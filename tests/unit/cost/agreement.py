"""Budget = statement = report = FOCUS of every team, whatever happens to the fleet file.

    python -m tests.unit.cost.agreement --cases 100000 [--first SEED]

A case is a history (`histories`): a world whose fleet file is applied up to four times. The services that
reports, statements and budgets are made with (`Costs`) charge it from sums in memory. What it must come to is
worked out hour by hour by `history_reckoning`.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

from fairway.cost import corrections, report
from fairway.cost.calendar import Calendar, Window
from fairway.cost.focus.export import NO_TEAM
from fairway.ledger import UsageFilter
from fairway.model.charge import Charge, ChargeKind, Label, Span
from fairway.model.fleet import Fleet
from fairway.services.charges import Costs
from fairway.services.convert import costs as convert
from fairway.services.focus_export import focus_lines
from fairway.services.reports import ReportQuery, ReportResult
from fairway.views.rounded import rounded_report
from tests.unit.cost.conservation import NotConserved, metered
from tests.unit.cost.histories import SHARD, History, history
from tests.unit.cost.history_reckoning import Due, due
from tests.unit.cost.memory_ledger import MemoryHistory, MemoryLedger, run
from tests.unit.cost.reckoning import ZERO, held
from tests.unit.cost.worlds import CENTS

GROUPINGS = (
    (Label.TEAM,),
    (Label.TEAM, Label.DAY),
    (Label.TEAM, Label.USER),
    (Label.POOL, Label.TEAM),
    (Label.CLUSTER, Label.SLICE, Label.TEAM, Label.DAY),
)


Key = TypeVar("Key", bound=Hashable)


class Differ(Exception):
    """A case in which two documents tell different amounts, or one tells what is not due."""


class Case:
    """One history, and what Fairway's services say of it."""

    def __init__(self, seed: int) -> None:
        self.history = history(seed)
        self.world = self.history.world
        self.calendar = Calendar(self.world.stage.zone)
        self.hours = self.world.hours
        self.window = Span(self.hours[0].start, self.hours[-1].end)
        self.now = self.window.end
        self.capacity = self.world.capacity()
        used = held(self.world, [story[-1] for story in self.world.stories])
        _, self.sums = metered(self.world, self.calendar, used)
        self.ledger = MemoryLedger(self.world, self.calendar, self.sums, self.capacity)
        # Days are those of the file, and the world's are those of its zone.
        zone = self.world.stage.zone.key
        self.applied = tuple((at, _in_zone(fleet, zone)) for at, fleet in self.history.applied)
        self.newest = self.applied[-1][1]
        self.known: dict[object, tuple[Charge, ...]] = {}
        self.costs = Costs(self.ledger, MemoryHistory(self.applied, self.calendar))  # type: ignore[arg-type]

    def charges(
        self, by: tuple[Label, ...], window: Span | None = None, which: UsageFilter | None = None
    ) -> tuple[Charge, ...]:
        """What the services charge."""
        asked = (by, window or self.window, which or UsageFilter())
        if asked not in self.known:
            period, filters = asked[1:]
            self.known[asked] = run(self.costs.charges(self.newest, period, by, filters, self.now))
        return self.known[asked]


def _in_zone(fleet: Fleet, zone: str) -> Fleet:
    return replace(fleet, cost=replace(fleet.cost, timezone=zone))


def check(seed: int) -> Counter[str]:
    """Run the case of a seed; what it was about. Raises Differ."""
    case = Case(seed)
    wanted = due(case.history, case.capacity, case.sums)
    _same_as_due(case, wanted)
    _same_documents(case, wanted, GROUPINGS[1 + seed % 4], seed)
    _same_filtered(case, wanted, seed)
    if len(case.applied) > 1:
        _same_closed(case, seed)
    return _about(case.history) if seed % 10 == 0 else Counter()


def _same_as_due(case: Case, wanted: Due) -> None:
    """Charges + idle + overhead = capacity × price + overhead, of each pool, cluster and day."""
    made = case.charges((Label.TEAM, Label.DAY))
    found: dict[tuple[str, date], Fraction] = defaultdict(Fraction)
    used: dict[str, Fraction] = defaultdict(Fraction)
    for charge in made:
        place = charge.cluster if charge.supply is None else charge.supply.pool
        found[place, case.calendar.day_of(charge.span.start)] += charge.amount
        if charge.kind is ChargeKind.USAGE:
            assert charge.labels is not None
            used[charge.labels[0]] += charge.amount
    _equal("charged and due", found, wanted.by_place)
    _equal("usage of teams", used, wanted.usage)


def _equal(what: str, found: Mapping[Key, Fraction], wanted: Mapping[Key, Fraction]) -> None:
    for key in {*found, *wanted}:
        if found.get(key, ZERO) != wanted.get(key, ZERO):
            told, exact = float(found.get(key, ZERO)), float(wanted.get(key, ZERO))
            raise Differ(f"{what}: {key} is {told}, must be {exact}")


def _payer(charge: Charge) -> str:
    return "" if charge.labels is None else charge.labels[0]


def _cell(charge: Charge) -> str:
    return charge.kind if charge.labels is None else report.column_of(charge.kind)


def _own(charges: Iterable[Charge]) -> dict[str, Fraction]:
    """Of each team itself; empty: what no team pays."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for charge in charges:
        found[_payer(charge)] += charge.amount
    return found


def _inside(case: Case, wanted: Due, window: Span) -> dict[str, Fraction]:
    """Of each team with those that were inside it then: from charges of each stretch of equal rules."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for stretch, paths in wanted.stretches:
        start, end = max(stretch.start, window.start), min(stretch.end, window.end)
        if start < end:
            for team, amount in _own(case.charges((Label.TEAM,), Span(start, end))).items():
                for name in paths.get(team, (team,)) if team else ():
                    found[name] += amount
    return found


def _same_exported(
    case: Case, month: date, window: Span, billed: Mapping[str, Decimal], cent: Decimal
) -> None:
    """The FOCUS file of a month, read back, against its statement."""

    async def read() -> str:
        until = (month + timedelta(days=32)).replace(day=1)
        days = Window(month, until, window, case.now)
        return "".join([piece async for piece in focus_lines(case.costs, case.newest, days)])

    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in csv.DictReader(io.StringIO(asyncio.run(read()))):
        payer = row["SubAccountId"]
        sums["" if payer == NO_TEAM else payer] += Decimal(row["BilledCost"])
    for team in {*sums, *billed}:
        if sums[team] != billed.get(team, 0):
            raise Differ(f"{team} in {month}: FOCUS {sums[team]}, statement {billed.get(team, 0)}")


def _same_documents(case: Case, wanted: Due, by: tuple[Label, ...], seed: int) -> None:
    """Each month's report, statement, budgets and FOCUS rows."""
    cent = CENTS[case.newest.currency]
    for month in sorted({hour.day.replace(day=1) for hour in case.hours}):
        its = [hour for hour in case.hours if hour.day.replace(day=1) == month]
        window = Span(its[0].start, its[-1].end)
        made = case.charges((Label.TEAM,), window)
        exact = _own(made)
        _equal("grouped otherwise", _by_team(case.charges(by, window), by), exact)
        billed: dict[str, Decimal] = defaultdict(Decimal)
        for line in corrections.statement_amounts(made, (Label.TEAM,), cent):
            billed[line.team] += line.amount
        shown = _shown(case, made, month, window)
        for team in exact:
            if shown[team] != billed[team]:
                raise Differ(f"{team} in {month}: report {shown[team]}, statement {billed[team]}")
        # A document rounds each column, and each kind of what nobody pays, by itself: so many cents at most.
        cells = {team: {_cell(c) for c in made if _payer(c) == team} for team in exact}
        for team, cells_of_team in cells.items():
            if abs(Fraction(billed[team]) - exact[team]) > Fraction(cent) * len(cells_of_team):
                raise Differ(f"statement of {team} in {month}: {billed[team]}, is {float(exact[team])}")
        apart = abs(Fraction(sum(billed.values(), Decimal(0))) - sum(exact.values(), ZERO))
        if apart > Fraction(cent) * Fraction(3, 2) + Fraction(1, 10**5):  # three columns, rounded once
            raise Differ(f"statement of {month} is {float(apart)} off")
        if seed % 4 == 2:
            _same_exported(case, month, window, billed, cent)
        budgets = run(case.costs.by_team(case.newest, window, case.now))
        inside = _inside(case, wanted, window)
        _equal(f"budgets of {month}", {str(t): a for t, a in budgets.items() if t}, inside)


def _shown(case: Case, made: Iterable[Charge], month: date, window: Span) -> dict[str, Decimal]:
    """What a report by team shows to people, in tables and on pages."""
    entries = [report.ReportEntry(c.labels or ("",), c.kind, c.labels is not None, c.amount) for c in made]
    until = (month + timedelta(days=32)).replace(day=1)
    found = ReportResult(Window(month, until, window, case.now), report.table(entries, max_rows=1000))
    document = convert.cost(case.newest, ReportQuery("", (Label.TEAM,)), found, {"of_teams": None})
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in rounded_report(document).rows:
        sums[row.labels[0]] += row.total
    return sums


def _by_team(charges: Iterable[Charge], by: tuple[Label, ...]) -> dict[str, Fraction]:
    place, found = by.index(Label.TEAM), dict[str, Fraction]()
    for charge in charges:
        team = "" if charge.labels is None else charge.labels[place]
        found[team] = found.get(team, ZERO) + charge.amount
    return found


def _same_filtered(case: Case, wanted: Due, seed: int) -> None:
    """A report of one team is what its budget counts, and one of a pool is that pool's row."""
    inside = _inside(case, wanted, case.window)
    teams = sorted(inside)
    if teams:
        team = teams[seed % len(teams)]
        made = case.charges((Label.USER,), which=UsageFilter(teams=frozenset({team})))
        _equal(f"report of {team}", {"": sum((c.amount for c in made), ZERO)}, {"": inside[team]})
    rows: dict[str, Fraction] = defaultdict(Fraction)
    for charge in case.charges((Label.POOL,)):
        rows[charge.pool if charge.labels is None else charge.labels[0]] += charge.amount
    pools = sorted(pool for pool in rows if pool)
    if pools:
        pool = pools[seed % len(pools)]
        made = case.charges((Label.DAY,), which=UsageFilter(pools=frozenset({pool})))
        _equal(f"report of {pool}", {"": sum((c.amount for c in made), ZERO)}, {"": rows[pool]})


def _same_closed(case: Case, seed: int) -> None:
    """Each month, closed before the last apply or corrected after every one, comes to what it costs now."""
    for month in sorted({hour.day.replace(day=1) for hour in case.hours}):
        its = [hour for hour in case.hours if hour.day.replace(day=1) == month]
        _same_corrected(case, Span(its[0].start, its[-1].end), 1 if seed % 3 == 0 else len(case.applied) - 1)
    before = _before(case, len(case.applied) - 1)
    # What has no date changes nothing before the hour after its apply.
    applied, undated = case.applied[-1][0], not case.history.last_change_has_dates()
    before_it = Span(case.window.start, min(case.window.end, case.calendar.hour_start(applied)))
    if undated and before_it.start < before_it.end:
        then = run(before.charges(case.applied[-2][1], before_it, (Label.POOL,), now=case.now))
        now = case.charges((Label.POOL,), before_it)
        for kind in ChargeKind:
            sums = [sum((c.amount for c in each if c.kind is kind), ZERO) for each in (then, now)]
            _equal("the past, after an undated change", {kind: sums[1]}, {kind: sums[0]})


def _before(case: Case, files: int) -> Costs:
    """What is charged after so many applies."""
    return Costs(case.ledger, MemoryHistory(case.applied[:files], case.calendar))  # type: ignore[arg-type]


def _same_corrected(case: Case, month: Span, first: int) -> None:
    """A month is closed after `first` applies, and corrected after each of the others."""
    cent, by = CENTS[case.newest.currency], (Label.TEAM,)
    billed: tuple[corrections.StatementAmount, ...] = ()
    anew = billed
    for files in range(first, len(case.applied) + 1):
        newest = case.applied[files - 1][1]
        charged = run(_before(case, files).charges(newest, month, by, now=case.now))
        anew = corrections.statement_amounts(charged, by, cent)
        billed = (*billed, *corrections.correction(anew, billed))
        if corrections.correction(anew, billed):
            raise Differ("a correction does not correct")
    told, now = (sum((line.amount for line in lines), Decimal(0)) for lines in (billed, anew))
    if told != now:
        raise Differ(f"closed and corrected {told}, is {now}")


def _about(case: History) -> Counter[str]:
    fleets = [fleet for _, fleet in case.applied]
    pools = [{p.name for p in fleet.pools} for fleet in fleets]
    teams = [{t.name for t in fleet.teams} for fleet in fleets]
    hours = case.world.hours
    seen = {
        "several files": len(fleets) > 1,
        "applied within the window": any(at > hours[0].start for at, _ in case.applied),
        "nothing before the first": case.held(hours[0]) is None,
        "pool removed": any(a - b for a, b in pairwise(pools)),
        "pool added or back": any(b - a for a, b in pairwise(pools)),
        "team removed": any(a - b for a, b in pairwise(teams)),
        "team renamed": any(t.renamed_from for fleet in fleets for t in fleet.teams),
        "team moved on a day": any(t.moved for t in fleets[-1].teams),
        "dated prices": any(p.pricing.steps for fleet in fleets for p in fleet.pools),
        "commitment corrected": any(
            {c.since for c in old.pricing.commitments if c not in new.pricing.commitments}
            & {c.since for c in new.pricing.commitments if c not in old.pricing.commitments}
            for one, other in pairwise(fleets)
            for old in one.pools
            for new in other.pools
            if old.name == new.name
        ),
        "shares of GPUs": any(supply.slice == SHARD for supply, _, _ in case.world.holders),
        "months closed several times": len(fleets) > 2 and len({h.day.month for h in hours}) > 1,
        "commitments": any(p.pricing.commitments for fleet in fleets for p in fleet.pools),
    }
    return Counter(name for name, is_so in seen.items() if is_so)


def main() -> int:
    """Run cases from a seed on; each that fails is printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--step", type=int, default=1, help="2: every other seed, for two processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    options = parser.parse_args()
    about: Counter[str] = Counter()
    began, done, failures, seed = time.perf_counter(), 0, 0, options.first
    while done < options.cases and time.perf_counter() - began < options.seconds:
        try:
            about += check(seed)
        except Exception as error:
            failures += 1
            print(f"case {seed}: {error!r}", file=sys.stderr)  # noqa: T201
            if isinstance(error, NotConserved) or failures > 20:
                break
        done, seed = done + 1, seed + options.step
        if done % 1_000 == 0:
            print(f"{done} cases, {failures} failures, next seed {seed}", flush=True)  # noqa: T201
    took = time.perf_counter() - began
    print(f"{done} cases in {took:.0f} s, {failures} failures, next seed {seed}; of every tenth:")  # noqa: T201
    for name, count in about.most_common():
        print(f"{count:>9}  {name}")  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
