"""Render statements as one HTML file that explains each amount: without scripts, and made to be printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger
from fairway.model.budget import Every
from fairway.model.charge import ChargeKind
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import PoolName, TeamName
from fairway.model.price import MINOR_DIGITS, Sharing, money_text
from fairway.model.team import TeamTree
from fairway.services.charges import Costs, PricedWindow, or_now
from fairway.services.fleets import Fleets, with_raised_budgets
from fairway.services.statements import MonthStatements, Statement, StatementEntry
from fairway.views.costs import KIND_WORDS

_RULES: Final = {
    Sharing.OWN_LINE: "not shared",
    Sharing.BY_GUARANTEE: "shared in proportion to guarantees",
    Sharing.BY_USAGE: "shared each day in proportion to the cost of what teams used",
}
_ABOUT: Final = {
    ChargeKind.IDLE: "the cost of free GPUs of",
    ChargeKind.FRAGMENTED: "the cost of free GPUs that fitted no waiting job, of",
    ChargeKind.DRAINED: "the cost of GPUs on nodes closed to new jobs, of",
    ChargeKind.DOWN: "the cost of GPUs on nodes that were down, of",
    ChargeKind.COMMITMENT: "the cost of committed GPUs that did not exist, of",
    ChargeKind.OVERHEAD: "the overhead of the cluster",
}
"""What the shares of each kind are of, before the name of its place."""
_TEMPLATE: Final = Environment(
    loader=PackageLoader("fairway.services"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
).get_template("statement.html")


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """A line of a statement as it is printed."""

    text: str
    hours: str
    rate: str
    amount: str
    reason: str
    """Where the amount comes from."""


@dataclass(frozen=True, slots=True)
class TeamDocument:
    """The statement of one team as it is printed."""

    number: str
    team: str
    cost_centre: str
    lines: Sequence[DocumentLine]
    corrections: Sequence[DocumentLine]
    sums: Sequence[tuple[str, str]]
    budget: str


class StatementDocuments:
    """Renders the statements of a month for pages, the API and mail."""

    def __init__(self, ledger: Ledger, statements: MonthStatements, costs: Costs, fleets: Fleets) -> None:
        self._ledger = ledger
        self._statements = statements
        self._costs = costs
        self._fleets = fleets

    async def of_team(self, team: TeamName, month: date) -> str:
        """Render a team's statement for mail."""
        return await self.render(await self._fleets.in_force(), month, {team})

    async def render(
        self, fleet: Fleet, month: date, teams: Collection[str] | None, now: int | None = None
    ) -> str:
        """Render the statements of some teams, one page each; None: of all, and what no team pays."""
        now = or_now(now)
        found = await self._statements.statement(fleet, month, now)
        if found.closed is not None:  # its days are those of the zone in which it was closed
            fleet = replace(fleet, cost=replace(fleet.cost, timezone=found.timezone))
        priced = await self._costs.priced(fleet, calendar_of(fleet).month_span(month), now)
        last = calendar_of(fleet).day_of(calendar_of(fleet).month_end(month)) - timedelta(days=1)
        fleet = await with_raised_budgets(fleet, self._ledger, calendar_of(fleet).month_start(month))
        names = sorted({line.billed.team for line in found.lines}, key=lambda name: (not name, name))
        documents = [
            team_document(fleet, found, name, priced) for name in names if teams is None or name in teams
        ]
        if found.closed is not None:
            state = f"Closed on {found.closed.closed_at:%Y-%m-%d} by {found.closed.by}. It does not change; "
            state += "later findings are corrections in the statements of later months."
        elif found.over:
            state = "Draft: the month is not closed, and amounts may change."
        else:
            state = "Draft: the month is not over, and amounts will change."
        return _TEMPLATE.render(
            fleet=fleet.name,
            month=month,
            period=f"{month} to {last}, {found.timezone}",
            currency=found.currency,
            state=state,
            documents=documents,
        )


