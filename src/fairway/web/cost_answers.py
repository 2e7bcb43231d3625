"""Asks the desk all that a page of cost needs: the rows, the same by day, and the window before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from fairway.api import cost_wire as wire
from fairway.api.cost_desk import Asked, CostDesk
from fairway.ledger import Token
from fairway.model.charge import Label
from fairway.web import cost_plot as plots
from fairway.web import cost_rows as shown
from fairway.web.cost_query import CostQuery, What, window_before

Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport

_AMONG: Final = (Label.TEAM, Label.USER, Label.POOL)
"""Labels that a question can be narrowed by to a few names."""
_FEW: Final = (Label.CLUSTER, Label.SLICE, Label.PRIORITY)
"""Labels that never have many names."""
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
    asked = query.asked()
    report = await desk.cost(caller, asked)
    first, top = _told_apart(report, query)
    if first is None:
        plot = plots.parts_plot(await desk.cost(caller, _by_day(asked)))
    elif top is None:
        plot = plots.cost_plot(await desk.cost(caller, _by_day(asked, first)))
    else:
        whole = await desk.cost(caller, _by_day(asked))
        plot = plots.cost_plot(whole, await desk.cost(caller, _by_day(asked, first, top)))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.cost(caller, earlier)
    return Answer(report, shown.cost_figures(report, before), shown.cost_table(report, query), plot, before)


async def _usage(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    asked = query.asked()
    report = await desk.usage(caller, asked)
    first, top = _told_apart(report, query)
    if first is None or top is None:
        plot = plots.usage_plot(await desk.usage(caller, _by_day(asked, first)))
    else:
        whole = await desk.usage(caller, _by_day(asked))
        plot = plots.usage_plot(whole, await desk.usage(caller, _by_day(asked, first, top)))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.usage(caller, earlier)
    return Answer(report, shown.usage_figures(report, before), shown.usage_table(report, query), plot, before)


async def _waste(desk: CostDesk, caller: Token, query: CostQuery) -> Answer:
    asked = query.asked()
    report = await desk.waste(caller, asked)
    plot = plots.waste_plot(await desk.waste(caller, _by_day(asked)))
    earlier = _before(asked, report)
    before = None if earlier is None else await desk.waste(caller, earlier)
    return Answer(report, shown.waste_figures(report, before), shown.waste_table(report, query), plot, before)


def _told_apart(
    report: wire.CostReport | wire.UsageReport, query: CostQuery
) -> tuple[Label | None, frozenset[str] | None]:
    """The label the plot has colours for, and its largest names where there are too many; None: none, all."""
    first = next((label for label in query.by if label is not Label.DAY), None)
    if first is None or first is Label.NAME:
        return None, None
    if first in _FEW:
        return first, None
    place = query.by.index(first)
    names = dict.fromkeys(
        row.labels[place] for row in _dearest(report) if not row.others and not getattr(row, "kind", None)
    )
    many = len(names) > plots.COLOURS or any(row.others for row in report.rows)
    return first, frozenset(list(names)[: plots.COLOURS - 1]) if many else None


def _dearest(report: wire.CostReport | wire.UsageReport) -> list[wire.CostRow] | list[wire.UsageRow]:
    if isinstance(report, wire.CostReport):
        return sorted(report.rows, key=lambda row: -row.total)
    return sorted(report.rows, key=lambda row: -row.gpu_hours)


def _by_day(asked: Asked, label: Label | None = None, among: frozenset[str] | None = None) -> Asked:
    by = (Label.DAY,) if label is None else (label, Label.DAY)
    return replace(asked, by=by, most=_BY_DAY, among=among)


def _before(asked: Asked, report: Report) -> Asked | None:
    today = report.window.end.astimezone(ZoneInfo(report.window.timezone)).date()
    text = window_before(asked.window, report.window, today)
    return None if text is None else replace(asked, window=text, by=(), most=1)
