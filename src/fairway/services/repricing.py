"""Compute how a fleet file that is not applied yet would change charges of the past."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

from fairway.cost.calendar import Calendar, calendar_of, next_month
from fairway.cost.fleet_history import TeamPath
from fairway.cost.repricing import changed_since
from fairway.cost.rounding import rounded
from fairway.ledger import Ledger
from fairway.model.charge import Charge, Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.price import cent, money_text
from fairway.services.charges import Costs, or_now
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets
from fairway.wire import policy as wire

MAX_MONTHS: Final = 36
"""Months of the past that are compared, the newest ones."""


@dataclass(frozen=True, slots=True)
class RepricedMonth:
    """What a month costs before and after a fleet file is applied."""

    month: date
    closed: bool
    before: Decimal
    after: Decimal
    moved: Decimal
    """What one team is charged less and another one more."""


@dataclass(frozen=True, slots=True)
class Repricing:
    """What a fleet file would change of the past."""

    before: Fleet
    after: Fleet
    months: tuple[RepricedMonth, ...] = ()
    cut: bool = False
    """Whether more months could change than were compared."""

    def diffs(self) -> list[wire.FieldDiff]:
        """Describe the months that would change as lines of a plan."""
        found = [self._diff(month) for month in self.months]
        if self.cut:
            text = f"only the last {MAX_MONTHS} months were compared"
            found.append(
                wire.FieldDiff(team=None, sign="+", what="charges before them", before=None, after=text)
            )
        return found

    def objections(self) -> list[wire.Objection]:
        """Return why the fleet must not be applied without another word."""
        found = []
        if closed := [month for month in self.months if month.closed]:
            found.append(
                wire.Objection(
                    code="ClosedMonthWouldChange",
                    message="; ".join(self._closed_text(month) for month in closed),
                    hint="date the change in an open month, or leave old price steps in the file; or, to "
                    "correct closed months in the next statement, apply with --reprice-past",
                    forceable=False,
                )
            )
        hint = "put the old one back; or, if it is meant, apply with --force"
        old, new = self.before.currency, self.after.currency
        if old != new:
            message = f"the currency would change from {old} to {new}: past amounts keep their numbers"
            found.append(
                wire.Objection(code="CurrencyWouldChange", message=message, hint=hint, forceable=True)
            )
        old, new = self.before.cost.timezone, self.after.cost.timezone
        if old != new:
            message = (
                f"the time zone of charges would change from {old} to {new}: past days were metered in {old}"
            )
            found.append(
                wire.Objection(code="TimeZoneWouldChange", message=message, hint=hint, forceable=True)
            )
        return found

    def require(self, *, force: bool, reprice_past: bool) -> None:
        """Raise RequestError for objections that are not overruled."""
        against = [o for o in self.objections() if not o.overruled(force=force, reprice_past=reprice_past)]
        if against:
            raise RequestError(
                ErrorKind.CONFLICT,
                against[0].code,
                f"not applied: {'; '.join(o.message for o in against)}",
                "; ".join(dict.fromkeys(o.hint for o in against)),
            )

    def _diff(self, month: RepricedMonth) -> wire.FieldDiff:
        currency = self.before.currency
        return wire.FieldDiff(
            team=None,
            sign="~",
            what=f"charges of {month.month:%Y-%m}{' (closed)' if month.closed else ''}",
            before=money_text(month.before, currency),
            after=f"{money_text(month.after, currency)} ({self._change(month)})",
        )

    def _closed_text(self, month: RepricedMonth) -> str:
        return f"{month.month:%B %Y} is closed: its statement would change by {self._change(month)}"

    def _change(self, month: RepricedMonth) -> str:
        change = month.after - month.before
        if change:
            return ("+" if change > 0 else "") + money_text(change, self.before.currency)
        return f"{money_text(month.moved, self.before.currency)} charged to other teams"


async def find_repricing(ledger: Ledger, fleets: Fleets, planned: Fleet, now: int | None = None) -> Repricing:
    """Compare the past by the fleet in force and by a planned one.

    A change of the currency or time zone is not part of the amounts.
    """
    now = or_now(now)
    history = FleetHistory(ledger, fleets)
    timeline = await history.timeline(await fleets.in_force())
    if not timeline:
        return Repricing(planned, planned)
    (start, _), (_, before) = timeline[0], timeline[-1]
    cost = replace(planned.cost, timezone=before.cost.timezone)
    after = replace(planned, currency=before.currency, cost=cost)
    calendar = calendar_of(before)
    since, today = changed_since(before, after), calendar.day_of(now)
    if since is None or since >= today:
        return Repricing(before, planned)
    months = _months(max(since, calendar.day_of(start)), today)
    planning = FleetHistory(ledger, fleets, (now, after))
    names = await planning.teams(after)
    old, new = Costs(ledger, history), Costs(ledger, planning)
    closed = {month.month: month for month in await ledger.months.all()}
    found = []
    for month in months[-MAX_MONTHS:]:
        stored = closed.get(month)
        if stored is not None and stored.currency != before.currency:
            continue  # never corrected: amounts of two currencies have no difference
        span = calendar.month_span(month)
        if stored is None:
            span = Span(span.start, min(span.end, calendar.day_start(today)))
        else:
            span = Calendar(ZoneInfo(stored.timezone)).month_span(month)
        was = _by_path(await old.by_path(before, span, now), names)
        becomes = _by_path(await new.by_path(after, span, now), names)
        repriced = _compare(month, was, becomes, cent(before.currency), closed=stored is not None)
        if repriced is not None:
            found.append(repriced)
    return Repricing(before, planned, tuple(found), len(months) > MAX_MONTHS)


def _months(first: date, last: date) -> list[date]:
    found = [first.replace(day=1)]
    while (following := next_month(found[-1])) <= last:
        found.append(following)
    return found


def _by_path(
    charges: Iterable[tuple[TeamPath, Charge]], names: Mapping[str, TeamName]
) -> Mapping[TeamPath, Fraction]:
    """Sum charges by path, under the names that teams will have: a rename charges nobody else."""
    found: dict[TeamPath, Fraction] = {}
    for path, charge in charges:
        renamed = tuple(names.get(team, team) for team in path)
        found[renamed] = found.get(renamed, Fraction(0)) + charge.amount
    return found


def _compare(
    month: date,
    was: Mapping[TeamPath, Fraction],
    becomes: Mapping[TeamPath, Fraction],
    unit: Decimal,
    *,
    closed: bool,
) -> RepricedMonth | None:
    none = Fraction(0)
    differences = [becomes.get(path, none) - was.get(path, none) for path in {*was, *becomes}]
    more = sum((d for d in differences if d > 0), none)
    less = sum((-d for d in differences if d < 0), none)
    before, after = (rounded(sum(side.values(), none), unit) for side in (was, becomes))
    moved = rounded(min(more, less), unit)
    return None if before == after and not moved else RepricedMonth(month, closed, before, after, moved)
