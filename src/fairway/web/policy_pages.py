"""The pages of policy: the file as applied, drift, history, and what a file would change."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query, Request, Response

from fairway.api import plan_words as words
from fairway.api import policy_known as known
from fairway.api import policy_wire as wire
from fairway.api.access import caller_of
from fairway.api.cost_rights import sees_all
from fairway.api.policy_answers import apply_detail, no_such_apply, planned, revision_before
from fairway.api.policy_routes import MOST_FLEET_BYTES
from fairway.api.problems import ApiError
from fairway.ledger import Ledger, Revision
from fairway.model.access import Role
from fairway.web import policy_views as views
from fairway.web.policy_text import diff_lines, file_lines, without_passwords
from fairway.web.rules import PAGE, PAGE_OPERATOR, form_of, page_allow
from fairway.web.site import Site

MOST_DRIFT: Final = 200
_FEW: Final = 10
PER_PAGE: Final = 50
_SOURCE: Final = "fleet.yaml"

Revised = Annotated[int | None, Query(ge=1, lt=10**18)]
Before = Annotated[int | None, Query(ge=1, lt=10**18)]


def add_policy_pages(site: Site) -> None:
    """Policy, its history, and the plan of a file."""
    _add_policy(site)
    _add_history(site)
    _add_plan(site)


def _add_policy(site: Site) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy", dependencies=PAGE, include_in_schema=False)
    async def show_policy(request: Request, revision: Revised = None) -> Response:
        """The file as applied, what was changed by hand, what was pushed, what was applied lately."""
        fleet = await site.fleets.current()
        applied = await ledger.applied_clusters()
        drift = [known.drift(d) for d in await ledger.drift(limit=MOST_DRIFT + 1)]
        nudges = await ledger.nudges(limit=_FEW)
        applies = await ledger.applies(limit=_FEW)
        live = {
            "clusters": views.clusters_policy(fleet, applied, drift),
            "drift": [(d, *words.wanted_and_found(d)) for d in drift[:MOST_DRIFT]],
            "more_drift": len(drift) > MOST_DRIFT,
            "nudges": nudges,
            "applies": [known.apply(a) for a in applies],
        }
        # Open pages ask for the part that lives again and again; the file they have already.
        whole = sees_all(caller_of(request))
        file = await _file(ledger, revision) if whole and not request.headers.get("hx-request") else None
        lines = [] if file is None else await asyncio.to_thread(file_lines, file.text)
        newest = await ledger.fleet_revision()
        return pages.show(
            request,
            "policy.html",
            live
            | _WORDS
            | {"file": file, "lines": lines, "asked": revision, "newest": newest, "whole": whole},
        )


def _add_history(site: Site) -> None:
    ledger, pages = site.ledger, site.pages

    @site.app.get("/policy/history", dependencies=PAGE, include_in_schema=False)
    async def show_history(request: Request, cluster: str | None = None, before: Before = None) -> Response:
        """What was applied, the newest first."""
        rows = await ledger.applies(cluster=cluster or None, before=before, limit=PER_PAGE + 1)
        fleet = await site.fleets.current()
        seen = {
            "applies": [known.apply(a) for a in rows[:PER_PAGE]],
            "older": rows[PER_PAGE - 1].id if len(rows) > PER_PAGE else None,
            "cluster": cluster or "",
            "before": before,
            "clusters": [c.name for c in fleet.clusters],
        }
        return pages.show(request, "policy_history.html", seen | _WORDS)

    @site.app.get("/policy/history/{number}", dependencies=PAGE, include_in_schema=False)
    async def show_apply(request: Request, number: str) -> Response:
        """One apply: who, when, in the user's words, object by object, and in the file."""
        if not (number.isascii() and number.isdecimal() and 0 < len(number) < 18):
            raise ApiError(
                HTTPStatus.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "see  /policy/history"
            )
        detail = await apply_detail(ledger, site.fleets, int(number))
        whole = sees_all(caller_of(request))
        before, after = await _around(ledger, detail) if whole else (None, None)
        diff = await asyncio.to_thread(diff_lines, before.text if before else "", after.text) if after else []
        seen = {
            "apply": detail,
            "said": views.teams_said(detail.said),
            "diff": diff,
            "before": before,
            "after": after,
        }
        return pages.show(request, "policy_apply.html", seen | _WORDS)


