"""The Policy pages: the applied file, drift, history, and plans."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from fairway.api.auth import caller_of
from fairway.api.load import RequestKind
from fairway.ledger import Ledger, Revision, Token
from fairway.model.access import Role
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.policy import (
    apply_detail,
    check_fleet_file,
    list_stopped,
    no_such_apply,
    plan_fleet_file,
    revision_before,
    start_apply,
)
from fairway.services.revisions import find_revision, list_revisions
from fairway.services.rights import sees_all
from fairway.views import plans as formats
from fairway.views.removals import confirmation_names, removal_lines, removals_headline, taken_lines
from fairway.views.stopped import liveness_text, stopped_text
from fairway.web.context import PageContext
from fairway.web.pages.policy import view_model
from fairway.web.pages.policy.file_diff import diff_lines, file_lines, without_passwords
from fairway.web.pages.policy.what_if_page import add_what_if_pages
from fairway.web.render import HEADERS
from fairway.web.sessions import PAGE, PAGE_OPERATOR, form_of, page_allow
from fairway.wire import policy as wire

MAX_DRIFT: Final = 200
_RECENT: Final = 10
OPERATOR_WITH_FLEET: Final = page_allow(
    Role.OPERATOR, max_body_bytes=wire.MAX_FLEET_BYTES, kind=RequestKind.ENGINE
)
PER_PAGE: Final = 50
_SOURCE: Final = "fleet.yaml"

Id = Annotated[int | None, Query(ge=1, lt=10**18)]


def add_policy_pages(site: PageContext) -> None:
    """Add the Policy page, the revisions, the history, and the plan and apply of a file."""
    _add_policy(site)
    _add_revisions(site)
    _add_history(site)
    _add_plan(site)
    _add_check(site)
    _add_apply(site)
    add_what_if_pages(site)


def _add_policy(site: PageContext) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy", dependencies=PAGE, include_in_schema=False)
    async def show_policy(request: Request, revision: Id = None) -> Response:
        """Show the applied file, drift, interventions and recent applies."""
        fleet = await site.fleets.current()
        applied = await ledger.applies.applied()
        drift = [convert.drift(d) for d in await ledger.drift.page(limit=MAX_DRIFT + 1)]
        interventions = await ledger.drift.interventions(limit=_RECENT)
        applies = await ledger.applies.page(limit=_RECENT)
        live = {
            "clusters": view_model.clusters_policy(
                fleet, applied, drift, await ledger.conditions.all(), await list_stopped(ledger)
            ),
            "drift": [(d, *formats.wanted_and_found(d)) for d in drift[:MAX_DRIFT]],
            "more_drift": len(drift) > MAX_DRIFT,
            "interventions": interventions,
            "applies": [convert.apply(a) for a in applies],
        }
        # Open pages request the live part repeatedly; they have the file already.
        sees_file = sees_all(caller_of(request))
        in_place = bool(request.headers.get("hx-request"))
        file = await find_revision(ledger, revision) if sees_file and not in_place else None
        lines = [] if file is None else await asyncio.to_thread(file_lines, file.text)
        newest = await ledger.revisions.newest_id()
        return pages.show(
            request,
            "policy.html",
            live
            | _FORMATTERS
            | {"file": file, "lines": lines, "asked": revision, "newest": newest, "whole": sees_file},
        )


def _add_revisions(site: PageContext) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy/revisions", dependencies=PAGE, include_in_schema=False)
    async def show_revisions(request: Request, before: Id = None) -> Response:
        """Show the revisions of the fleet file, newest first, and where each is in force."""
        rows = await list_revisions(ledger, before=before, limit=PER_PAGE + 1)
        values = {
            "revisions": rows[:PER_PAGE],
            "older": rows[PER_PAGE - 1].revision if len(rows) > PER_PAGE else None,
            "whole": sees_all(caller_of(request)),
        }
        return pages.show(request, "policy_revisions.html", values | _FORMATTERS)

    @site.app.get("/policy/revisions/{number}", dependencies=PAGE, include_in_schema=False)
    async def show_revision(request: Request, number: int) -> Response:
        """Compare one revision with the file that was applied last; operators may plan it."""
        caller = caller_of(request)
        _require_sees_file(caller)
        file, applied = await find_revision(ledger, number), await find_revision(ledger, None)
        before, after = applied.text if applied else "", file.text if file else ""
        values = {
            "file": file,
            "applied": applied,
            "diff": await asyncio.to_thread(diff_lines, before, after),
            "may_plan": caller.role.may(Role.OPERATOR),
        }
        return pages.show(request, "policy_revision.html", values | _FORMATTERS)

    @site.app.get("/policy/revisions/{number}/fleet.yaml", dependencies=PAGE, include_in_schema=False)
    async def download_revision(request: Request, number: int) -> Response:
        """Download the text of one revision."""
        _require_sees_file(caller_of(request))
        file = await find_revision(ledger, number)
        headers = HEADERS | {"Content-Disposition": f'attachment; filename="fleet-{number}.yaml"'}
        text = without_passwords(file.text) if file else ""
        return Response(text, media_type="text/yaml; charset=utf-8", headers=headers)


def _require_sees_file(caller: Token) -> None:
    if not sees_all(caller):
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "FleetFileNotShown",
            "the fleet file contains the budgets of all teams: viewers, operators and admins may read it",
            "see the guarantees and limits of your teams at  /teams",
        )


def _add_history(site: PageContext) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy/history", dependencies=PAGE, include_in_schema=False)
    async def show_history(request: Request, cluster: str | None = None, before: Id = None) -> Response:
        """Show the applies, newest first."""
        rows = await ledger.applies.page(cluster=cluster or None, before=before, limit=PER_PAGE + 1)
        fleet = await site.fleets.current()
        values = {
            "applies": [convert.apply(a) for a in rows[:PER_PAGE]],
            "older": rows[PER_PAGE - 1].id if len(rows) > PER_PAGE else None,
            "cluster": cluster or "",
            "before": before,
            "clusters": [c.name for c in fleet.clusters],
        }
        return pages.show(request, "policy_history.html", values | _FORMATTERS)

    @site.app.get("/policy/history/{number}", dependencies=PAGE, include_in_schema=False)
    async def show_apply(request: Request, number: str) -> Response:
        """Show one apply: user, time, changes in the user's terms, by object, and as a diff of the file."""
        if not (number.isascii() and number.isdecimal() and 0 < len(number) < 18):
            raise RequestError(
                ErrorKind.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "see  /policy/history"
            )
        caller = caller_of(request)
        detail = await apply_detail(ledger, site.fleets, caller, int(number))
        sees_file = sees_all(caller)
        before, after = await _files_around(ledger, detail) if sees_file else (None, None)
        diff = await asyncio.to_thread(diff_lines, before.text if before else "", after.text) if after else []
        values = {
            "apply": detail,
            "said": view_model.diff_by_team(detail.diff),
            "diff": diff,
            "before": before,
            "after": after,
        }
        return pages.show(request, "policy_apply.html", values | _FORMATTERS)


