"""Query the data of the Cost page: a report, the same by day, and the total of the previous window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final
from zoneinfo import ZoneInfo

from fairway.ledger import Token
from fairway.model.charge import Dimension, Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.services.reports import window_of
from fairway.services.rights import usage_filter
from fairway.views.cost_records import Report
from fairway.views.rounded import rounded_report
from fairway.web.pages.cost import plot as plots
from fairway.web.pages.cost import tables
from fairway.web.pages.cost.query import Comparison, CostQuery, ReportKind, comparison
from fairway.wire import costs as wire

_MANY: Final = 400
"""The limit of names times days: above it, the plot does not show each name by day."""
_LATE: Final = 300
"""The limit of users, or teams: above it, the plot is loaded later."""


@dataclass(frozen=True, slots=True)
class CostPageData:
    """The data of the Cost page for one query."""

    report: Report
    figures: Sequence[tables.Figure]
    table: tables.ShownTable
    plot: plots.Plot | None
    """None if it is loaded later."""
    compared: Comparison | None
    """The days that were compared. None if none are over, or they are loaded later."""


@dataclass(frozen=True, slots=True)
class LatePlot:
    """The part of the data that is loaded later: the plot, and the comparison with the previous window."""

    plot: plots.Plot
    change: str


class QuerySize(StrEnum):
    """How expensive a query is."""

    FEW = "few"
    """The plot shows each name by day."""
    MANY = "many"
    """Too many names for a plot: it shows kinds of cost."""
    LATE = "late"
    """So many users that the plot is loaded after the page."""


def size_of(fleet: Fleet, caller: Token, query: CostQuery) -> QuerySize:
    """Estimate the size of a query from the number of users in it; waste depends on the usage of all."""
    if query.user is not None and query.what is not ReportKind.WASTE:
        return QuerySize.FEW
    visible = (
        None if query.what is ReportKind.WASTE else usage_filter(caller, fleet, query.team, None, None).teams
    )
    teams = [team for team in fleet.teams if visible is None or team.name in visible]
    people = sum(len(team.members) for team in teams)
    if max(people, len(teams)) > _LATE:
        return QuerySize.LATE
    names: dict[Dimension, int] = {Label.TEAM: len(teams), Label.USER: people, Label.POOL: len(fleet.pools)}
    points = prod(max(1, names.get(label, 1)) for label in query.by) * _days(fleet, query.window)
    return QuerySize.MANY if points > _MANY else QuerySize.FEW


def _days(fleet: Fleet, text: str) -> int:
    """Return the number of days of a window; 0 for an invalid one, which CostQueries refuses."""
    try:
        window = window_of(fleet, text)
    except PermanentError:
        return 0
    return (window.until - window.first).days


async def read_report(costs: CostQueries, caller: Token, what: ReportKind, request: CostRequest) -> Report:
    """Query a report of the given kind. Raises RequestError."""
    match what:
        case ReportKind.COST:
            return await costs.cost(caller, request)
        case ReportKind.USAGE:
            return await costs.usage(caller, request)
        case ReportKind.WASTE:
            return await costs.waste(caller, request)


async def read_page(
    costs: CostQueries, caller: Token, query: CostQuery, colours: Mapping[str, int]
) -> CostPageData:
    """Query everything the page shows at once; `colours` are the numbers of teams. Raises RequestError."""
    size = size_of(await costs.fleet(), caller, query)
    if size is QuerySize.LATE:
        report = rounded_report(await read_report(costs, caller, query.what, query.request()))
        plot = compared = None
        change = ""
    else:
        label = _plot_label(query, size)
        report, daily = map(rounded_report, await _read_with_days(costs, caller, query, size, label))
        compared, change = await _compare(costs, caller, query, daily)
        plot = _plot(daily, label, await _numbers(costs, label, colours))
    return CostPageData(report, tables.figures(report, change), tables.table(report, query), plot, compared)


async def read_late_plot(costs: CostQueries, caller: Token, query: CostQuery) -> LatePlot:
    """Query the plot by day and the comparison with the previous window, which are loaded later."""
    daily = rounded_report(await read_report(costs, caller, query.what, _by_day(query.request())))
    _, change = await _compare(costs, caller, query, daily)
    return LatePlot(_plot(daily, None), change)


async def _read_with_days(
    costs: CostQueries, caller: Token, query: CostQuery, size: QuerySize, label: Dimension | None
) -> tuple[Report, Report]:
    """Query the report, and the same by day."""
    request = query.request()
    if query.what is ReportKind.WASTE:
        return await costs.waste_by_day(caller, request)
    if size is QuerySize.MANY or {Label.NAME, Label.OUTCOME} & {*query.by}:  # which are read row by row
        report = await read_report(costs, caller, query.what, request)
        return report, await read_report(costs, caller, query.what, _by_day(request))
    if query.what is ReportKind.COST:
        return await costs.cost_by_day(caller, request, label)
    return await costs.usage_by_day(caller, request, label)


def _plot_label(query: CostQuery, size: QuerySize) -> Dimension | None:
    """Return the label that the plot colours. Returns None if there are too many names: it shows kinds."""
    if size is not QuerySize.FEW:
        return None
    first = next((label for label in query.by if label is not Label.DAY), None)
    return None if first in {Label.NAME, Label.OUTCOME} else first


async def _numbers(
    costs: CostQueries, label: Dimension | None, colours: Mapping[str, int]
) -> Mapping[str, int] | None:
    """Return the fixed colours of a label's names. Returns None if they get theirs by size."""
    match label:
        case Label.TEAM:
            return colours
        case Label.POOL:
            return {pool.name: n for n, pool in enumerate((await costs.fleet()).pools)}
        case _:
            return None


def _plot(daily: Report, label: Dimension | None, numbers: Mapping[str, int] | None = None) -> plots.Plot:
    match daily:
        case wire.CostReport():
            return plots.parts_plot(daily) if label is None else plots.cost_plot(daily, numbers)
        case wire.UsageReport():
            return plots.usage_plot(daily, numbers)
        case wire.WasteReport():
            return plots.waste_plot(daily)


def _by_day(request: CostRequest) -> CostRequest:
    return replace(request, by=(Label.DAY,), max_rows=wire.MAX_ROWS, per=None)


async def _compare(
    costs: CostQueries, caller: Token, query: CostQuery, daily: Report
) -> tuple[Comparison | None, str]:
    """Compare the whole days of a report by day with as many before. The text is empty without a change."""
    today = daily.window.end.astimezone(ZoneInfo(daily.window.timezone)).date()
    found = comparison(daily.window, today, await costs.first_day())
    if found is None:
        return None, ""
    request = replace(query.request(), window=found.window_before, by=(), max_rows=1, per=None)
    before = await read_report(costs, caller, query.what, request)
    return found, tables.change_text(daily, found, before)
