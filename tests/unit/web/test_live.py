"""Live pages: what changed is told once, to all, from one look; streams end when they must."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest
from fastapi import FastAPI
from starlette.types import Message

from fairway.api.problems import ApiError
from fairway.ledger import DesiredState, Ledger, LedgerUnreachable, Topic
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret
from fairway.web import live
from fairway.web.app import stop_pages
from fairway.web.live import ChangePoller, EventStream
from fairway.web.sessions import COOKIE
from tests.unit.api.conftest import bearer
from tests.unit.ledger.job_samples import new_job
from tests.unit.web.conftest import SignIn

ANN, BOB = UserName("ann"), UserName("bob")


class Changing:
    """A ledger whose topics change when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.version = dict.fromkeys(Topic, "1")
        self.live: set[bytes] = {b"a", b"b"}
        self.looks = 0
        self.fails = False

    async def versions(self) -> Mapping[Topic, str]:
        self.looks += 1
        if self.fails:
            raise LedgerUnreachable("LedgerUnreachable", "it is off", "turn it on")
        return dict(self.version)

    async def live_sessions(self, digests: Sequence[bytes]) -> frozenset[bytes]:
        return frozenset(digests) & self.live

    def pulse(self) -> ChangePoller:
        """One that looks only when it is told to."""
        return ChangePoller(self.versions, self.live_sessions, seconds=3600, clock=lambda: self.now)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_changed_is_told_to_all_and_once() -> None:
    ledger = Changing()
    pulse = ledger.pulse()
    one, other = pulse.open(b"a", ANN), pulse.open(b"b", ANN)
    await settle()
    assert ledger.looks == 1  # one look for both, and nothing to tell yet
    assert await one.wait(0.01) == set()
    ledger.version[Topic.JOBS] = "2"
    await pulse.poll_once()
    assert await one.wait(1) == await other.wait(1) == {Topic.JOBS}
    await pulse.poll_once()
    assert await one.wait(0.01) == set()
    pulse.stop()


async def test_the_last_page_ends_the_looking_and_the_next_starts_it_anew() -> None:
    ledger = Changing()
    pulse = ledger.pulse()
    one, other = pulse.open(b"a", ANN), pulse.open(b"b", ANN)
    await settle()
    pulse.close(one)
    assert pulse._task is not None
    pulse.close(other)
    assert pulse._task is None
    ledger.version[Topic.NODES] = "changed while nobody listened"
    third = pulse.open(b"a", ANN)
    assert pulse.seconds_since_change()["nodes"] == 0  # so the page asks once
    await settle()
    assert ledger.looks == 2
    assert await third.wait(0.01) == set()
    pulse.stop()


async def test_cost_rests_for_a_minute_and_is_not_forgotten() -> None:
    ledger = Changing()
    pulse = ledger.pulse()
    page = pulse.open(b"a", ANN)
    await settle()
    ledger.version[Topic.COST] = "2"
    ledger.now += 59
    await pulse.poll_once()
    assert await page.wait(0.01) == set()
    ledger.now += 1
    await pulse.poll_once()
    assert await page.wait(1) == {Topic.COST}
    pulse.stop()


async def test_how_long_it_was_quiet() -> None:
    ledger = Changing()
    pulse = ledger.pulse()
    pulse.open(b"a", ANN)
    await settle()
    ledger.now += 30
    ledger.version[Topic.JOBS] = "2"
    await pulse.poll_once()
    ledger.now += 5
    assert pulse.seconds_since_change() == {"nodes": 35, "jobs": 5, "policy": 35, "cost": 35}
    pulse.stop()


async def test_a_ledger_that_is_down_is_looked_at_again() -> None:
    ledger = Changing()
    ledger.fails = True
    pulse = ChangePoller(ledger.versions, ledger.live_sessions, seconds=0.01)
    page = pulse.open(b"a", ANN)
    await asyncio.sleep(0.05)
    assert ledger.looks > 1
    ledger.fails = False
    await asyncio.sleep(0.05)
    ledger.version[Topic.POLICY] = "2"
    assert await page.wait(5) == {Topic.POLICY}
    pulse.stop()


