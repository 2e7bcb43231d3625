"""The Policy pages: the applied file, drift, history, and plans."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query, Request, Response

from fairway.api.auth import caller_of
from fairway.ledger import Ledger, Revision
from fairway.model.access import Role
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.policy_queries import apply_detail, no_such_apply, planned, revision_before
from fairway.services.rights import sees_all
from fairway.views import plans as words
from fairway.web.context import PageContext
from fairway.web.pages.policy import view_model as views
from fairway.web.pages.policy.file_diff import diff_lines, file_lines, without_passwords
from fairway.web.sessions import PAGE, PAGE_OPERATOR, form_of, page_allow
from fairway.wire import policy as wire

MOST_DRIFT: Final = 200
_FEW: Final = 10
PER_PAGE: Final = 50
_SOURCE: Final = "fleet.yaml"

Revised = Annotated[int | None, Query(ge=1, lt=10**18)]
Before = Annotated[int | None, Query(ge=1, lt=10**18)]


def add_policy_pages(site: PageContext) -> None:
    """Add the Policy page, the history, and the plan of a file."""
    _add_policy(site)
    _add_history(site)
    _add_plan(site)


def _add_policy(site: PageContext) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy", dependencies=PAGE, include_in_schema=False)
    async def show_policy(request: Request, revision: Revised = None) -> Response:
        """Show the applied file, drift, nudges and recent applies."""
        fleet = await site.fleets.current()
        applied = await ledger.applies.applied()
        drift = [convert.drift(d) for d in await ledger.drift.page(limit=MOST_DRIFT + 1)]
        nudges = await ledger.drift.nudges(limit=_FEW)
        applies = await ledger.applies.page(limit=_FEW)
        live = {
            "clusters": views.clusters_policy(fleet, applied, drift),
            "drift": [(d, *words.wanted_and_found(d)) for d in drift[:MOST_DRIFT]],
            "more_drift": len(drift) > MOST_DRIFT,
            "nudges": nudges,
            "applies": [convert.apply(a) for a in applies],
        }
        # Open pages ask for the part that lives again and again; the file they have already.
        whole = sees_all(caller_of(request))
        file = await _file(ledger, revision) if whole and not request.headers.get("hx-request") else None
        lines = [] if file is None else await asyncio.to_thread(file_lines, file.text)
        newest = await ledger.revisions.newest_id()
        return pages.show(
            request,
            "policy.html",
            live
            | _WORDS
            | {"file": file, "lines": lines, "asked": revision, "newest": newest, "whole": whole},
        )


def _add_history(site: PageContext) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy/history", dependencies=PAGE, include_in_schema=False)
    async def show_history(request: Request, cluster: str | None = None, before: Before = None) -> Response:
        """Show the applies, newest first."""
        rows = await ledger.applies.page(cluster=cluster or None, before=before, limit=PER_PAGE + 1)
        fleet = await site.fleets.current()
        seen = {
            "applies": [convert.apply(a) for a in rows[:PER_PAGE]],
            "older": rows[PER_PAGE - 1].id if len(rows) > PER_PAGE else None,
            "cluster": cluster or "",
            "before": before,
            "clusters": [c.name for c in fleet.clusters],
        }
        return pages.show(request, "policy_history.html", seen | _WORDS)

    @site.app.get("/policy/history/{number}", dependencies=PAGE, include_in_schema=False)
    async def show_apply(request: Request, number: str) -> Response:
        """Show one apply: user, time, changes in the user's terms, by object, and as a diff of the file."""
        if not (number.isascii() and number.isdecimal() and 0 < len(number) < 18):
            raise RequestError(
                ErrorKind.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "see  /policy/history"
            )
        detail = await apply_detail(ledger, site.fleets, int(number))
        whole = sees_all(caller_of(request))
        before, after = await _around(ledger, detail) if whole else (None, None)
        diff = await asyncio.to_thread(diff_lines, before.text if before else "", after.text) if after else []
        seen = {
            "apply": detail,
            "said": views.teams_said(detail.diff),
            "diff": diff,
            "before": before,
            "after": after,
        }
        return pages.show(request, "policy_apply.html", seen | _WORDS)


