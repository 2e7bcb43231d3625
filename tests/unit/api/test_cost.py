"""The routes of money over a real ledger: who sees whose, and how it says no."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.model.price import Sharing
from fairway.services.fleets import Fleets
from fairway.services.tokens import hash_secret, new_secret
from tests.unit.ledger.usage_samples import Class, Row
from tests.unit.services.cost_history import OCTOBER, CostBook, calendar, fill, with_rules

FLEET: Final = with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)


@pytest.fixture
async def http(ledger: Ledger, database_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 6)
    book.close()
    await ledger.revisions.add("acme", "digest", "test")
    app: FastAPI = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: FLEET), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def bearer(ledger: Ledger, role: Role, user: str) -> dict[str, str]:
    secret = new_secret()
    await ledger.tokens.create(f"{user}-{role}", role, hash_secret(secret), "test", user=UserName(user))
    return {"Authorization": f"Bearer {secret}"}


async def ask(http: httpx2.AsyncClient, path: str, headers: dict[str, str], status: int = 200) -> Any:
    answer = await http.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def teams(report: Any) -> set[str]:
    return {row["labels"][0] for row in report["rows"]}


async def test_who_sees_whose_money(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    path = "/v1/reports/cost?window=2026-10"
    for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        seen = await ask(http, path, await bearer(ledger, role, f"some-{role}"))
        assert teams(seen) == {"nlp", "vision", "product", "research", ""}
        assert seen["of_teams"] is None
    for role in (Role.MEMBER, Role.LEAD):
        mine = await ask(http, path, await bearer(ledger, role, "alice"))
        assert (teams(mine), mine["of_teams"]) == ({"nlp"}, ["nlp"])
        assert not [row for row in mine["rows"] if row["kind"]]
        above = await ask(http, path, await bearer(ledger, role, "lead"))
        assert teams(above) == {"nlp", "vision", "research"}
        nobody = await ask(http, path, await bearer(ledger, role, "stranger"))
        assert (nobody["rows"], nobody["of_teams"], nobody["total"]["total"]) == ([], [], "0")


async def test_what_a_member_may_not_ask(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    alice = await bearer(ledger, Role.LEAD, "alice")
    for path in ("/v1/reports/cost", "/v1/reports/usage", "/v1/statements/2026-10", "/v1/exports/focus"):
        refused = await ask(http, f"{path}?team=product", alice, 403)
        assert refused["code"] == "NotYourTeam"
        assert "nlp" in refused["hint"]
    whole_bill = await ask(http, "/v1/reports/capacity?window=2026-10", alice, 403)
    assert whole_bill["code"] == "NotYourMoney"
    closing = await http.post("/v1/statements/2026-10/close", headers=alice)
    assert closing.status_code == 403
    mine = await ask(http, "/v1/statements/2026-10", alice)
    assert [s["team"] for s in mine["statements"]] == ["nlp"]
    usage = await ask(http, "/v1/reports/usage?window=2026-10&by=user", alice)
    assert teams(usage) == {"alice", "bob"}


async def test_amounts_are_text_and_sum(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    admin = await bearer(ledger, Role.ADMIN, "root")
    for by in ("by=team", "by=pool&by=day", "by=slice&by=cluster", "by=priority"):
        report = await ask(http, f"/v1/reports/cost?window=2026-10&{by}", admin)
        for column in ("usage", "idle", "overhead", "total", "gpu_hours"):
            assert all(isinstance(row[column], str) for row in report["rows"])
            assert sum(Decimal(r[column]) for r in report["rows"]) == Decimal(report["total"][column])
    month = await ask(http, "/v1/statements/2026-10", admin)
    by_team = await ask(http, "/v1/reports/cost?window=2026-10", admin)
    assert month["total"] == by_team["total"]["total"]
    for statement in month["statements"]:
        assert sum(Decimal(x["amount"]) for x in statement["lines"]) == Decimal(statement["total"])
    one = await ask(http, "/v1/reports/cost?window=2026-10&team=research", admin)
    inside = ("research", "nlp", "vision")
    parts = [Decimal(s["total"]) for s in month["statements"] if s["team"] in inside]
    assert abs(sum(parts) - Decimal(one["total"]["total"])) <= Decimal("0.01")  # two documents


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/reports/cost?window=2026-13", 422, "InvalidWindow"),
        ("/v1/reports/cost?window=2026-10-31..2026-10-01", 422, "InvalidWindow"),
        ("/v1/reports/cost?window=9999d", 422, "InvalidWindow"),
        ("/v1/reports/cost?window=last-wek", 422, "InvalidWindow"),
        ("/v1/exports/focus?window=soon", 422, "InvalidWindow"),
        ("/v1/reports/cost?by=colour", 422, "InvalidRequest"),
        ("/v1/reports/cost?team=nobody", 404, "NoSuchTeam"),
        ("/v1/reports/usage?pool=nothing", 404, "NoSuchPool"),
        ("/v1/reports/waste?by=team", 422, "InvalidRequest"),
        ("/v1/statements/2026-00", 422, "InvalidWindow"),
        ("/v1/statements/7d", 422, "InvalidWindow"),
        ("/v1/statements/2026-00/close", 405, "MethodNotAllowed"),
    ],
)
async def test_it_says_what_is_wrong(
    http: httpx2.AsyncClient, ledger: Ledger, path: str, status: int, code: str
) -> None:
    problem = await ask(http, path, await bearer(ledger, Role.ADMIN, "root"), status)
    assert problem["code"] == code
    assert problem["hint"]


async def test_closing(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    operator = await bearer(ledger, Role.OPERATOR, "finance")
    closed = await http.post("/v1/statements/2026-10/close", headers=operator)
    assert closed.status_code == 200, closed.text
    assert closed.json()["closed_by"] == "finance-operator"
    again = await http.post("/v1/statements/2026-10/close", headers=operator)
    assert (again.status_code, again.json()["code"]) == (409, "MonthClosed")
    future = await http.post("/v1/statements/2100-01/close", headers=operator)
    assert (future.status_code, future.json()["code"]) == (409, "MonthNotOver")


async def test_price_points(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    operator = await bearer(ledger, Role.OPERATOR, "finance")
    before = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    points = {"points": [{"at": "2026-10-03T12:00:00Z", "per_gpu_hour": "9.75"}]}
    path = "/v1/pools/a100/price-points"
    kept = await http.put(path, headers=operator, json=points)
    assert (kept.status_code, kept.json()) == (200, {"pool": "a100", "kept": 1})
    assert (await http.put(path, headers=operator, json=points)).json()["kept"] == 0
    after = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    # 16 GPUs, half the day at the list price, half at the point's.
    grown = Decimal(after["total"]["total"]) - Decimal(before["total"]["total"])
    assert grown == 16 * 12 * (Decimal("9.75") - Decimal("1.37"))
    prices = await ask(http, "/v1/prices", operator)
    assert {p["pool"]: p["spot"] for p in prices["pools"]}["a100"] == "9.75"
    assert (
        await http.put("/v1/pools/nothing/price-points", headers=operator, json=points)
    ).status_code == 404
    misspelt = {"points": [{**points["points"][0], "until": "2026-10-04T12:00:00Z"}]}
    refused = await http.put(path, headers=operator, json=misspelt)
    assert refused.status_code == 422 and "until" in refused.text


async def test_a_focus_file_sums_to_the_report(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    admin = await bearer(ledger, Role.ADMIN, "root")
    answer = await http.get("/v1/exports/focus?window=2026-10", headers=admin)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    report = await ask(http, "/v1/reports/cost?window=2026-10", admin)
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == Decimal(report["total"]["total"])
    assert date.fromisoformat(rows[0]["ChargePeriodStart"][:10]) == OCTOBER


async def test_a_service_is_a_resource_of_its_own_in_reports_and_focus(
    http: httpx2.AsyncClient, ledger: Ledger, database_url: str
) -> None:
    book = CostBook(database_url)
    serving = Class("hpc", "", "nlp", "a100", "", "normal", "Deployment", service=True)
    hour = calendar().day_start(OCTOBER)
    await book.add(ledger, [Row(serving, hour + 3600 * n, 3600, 2, job=10_000, name="llm") for n in range(5)])
    book.close()
    admin = await bearer(ledger, Role.ADMIN, "root")
    report = await ask(http, "/v1/reports/cost?window=2026-10&by=service&by=kind", admin)
    assert [row["gpu_hours"] for row in report["rows"] if row["labels"] == ["llm", "Deployment"]] == ["10.00"]
    answer = await http.get("/v1/exports/focus?window=2026-10", headers=admin)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == Decimal(report["total"]["total"])
    (own,) = [row for row in rows if row["ResourceName"] == "llm"]
    assert (own["ResourceId"], own["ResourceType"]) == (f"{FLEET.name}/hpc/llm", "Deployment")
    tags = json.loads(own["Tags"])
    assert (tags["fairway/kind"], tags["fairway/service"], tags["fairway/pool"]) == (
        "Deployment",
        "llm",
        "a100",
    )
