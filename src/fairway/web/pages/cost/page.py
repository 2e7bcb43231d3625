"""The Cost pages: cost, usage and waste by any label, exports, and monthly statements."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from fairway.api.auth import caller_of
from fairway.cost.calendar import calendar_of
from fairway.ledger import Token
from fairway.model.charge import LABEL_PREFIX, Dimension, JobLabel, Label
from fairway.model.cost_unit import CostDivisor, CostUnit, divisor_text, parse_divisor
from fairway.model.errors import FairwayError, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.notice_rules import NoticeKind
from fairway.services.cost_queries import CostQueries
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.notices import NoticeQueries
from fairway.services.reports import PLACE_LABELS
from fairway.services.rights import sees_all, visible_teams
from fairway.views.cost_records import Report, csv_text, report_records, statement_records
from fairway.views.costs import KIND_WORDS
from fairway.web.cache.cost_queries import CachedCostQueries
from fairway.web.cache.last_known import LastKnown
from fairway.web.context import PageContext
from fairway.web.pages.cost.data import CostPageData, read_late_plot, read_page, read_report
from fairway.web.pages.cost.query import (
    DEFAULT_WINDOW,
    MANY_ROWS,
    CostQuery,
    ReportKind,
    month_beside,
    months_until,
)
from fairway.web.pages.fleet.plots import Plots
from fairway.web.ranges import keep_window, known_window, range_choices, report_window
from fairway.web.render import is_part
from fairway.web.sessions import REPORT_PAGE
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as wire
from fairway.wire import notices as notice_wire

MAX_SECONDS: Final = 8.0
"""Time limit of a page; it then reports that the query is too slow. Exports have no such limit."""
STATEMENT_SECONDS: Final = 60.0
"""Time limit of the first statement of a month; later ones show the last known figures meanwhile."""
LATE_PART: Final = "cost-over-time"
"""The part of the page that is loaded later."""
_MONTHS: Final = 6
_MAX_FORECASTS: Final = 20
_MAX_UNUSUAL: Final = 5
_LOTS: Final = (1, 1000, 1_000_000)
"""How many units the page offers the cost of."""
_ATTACHED: Final = 'attachment; filename="{name}"'


def add_cost_pages(site: PageContext, plots: Plots) -> None:
    """Add the Cost page, its exports, and the monthly statements."""
    cached, exact = CachedCostQueries(site.ledger, site.fleets), CostQueries(site.ledger, site.fleets)
    add_cost_page(site, cached, plots)
    add_cost_files(site, exact)
    add_month_pages(site, cached, exact)


def add_cost_page(site: PageContext, costs: CostQueries, plots: Plots) -> None:
    """Add the Cost page."""
    app, pages, ledger = site.app, site.pages, site.ledger
    known = LastKnown[CostPageData]()
    notices = NoticeQueries(ledger, site.fleets)

    @app.get("/cost", dependencies=REPORT_PAGE, include_in_schema=False)
    async def show_cost(request: Request) -> Response:
        """Show the query of the URL. An invalid one is shown with its error."""
        caller, fleet = caller_of(request), await costs.fleet()
        window = report_window(known_window(fleet, request, DEFAULT_WINDOW))
        query = replace(CostQuery.of(request.query_params), window=window)
        values = _query_values(fleet, caller, query)
        units = await ledger.units.names() if query.what is ReportKind.COST else ()
        values |= {"divisors": _divisors(fleet, units, query)}
        colours = await plots.colours(fleet)
        key = (visible_teams(caller, fleet), query)
        try:
            if request.headers.get("hx-target") == LATE_PART:
                async with asyncio.timeout(MAX_SECONDS):
                    late = await read_late_plot(costs, caller, query)
                return pages.show(request, "cost.html", values | {"late": late}, part=LATE_PART)
            read = partial(read_page, costs, caller, query, colours)
            found = await known.get(key, read, MAX_SECONDS, hurry=not is_part(request))
        except TimeoutError:
            return pages.show(request, "cost.html", values | {"fault": too_slow(query)}, part=LATE_PART)
        except RequestError as error:
            if error.kind is not ErrorKind.INVALID:
                raise
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return pages.show(request, "cost.html", values | {"fault": error}, status=status)
        if found is None:
            return pages.show(request, "cost.html", values | {"fault": too_slow(query), "retry": True})
        data = found.result
        closed = {f"{month.month:%Y-%m}": month for month in await ledger.months.all()}
        first = f"{await ledger.months.first_day() or _today(fleet):%Y-%m}"
        months = [(text, closed.get(text)) for text in months_until(_today(fleet), _MONTHS) if text >= first]
        budgets = [] if query.what is ReportKind.WASTE else (await costs.budgets(caller)).budgets
        forecasts = [] if query.what is ReportKind.WASTE else await _forecasts(costs, caller, query)
        more = {
            "unusual": await _unusual_days(notices, caller, query),
            "months": months,
            "budgets": budgets,
            "forecasts": forecasts,
            "commitments": await _commitments(costs, caller, fleet, query),
            "known_at": found.at if found.late else None,
        }
        response = pages.show(request, "cost.html", values | _data_values(data) | more)
        return keep_window(request, response, query.window)


def add_cost_files(site: PageContext, costs: CostQueries) -> None:
    """Add the exports for signed-in users: the API's own routes accept only tokens."""
    app = site.app

    @app.get("/cost/export.csv", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_csv(request: Request) -> Response:
        """Export all rows as CSV; text that a spreadsheet would evaluate as a formula is escaped."""
        query = CostQuery.of(request.query_params)
        report = await _read_all_rows(costs, caller_of(request), query)
        return _file(csv_text(report_records(report)), "text/csv; charset=utf-8", f"{_file_name(query)}.csv")

    @app.get("/cost/export.json", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_json(request: Request) -> Response:
        """Export the report as JSON, as the API returns it."""
        query = CostQuery.of(request.query_params)
        report = await _read_all_rows(costs, caller_of(request), query)
        return _file(report.model_dump_json(), "application/json", f"{_file_name(query)}.json")

    @app.get("/cost/focus.csv", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_focus(request: Request) -> Response:
        """Export FOCUS rows as CSV, streamed."""
        query = CostQuery.of(request.query_params)
        pieces = await costs.focus(caller_of(request), query.window, query.team)
        headers = _headers(f"focus-{_safe(query.window)}.csv")
        return StreamingResponse(pieces, media_type="text/csv; charset=utf-8", headers=headers)


def add_month_pages(site: PageContext, cached: CostQueries, exact: CostQueries) -> None:
    """Add the pages of monthly statements, and their export, which is always computed anew."""
    app, pages, ledger = site.app, site.pages, site.ledger
    known = LastKnown[wire.Statements]()

    @app.get("/cost/months/{month}", dependencies=REPORT_PAGE, include_in_schema=False)
    async def show_month(request: Request, month: str) -> Response:
        """Show the statements of a month; a closed month as it was closed."""
        team = request.query_params.get("team") or None
        caller = caller_of(request)
        closed = frozenset(each.month for each in await ledger.months.all())
        key = (visible_teams(caller, await cached.fleet()), month, team, closed)
        read = partial(cached.statements, caller, _valid_month(month), team)
        shown = await known.get(key, read, STATEMENT_SECONDS, hurry=True)
        if shown is None:
            raise TemporaryError(
                "TooSlow",
                f"the statements of {month} could not be calculated within {STATEMENT_SECONDS:.0f} s",
                f"retry in a moment, or run  fairway report chargeback --month {month}",
            )
        before, after = month_beside(month)
        values = {"found": shown.result, "before": before, "after": after, "team": team}
        values |= {"KIND_WORDS": KIND_WORDS, "known_at": shown.at if shown.late else None}
        return pages.show(request, "cost-month.html", values)

    @app.get("/cost/months/{month}/statements.html", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_document(request: Request, month: str) -> Response:
        """Export the statements as one HTML file that explains each amount."""
        team = request.query_params.get("team") or None
        found = await exact.document(caller_of(request), _valid_month(month), team)
        return _file(found.html, "text/html; charset=utf-8", found.name)

    @app.get("/cost/months/{month}/statements.csv", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_statements(request: Request, month: str) -> Response:
        """Export every line of every statement as CSV."""
        team = request.query_params.get("team") or None
        found = await exact.statements(caller_of(request), _valid_month(month), team)
        name = f"statements-{found.month}.csv"
        return _file(csv_text(statement_records(found)), "text/csv; charset=utf-8", name)


def too_slow(query: CostQuery) -> FairwayError:
    """Return the error for a query that timed out, with a hint."""
    return FairwayError(
        "TooSlow",
        f"{query.what.capitalize()} could not be calculated within {MAX_SECONDS:.0f} s. "
        "The calculation continues in the background",
        "retry in a moment, choose a shorter range, or run  "
        f"fairway report {query.what} --window {query.window}",
    )


def _query_values(fleet: Fleet, caller: Token, query: CostQuery) -> dict[str, Any]:
    """Return the template values that do not depend on the result."""
    seen = visible_teams(caller, fleet)
    return {
        "asked": query,
        "What": ReportKind,
        "labels": _dimensions(fleet, query),
        "teams": sorted(t.name for t in fleet.teams if seen is None or t.name in seen),
        "pools": sorted(p.name for p in fleet.pools),
        "ranges": range_choices("/cost", query.window, query.without_window, whole_days=True),
        "seen": None if seen is None else sorted(seen),
        "many": MANY_ROWS,
        "fault": None,
        "retry": False,
        "known_at": None,
        "late": None,
        "months": [],
        "budgets": [],
        "forecasts": [],
        "commitments": [],
        "unusual": [],
        "currency": fleet.currency,
    }


async def _commitments(
    costs: CostQueries, caller: Token, fleet: Fleet, query: CostQuery
) -> list[wire.CommitmentRow]:
    """Return the use of commitments for callers who see all costs. Empty if it takes too long."""
    if query.what is not ReportKind.COST or query.team or query.user or not sees_all(caller):
        return []
    if not any(pool.pricing.commitments for pool in fleet.pools):
        return []
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return (await costs.commitments(caller, replace(query.request(), by=(Label.POOL,)))).commitments
    except TimeoutError:
        return []


async def _forecasts(
    costs: CostQueries, caller: Token, query: CostQuery
) -> list[tuple[budget_wire.Forecast, str | None]]:
    """Return the largest forecasts with their links: of projects on a page about projects, else of teams."""
    of_projects = query.forecast_label is Label.PROJECT
    only = query.project if of_projects else query.team
    found = (await costs.forecasts(caller, query.forecast_label)).forecasts
    shown = [forecast for forecast in found if only in (None, forecast.name)][:_MAX_FORECASTS]
    return [
        (f, query.narrowed(Label.PROJECT, f.name) if of_projects else f"/teams/{quote(f.name)}")
        for f in shown
    ]


async def _unusual_days(notices: NoticeQueries, caller: Token, query: CostQuery) -> list[notice_wire.Notice]:
    """Return the newest days on which a team that the page is about spent much more than usual."""
    if query.what is ReportKind.WASTE or query.user:
        return []
    found = (await notices.notices(caller, NoticeKind.ANOMALY, _MAX_UNUSUAL)).notices
    return [notice for notice in found if query.team in (None, notice.team)]


def _dimensions(fleet: Fleet, query: CostQuery) -> list[Dimension]:
    """Return what the report can be grouped by: of labels, those that the fleet keeps, and the query's."""
    if query.what is ReportKind.WASTE:
        return list(PLACE_LABELS)
    keys = (JobLabel(f"{LABEL_PREFIX}{key}") for key in fleet.cost.labels)
    return list(dict.fromkeys((*Label, *keys, *query.by)))


def _divisors(fleet: Fleet, units: Sequence[str], query: CostQuery) -> list[tuple[str, str]]:
    """Return what the cost can be divided by, each with its text: labels, units, and what the query has."""
    offered: list[CostDivisor] = [JobLabel(f"{LABEL_PREFIX}{key}") for key in fleet.cost.labels]
    offered += [CostUnit(name, size) for name in units for size in _LOTS]
    if query.per and (asked := parse_divisor(query.per)) is not None:
        offered.append(asked)
    return list({str(one): divisor_text(one) for one in offered}.items())


def _data_values(data: CostPageData) -> dict[str, Any]:
    return {field.name: getattr(data, field.name) for field in fields(data)}


def _today(fleet: Fleet) -> date:
    return calendar_of(fleet).day_of(int(datetime.now(UTC).timestamp()))


async def _read_all_rows(costs: CostQueries, caller: Token, query: CostQuery) -> Report:
    return await read_report(costs, caller, query.what, replace(query.request(), max_rows=wire.MAX_ROWS))


def _valid_month(text: str) -> str:
    if re.fullmatch(wire.MONTH_PATTERN, text):
        return text
    raise RequestError(
        ErrorKind.NOT_FOUND, "NoSuchMonth", f"{text!r} is no month", "write it like  /cost/months/2026-10"
    )


def _file_name(query: CostQuery) -> str:
    by = "-".join(label.value for label in query.by)
    return f"{query.what}-{_safe(query.window)}-by-{by}"


def _safe(text: str) -> str:
    """Reduce text to characters that are safe in a file name."""
    return re.sub(r"[^0-9A-Za-z.-]", "", text)[:40]


def _file(body: str, media_type: str, name: str) -> Response:
    return Response(body, media_type=media_type, headers=_headers(name))


def _headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": _ATTACHED.format(name=name), "Cache-Control": "private, no-store"}
