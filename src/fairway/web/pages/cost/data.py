"""Query all that the cost page needs: the rows, the same by day, and the window before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from fairway.ledger import Token
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.services.cost_queries import CostQueries, CostQuestion
from fairway.services.reports import window_of
from fairway.services.rights import usage_filter
from fairway.web.pages.cost import plot as plots
from fairway.web.pages.cost import tables as shown
from fairway.web.pages.cost.query import CostQuery, ReportKind, window_before
from fairway.wire import costs as wire

Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport

_MANY: Final = 400
"""The limit of names times days: above it, the plot does not show each name by day."""
_LATE: Final = 300
"""The limit of users, or teams: above it, the plot is loaded later."""
_BY_DAY: Final = wire.MOST_ROWS


@dataclass(frozen=True, slots=True)
class CostPageData:
    """The data of the Cost page for one query."""

    report: Report
    figures: Sequence[shown.Figure]
    table: shown.ShownTable
    plot: plots.Plot | None
    """None if it is loaded later."""
    before: Report | None
    """The total of the previous window. None if a comparison would be unfair, or is loaded later."""


@dataclass(frozen=True, slots=True)
class OverTime:
    """The part of the data that is loaded later: the plot, and the comparison."""

    plot: plots.Plot
    said: str


class Size(StrEnum):
    """How expensive a query is."""

    FEW = "few"
    """The plot shows each name by day."""
    MANY = "many"
    """Too many names for a plot: it shows kinds of cost."""
    LATE = "late"
    """So many users that the plot is loaded after the page."""


def size_of(fleet: Fleet, caller: Token, query: CostQuery) -> Size:
    """Estimate the size of a query from the number of users in it; waste depends on the usage of all."""
    if query.user is not None and query.what is not ReportKind.WASTE:
        return Size.FEW
    which = (
        None if query.what is ReportKind.WASTE else usage_filter(caller, fleet, query.team, None, None).teams
    )
    teams = [team for team in fleet.teams if which is None or team.name in which]
    people = sum(len(team.members) for team in teams)
    if max(people, len(teams)) > _LATE:
        return Size.LATE
    names = {Label.TEAM: len(teams), Label.USER: people, Label.POOL: len(fleet.pools)}
    told = prod(max(1, names.get(label, 1)) for label in query.by) * _days(fleet, query.window)
    return Size.MANY if told > _MANY else Size.FEW


def _days(fleet: Fleet, text: str) -> int:
    """How many days a window has; CostQueries refuses one that is none."""
    try:
        window = window_of(fleet, text)
    except PermanentError:
        return 0
    return (window.until - window.first).days


async def answer_of(costs: CostQueries, caller: Token, query: CostQuery) -> CostPageData:
    """Query everything the page shows at once. Raises ApiError."""
    size = size_of(await costs.fleet(), caller, query)
    match query.what:
        case ReportKind.COST:
            return await _cost(costs, caller, query, size)
        case ReportKind.USAGE:
            return await _usage(costs, caller, query, size)
        case ReportKind.WASTE:
            return await _waste(costs, caller, query, size)


async def over_time(costs: CostQueries, caller: Token, query: CostQuery) -> OverTime:
    """Query the plot by day and the comparison with the previous window, which are loaded later."""
    asked = query.question()
    daily = _by_day(asked)
    match query.what:
        case ReportKind.COST:
            cost = await costs.cost(caller, daily)
            earlier = _before(asked, cost)
            past = None if earlier is None else (await costs.cost(caller, earlier)).total.total
            return OverTime(plots.parts_plot(cost), shown.compared(cost.total.total, past))
        case ReportKind.USAGE:
            used = await costs.usage(caller, daily)
            earlier = _before(asked, used)
            past = None if earlier is None else (await costs.usage(caller, earlier)).total.gpu_hours
            return OverTime(plots.usage_plot(used), shown.compared(used.total.gpu_hours, past))
        case ReportKind.WASTE:
            lost = await costs.waste(caller, daily)
            earlier = _before(asked, lost)
            past = None if earlier is None else (await costs.waste(caller, earlier)).total.amount
            return OverTime(plots.waste_plot(lost), shown.compared(lost.total.amount, past))


async def _cost(costs: CostQueries, caller: Token, query: CostQuery, size: Size) -> CostPageData:
    asked, first = query.question(), _told_apart(query, size)
    if size is Size.LATE:
        report = await costs.cost(caller, asked)
        return CostPageData(
            report, shown.cost_figures(report, None), shown.cost_table(report, query), None, None
        )
    if size is Size.MANY or Label.NAME in query.by:  # names of jobs are read row by row
        report, daily = await costs.cost(caller, asked), await costs.cost(caller, _by_day(asked))
    else:
        report, daily = await costs.cost_by_day(caller, asked, first)
    plot = plots.parts_plot(daily) if first is None else plots.cost_plot(daily)
    earlier = _before(asked, report)
    before = None if earlier is None else await costs.cost(caller, earlier)
    return CostPageData(
        report, shown.cost_figures(report, before), shown.cost_table(report, query), plot, before
    )


async def _usage(costs: CostQueries, caller: Token, query: CostQuery, size: Size) -> CostPageData:
    asked = query.question()
    if size is Size.LATE:
        report = await costs.usage(caller, asked)
        return CostPageData(
            report, shown.usage_figures(report, None), shown.usage_table(report, query), None, None
        )
    if size is Size.MANY or Label.NAME in query.by:
        report, daily = await costs.usage(caller, asked), await costs.usage(caller, _by_day(asked))
    else:
        report, daily = await costs.usage_by_day(caller, asked, _told_apart(query, size))
    earlier = _before(asked, report)
    before = None if earlier is None else await costs.usage(caller, earlier)
    plot = plots.usage_plot(daily)
    return CostPageData(
        report, shown.usage_figures(report, before), shown.usage_table(report, query), plot, before
    )


async def _waste(costs: CostQueries, caller: Token, query: CostQuery, size: Size) -> CostPageData:
    asked = query.question()
    if size is Size.LATE:
        report = await costs.waste(caller, asked)
        return CostPageData(
            report, shown.waste_figures(report, None), shown.waste_table(report, query), None, None
        )
    report, daily = await costs.waste_by_day(caller, asked)
    earlier = _before(asked, report)
    before = None if earlier is None else await costs.waste(caller, earlier)
    plot = plots.waste_plot(daily)
    return CostPageData(
        report, shown.waste_figures(report, before), shown.waste_table(report, query), plot, before
    )


def _told_apart(query: CostQuery, size: Size) -> Label | None:
    """Return the label that the plot colours. Returns None if there are too many names: it shows kinds."""
    if size is not Size.FEW:
        return None
    first = next((label for label in query.by if label is not Label.DAY), None)
    return None if first is Label.NAME else first


def _by_day(asked: CostQuestion) -> CostQuestion:
    return replace(asked, by=(Label.DAY,), most=_BY_DAY)


def _before(asked: CostQuestion, report: Report) -> CostQuestion | None:
    today = report.window.end.astimezone(ZoneInfo(report.window.timezone)).date()
    text = window_before(asked.window, report.window, today)
    return None if text is None else replace(asked, window=text, by=(), most=1)