async def test_a_session_that_ended_takes_its_streams_with_it() -> None:
    ledger = Changing()
    pulse = ledger.pulse()
    stays, goes = pulse.open(b"a", ANN), pulse.open(b"b", ANN)
    await settle()
    ledger.live = {b"a"}
    await pulse.poll_once()
    assert not goes.ended  # not at each look: once a minute is enough
    ledger.now += live.SESSIONS_SECONDS
    await pulse.poll_once()
    assert [goes.ended, stays.ended] == ["signed-out", ""]
    pulse.stop()


def test_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        pulse = Changing().pulse()
        for _ in range(live.MAX_STREAMS_PER_USER):
            pulse.check_stream_limit(ANN)
            pulse.open(secrets.token_bytes(), ANN)  # each of another session of hers
        with pytest.raises(ApiError, match="too many pages"):
            pulse.check_stream_limit(ANN)
        pulse.check_stream_limit(BOB)
        monkeypatch.setattr(live, "MAX_STREAMS", live.MAX_STREAMS_PER_USER)
        with pytest.raises(ApiError, match="too many pages"):
            pulse.check_stream_limit(BOB)
        pulse.stop()

    asyncio.run(fill())


async def test_stopping_ends_every_stream_at_once() -> None:
    pulse = Changing().pulse()
    told = [text async for text in _until_stopped(pulse)]
    assert told[0].startswith("event: hello\n")
    assert told[-1] == 'event: ended\ndata: "restart"\n\n'
    with pytest.raises(ApiError):
        pulse.check_stream_limit(ANN)


async def _until_stopped(pulse: ChangePoller) -> AsyncIterator[str]:
    stream = pulse.open(b"a", ANN)
    async for text in EventStream(pulse, b"a", ANN)._events(stream):
        yield text
        asyncio.get_running_loop().call_soon(pulse.stop)


async def test_a_heartbeat_when_nothing_happens() -> None:
    pulse = Changing().pulse()
    stream = pulse.open(b"a", ANN)
    events = EventStream(pulse, b"a", ANN, heartbeat=0.01)._events(stream)
    assert (await anext(events)).startswith("event: hello")
    assert await anext(events) == ": still here\n\n"
    stream.notify({Topic.JOBS, Topic.NODES})
    assert await anext(events) == 'event: changed\ndata: ["jobs", "nodes"]\n\n'
    pulse.stop()


# over HTTP, with the real ledger


class Listening:
    """A page's stream, spoken to as a server would: the client of the tests waits for whole answers."""

    def __init__(self, app: FastAPI, cookie: str) -> None:
        self._app = app
        self._cookie = cookie
        self.status = 0
        self.headers: dict[str, str] = {}
        self._text = ""
        self._more = asyncio.Event()
        self._gone = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Listening]:
        task = asyncio.create_task(self._app(self._scope(), self._receive, self._send))
        try:
            yield self
        finally:
            self._gone.set()
            await asyncio.wait_for(task, 10)

    async def event(self, name: str) -> object:
        """The data of the next event of that name."""
        async with asyncio.timeout(20):
            while True:
                _, found, rest = self._text.partition(f"event: {name}\ndata: ")
                if found and "\n\n" in rest:
                    data, _, self._text = rest.partition("\n\n")
                    return json.loads(data)
                self._more.clear()
                await self._more.wait()

    def _scope(self) -> dict[str, object]:
        headers = [(b"host", b"fairway.test"), (b"cookie", f"{COOKIE}={self._cookie}".encode())]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/live",
            "raw_path": b"/live",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("fairway.test", 80),
        }

    async def _receive(self) -> dict[str, object]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(str(message["status"]))
            pairs = message["headers"]
            assert isinstance(pairs, list)
            self.headers = {name.decode(): value.decode() for name, value in pairs}
        else:
            body = message["body"]
            assert isinstance(body, bytes)
            self._text += body.decode()
        self._more.set()


