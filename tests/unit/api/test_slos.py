"""Objectives over HTTP: who sees which, what is shown of each, and its error budget over time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import httpx2
import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.cli.output.format import table
from fairway.cli.output.slos import slos_view
from fairway.control.loops.problems import ReportProblems
from fairway.ledger import FLEET as ALL
from fairway.ledger import Ledger
from fairway.ledger.slos.counts import SloCursor
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice_rules import NoticeKind
from fairway.model.slo import DAY, DeliveredWithin, Slo, StartsWithin
from fairway.model.team import Team
from fairway.policy.slo import Counts, measure
from fairway.services.fleets import Fleets
from fairway.services.slos import stored_slo
from fairway.wire import slos as wire
from tests.unit.api.conftest import bearer

NLP, PRODUCT = TeamName("nlp"), TeamName("product")
TEAMS: Final = (Team(NLP, members=(UserName("alice"),)), Team(PRODUCT))
MISSED = Slo("nlp-starts", StartsWithin(3600), Decimal("0.95"), team=NLP)
KEPT = Slo("product-hours", DeliveredWithin(Decimal(100), DAY), Decimal("0.9"), team=PRODUCT)
NEW = Slo("new", StartsWithin(60), Decimal("0.9"))
FLEET: Final = Fleet("acme", "USD", (), (), TEAMS, slos=(MISSED, KEPT, NEW))
UNTIL = 20_000 * DAY
SLOTS = {
    MISSED.digest: {UNTIL - DAY * n: Counts(90, 10 if n < 3 else 0) for n in range(5)},
    KEPT.digest: {UNTIL - 900: Counts(360_000, 0)},
}


async def measured(ledger: Ledger, *slos: Slo) -> None:
    """The ledger has the state of these objectives, as the loop writes it."""
    lease = await ledger.leases.take("slos", ALL, "test", 60)
    assert lease is not None
    since = UNTIL - 10 * DAY
    async with ledger.writing(lease) as tx:
        digests = {slo.digest for slo in slos if slo.digest in SLOTS}
        await tx.slos.forget([], 0)
        await tx.slos.count({d: SLOTS[d] for d in digests}, {d: SloCursor(since, UNTIL) for d in digests})
        await tx.slos.write([stored_slo(measure(slo, SLOTS[slo.digest], since, UNTIL)) for slo in slos])


@pytest.fixture
async def http(ledger: Ledger) -> AsyncIterator[httpx2.AsyncClient]:
    await ledger.revisions.add("acme", "digest", "test")
    await measured(ledger, MISSED, KEPT)
    app = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: FLEET), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def get(http: httpx2.AsyncClient, headers: dict[str, str], path: str, status: int = 200) -> Any:
    found = await http.get(path, headers=headers)
    assert found.status_code == status, found.text
    return found.json()


async def test_members_see_the_objectives_of_their_teams_and_others_all(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    member = await bearer(ledger, Role.MEMBER, "alice")
    found = await get(http, viewer, "/v1/slos")
    assert [slo["name"] for slo in found["slos"]] == ["nlp-starts", "product-hours", "new"]
    assert found["of_teams"] is None
    found = await get(http, member, "/v1/slos")
    assert [slo["name"] for slo in found["slos"]] == ["nlp-starts"] and found["of_teams"] == ["nlp"]
    await get(http, member, "/v1/slos/nlp-starts/history")
    for name in ("product-hours", "new", "unknown"):
        assert (await get(http, member, f"/v1/slos/{name}/history", 404))["code"] == "NoSuchSlo"


async def test_the_state_is_shown_with_its_outlook(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    missed, kept, new = (await get(http, viewer, "/v1/slos"))["slos"]
    assert (missed["good"], missed["bad"], missed["unit"], missed["met"]) == (450, 30, "jobs", False)
    assert missed["budget_left"] == pytest.approx(-0.25)
    assert missed["text"] == "95% of jobs of nlp start within 1h, over 30d"
    assert kept["unit"] == "GPU-seconds" and kept["met"] is True and kept["outlook"] == "on target"
    assert new["compliance"] is None and new["counted_to"] is None and new["outlook"] == "nothing counted yet"
    view = slos_view(wire.Slos.model_validate(await get(http, viewer, "/v1/slos")), wide=False)
    lines = table(view.columns, view.rows, 100)
    assert lines[1].split()[:6] == ["nlp-starts", "95%", "93.8%", "spent", "1.2x", "2.0x"]
    assert all(len(line) <= 100 for line in lines)


async def test_the_state_of_another_objective_of_the_same_name_is_not_shown(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    await measured(ledger, replace(KEPT, name="nlp-starts"))
    found = await get(http, await bearer(ledger, Role.VIEWER), "/v1/slos")
    assert found["slos"][0]["compliance"] is None


async def test_the_error_budget_over_time(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    found = await get(http, viewer, "/v1/slos/nlp-starts/history?days=4&points=5")
    points = found["points"]
    assert [round(p["budget_left"], 2) for p in points] == [1, 1, 0.29, -0.05, -0.25]
    assert [p["bad"] for p in points] == [0, 0, 10, 10, 10]
    assert datetime.fromisoformat(points[-1]["at"]) == datetime.fromtimestamp(UNTIL, UTC)
    assert (await get(http, viewer, "/v1/slos/new/history"))["points"] == []
    for query in ("days=0", "days=91", "points=1", "points=501"):
        assert (await get(http, viewer, f"/v1/slos/nlp-starts/history?{query}", 422))["code"]


async def test_a_missed_objective_is_reported_to_its_team_and_operators_once_and_its_end(
    http: httpx2.AsyncClient, ledger: Ledger, database_url: str
) -> None:
    lease = await ledger.leases.take("problems", ALL, "test", 60)
    assert lease is not None
    report = ReportProblems(ledger, Fleets(ledger, lambda _: FLEET))
    await report(lease)
    assert await ledger.notices.unrouted(10) == []  # it may be over in a minute
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE slo_status SET alert_since = now() - interval '6 minutes', alert = 'spent'")
        db.execute("UPDATE slo_status SET alert = '' WHERE name <> 'nlp-starts'")
        for _ in range(2):
            await report(lease)
        (stored,) = await ledger.notices.unrouted(10)
        notice = stored.notice
        assert notice.subject == "SLO nlp-starts: error budget used up"
        assert (notice.kind, notice.team, notice.operators) == (NoticeKind.SLO, NLP, True)
        assert "95% of jobs of nlp start within 1h" in notice.text and "fairway get slos" in notice.text
        db.execute("UPDATE slo_status SET alert = ''")
    for _ in range(2):
        await report(lease)
    last = (await ledger.notices.unrouted(10))[-1].notice
    assert (last.subject, last.team) == ("resolved: SLO nlp-starts: error budget used up", NLP)
    assert len(await ledger.notices.unrouted(10)) == 2
