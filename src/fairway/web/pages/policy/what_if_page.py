"""The What if page: ask for a study, follow it, and read its result under a link."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from fairway.api.auth import caller_of
from fairway.ledger.what_if import StoredStudy
from fairway.model.access import Role
from fairway.model.study import OPEN_STUDIES, StudyState
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.what_if import MAX_DAYS, MAX_POINTS, MAX_SEEDS, StudyRequest, queue_study
from fairway.views.what_if_rows import change_text, duration_text, percent_text, what_if_notes, what_if_tables
from fairway.web.context import PageContext
from fairway.web.pages.policy.file_diff import without_passwords
from fairway.web.sessions import PAGE_OPERATOR, form_of, page_allow
from fairway.wire import what_if as wire
from fairway.wire.policy import MAX_FLEET_BYTES

_LISTED: Final = 20
_WITH_FLEET: Final = page_allow(Role.OPERATOR, max_body_bytes=MAX_FLEET_BYTES)
_LIMITS: Final = {"max_days": MAX_DAYS, "max_seeds": MAX_SEEDS, "max_points": MAX_POINTS}


@dataclass(frozen=True, slots=True)
class WaitBar:
    """A bar of the plot: a scenario, its p95 wait, and its length of 1000."""

    name: str
    text: str
    length: int
    used: str
    used_length: int


def add_what_if_pages(site: PageContext) -> None:
    """Add the form with the newest studies, and the page of one study."""
    pages, ledger = site.pages, site.ledger

    async def form(request: Request, values: dict[str, object]) -> Response:
        shown = {"studies": await ledger.studies.newest(_LISTED), "refused": None, **_LIMITS, **values}
        return pages.show(request, "policy_what_if.html", shown)

    @site.app.get("/policy/what-if", dependencies=PAGE_OPERATOR, include_in_schema=False)
    async def ask_what_if(request: Request) -> Response:
        """Show the form with the newest file, and the newest studies."""
        newest = await ledger.revisions.newest()
        text = without_passwords(newest.text) if newest else ""
        return await form(request, {"text": text, "sweeps": "", "days": 14, "seeds": 1})

    @site.app.post("/policy/what-if", dependencies=_WITH_FLEET, include_in_schema=False)
    async def start_what_if(request: Request) -> Response:
        """Queue a study and go to its page; show the form again, with what is wrong, if it is refused."""
        sent = await form_of(request)
        text = sent.get("fleet", "").replace("\r\n", "\n")
        sweeps = sent.get("sweeps", "").replace("\r\n", "\n")
        days, seeds = _number(sent.get("days", "")), _number(sent.get("seeds", ""))
        try:
            number = await queue_study(ledger, caller_of(request), StudyRequest(text, sweeps, days, seeds))
        except RequestError as error:
            values = {"text": text, "sweeps": sweeps, "days": days or 14, "seeds": seeds or 1}
            return await form(request, {**values, "refused": error})
        return RedirectResponse(f"/policy/what-if/{number}", status_code=HTTPStatus.SEE_OTHER)

    @site.app.get("/policy/what-if/{number}", dependencies=PAGE_OPERATOR, include_in_schema=False)
    async def show_what_if(request: Request, number: str) -> Response:
        """Show how far a study is, or its result."""
        study = await ledger.studies.one(_number(number))
        if study is None:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoSuchStudy",
                f"there is no study {number[:20]}",
                "the newest are listed at  /policy/what-if",
            )
        return pages.show(request, "policy_study.html", _study_values(study))


def _study_values(study: StoredStudy) -> dict[str, object]:
    found = wire.WhatIf.model_validate_json(study.result) if study.result else None
    return {
        "study": study,
        "open": study.state in OPEN_STUDIES,
        "failed": study.state is StudyState.FAILED,
        "percent": round(100 * study.progress),
        "found": found,
        "tables": what_if_tables(found) if found else [],
        "notes": what_if_notes(found) if found else [],
        "bars": wait_bars(found) if found else [],
    }


def wait_bars(found: wire.WhatIf) -> list[WaitBar]:
    """Return the bars of the plot, one for each scenario, the longest wait 1000 long."""
    longest = max((one.waits.p95_wait.mean for one in found.scenarios), default=0.0) or 1.0
    return [
        WaitBar(
            one.name,
            duration_text(one.waits.p95_wait)
            + (f" ({change_text(one.p95_wait_change)})" if one.p95_wait_change else ""),
            round(1000 * one.waits.p95_wait.mean / longest),
            f"{percent_text(one.utilisation)} %",
            round(1000 * min(1.0, one.utilisation.mean)),
        )
        for one in found.scenarios
    ]


def _number(text: str) -> int:
    """Parse a small number of a form or an address; 0 is what no number is."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0
