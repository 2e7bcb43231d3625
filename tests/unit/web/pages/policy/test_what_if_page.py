"""The What if page: a form, a queue of studies, and results under a link."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.control.loops.what_if import RunStudies
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import FLEET as WHOLE
from fairway.ledger import Ledger
from fairway.ledger.what_if import MAX_QUEUED
from fairway.model.access import Role
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from fairway.web.app import add_pages
from tests.unit.api.conftest import build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.control.loops.test_what_if import FILE, submit_jobs
from tests.unit.web.conftest import SignIn


@pytest.fixture
async def app(ledger: Ledger, memory: Memory, settings: Settings) -> FastAPI:
    await ledger.revisions.add(FILE, fleet_digest(FILE), "test")
    parts = build_policy_services(memory)
    fleets = Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet", Path("/srv")))
    made = create_app(ledger, CollectorRegistry(), fleets, parts, NO_JOB_SERVICES)
    add_pages(made, ledger, fleets, parts, NO_JOB_SERVICES, settings)
    return made


async def ask(client: httpx2.AsyncClient, **values: str) -> httpx2.Response:
    page = await client.get("/policy/what-if")
    assert page.status_code == 200, page.text
    secret = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert secret is not None
    sent = {"csrf": secret[1], "fleet": FILE, "sweeps": "", "days": "1", "seeds": "1", **values}
    return await client.post("/policy/what-if", data=sent, follow_redirects=False)


async def test_a_study_is_followed_to_its_result(app: FastAPI, ledger: Ledger, sign_in: SignIn) -> None:
    operator = await sign_in(Role.OPERATOR)
    await submit_jobs(ledger)

    answer = await ask(operator, sweeps="pools.hpc-a100.nodes=1,2")
    assert answer.status_code == 303, answer.text
    address = answer.headers["location"]
    waiting = (await operator.get(address)).text
    assert "Waiting for its turn" in waiting and 'hx-trigger="every 2s"' in waiting

    lease = await ledger.leases.take("what-if", WHOLE, "a", 60)
    assert lease is not None
    await RunStudies(ledger, app.state.fleets)(lease)

    done = (await operator.get(address)).text
    assert "hx-trigger" not in done.split('id="study"')[1].split(">")[0]
    assert "Waiting times" in done and "pools.hpc-a100.nodes=2" in done
    assert done.count('class="study-wait"') == 4
    assert f'href="{address}"' in (await operator.get("/policy/what-if")).text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"fleet": "name: [x]"}, "errors"),
        ({"sweeps": "half_live=1d"}, "did you mean half_life?"),
        ({"sweeps": "pools.hpc-a100.nodes=" + ",".join(map(str, range(1, 20)))}, "more than 12"),
        ({"days": "1000"}, "out of range"),
        ({"seeds": "x"}, "out of range"),
    ],
)
async def test_what_cannot_be_studied_is_shown_in_the_form(
    app: FastAPI, ledger: Ledger, sign_in: SignIn, values: dict[str, str], shown: str
) -> None:
    answer = await ask(await sign_in(Role.OPERATOR), **values)
    assert answer.status_code == 200
    assert "Not started" in answer.text and shown in answer.text
    assert await ledger.studies.newest(10) == []


async def test_the_queue_is_bounded(app: FastAPI, ledger: Ledger, sign_in: SignIn) -> None:
    for _ in range(MAX_QUEUED):
        await ledger.studies.add(FILE, "", 1, 1, "ann")
    answer = await ask(await sign_in(Role.OPERATOR))
    assert "too many studies wait already" in answer.text


async def test_there_is_no_such_study(app: FastAPI, sign_in: SignIn) -> None:
    operator = await sign_in(Role.OPERATOR)
    for number in ("7", "x", "1" * 30):
        assert (await operator.get(f"/policy/what-if/{number}")).status_code == 404


async def test_a_member_sees_no_link_to_it(app: FastAPI, sign_in: SignIn) -> None:
    assert "/policy/what-if" not in (await (await sign_in(Role.MEMBER)).get("/policy")).text