def _add_plan(site: PageContext) -> None:
    pages = site.pages

    @site.app.get("/policy/plan", dependencies=PAGE_OPERATOR, include_in_schema=False)
    async def ask_plan(request: Request) -> Response:
        """Show the form, prefilled with the newest file."""
        newest = await site.ledger.revisions.newest()
        text = without_passwords(newest.text) if newest else ""
        return pages.show(request, "policy_plan.html", _NO_PLAN | _WORDS | {"text": text})

    @site.app.post(
        "/policy/plan",
        dependencies=page_allow(Role.OPERATOR, most_body_bytes=wire.MOST_FLEET_BYTES),
        include_in_schema=False,
    )
    async def show_plan(request: Request) -> Response:
        """Show what the file would change, or all its faults. Nothing is changed."""
        text = (await form_of(request)).get("fleet", "").replace("\r\n", "\n")
        seen = _NO_PLAN | _WORDS | {"text": text} | await _answer(site, request, text)
        return pages.show(request, "policy_plan.html", seen)


async def _answer(site: PageContext, request: Request, text: str) -> dict[str, object]:
    """Return the plan and how to apply it, or the reasons against it."""
    if not text.strip():
        return {"refused": _empty()}
    if len(text) > wire.MOST_FLEET_CHARACTERS:
        return {"refused": _too_long()}
    try:
        plan = await planned(
            site.policy, site.fleets, caller_of(request), wire.PlanRequest(fleet=text, source=_SOURCE)
        )
    except RequestError as error:
        faults = [views.file_fault(f) for f in error.faults]
        return {"faults": faults, "refused": None if faults else error}
    kept = wire.PlanFile(made_at=datetime.now(UTC), source=_SOURCE, text=text, plan=plan)
    against = [(c.cluster, o) for c in plan.clusters for o in c.objections]
    return {
        "plan": plan,
        "said": views.teams_said(plan.diff),
        "touched": words.touched(plan.clusters),
        "notices": [(c.cluster, n) for c in plan.clusters for n in c.notices if n.code != words.TOUCHES],
        "against": against,
        "can_apply": bool(plan.diff or plan.changes)
        and not plan.failures
        and all(o.forceable for _, o in against),
        "warnings": [views.file_fault(f) for f in plan.warnings],
        "plan_name": words.suggested_name(plan),
        "plan_file": base64.b64encode(kept.model_dump_json(indent=1).encode()).decode(),
    }


async def _file(ledger: Ledger, asked: int | None) -> Revision | None:
    """Return the requested revision, else the newest applied one, else the newest."""
    if asked is not None:
        found = await ledger.revisions.one(asked)
        if found is None:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoSuchRevision",
                f"the fleet file has no revision {asked}",
                "see which there were:  /policy/history",
            )
        return found
    applied = await ledger.applies.applied()
    newest = max((a.revision for a in applied), default=None)
    return await ledger.revisions.newest() if newest is None else await ledger.revisions.one(newest)


async def _around(ledger: Ledger, detail: wire.ApplyDetail) -> tuple[Revision | None, Revision | None]:
    """Return the file before an apply, and the file it applied."""
    if detail.revision is None:
        return None, None
    found = await ledger.applies.one(detail.id)
    if found is None:
        raise no_such_apply(detail.id)
    earlier = await revision_before(ledger, found)
    before = await ledger.revisions.one(earlier) if earlier is not None else None
    return before, await ledger.revisions.one(detail.revision)


def _empty() -> RequestError:
    return RequestError(
        ErrorKind.INVALID, "EmptyFile", "there is no fleet file", "paste one, or choose a file"
    )


def _too_long() -> RequestError:
    most = wire.MOST_FLEET_CHARACTERS
    return RequestError(
        ErrorKind.INVALID,
        "FileTooLarge",
        f"the file has more than {most:,} characters",
        "is it a fleet file? see  fairway schema fleet",
    )


_WORDS: Final[dict[str, object]] = {
    "SIGNS": words.SIGNS,
    "sign_word": views.sign_word,
    "apply_state": views.apply_state,
    "outcome": words.outcome,
    "difference": words.difference,
    "engine_text": words.engine_text,
    "objects_text": words.objects_text,
    "headline": words.headline,
}
"""Functions that format plans and applies in templates, shared with the CLI."""
_NO_PLAN: Final[dict[str, object]] = {
    "plan": None,
    "faults": [],
    "refused": None,
    "said": [],
    "touched": [],
    "notices": [],
    "against": [],
    "can_apply": False,
    "warnings": [],
    "plan_name": "",
    "plan_file": "",
}
