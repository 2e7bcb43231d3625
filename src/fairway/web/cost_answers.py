"""Asks the desk all that a page of cost needs: the rows, the same by day, and the window before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from fairway.api import cost_wire as wire
from fairway.api.cost_desk import Asked, CostDesk
from fairway.api.cost_rights import usage_filter
from fairway.control.cost_reports import window_of
from fairway.ledger import Token
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.web import cost_plot as plots
from fairway.web import cost_rows as shown
from fairway.web.cost_query import CostQuery, What, window_before

Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport

_MANY: Final = 400
"""Names times days: more are not each told by day."""
_LATE: Final = 300
"""People, or teams."""
_BY_DAY: Final = wire.MOST_ROWS


@dataclass(frozen=True, slots=True)
class Answer:
    """What the page shows of one question."""

    report: Report
    figures: Sequence[shown.Figure]
    table: shown.ShownTable
    plot: plots.Plot | None
    """None: it comes later, by itself."""
    before: Report | None
    """The window before, summed up; None: it would not be fair to compare, or comes later."""


@dataclass(frozen=True, slots=True)
class OverTime:
    """The part of an answer that is told by day, and compared."""

    plot: plots.Plot
    said: str


class Size(StrEnum):
    """How much a question adds up."""

    FEW = "few"
    """Each name by day at once."""
    MANY = "many"
    """Names would be too many for a plot: it shows parts."""
    LATE = "late"
    """So many people that days are told after the page is there."""


def size_of(fleet: Fleet, caller: Token, query: CostQuery) -> Size:
    """By how many people's usage it is about; what nobody used is known from what all used."""
    if query.user is not None and query.what is not What.WASTE:
        return Size.FEW
    which = None if query.what is What.WASTE else usage_filter(caller, fleet, query.team, None, None).teams
    teams = [team for team in fleet.teams if which is None or team.name in which]
    people = sum(len(team.members) for team in teams)
    if max(people, len(teams)) > _LATE:
        return Size.LATE
    names = {Label.TEAM: len(teams), Label.USER: people, Label.POOL: len(fleet.pools)}
    told = prod(max(1, names.get(label, 1)) for label in query.by) * _days(fleet, query.window)
    return Size.MANY if told > _MANY else Size.FEW


def _days(fleet: Fleet, text: str) -> int:
    """How many days a window has; of one that is none, the desk will say so."""
    try:
        window = window_of(fleet, text)
    except PermanentError:
        return 0
    return (window.until - window.first).days


async def answer_of(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    """Everything the page shows at once; raises ApiError."""
    size = size_of(await desk.fleet(), caller, query)
    match query.what:
        case What.COST:
            return await _cost(desk, caller, query, size)
        case What.USAGE:
            return await _usage(desk, caller, query, size)
        case What.WASTE:
            return await _waste(desk, caller, query, size)


async def over_time(desk: CostDesk, caller: Token, query: CostQuery) -> OverTime:
    """What came late: days by part, and the window before."""
    asked = query.asked()
    daily = _by_day(asked)
    match query.what:
        case What.COST:
            cost = await desk.cost(caller, daily)
            earlier = _before(asked, cost)
            past = None if earlier is None else (await desk.cost(caller, earlier)).total.total
            return OverTime(plots.parts_plot(cost), shown.compared(cost.total.total, past))
        case What.USAGE:
            used = await desk.usage(caller, daily)
            earlier = _before(asked, used)
            past = None if earlier is None else (await desk.usage(caller, earlier)).total.gpu_hours
            return OverTime(plots.usage_plot(used), shown.compared(used.total.gpu_hours, past))
        case What.WASTE:
            lost = await desk.waste(caller, daily)
            earlier = _before(asked, lost)
            past = None if earlier is None else (await desk.waste(caller, earlier)).total.amount
            return OverTime(plots.waste_plot(lost), shown.compared(lost.total.amount, past))


async def _cost(desk: CostDesk, caller: Token, query: CostQuery, size: Size) -> Answer:
    asked, first = query.asked(), _told_apart(query, size)
    if size is Size.LATE:
        report = await desk.cost(caller, asked)
        return Answer(report, shown.cost_figures(report, None), shown.cost_table(report, query), None, None)
    if size is Size.MANY or Label.NAME in query.by:  # names of jobs are read row by row
        report, daily = await desk.cost(caller, asked), await desk.cost(caller, _by_day(asked))
    else:
        report, daily = await desk.cost_by_day(caller, asked, first)
    plot = plots.parts_plot(daily) if first is None else plots.cost_plot(daily)
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.cost(caller, earlier)
    return Answer(report, shown.cost_figures(report, before), shown.cost_table(report, query), plot, before)


async def _usage(desk: CostDesk, caller: Token, query: CostQuery, size: Size) -> Answer:
    asked = query.asked()
    if size is Size.LATE:
        report = await desk.usage(caller, asked)
        return Answer(report, shown.usage_figures(report, None), shown.usage_table(report, query), None, None)
    if size is Size.MANY or Label.NAME in query.by:
        report, daily = await desk.usage(caller, asked), await desk.usage(caller, _by_day(asked))
    else:
        report, daily = await desk.usage_by_day(caller, asked, _told_apart(query, size))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.usage(caller, earlier)
    plot = plots.usage_plot(daily)
    return Answer(report, shown.usage_figures(report, before), shown.usage_table(report, query), plot, before)


async def _waste(desk: CostDesk, caller: Token, query: CostQuery, size: Size) -> Answer:
    asked = query.asked()
    if size is Size.LATE:
        report = await desk.waste(caller, asked)
        return Answer(report, shown.waste_figures(report, None), shown.waste_table(report, query), None, None)
    report, daily = await desk.waste_by_day(caller, asked)
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.waste(caller, earlier)
    plot = plots.waste_plot(daily)
    return Answer(report, shown.waste_figures(report, before), shown.waste_table(report, query), plot, before)


def _told_apart(query: CostQuery, size: Size) -> Label | None:
    """The label the plot has colours for; None: it shows parts, for names are too many."""
    if size is not Size.FEW:
        return None
    first = next((label for label in query.by if label is not Label.DAY), None)
    return None if first is Label.NAME else first


def _by_day(asked: Asked) -> Asked:
    return replace(asked, by=(Label.DAY,), most=_BY_DAY)


def _before(asked: Asked, report: Report) -> Asked | None:
    today = report.window.end.astimezone(ZoneInfo(report.window.timezone)).date()
    text = window_before(asked.window, report.window, today)
    return None if text is None else replace(asked, window=text, by=(), most=1)