def team_document(fleet: Fleet, found: Statement, team: str, priced: Sequence[PricedWindow]) -> TeamDocument:
    """Explain every amount of a team's statement, from the fleets that were in force in the month."""
    own = sorted((line for line in found.lines if line.billed.team == team), key=_order)
    now = [line for line in own if line.used_in == found.month]
    earlier = [line for line in own if line.used_in != found.month]
    whole: Mapping[tuple[object, ...], Decimal] = _wholes(found)
    rates = {
        pool: " ".join(_prices(pool, priced))
        for pool in {x.billed.supply.pool for x in own if x.billed.supply}
    }
    lines = [
        _line(line, found, rates[line.billed.supply.pool] if line.billed.supply else "", whole, priced)
        for line in now
    ]
    usage = _sum(line for line in now if line.billed.kind is ChargeKind.USAGE)
    shares = _sum(line for line in now if line.billed.kind is not ChargeKind.USAGE)
    corrections = _sum(earlier)
    parts = [
        ("Used GPUs", usage, True),
        ("Shares of unused GPUs and overhead" if team else "Unused GPUs and overhead", shares, bool(shares)),
        ("Corrections of earlier months", corrections, bool(earlier)),
        ("Total", usage + shares + corrections, True),
    ]
    return TeamDocument(
        number=f"{fleet.name}-{found.month:%Y-%m}-{team or 'unallocated'}",
        team=team or "Not charged to a team",
        cost_centre=cost_centre(fleet, team),
        lines=lines,
        corrections=[_correction(line, found.currency) for line in earlier],
        sums=[(name, money_text(amount, found.currency)) for name, amount, shown in parts if shown],
        budget=_budget(fleet, found, team),
    )


def cost_centre(fleet: Fleet, team: str) -> str:
    """Return the cost centre of a team, or of the nearest team above it that has one; else an empty text."""
    tree = TeamTree(fleet.teams)
    if team not in tree:
        return ""
    own = tree[team]
    return next((t.cost_centre for t in (own, *tree.ancestors(own)) if t.cost_centre is not None), "")


def _sum(lines: Iterator[StatementEntry] | Sequence[StatementEntry]) -> Decimal:
    return sum((line.billed.amount for line in lines), Decimal(0))


def _order(line: StatementEntry) -> tuple[date, int, str, str]:
    billed = line.billed
    return line.used_in, list(ChargeKind).index(billed.kind), str(billed.supply or ""), billed.cluster


def _wholes(found: Statement) -> Mapping[tuple[object, ...], Decimal]:
    """Return what all lines of a kind and place sum to: what the shares are of."""
    wholes: defaultdict[tuple[object, ...], Decimal] = defaultdict(Decimal)
    for line in found.lines:
        if line.used_in == found.month:
            wholes[line.billed.kind, line.billed.cluster, line.billed.supply] += line.billed.amount
    return wholes


def _line(
    line: StatementEntry,
    found: Statement,
    rates: str,
    wholes: Mapping[tuple[object, ...], Decimal],
    priced: Sequence[PricedWindow],
) -> DocumentLine:
    billed, currency = line.billed, found.currency
    hours = Decimal(billed.device_seconds) / 3600
    if billed.kind is ChargeKind.USAGE:
        reason = rates
    else:
        whole = wholes[billed.kind, billed.cluster, billed.supply]
        about = f"{_ABOUT[billed.kind]} {billed.supply or billed.cluster}"
        rule = _rule(billed.kind, priced)
        part = f"{billed.amount / whole * 100:.1f} % of " if whole else ""
        reason = (
            f"{part}{money_text(whole, currency)}, {about}; {rule}" if billed.team else f"{about}; {rule}"
        )
    return DocumentLine(
        text=_what(line),
        hours=f"{hours:,.2f}" if billed.device_seconds else "",
        rate=_amount(billed.amount / hours, currency, 4) if billed.device_seconds else "",
        amount=_amount(billed.amount, currency),
        reason=reason,
    )


