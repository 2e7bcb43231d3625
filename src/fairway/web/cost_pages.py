"""The pages of cost: what was spent, used and wasted, by anything, and the same as files."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from fairway.api import cost_wire as wire
from fairway.api.access import caller_of
from fairway.api.cost_desk import CostDesk
from fairway.api.cost_records import csv_text, report_records, statement_records
from fairway.api.cost_rights import teams_seen
from fairway.api.cost_words import kind_word
from fairway.api.problems import ApiError
from fairway.control.cost_reports import PLACES
from fairway.control.costs import calendar_of
from fairway.ledger import Token
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.web.cost_answers import Answer, answer_of, over_time
from fairway.web.cost_query import MANY_ROWS, CostQuery, What, month_beside, months_until, windows
from fairway.web.rules import PAGE
from fairway.web.shared_desk import SharedDesk
from fairway.web.site import Site

LONGEST_SECONDS: Final = 8.0
"""How long a page looks before it says that it would take too long. Files may take longer."""
LATE_PART: Final = "cost-over-time"
"""What of the page is asked for after the rest is there."""
_MONTHS: Final = 6
_EXPORT_ROWS: Final = wire.MOST_ROWS
_ATTACHED: Final = 'attachment; filename="{name}"'


def add_cost_pages(site: Site) -> None:
    """Cost, its files, and months."""
    add_cost_page(site, SharedDesk(site.ledger, site.fleets))
    desk = CostDesk(site.ledger, site.fleets)
    add_cost_files(site, desk)
    add_month_pages(site, desk)


def add_cost_page(site: Site, desk: CostDesk) -> None:
    """What was spent, used or wasted."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/cost", dependencies=PAGE, include_in_schema=False)
    async def show_cost(request: Request) -> Response:
        """The question is in the address; one that makes no sense is shown with what is wrong about it."""
        caller, query = caller_of(request), CostQuery.of(request.query_params)
        fleet = await desk.fleet()
        known = _known(fleet, caller, query)
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                if request.headers.get("hx-target") == LATE_PART:
                    late = await over_time(desk, caller, query)
                    return pages.show(request, "cost.html", known | {"late": late}, part=LATE_PART)
                answer = await answer_of(desk, caller, query)
        except TimeoutError:
            part = LATE_PART if request.headers.get("hx-target") == LATE_PART else None
            return pages.show(request, "cost.html", known | {"fault": too_slow(query)}, part=part)
        except ApiError as error:
            if error.status is not HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            return pages.show(request, "cost.html", known | {"fault": error}, status=error.status)
        closed = {f"{month.month:%Y-%m}": month for month in await ledger.closed_months()}
        months = [(text, closed.get(text)) for text in months_until(_today(fleet), _MONTHS)]
        return pages.show(request, "cost.html", known | _shown(answer) | {"months": months})


def add_cost_files(site: Site, desk: CostDesk) -> None:
    """The same answers as files, for whoever is signed in: the API's own routes take tokens alone."""
    app = site.app

    @app.get("/cost/export.csv", dependencies=PAGE, include_in_schema=False)
    async def export_csv(request: Request) -> Response:
        """Rows of the table, all of them; text that a spreadsheet would take for a formula is marked."""
        query = CostQuery.of(request.query_params)
        report = await _report(desk, caller_of(request), query)
        return _file(csv_text(report_records(report)), "text/csv; charset=utf-8", f"{_name(query)}.csv")

    @app.get("/cost/export.json", dependencies=PAGE, include_in_schema=False)
    async def export_json(request: Request) -> Response:
        """As the API answers."""
        query = CostQuery.of(request.query_params)
        report = await _report(desk, caller_of(request), query)
        return _file(report.model_dump_json(), "application/json", f"{_name(query)}.json")

    @app.get("/cost/focus.csv", dependencies=PAGE, include_in_schema=False)
    async def export_focus(request: Request) -> Response:
        """FOCUS rows, written as they are read."""
        query = CostQuery.of(request.query_params)
        pieces = await desk.focus(caller_of(request), query.window, query.team)
        headers = _headers(f"focus-{_plain(query.window)}.csv")
        return StreamingResponse(pieces, media_type="text/csv; charset=utf-8", headers=headers)


