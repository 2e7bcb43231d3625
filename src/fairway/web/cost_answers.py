"""Asks the desk all that a page of cost needs: the rows, the same by day, and the window before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

from fairway.api import cost_wire as wire
from fairway.api.cost_desk import Asked, CostDesk
from fairway.ledger import Token
from fairway.model.charge import Label
from fairway.web import cost_plot as plots
from fairway.web import cost_rows as shown
from fairway.web.cost_query import CostQuery, What, window_before

Row = TypeVar("Row", wire.CostRow, wire.UsageRow)
Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport

_MANY: Final = 80
"""Names: more are not each told by day, only the largest."""
_BY_DAY: Final = wire.MOST_ROWS


@dataclass(frozen=True, slots=True)
class Answer:
    """What the page shows of one question."""

    report: Report
    figures: Sequence[shown.Figure]
    table: shown.ShownTable
    plot: plots.Plot
    before: Report | None
    """The window before, summed up; None: it would not be fair to compare."""


async def answer_of(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    """Everything the page shows; raises ApiError."""
    match query.what:
        case What.COST:
            return await _cost(desk, caller, query)
        case What.USAGE:
            return await _usage(desk, caller, query)
        case What.WASTE:
            return await _waste(desk, caller, query)


async def _cost(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    asked, first = query.asked(), _told_apart(query)
    if Label.NAME in query.by:  # read row by row, so not by day as well
        report = await desk.cost(caller, asked)
        plot = plots.parts_plot(await desk.cost(caller, _by_day(asked)))
    elif first is None or not await _many(desk, first):
        report, daily = await desk.cost_by_day(caller, asked, first)
        plot = plots.parts_plot(daily) if first is None else plots.cost_plot(daily)
    else:
        report = await desk.cost(caller, asked)
        names = [row.labels[query.by.index(first)] for row in _carried(report.rows, lambda row: row.total)]
        whole = await desk.cost(caller, _by_day(asked))
        plot = plots.cost_plot(whole, await desk.cost(caller, _by_day(asked, first, _largest(names))))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.cost(caller, earlier)
    return Answer(report, shown.cost_figures(report, before), shown.cost_table(report, query), plot, before)


async def _usage(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    asked, first = query.asked(), _told_apart(query)
    if Label.NAME in query.by:
        report = await desk.usage(caller, asked)
        plot = plots.usage_plot(await desk.usage(caller, _by_day(asked)))
    elif first is None or not await _many(desk, first):
        report, daily = await desk.usage_by_day(caller, asked, first)
        plot = plots.usage_plot(daily)
    else:
        report = await desk.usage(caller, asked)
        rows = _carried(report.rows, lambda row: row.gpu_hours)
        names = [row.labels[query.by.index(first)] for row in rows]
        whole = await desk.usage(caller, _by_day(asked))
        plot = plots.usage_plot(whole, await desk.usage(caller, _by_day(asked, first, _largest(names))))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.usage(caller, earlier)
    return Answer(report, shown.usage_figures(report, before), shown.usage_table(report, query), plot, before)


async def _waste(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    asked = query.asked()
    report, daily = await desk.waste_by_day(caller, asked)
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.waste(caller, earlier)
    plot = plots.waste_plot(daily)
    return Answer(report, shown.waste_figures(report, before), shown.waste_table(report, query), plot, before)


def _told_apart(query: CostQuery) -> Label | None:
    """The label the plot has colours for; None: it shows parts, for names of jobs are too many."""
    first = next((label for label in query.by if label is not Label.DAY), None)
    return None if first is Label.NAME else first


async def _many(desk: CostDesk, label: Label) -> bool:
    """Whether a label may have so many names that telling each by day takes long."""
    fleet = await desk.fleet()
    match label:
        case Label.TEAM:
            return len(fleet.teams) > _MANY
        case Label.POOL:
            return len(fleet.pools) > _MANY
        case Label.CLUSTER | Label.SLICE | Label.PRIORITY:
            return False
        case _:
            return sum(len(team.members) for team in fleet.teams) > _MANY


def _carried(rows: Sequence[Row], value: Callable[[Row], Decimal]) -> list[Row]:
    """Somebody's, the largest first."""
    mine = [row for row in rows if not row.others and getattr(row, "kind", None) is None]
    return sorted(mine, key=lambda row: -value(row))


def _largest(names: Sequence[str]) -> frozenset[str]:
    return frozenset(list(dict.fromkeys(names))[: plots.COLOURS - 1])


def _by_day(asked: Asked, label: Label | None = None, among: frozenset[str] | None = None) -> Asked:
    by = (Label.DAY,) if label is None else (label, Label.DAY)
    return replace(asked, by=by, most=_BY_DAY, among=among)


def _before(asked: Asked, report: Report) -> Asked | None:
    today = report.window.end.astimezone(ZoneInfo(report.window.timezone)).date()
    text = window_before(asked.window, report.window, today)
    return None if text is None else replace(asked, window=text, by=(), most=1)