def _add_plan(site: PageContext) -> None:
    pages = site.pages

    @site.app.get("/policy/plan", dependencies=PAGE_OPERATOR, include_in_schema=False)
    async def ask_plan(request: Request) -> Response:
        """Show the editor with the newest file."""
        newest = await site.ledger.revisions.newest()
        text = without_passwords(newest.text) if newest else ""
        return pages.show(
            request, "policy_plan.html", _NO_PLAN | _FORMATTERS | {"text": text, "base": newest}
        )

    @site.app.post(
        "/policy/plan",
        dependencies=OPERATOR_WITH_FLEET,
        include_in_schema=False,
    )
    async def show_plan(request: Request) -> Response:
        """Show what the file would change, or all its faults. Nothing is changed."""
        text, revision = await _posted_file(site, request)
        values = _NO_PLAN | _FORMATTERS | {"text": text, "revision": revision}
        return pages.show(request, "policy_plan.html", values | await _plan_values(site, request, text))


def _add_check(site: PageContext) -> None:
    @site.app.post("/policy/check", dependencies=OPERATOR_WITH_FLEET, include_in_schema=False)
    async def check_file(request: Request) -> Response:
        """Show the errors of a file while it is edited, and how it differs from the newest revision."""
        text = (await form_of(request)).get("fleet", "").replace("\r\n", "\n")
        values = await _check_values(site, text)
        return site.pages.show(
            request, "policy_plan.html", _NO_PLAN | _FORMATTERS | values, part="check-answer"
        )


async def _check_values(site: PageContext, text: str) -> dict[str, object]:
    """Check the text as `fairway check` does; no cluster is asked."""
    if not text.strip() or len(text) > wire.MAX_FLEET_CHARACTERS:
        return {"text": text, "refused": _file_too_large() if text.strip() else _empty_file()}
    newest = await site.ledger.revisions.newest()
    report = await check_fleet_file(site.policy, wire.PlanRequest(fleet=text, source=_SOURCE))
    before = newest.text if newest else ""
    return {
        "text": text,
        "checked": True,
        "faults": [convert.file_fault(fault) for fault in report.faults],
        "base": newest,
        "diff": await asyncio.to_thread(diff_lines, before, text),
        "unchanged": without_passwords(before) == text,
    }