def _add_plan(site: Site) -> None:
    pages = site.pages

    @site.app.get("/policy/plan", dependencies=PAGE_OPERATOR, include_in_schema=False)
    async def ask_plan(request: Request) -> Response:
        """A form, with the file that holds now to begin with."""
        newest = await site.ledger.fleet()
        text = without_passwords(newest.text) if newest else ""
        return pages.show(request, "policy_plan.html", _NO_PLAN | _WORDS | {"text": text})

    @site.app.post(
        "/policy/plan",
        dependencies=page_allow(Role.OPERATOR, most_body_bytes=MOST_FLEET_BYTES),
        include_in_schema=False,
    )
    async def show_plan(request: Request) -> Response:
        """What the file would change, or all that is wrong with it. Nothing is changed."""
        text = (await form_of(request)).get("fleet", "").replace("\r\n", "\n")
        seen = _NO_PLAN | _WORDS | {"text": text} | await _answer(site, request, text)
        return pages.show(request, "policy_plan.html", seen)


async def _answer(site: Site, request: Request, text: str) -> dict[str, object]:
    """A plan with what it takes to apply it, or what stands against one."""
    if not text.strip():
        return {"refused": _empty()}
    if len(text) > wire.MOST_FLEET_CHARACTERS:
        return {"refused": _too_long()}
    try:
        plan = await planned(
            site.policy, site.fleets, caller_of(request), wire.AskedPlan(fleet=text, source=_SOURCE)
        )
    except ApiError as error:
        faults = [views.file_fault(f) for f in error.faults]
        return {"faults": faults, "refused": None if faults else error}
    kept = wire.PlanFile(made_at=datetime.now(UTC), source=_SOURCE, text=text, plan=plan)
    against = [(c.cluster, o) for c in plan.clusters for o in c.objections]
    return {
        "plan": plan,
        "said": views.teams_said(plan.said),
        "touched": words.touched(plan.clusters),
        "notices": [(c.cluster, n) for c in plan.clusters for n in c.notices if n.code != words.TOUCHES],
        "against": against,
        "can_apply": bool(plan.said or plan.changes)
        and not plan.failures
        and all(o.forceable for _, o in against),
        "warnings": [views.file_fault(f) for f in plan.warnings],
        "plan_name": words.suggested_name(plan),
        "plan_file": base64.b64encode(kept.model_dump_json(indent=1).encode()).decode(),
    }


async def _file(ledger: Ledger, asked: int | None) -> Revision | None:
    """The revision that was asked for, else the newest that was applied, else the newest there is."""
    if asked is not None:
        found = await ledger.revision(asked)
        if found is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "NoSuchRevision",
                f"the fleet file has no revision {asked}",
                "see which there were:  /policy/history",
            )
        return found
    applied = await ledger.applied_clusters()
    newest = max((a.revision for a in applied), default=None)
    return await ledger.fleet() if newest is None else await ledger.revision(newest)


async def _around(ledger: Ledger, detail: wire.ApplyDetail) -> tuple[Revision | None, Revision | None]:
    """The file before an apply, and the file it applied."""
    if detail.revision is None:
        return None, None
    found = await ledger.apply(detail.id)
    if found is None:
        raise no_such_apply(detail.id)
    earlier = await revision_before(ledger, found)
    before = await ledger.revision(earlier) if earlier is not None else None
    return before, await ledger.revision(detail.revision)


def _empty() -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY, "EmptyFile", "there is no fleet file", "paste one, or choose a file"
    )


def _too_long() -> ApiError:
    most = wire.MOST_FLEET_CHARACTERS
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
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
"""What the templates say of plans and applies, in the CLI's words."""
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