def _correction(line: StatementEntry, currency: str) -> DocumentLine:
    billed = line.billed
    if billed.device_seconds and billed.kind is ChargeKind.USAGE:
        more = "more" if billed.device_seconds > 0 else "fewer"
        reason = f"{more} GPU-hours were used in that month than was known when it was closed"
    elif billed.kind is ChargeKind.USAGE:
        reason = "the same hours, at prices that were changed for the past after the month was closed"
    else:
        reason = "computed again after usage, capacity, prices or rules of that month were corrected"
    return DocumentLine(
        text=f"{line.used_in:%Y-%m}: {_what(line)}",
        hours=f"{Decimal(billed.device_seconds) / 3600:+,.2f}" if billed.device_seconds else "",
        rate="",
        amount=_amount(billed.amount, currency),
        reason=reason,
    )


def _what(line: StatementEntry) -> str:
    billed = line.billed
    share = " (share)" if billed.team and billed.kind is not ChargeKind.USAGE else ""
    return f"{billed.supply or billed.cluster}, {KIND_WORDS[billed.kind]}{share}"


def _rule(kind: ChargeKind, priced: Sequence[PricedWindow]) -> str:
    rules = (
        window.fleet.cost.overhead if kind is ChargeKind.OVERHEAD else window.fleet.cost.idle
        for window in priced
    )
    return ", then ".join(dict.fromkeys(_RULES[rule] for rule in rules))


def _prices(name: PoolName, priced: Sequence[PricedWindow]) -> Iterator[str]:
    """Yield the prices of a pool in the month, each with the days on which it applied."""
    spans: list[tuple[str, date, date]] = []
    for window in priced:
        pool = window.pools.get(name)
        if pool is None:
            continue
        for day in window.calendar.days(window.span):
            on = window.calendar.day_of(day.start)
            text = _price(pool, on)
            if spans and spans[-1][0] == text:
                spans[-1] = (text, spans[-1][1], on)
            else:
                spans.append((text, on, on))
    if len(spans) == 1:
        yield f"{spans[0][0]}."
    else:
        for text, first, last in spans:
            yield f"{first:%d %b}{'' if first == last else f' to {last:%d %b}'}: {text}."


def _price(pool: Pool, day: date) -> str:
    listed, discount = pool.list_price(day), pool.pricing.discount
    if pool.capacity is Capacity.SPOT:
        text = f"market price of each hour; {listed:f} where none is known"
    elif discount:
        net, percent = listed * (1 - discount), (discount * 100).normalize()
        text = f"list price {listed:f} less {percent:f} % discount = {net:f}"
    else:
        text = f"list price {listed:f}, no discount"
    committed = [c for c in pool.pricing.commitments if c.since <= day < c.until]
    if committed:
        text += f"; {' and '.join(f'{c.gpus} GPUs committed at {c.per_gpu_hour:f}' for c in committed)}"
        text += ", which lower the price of every GPU of the pool"
    if pool.slices:
        own = ", ".join(f"{name} {price:f}" for name, price in sorted(pool.pricing.slices.items()))
        text += f"; per slice-hour: {own}" if own else "; a slice costs its part of the GPU"
    return text


def _budget(fleet: Fleet, found: Statement, team: str) -> str:
    tree = TeamTree(fleet.teams)
    budget = tree[team].budget if team in tree else None
    if budget is None:
        return ""
    amount = money_text(budget.amount, fleet.currency)
    if budget.raised:
        amount += f" ({money_text(budget.raised, fleet.currency)} of it by approved raises)"
    whose = "the team and the teams inside it"
    if budget.every is not Every.MONTH:
        return f"{amount} a quarter, for {whose}."
    inside = {one.name for one in tree.subtree(tree[team])}
    spent = _sum([x for x in found.lines if x.billed.team in inside and x.used_in == found.month])
    part = f"{spent / budget.amount * 100:.1f} %" if budget.amount else "more"
    if len(inside) == 1:
        whose = "the team"
    spent_text = money_text(spent, found.currency)
    return f"{amount} a month; in this month, without corrections, {whose} spent {spent_text}: {part}."


def _amount(amount: Decimal, currency: str, digits: int | None = None) -> str:
    return f"{amount:,.{MINOR_DIGITS.get(currency, 2) if digits is None else digits}f}"
