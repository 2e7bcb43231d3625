"""The routes of money over a real ledger: who sees whose, and how it says no."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger, PricePointRow
from fairway.model.access import Role
from fairway.model.names import PoolName
from fairway.model.price import Sharing
from fairway.services.fleets import Fleets
from tests.unit.api.conftest import bearer
from tests.unit.ledger.usage_samples import Class, Row
from tests.unit.services.cost_history import OCTOBER, CostBook, calendar, fill, in_cents, near, with_rules

FLEET: Final = with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)


@pytest.fixture
async def http(ledger: Ledger, database_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 6)
    await ledger.revisions.add("acme", "digest", "test")
    # Nothing is charged before there was a fleet.
    book.db.execute("UPDATE fleet_revision SET created_at = '2026-01-01T00:00:00Z'")
    book.close()
    app: FastAPI = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: FLEET), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def ask(http: httpx2.AsyncClient, path: str, headers: dict[str, str], status: int = 200) -> Any:
    answer = await http.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def teams(report: Any) -> set[str]:
    return {row["labels"][0] for row in report["rows"]}


async def test_who_sees_whose_money(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    path = "/v1/reports/cost?window=2026-10"
    for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        seen = await ask(http, path, await bearer(ledger, role, user=f"some-{role}"))
        assert teams(seen) == {"nlp", "vision", "product", "research", ""}
        assert seen["of_teams"] is None
    for role in (Role.MEMBER, Role.LEAD):
        mine = await ask(http, path, await bearer(ledger, role, user="alice"))
        assert (teams(mine), mine["of_teams"]) == ({"nlp"}, ["nlp"])
        assert not [row for row in mine["rows"] if row["kind"]]
        above = await ask(http, path, await bearer(ledger, role, user="lead"))
        assert teams(above) == {"nlp", "vision", "research"}
        nobody = await ask(http, path, await bearer(ledger, role, user="stranger"))
        assert (nobody["rows"], nobody["of_teams"], Decimal(nobody["total"]["total"])) == ([], [], Decimal(0))


async def test_what_a_member_may_not_ask(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    alice = await bearer(ledger, Role.LEAD, user="alice")
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
    admin = await bearer(ledger, Role.ADMIN, user="root")
    for by in ("by=team", "by=pool&by=day", "by=slice&by=cluster", "by=priority"):
        report = await ask(http, f"/v1/reports/cost?window=2026-10&{by}", admin)
        for column in ("usage", "idle", "overhead", "total", "gpu_hours"):
            assert all(isinstance(row[column], str) for row in report["rows"])
            told = sum(Decimal(r[column]) for r in report["rows"])
            assert near(told, Decimal(report["total"][column]))
    month = await ask(http, "/v1/statements/2026-10", admin)
    by_team = await ask(http, "/v1/reports/cost?window=2026-10", admin)
    assert Decimal(month["total"]) == in_cents(by_team)
    for statement in month["statements"]:
        assert sum(Decimal(x["amount"]) for x in statement["lines"]) == Decimal(statement["total"])
    one = await ask(http, "/v1/reports/cost?window=2026-10&team=research", admin)
    inside = ("research", "nlp", "vision")
    parts = [Decimal(s["total"]) for s in month["statements"] if s["team"] in inside]
    assert abs(sum(parts) - Decimal(one["total"]["total"])) < Decimal("0.09")  # each of three columns a cent


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
    problem = await ask(http, path, await bearer(ledger, Role.ADMIN, user="root"), status)
    assert problem["code"] == code
    assert problem["hint"]


async def test_the_document_of_a_month_is_that_of_the_teams_one_may_see(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    alice = await bearer(ledger, Role.MEMBER, user="alice")
    mine = await ask(http, "/v1/statements/2026-10/document", alice)
    assert (mine["name"], mine["html"].count("<article>")) == ("statement-2026-10.html", 1)
    assert "Statement for nlp" in mine["html"]
    for other in ("vision", "product", "Not charged"):
        assert other not in mine["html"]
    refused = await ask(http, "/v1/statements/2026-10/document?team=product", alice, 403)
    assert refused["code"] == "NotYourTeam"
    finance = await bearer(ledger, Role.VIEWER, user="finance")
    one = await ask(http, "/v1/statements/2026-10/document?team=product", finance)
    assert (one["name"], one["html"].count("<article>")) == ("statement-2026-10-product.html", 1)


async def test_closing(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    operator = await bearer(ledger, Role.OPERATOR, user="finance")
    closed = await http.post("/v1/statements/2026-10/close", headers=operator)
    assert closed.status_code == 200, closed.text
    assert closed.json()["closed_by"] == "finance-operator"
    again = await http.post("/v1/statements/2026-10/close", headers=operator)
    assert (again.status_code, again.json()["code"]) == (409, "MonthClosed")
    future = await http.post("/v1/statements/2100-01/close", headers=operator)
    assert (future.status_code, future.json()["code"]) == (409, "MonthNotOver")


async def test_price_points(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    operator = await bearer(ledger, Role.OPERATOR, user="finance")
    before = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    points = {"points": [{"at": "2026-10-03T12:00:00Z", "per_gpu_hour": "9.75"}]}
    path = "/v1/pools/spot/price-points"
    kept = await http.put(path, headers=operator, json=points)
    assert (kept.status_code, kept.json()) == (200, {"pool": "spot", "kept": 1})
    assert (await http.put(path, headers=operator, json=points)).json()["kept"] == 0
    after = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    # 4 GPUs, all of them committed: the market price applies to none.
    assert after["total"]["total"] == before["total"]["total"]
    prices = await ask(http, "/v1/prices", operator)
    assert {p["pool"]: p["spot"] for p in prices["pools"]}["spot"] == "9.75"
    assert (
        await http.put("/v1/pools/nothing/price-points", headers=operator, json=points)
    ).status_code == 404
    misspelt = {"points": [{**points["points"][0], "until": "2026-10-04T12:00:00Z"}]}
    refused = await http.put(path, headers=operator, json=misspelt)
    assert refused.status_code == 422 and "until" in refused.text


async def test_price_points_of_a_pool_that_is_not_spot_are_refused(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    operator = await bearer(ledger, Role.OPERATOR, user="finance")
    before = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    points = {"points": [{"at": "2026-10-03T12:00:00Z", "per_gpu_hour": "0.01"}]}
    refused = await http.put("/v1/pools/a100/price-points", headers=operator, json=points)
    assert (refused.status_code, refused.json()["code"]) == (409, "NotASpotPool")
    assert "capacity: owned" in refused.text and "fleet file" in refused.json()["hint"]
    # Points that an earlier version took do not count, and can be withdrawn.
    row = PricePointRow(PoolName("a100"), datetime(2026, 10, 3, tzinfo=UTC), Decimal("0.01"))
    await ledger.prices.add([row], by="old")
    after = await ask(http, "/v1/reports/cost?window=2026-10-03&by=pool", operator)
    assert after["total"] == before["total"]
    shown = await ask(http, "/v1/prices", operator)
    assert {p["pool"]: p["spot"] for p in shown["pools"]}["a100"] is None
    path = "/v1/pools/a100/price-points?start=2026-10-03T00:00:00Z"
    assert (await http.delete(path, headers=operator)).json() == {"pool": "a100", "withdrawn": 1}


async def test_price_points_are_listed_corrected_and_withdrawn(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    operator, viewer = (
        await bearer(ledger, Role.OPERATOR, user="finance"),
        await bearer(ledger, Role.VIEWER, user="any"),
    )
    path = "/v1/pools/spot/price-points"

    def at(hour: int, price: str) -> dict[str, str]:
        return {"at": f"2026-10-03T{hour:02}:00:00Z", "per_gpu_hour": price}

    async def put(*points: dict[str, str], **more: Any) -> httpx2.Response:
        return await http.put(path, headers=operator, json={"points": points, **more})

    assert (await put(at(1, "0.50"), at(2, "0.60"))).json()["kept"] == 2
    jump = await put(at(3, "0.61"), at(4, "61"))
    assert (jump.status_code, jump.json()["code"]) == (409, "PriceJump")
    assert "61 EUR at 2026-10-03T04:00:00Z" in jump.json()["detail"], jump.json()
    assert "--allow-jumps" in jump.json()["hint"]
    assert len((await ask(http, path, viewer))["points"]) == 2, "nothing of a refused request is stored"
    assert (await put(at(3, "0.61"), at(4, "61"), allow_jumps=True)).json()["kept"] == 2
    assert (await put(at(4, "0.62"))).json()["kept"] == 1  # the correction of a wrong price is no jump
    shown = await ask(http, path, viewer)
    assert [(p["at"][11:13], p["per_gpu_hour"], p["by"], p["in_force"]) for p in shown["points"]] == [
        ("04", "0.62", "finance-operator", True),
        ("03", "0.61", "finance-operator", True),
        ("02", "0.60", "finance-operator", True),
        ("01", "0.50", "finance-operator", True),
    ]
    gone = await http.delete(
        f"{path}?start=2026-10-03T02:00:00Z&until=2026-10-03T04:00:00Z", headers=operator
    )
    assert gone.json() == {"pool": "spot", "withdrawn": 2}
    nothing = await http.delete(
        f"{path}?start=2026-10-03T02:00:00Z&until=2026-10-03T04:00:00Z", headers=operator
    )
    assert (nothing.status_code, nothing.json()["code"]) == (404, "NoPricePoints")
    left = await ask(http, f"{path}?limit=10", viewer)
    assert [p["at"][11:13] for p in left["points"]] == ["04", "01"]
    history = await ask(http, f"{path}?history=true", viewer)
    assert [p["in_force"] for p in history["points"]] == [True, False, False, False, False, False, True]
    assert [p["per_gpu_hour"] for p in history["points"]] == [
        "0.62",
        "61",
        None,
        "0.61",
        None,
        "0.60",
        "0.50",
    ]
    for role in (Role.VIEWER, Role.MEMBER, Role.LEAD):
        refused = await http.delete(
            f"{path}?start=2026-10-03T01:00:00Z", headers=await bearer(ledger, role, user="no")
        )
        assert (refused.status_code, refused.json()["code"]) == (403, "RoleTooLow")
    assert (await ask(http, "/v1/pools/nothing/price-points", viewer, 404))["code"] == "NoSuchPool"


async def test_a_focus_file_sums_to_the_report(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    admin = await bearer(ledger, Role.ADMIN, user="root")
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
    admin = await bearer(ledger, Role.ADMIN, user="root")
    report = await ask(http, "/v1/reports/cost?window=2026-10&by=service&by=kind", admin)
    assert [row["gpu_hours"] for row in report["rows"] if row["labels"] == ["llm", "Deployment"]] == [
        "10.000000"
    ]
    answer = await http.get("/v1/exports/focus?window=2026-10", headers=admin)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == in_cents(report)
    (own,) = [row for row in rows if row["ResourceName"] == "llm"]
    assert (own["ResourceId"], own["ResourceType"]) == (f"{FLEET.name}/hpc/llm", "Deployment")
    tags = json.loads(own["Tags"])
    assert (tags["fairway/kind"], tags["fairway/service"], tags["fairway/pool"]) == (
        "Deployment",
        "llm",
        "a100",
    )
