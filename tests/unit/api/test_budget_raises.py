"""Raises of budgets over HTTP: requested, decided once, and counted in what budgets say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, Final

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.team import Team
from fairway.services.fleets import Fleets
from tests.unit.api.conftest import bearer

STOP: Final = Budget(Decimal(1000), at_limit=AtLimit.STOP)
FLEET: Final = Fleet(
    "acme",
    "USD",
    (),
    (),
    (
        Team(TeamName("research"), members=(UserName("boss"),), budget=STOP),
        Team(TeamName("nlp"), TeamName("research"), members=(UserName("lee"),), budget=STOP),
        Team(TeamName("product"), members=(UserName("bob"),), budget=STOP),
    ),
)
PEOPLE: Final = {
    "lee": Role.LEAD,
    "boss": Role.LEAD,
    "bob": Role.LEAD,
    "olga": Role.OPERATOR,
    "finance": Role.VIEWER,
}
WANTED: Final = {"team": "nlp", "amount": "250", "reason": "the paper"}


class Door:
    """The API, asked by people."""

    def __init__(self, http: httpx2.AsyncClient, headers: dict[str, dict[str, str]]) -> None:
        self._http = http
        self._headers = headers

    async def ask(self, who: str, method: str, path: str, status: int, body: object = None) -> Any:
        answer = await self._http.request(method, path, headers=self._headers[who], json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def budget(self, team: str) -> Any:
        found = await self.ask("finance", "GET", "/v1/budgets", 200)
        return next(one for one in found["budgets"] if one["team"] == team)


@pytest.fixture
async def door(ledger: Ledger) -> AsyncIterator[Door]:
    await ledger.revisions.add("acme", "digest", "test")
    fleets = Fleets(ledger, lambda _: FLEET)
    app = create_app(ledger, CollectorRegistry(), fleets, NO_POLICY_SERVICES, NO_JOB_SERVICES)
    headers = {user: await bearer(ledger, role, user=user) for user, role in PEOPLE.items()}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Door(client, headers)


async def test_requested_approved_and_counted(door: Door) -> None:
    made = await door.ask("lee", "POST", "/v1/budget-raises", 201, WANTED)
    assert (made["team"], made["amount"], made["state"]) == ("nlp", "250", "requested")
    assert (made["requested_by"], made["may_approve"], made["may_deny"]) == ("lee", False, True)
    assert (await door.budget("nlp"))["raised"] == "0"
    (seen,) = (await door.ask("boss", "GET", "/v1/budget-raises", 200))["raises"]
    assert (seen["id"], seen["may_approve"]) == (made["id"], True)
    path = f"/v1/budget-raises/{made['id']}"
    refused = await door.ask("lee", "POST", f"{path}/approve", 403, {})
    assert refused["code"] == "CannotDecideRaise" and "fairway budget approve" in refused["hint"]
    done = await door.ask("boss", "POST", f"{path}/approve", 200, {"comment": "once"})
    assert (done["state"], done["decided_by"], done["comment"]) == ("approved", "boss", "once")
    budget = await door.budget("nlp")
    assert (budget["amount"], budget["raised"], budget["period"]) == ("1250", "250", made["period"])
    assert [event["text"].partition(" 250 ")[0] for event in budget["events"]] == [
        "boss approves",
        "lee requests",
    ]
    assert (await door.budget("product"))["amount"] == "1000"
    again = await door.ask("olga", "POST", f"{path}/deny", 409, {})
    assert again["code"] == "RaiseDecided" and "was approved by boss" in again["detail"]
    assert (await door.ask("olga", "GET", "/v1/budget-raises", 200))["raises"] == []
    (old,) = (await door.ask("olga", "GET", "/v1/budget-raises?all=true&team=nlp", 200))["raises"]
    assert old["state"] == "approved"


async def test_decided_by_many_at_once_it_counts_once(door: Door) -> None:
    made = await door.ask("lee", "POST", "/v1/budget-raises", 201, WANTED)
    path = f"/v1/budget-raises/{made['id']}/approve"
    answers = await asyncio.gather(
        *(door._http.post(path, headers=door._headers[who], json={}) for who in ("boss", "olga") * 4)
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
    assert (await door.budget("nlp"))["amount"] == "1250"


async def test_whose_requests_are_seen(door: Door) -> None:
    await door.ask("lee", "POST", "/v1/budget-raises", 201, WANTED)
    for who, seen in (("lee", 1), ("boss", 1), ("bob", 0), ("finance", 1), ("olga", 1)):
        found = await door.ask(who, "GET", "/v1/budget-raises", 200)
        assert len(found["raises"]) == seen, who
        assert not (who == "finance" and found["raises"][0]["may_approve"])
    assert (await door.ask("bob", "GET", "/v1/budget-raises?team=nlp", 403))["code"] == "NotYourTeam"
    assert (await door.ask("bob", "POST", "/v1/budget-raises", 403, WANTED))["code"] == "NotYourTeam"


@pytest.mark.parametrize(
    "changed",
    [
        {"amount": "0"},
        {"amount": "-5"},
        {"amount": "NaN"},
        {"amount": "Infinity"},
        {"amount": "1000000000001"},
        {"amount": "1.0001"},
        {"amount": "much"},
        {"reason": ""},
        {"reason": "\n "},
        {"reason": "x" * 501},
        {"reason": "a\0b"},
        {"team": "no team"},
        {"colour": "red"},
    ],
)
async def test_what_no_request_may_contain(door: Door, changed: dict[str, str]) -> None:
    refused = await door.ask("olga", "POST", "/v1/budget-raises", 422, WANTED | changed)
    assert refused["code"] == "InvalidRequest" and refused["hint"]
    assert (await door.ask("olga", "GET", "/v1/budget-raises?all=true", 200))["raises"] == []


async def test_texts_are_stored_as_one_line(door: Door) -> None:
    made = await door.ask("lee", "POST", "/v1/budget-raises", 201, WANTED | {"reason": " two\nlines\u202e "})
    assert made["reason"] == "two lines"


@pytest.mark.parametrize("number", ["0", "-1", "1" + "0" * 18, "x"])
async def test_no_number(door: Door, number: str) -> None:
    await door.ask("olga", "POST", f"/v1/budget-raises/{number}/approve", 422, {})