def add_month_pages(site: Site, desk: CostDesk) -> None:
    """Statements of a month."""
    app, pages = site.app, site.pages

    @app.get("/cost/months/{month}", dependencies=PAGE, include_in_schema=False)
    async def show_month(request: Request, month: str) -> Response:
        """What each team is charged for a month; a closed one as it was told."""
        team = request.query_params.get("team") or None
        found = await desk.statements(caller_of(request), _month(month), team)
        before, after = month_beside(month)
        known = {
            "found": found,
            "before": before,
            "after": after,
            "team": team,
            "kind_word": kind_word,
        }
        return pages.show(request, "cost-month.html", known)

    @app.get("/cost/months/{month}/statements.csv", dependencies=PAGE, include_in_schema=False)
    async def export_statements(request: Request, month: str) -> Response:
        """Each line of each team."""
        team = request.query_params.get("team") or None
        found = await desk.statements(caller_of(request), _month(month), team)
        name = f"statements-{found.month}.csv"
        return _file(csv_text(statement_records(found)), "text/csv; charset=utf-8", name)


def too_slow(query: CostQuery) -> ApiError:
    """Why there is no answer, and how to get one."""
    why = "names of jobs are read row by row" if Label.NAME in query.by else "there is much to add up"
    return ApiError(
        HTTPStatus.OK,
        "TooSlow",
        f"this took longer than {LONGEST_SECONDS:.0f} s and was given up: {why}, "
        "and pools with spot prices are added up hour by hour",
        "choose a shorter window or one team or pool; the terminal waits longer:  "
        f"fairway report {query.what} --window {query.window}",
    )


def _known(fleet: Fleet, caller: Token, query: CostQuery) -> dict[str, Any]:
    """What the page says whatever the answer is."""
    seen = teams_seen(caller, fleet)
    return {
        "asked": query,
        "What": What,
        "labels": list(PLACES if query.what is What.WASTE else Label),
        "teams": sorted(t.name for t in fleet.teams if seen is None or t.name in seen),
        "pools": sorted(p.name for p in fleet.pools),
        "windows": windows(query, _today(fleet)),
        "seen": None if seen is None else sorted(seen),
        "many": MANY_ROWS,
        "fault": None,
        "late": None,
        "months": [],
    }


def _shown(answer: Answer) -> dict[str, Any]:
    return {
        "report": answer.report,
        "figures": answer.figures,
        "table": answer.table,
        "plot": answer.plot,
        "before": answer.before,
    }


def _today(fleet: Fleet) -> Any:
    return calendar_of(fleet).day_of(int(datetime.now(UTC).timestamp()))


async def _report(
    desk: CostDesk, caller: Token, query: CostQuery
) -> wire.CostReport | wire.UsageReport | wire.WasteReport:
    asked = replace(query.asked(), most=_EXPORT_ROWS)
    match query.what:
        case What.COST:
            return await desk.cost(caller, asked)
        case What.USAGE:
            return await desk.usage(caller, asked)
        case What.WASTE:
            return await desk.waste(caller, asked)


def _month(text: str) -> str:
    if re.fullmatch(wire.MONTH_PATTERN, text):
        return text
    raise ApiError(
        HTTPStatus.NOT_FOUND, "NoSuchMonth", f"{text!r} is no month", "write it like  /cost/months/2026-10"
    )


def _name(query: CostQuery) -> str:
    by = "-".join(label.value for label in query.by)
    return f"{query.what}-{_plain(query.window)}-by-{by}"


def _plain(text: str) -> str:
    """For the name of a file."""
    return re.sub(r"[^0-9A-Za-z.-]", "", text)[:40]


def _file(body: str, media_type: str, name: str) -> Response:
    return Response(body, media_type=media_type, headers=_headers(name))


def _headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": _ATTACHED.format(name=name), "Cache-Control": "private, no-store"}