def _add_apply(site: PageContext) -> None:
    @site.app.post(
        "/policy/apply",
        dependencies=OPERATOR_WITH_FLEET,
        include_in_schema=False,
    )
    async def apply_plan(request: Request) -> Response:
        """Queue the apply of a plan that was shown, and go to its page."""
        form = await form_of(request)
        text, _ = await _posted_file(site, request)
        try:
            wanted = wire.ApplyRequest(
                fleet=text,
                source=_SOURCE,
                fingerprints=json.loads(form.get("fingerprints", "")),
                force=form.get("force") == "yes",
                confirmed=form.get("confirm", "").replace(",", " ").split(),
            )
        except ValueError:  # pydantic's and json's errors are ValueErrors
            raise RequestError(
                ErrorKind.INVALID,
                "NotAPlan",
                "this is not a plan that can be applied",
                "plan the file again, and apply it from there:  /policy/plan",
            ) from None
        apply = await start_apply(site.policy, site.ledger, site.fleets, caller_of(request), wanted)
        return RedirectResponse(f"/policy/history/{apply.id}", status_code=HTTPStatus.SEE_OTHER)


async def _posted_file(site: PageContext, request: Request) -> tuple[str, int | None]:
    """Return the fleet file of a form: its text, or the revision it names with that one's text."""
    form = await form_of(request)
    number = form.get("revision", "")
    if not number:
        return form.get("fleet", "").replace("\r\n", "\n"), None
    if not (number.isascii() and number.isdecimal() and len(number) < 18):
        number = "0"
    found = await find_revision(site.ledger, int(number))
    return (found.text, found.id) if found else ("", None)


async def _plan_values(site: PageContext, request: Request, text: str) -> dict[str, object]:
    """Return the plan and how to apply it, or the reasons against it."""
    if not text.strip():
        return {"refused": _empty_file()}
    if len(text) > wire.MAX_FLEET_CHARACTERS:
        return {"refused": _file_too_large()}
    try:
        plan = await plan_fleet_file(
            site.policy,
            site.ledger,
            site.fleets,
            caller_of(request),
            wire.PlanRequest(fleet=text, source=_SOURCE),
        )
    except RequestError as error:
        return {"faults": error.faults, "refused": None if error.faults else error}
    plan_file = wire.PlanFile(made_at=datetime.now(UTC), source=_SOURCE, text=text, plan=plan)
    objections = formats.objections_of(plan)
    return {
        "plan": plan,
        "changed_clusters": [c.cluster for c in plan.clusters if c.changes],
        "said": view_model.diff_by_team(plan.diff),
        "touched": formats.affected_jobs(plan.clusters),
        "notices": [
            (c.cluster, n) for c in plan.clusters for n in c.notices if n.code != formats.AFFECTED_JOBS_CODE
        ],
        "against": objections,
        "confirm_names": confirmation_names(plan.removals),
        "fingerprints": json.dumps(plan_file.fingerprints),
        "can_apply": bool(plan.diff or plan.changes)
        and not plan.failures
        and not any(r.refused for r in plan.removals)
        and all(o.forceable for _, o in objections),
        "warnings": plan.warnings,
        "plan_name": formats.suggested_name(plan),
        "plan_file": base64.b64encode(plan_file.model_dump_json(indent=1).encode()).decode(),
    }


async def _files_around(ledger: Ledger, detail: wire.ApplyDetail) -> tuple[Revision | None, Revision | None]:
    """Return the file before an apply, and the file it applied."""
    if detail.revision is None:
        return None, None
    found = await ledger.applies.one(detail.id)
    if found is None:
        raise no_such_apply(detail.id)
    earlier = await revision_before(ledger, found)
    before = await ledger.revisions.one(earlier) if earlier is not None else None
    return before, await ledger.revisions.one(detail.revision)


def _empty_file() -> RequestError:
    return RequestError(
        ErrorKind.INVALID, "EmptyFile", "the fleet file is empty", "paste a fleet file, or upload one"
    )


def _file_too_large() -> RequestError:
    return RequestError(
        ErrorKind.INVALID,
        "FileTooLarge",
        f"the file has more than {wire.MAX_FLEET_CHARACTERS:,} characters",
        "is it a fleet file? see  fairway schema fleet",
    )


_FORMATTERS: Final[dict[str, object]] = {
    "SIGNS": formats.SIGNS,
    "SIGN_WORDS": view_model.SIGN_WORDS,
    "APPLY_STATES": view_model.APPLY_STATES,
    "outcome": formats.outcome,
    "removal_lines": removal_lines,
    "removals_headline": removals_headline,
    "taken_lines": taken_lines,
    "stopped_text": stopped_text,
    "liveness_text": liveness_text,
    "apply_kind": formats.apply_kind,
    "difference": formats.difference,
    "engine_text": formats.engine_text,
    "objects_text": formats.objects_text,
    "headline": formats.headline,
}
"""Functions that format plans and applies in templates, shared with the CLI."""
_NO_PLAN: Final[dict[str, object]] = {
    "plan": None,
    "checked": False,
    "base": None,
    "diff": [],
    "unchanged": True,
    "changed_clusters": [],
    "faults": [],
    "refused": None,
    "said": [],
    "touched": [],
    "notices": [],
    "against": [],
    "confirm_names": [],
    "fingerprints": "",
    "revision": None,
    "can_apply": False,
    "warnings": [],
    "plan_name": "",
    "plan_file": "",
}
