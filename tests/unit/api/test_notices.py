"""Notices over HTTP: who sees which, what came of sending them, and what users choose to get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.cli.output.format import table
from fairway.cli.output.notices import notices_view, rules_view
from fairway.ledger import FLEET as ALL
from fairway.ledger import Ledger
from fairway.ledger.notices import PlannedDelivery
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, SendWhen
from fairway.model.team import Team
from fairway.policy.notice_times import SendTime
from fairway.services.fleets import Fleets
from fairway.wire import notices as wire
from tests.unit.api.conftest import bearer

NLP, PRODUCT, ALICE = TeamName("nlp"), TeamName("product"), UserName("alice")
FLEET: Final = Fleet("acme", "USD", (), (), (Team(NLP, members=(ALICE,)), Team(PRODUCT)))
SPENT = Notice(NoticeKind.BUDGET, "budget/nlp", "nlp is over budget", "text\nhint: ask", NLP)
NOTICES = (
    SPENT,
    replace(SPENT, kind=NoticeKind.ANOMALY, key="anomaly/product", team=PRODUCT),
    Notice(NoticeKind.JOB_END, "job/1", "job 1 ended", "done", user=ALICE),
    Notice(NoticeKind.DRIFT, "drift/hpc", "hpc differs", "text", operators=True),
)


@pytest.fixture
async def http(ledger: Ledger) -> AsyncIterator[httpx2.AsyncClient]:
    await ledger.revisions.add("acme", "digest", "test")
    await ledger.notices.add(NOTICES)
    app: FastAPI = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: FLEET), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def keys(http: httpx2.AsyncClient, headers: dict[str, str], query: str = "") -> list[str]:
    found = await http.get(f"/v1/notices{query}", headers=headers)
    assert found.status_code == 200, found.text
    return [one["key"] for one in found.json()["notices"]]


async def test_members_see_notices_of_their_teams_and_their_own(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    viewer = await bearer(ledger, Role.VIEWER, user="finance")
    assert await keys(http, viewer) == ["job/1", "drift/hpc", "budget/nlp", "anomaly/product"]
    assert await keys(http, viewer, "?kind=anomaly") == ["anomaly/product"]
    assert await keys(http, viewer, "?limit=1") == ["job/1"]
    assert await keys(http, await bearer(ledger, Role.LEAD, user="alice")) == ["job/1", "budget/nlp"]
    assert await keys(http, await bearer(ledger, Role.MEMBER, user="bob")) == []


async def test_a_notice_says_what_came_of_sending_it(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    lease = await ledger.leases.take("notify", ALL, "test", 60)
    assert lease is not None
    now = (await ledger.notices.pending()).now
    spent = next(one for one in await ledger.notices.unrouted(10) if one.notice == SPENT)
    planned = [PlannedDelivery(spent.id, f"nlp/{c}", SendTime(now, alone=True)) for c in ("mail", "slack")]
    async with ledger.writing(lease) as tx:
        await tx.notices.route([spent.id], planned)
    for due in await ledger.notices.due(10):
        async with ledger.writing(lease) as tx:
            await tx.notices.record(due, "no answer" if due.channel == "nlp/slack" else None, None)
    viewer = await bearer(ledger, Role.VIEWER, user="finance")
    found = wire.Notices.model_validate((await http.get("/v1/notices?kind=budget", headers=viewer)).json())
    mail, slack = found.notices[0].deliveries
    assert (mail.channel, mail.state, mail.attempts, mail.error) == ("nlp/mail", "delivered", 1, "")
    assert (slack.state, slack.error) == ("given-up", "no answer")
    view = notices_view(found, wide=True)
    text = "\n".join(table(view.columns, view.rows, None))
    assert "nlp is over budget" in text
    assert "nlp/mail, nlp/slack (given-up)" in text
    assert "text hint: ask" in text


async def test_a_user_chooses_what_they_get(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    alice = await bearer(ledger, Role.MEMBER, user="alice")
    default = (await http.get("/v1/notices/rules", headers=alice)).json()
    assert default["kinds"] == {
        "job-end": "never",
        "idle": "at-once",
        "health": "at-once",
        "alert": "at-once",
        "budget": "never",
        "anomaly": "never",
        "slo": "never",
        "statement": "never",
    }
    body: dict[str, Any] = {
        "kinds": {"job-end": "at-once", "budget": "daily"},
        "quiet": "20:00-07:00",
        "digest_hour": 9,
    }
    chosen = await http.put("/v1/notices/rules", headers=alice, json=body)
    assert chosen.status_code == 200, chosen.text
    stored = (await ledger.notice_preferences.all())[ALICE]
    assert stored.rule(NoticeKind.BUDGET) == NoticeRule(NoticeKind.BUDGET, SendWhen.DAILY)
    assert (str(stored.quiet), stored.digest_hour) == ("20:00-07:00", 9)
    again = (await http.get("/v1/notices/rules", headers=alice)).json()
    assert (again, again["kinds"]["idle"]) == (chosen.json(), "at-once")
    view = rules_view(wire.OwnNoticeRules.model_validate(again))
    assert view.rows[0] == ["job-end", "at-once"]
    assert view.notes[1] == "only urgent notices from 20:00 to 07:00, UTC"
    for wrong in (
        {"kinds": {"drift": "daily"}},
        {"quiet": "08:00-08:00"},
        {"quiet": "8-9"},
        {"digest_hour": 24},
    ):
        refused = await http.put("/v1/notices/rules", headers=alice, json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRequest")


async def test_a_test_notice_goes_to_oneself_or_to_ones_team(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    alice = await bearer(ledger, Role.MEMBER, user="alice")
    assert (await http.post("/v1/notices/test", headers=alice)).json()["user"] == "alice"
    assert (await http.post("/v1/notices/test?team=nlp", headers=alice)).json()["team"] == "nlp"
    refused = await http.post("/v1/notices/test?team=product", headers=alice)
    assert (refused.status_code, refused.json()["code"]) == (403, "NotYourTeam")
    kinds = [one.notice.kind for one in await ledger.notices.unrouted(10)]
    assert kinds.count(NoticeKind.TEST) == 2