async def test_a_page_hears_of_jobs_nodes_and_policy(
    app: FastAPI, ledger: Ledger, viewer: httpx2.AsyncClient
) -> None:
    app.state.change_poller._seconds = 0.1
    async with Listening(app, viewer.cookies[COOKIE]).open() as page:
        await page.event("hello")
        assert page.status == 200
        assert page.headers["content-type"].startswith("text/event-stream")
        assert page.headers["cache-control"] == "no-store"
        await app.state.change_poller.poll_once()  # what the first look finds is no change
        await ledger.revisions.add("another one", "another digest", "test")
        assert "policy" in str(await page.event("changed"))
    assert app.state.change_poller._task is None  # it looks no longer


async def test_it_ends_with_its_session(app: FastAPI, ledger: Ledger, sign_in: SignIn) -> None:
    app.state.change_poller._seconds = app.state.change_poller._sessions_seconds = 0.1
    client = await sign_in(Role.VIEWER, name="short")
    async with Listening(app, client.cookies[COOKIE]).open() as page:
        await page.event("hello")
        await ledger.tokens.revoke("short")
        assert await page.event("ended") == "signed-out"


async def test_it_ends_with_the_server(app: FastAPI, viewer: httpx2.AsyncClient) -> None:
    async with Listening(app, viewer.cookies[COOKIE]).open() as page:
        await page.event("hello")
        stop_pages(app)
        assert await page.event("ended") == "restart"
    answer = await viewer.get("/live")
    assert answer.status_code == 503


async def test_versions_change_with_their_topic_and_only_then(ledger: Ledger) -> None:
    before = await ledger.change_feed.versions()
    await asyncio.sleep(1.2)  # what other tests' writes left behind is counted late
    before = await ledger.change_feed.versions()
    assert await ledger.change_feed.versions() == before
    await ledger.revisions.add("text", "digest", "test")
    after = await ledger.change_feed.versions()
    assert {topic for topic in Topic if after[topic] != before[topic]} == {Topic.POLICY}


async def test_a_job_that_changes_is_noticed(ledger: Ledger) -> None:
    """By a counter of PostgreSQL's own, which may lag: never longer than pages expect (LAG in live.js)."""
    ((job,),) = await ledger.jobs.submit([new_job()], by="test")
    await asyncio.sleep(1.2)
    before = await ledger.change_feed.versions()
    await ledger.jobs.set_desired_state([job], DesiredState.HOLD, by="test")
    for _ in range(60):
        after = await ledger.change_feed.versions()
        if after != before:
            break
        await asyncio.sleep(0.2)
    assert {topic for topic in Topic if after[topic] != before[topic]} == {Topic.JOBS}


async def test_which_sessions_are_good(ledger: Ledger) -> None:
    good, old, of_token = (hash_secret(name) for name in ("good", "old", "of a token"))
    token = await ledger.tokens.create("t", Role.VIEWER, hash_secret("t"), "test")
    user = UserName("ada")
    await ledger.sessions.create(good, token=None, user=user, role=Role.MEMBER, seconds=60)
    await ledger.sessions.create(of_token, token=token, user=user, role=Role.VIEWER, seconds=60)
    await ledger.sessions.create(old, token=None, user=user, role=Role.MEMBER, seconds=-1)
    asked = [good, old, of_token, hash_secret("never")]
    assert await ledger.sessions.live(asked) == {good, of_token}
    await ledger.tokens.revoke("t")
    assert await ledger.sessions.live(asked) == {good}


async def test_a_stream_is_measured_to_its_first_byte(app: FastAPI, viewer: httpx2.AsyncClient) -> None:
    async with Listening(app, viewer.cookies[COOKIE]).open() as page:
        await page.event("hello")
        await asyncio.sleep(1)
    text = (await viewer.get("/metrics", headers=await bearer(app.state.ledger, Role.VIEWER, "scraper"))).text
    line = next(
        x for x in text.splitlines() if x.startswith("fairway_api_request_seconds_sum") and "/live" in x
    )
    assert float(line.rpartition(" ")[2]) < 1, line
