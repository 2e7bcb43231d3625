"""What a team may spend and has spent: on no page and in no answer for members of other teams."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from decimal import Decimal

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget
from fairway.model.fleet import Fleet
from fairway.model.job import JobId, format_job_id
from tests.unit.api.conftest import build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.web.conftest import SignIn, token
from tests.unit.web.pages.jobs.test_pages import app
from tests.unit.web.pages.teams.test_page import fleet as fleet_of_teams
from tests.unit.web.pages.teams.test_page import work

__all__ = ["app", "work"]

WAITS = format_job_id(JobId(102))
PAGES = (
    "/",
    "/fleet",
    "/jobs",
    "/jobs?team=product",
    f"/jobs/{WAITS}",
    "/pools/a100",
    "/teams",
    "/cost",
    "/policy/history/1",
)
ROUTES = (
    "/v1/jobs",
    f"/v1/jobs/{WAITS}",
    f"/v1/jobs/{WAITS}/why",
    "/v1/applies/1",
    "/v1/budgets",
    "/v1/reports/forecast",
    "/v1/teams",
)
AMOUNTS = re.compile(r"\b2,?5(33|00)\b")


@pytest.fixture
def fleet() -> Fleet:
    """product, dan's team, may spend 2,500 and nothing of it starts once that is spent."""
    made: Fleet = fleet_of_teams.__wrapped__()  # type: ignore[attr-defined]
    product = Budget(Decimal(2500), at_limit=AtLimit.STOP)
    teams = (replace(t, budget=product if t.name == "product" else None) for t in made.teams)
    return replace(made, teams=tuple(teams))


@pytest.fixture
async def applied(app: FastAPI, ledger: Ledger, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet is in force, by apply 1."""
    monkeypatch.setattr(app.state.fleets, "applied", lambda *_: app.state.fleets.current())
    await ledger.applies.queue(
        "the text does not matter here", "d", {fleet.clusters[0].name: "mark"}, force=False, by="root"
    )


@pytest.mark.usefixtures("work", "applied")
async def test_members_of_other_teams_see_no_amounts(
    app: FastAPI, sign_in: SignIn, stranger: httpx2.AsyncClient, ledger: Ledger
) -> None:
    shown = {"own": 0, "all": 0}
    callers = (
        ("other", Role.MEMBER, "alice"),
        ("other", Role.LEAD, "lead"),
        ("other", Role.MEMBER, "nobody"),
    )
    for whose, role, user in (*callers, ("own", Role.MEMBER, "dan"), ("all", Role.VIEWER, "finance")):
        client = await sign_in(role, user=user)
        secret = await token(ledger, role, f"api-{user}", user)
        for path in (*PAGES, *ROUTES):
            of_api = path.startswith("/v1/")
            headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json"} if of_api else {}
            answer = await (stranger if of_api else client).get(path, headers=headers)
            assert answer.status_code == 200, (path, answer.text)
            text = html.unescape(answer.text)
            found = AMOUNTS.findall(text)
            if whose == "other":
                assert not found, (path, user, found)
                if WAITS in path or path == "/v1/jobs":
                    assert "Team product has spent its budget" in text
            else:
                shown[whose] += bool(found)
    assert shown["own"] >= 6 and shown["all"] >= 6


async def test_metrics_of_budgets_are_for_those_who_see_all_costs(ledger: Ledger, app: FastAPI) -> None:
    registry = CollectorRegistry()
    Gauge("fairway_budget_spent", "x", ["team"], registry=registry).labels("product").set(2533)
    Gauge("fairway_loop_lag", "x", registry=registry).set(1)
    fleets, services = app.state.fleets, build_policy_services(Memory())
    made = create_app(ledger, registry, fleets, services, NO_JOB_SERVICES)
    transport = httpx2.ASGITransport(app=made, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
        for role in set(Role) - {Role.ALERTS}:
            secret = await token(ledger, role, f"m-{role}")
            answer = await client.get("/metrics", headers={"Authorization": f"Bearer {secret}"})
            assert "fairway_loop_lag 1.0" in answer.text
            assert ("2533" in answer.text) == (role not in (Role.MEMBER, Role.LEAD)), role
