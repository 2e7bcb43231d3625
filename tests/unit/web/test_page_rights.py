"""Who may open which page: every page there is, and every role.

The table is written by hand, from what the docs promise. What somebody may see of others' jobs, teams and
money on a page that they may open is in the tests of that page.
"""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from fairway.model.access import Role
from fairway.web.sessions import csrf_of
from tests.unit.web.conftest import SignIn, browser

ROLES = (Role.VIEWER, Role.MEMBER, Role.LEAD, Role.OPERATOR, Role.ADMIN)
# The least role for each page; None: everybody, signed in or not.
PAGES: dict[str, Role | None] = {
    "GET /openapi.json": None,
    "GET /static/{name:path}": None,
    "GET /sign-in": None,
    "POST /sign-in": None,
    "POST /sign-out": Role.VIEWER,
    "GET /live": Role.VIEWER,
    "GET /": Role.VIEWER,
    "GET /fleet": Role.VIEWER,
    "GET /fleet/data": Role.VIEWER,
    "GET /pools/{pool}": Role.VIEWER,
    "GET /pools/{pool}/data": Role.VIEWER,
    "GET /search": Role.VIEWER,
    "GET /teams": Role.VIEWER,
    "GET /teams/{team}": Role.VIEWER,
    "POST /teams/{team}/raises": Role.LEAD,
    "POST /teams/{team}/raises/{number}": Role.LEAD,
    "GET /jobs": Role.VIEWER,
    "GET /jobs/export.csv": Role.VIEWER,
    "POST /jobs/change": Role.MEMBER,
    "GET /jobs/new": Role.MEMBER,
    "POST /jobs/new": Role.MEMBER,
    "GET /jobs/{id}": Role.VIEWER,
    "GET /jobs/{id}/log": Role.VIEWER,
    "GET /jobs/{id}/log/download": Role.VIEWER,
    "GET /jobs/{id}/{action}": Role.VIEWER,
    "POST /jobs/{id}/{action}": Role.MEMBER,
    "GET /cost": Role.VIEWER,
    "GET /cost/export.csv": Role.VIEWER,
    "GET /cost/export.json": Role.VIEWER,
    "GET /cost/focus.csv": Role.VIEWER,
    "GET /cost/months/{month}": Role.VIEWER,
    "GET /cost/months/{month}/statements.csv": Role.VIEWER,
    "GET /cost/months/{month}/statements.html": Role.VIEWER,
    "GET /policy": Role.VIEWER,
    "GET /policy/revisions": Role.VIEWER,
    "GET /policy/revisions/{number}": Role.VIEWER,
    "GET /policy/revisions/{number}/fleet.yaml": Role.VIEWER,
    "GET /policy/history": Role.VIEWER,
    "GET /policy/history/{number}": Role.VIEWER,
    "GET /policy/plan": Role.OPERATOR,
    "POST /policy/plan": Role.OPERATOR,
    "POST /policy/check": Role.OPERATOR,
    "POST /policy/apply": Role.OPERATOR,
    "GET /policy/what-if": Role.OPERATOR,
    "POST /policy/what-if": Role.OPERATOR,
    "GET /policy/what-if/{number}": Role.OPERATOR,
    "GET /server": Role.OPERATOR,
}
ENDLESS = "GET /live"


def test_every_page_is_in_the_table(app: FastAPI) -> None:
    routes = [r for r in app.routes if isinstance(r, APIRoute) and not r.include_in_schema]
    assert {f"{method} {r.path}" for r in routes for method in (r.methods or set()) - {"HEAD"}} == set(PAGES)


@pytest.mark.parametrize("role", [None, *ROLES])
async def test_pages_by_role(app: FastAPI, sign_in: SignIn, role: Role | None) -> None:
    client = browser(app) if role is None else await sign_in(role)
    cookie = next(iter(client.cookies.values()), "")
    wrong = []
    for page, least in PAGES.items():
        if page in (ENDLESS, "POST /sign-out") and role is not None:
            continue  # a stream; and the end of the session that this test needs
        method, _, path = page.partition(" ")
        path = path.replace("{name:path}", "fairway.css")
        path = path.format(
            pool="hpc-a100", team="research", id="zzzz", action="cancel", month="2026-10", number="1"
        )
        answer = await client.request(method, path, headers={"X-CSRF": csrf_of(cookie)})
        if role is None:
            right = (answer.headers.get("location", "").startswith("/sign-in")) == (least is not None)
        else:
            refused = answer.status_code == 403 and "this needs" in answer.text
            right = refused is not (least is None or role.may(least))
        if not right or answer.status_code == 500:
            wrong.append((page, answer.status_code, answer.text[:200]))
    await client.aclose()
    assert wrong == []
