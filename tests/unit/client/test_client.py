"""How the client meets servers that are slow, broken, foreign or gone. A real HTTP server plays them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from fairway.client.async_client import AsyncClient
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.client.http import BUSY, BUSY_SECONDS, Retries, ServerFailed, ServerRefused, ServerUnreachable
from fairway.client.lists import AsyncItemQuery, ItemQuery
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.model.observation import Health
from fairway.wire.policy import ObjectRef

Answer = tuple[int, str, bytes]
PROBLEM = {
    "type": "urn:fairway:problem:X",
    "title": "t",
    "status": 503,
    "detail": "what went wrong",
    "code": "Gone",
    "hint": "do this",
    "request_id": "1",
    "a-field-of-the-future": 1,
}
EMPTY = (200, "application/json", b'{"items": [], "next_cursor": null, "of-the-future": 1}')


class Playing:
    """A server that answers from a script and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, str | None]] = []
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                playing.asked.append((self.command, self.path, self.headers.get("authorization")))
                status, kind, body = playing.answers.pop(0)
                self.send_response(status)
                if BUSY.encode() in body:
                    self.send_header("Retry-After", "0")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def playing() -> Iterator[Playing]:
    made = Playing()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def problem(status: int) -> Answer:
    return (status, "application/problem+json", json.dumps(PROBLEM | {"status": status}).encode())


def error_of(call: Callable[[], object]) -> FairwayError:
    with pytest.raises(FairwayError) as caught:
        call()
    return caught.value


def test_problems_become_errors_with_their_code_and_hint(playing: Playing) -> None:
    playing.answers = [problem(403)]
    with Client(Target(playing.url, "fw_x")) as client:
        error = error_of(client.clusters)
    assert isinstance(error, ServerRefused)
    assert (error.code, error.message, error.hint) == ("Gone", "what went wrong", "do this")
    assert playing.asked == [("GET", "/v1/clusters?limit=500", "Bearer fw_x")]


def test_reads_are_tried_again_a_few_times(playing: Playing) -> None:
    playing.answers = [problem(503), (502, "text/html", b"<h1>proxy"), EMPTY]
    with Client(Target(playing.url, None)) as client:
        assert client.clusters() == []
    playing.answers = [problem(503)] * 9
    with Client(Target(playing.url, None)) as client:
        assert isinstance(error_of(client.clusters), ServerFailed)
    assert len(playing.asked) == 3 + 3


def test_writes_are_not(playing: Playing) -> None:
    playing.answers = [problem(503)] * 9
    with Client(Target(playing.url, None)) as client:
        assert isinstance(error_of(lambda: client.create_token("x", Role.VIEWER, None)), ServerFailed)
        assert isinstance(error_of(lambda: client.revoke_token("x")), ServerFailed)
    assert [method for method, _, _ in playing.asked] == ["POST", "DELETE"]


def test_anything_is_sent_again_to_a_server_that_says_it_is_busy(playing: Playing) -> None:
    busy = json.dumps(PROBLEM | {"code": BUSY}).encode()
    playing.answers = [(503, "application/problem+json", busy)] * 7 + [problem(403)]
    with Client(Target(playing.url, None)) as client:
        assert isinstance(error_of(lambda: client.create_token("x", Role.VIEWER, None)), ServerRefused)
    assert len(playing.asked) == 8


def test_a_busy_server_is_asked_when_it_says_and_not_for_ever() -> None:
    busy = ServerFailed(BUSY, "what went wrong", "do this", retry_after=4)
    retries = Retries(idempotent=False, random=lambda: 0.5)
    delays = []
    with pytest.raises(ServerFailed):
        while True:
            delays.append(retries.delay(busy))
    assert set(delays) == {5.0}
    assert sum(delays) == BUSY_SECONDS
    with pytest.raises(ServerFailed):  # without a time, only reads are tried again
        Retries(idempotent=False).delay(ServerFailed("Gone", "what went wrong", "do this"))


@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", b"<h1>It works!"),
        (200, "application/json", b'{"items": 3}'),
        (404, "text/html", b"nope"),
        (301, "text/html", b""),
        (200, "application/json", b"\xff\xfe"),
    ],
)
def test_what_is_not_fairway(playing: Playing, answer: Answer) -> None:
    playing.answers = [answer]
    with Client(Target(playing.url, None)) as client:
        error = error_of(client.pools)
    assert error.code == "NotFairway"
    assert playing.url in error.message
    assert "fairway context list" in error.hint


def test_pages_are_followed(playing: Playing) -> None:
    token = {"name": "a", "role": "viewer", "user": "a", "created_by": "x"}
    token |= {"created_at": "2026-01-01T00:00:00Z"}
    token |= dict.fromkeys(("expires_at", "revoked_at", "last_used_at"))  # type: ignore[arg-type]
    pages = [{"items": [token], "next_cursor": "c1"}, {"items": [], "next_cursor": "c2"}, {"items": [token]}]
    playing.answers = [(200, "application/json", json.dumps(page).encode()) for page in pages]
    with Client(Target(playing.url, None)) as client:
        assert len(client.tokens()) == 2
    assert [path.partition("cursor=")[2] for _, path, _ in playing.asked] == ["", "c1", "c2"]


def test_nobody_there(playing: Playing) -> None:
    with Client(Target("http://127.0.0.1:9", None)) as client:
        error = error_of(client.whoami)
    assert isinstance(error, ServerUnreachable)
    assert "fairway server" in error.hint and "fairway context list" in error.hint


def test_too_slow() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(Target(url, None), timeout=httpx2.Timeout(0.1)) as client:
            assert "in time" in error_of(lambda: client.revoke_token("x")).message


def test_names_that_cannot_be_are_not_even_sent(playing: Playing) -> None:
    with Client(Target(playing.url, None)) as client:
        assert error_of(lambda: client.create_token("No Name", Role.VIEWER, None)).code == "InvalidRequest"
    assert playing.asked == []


def test_a_proxy_of_the_environment_does_not_see_loopback(
    playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    playing.answers = [EMPTY]
    with Client(Target(playing.url, "fw_x")) as client:
        assert client.clusters() == []


def test_a_ca_file_that_is_none() -> None:
    assert error_of(lambda: Client(Target("https://x", None, "/none"))).code == "CertificateNotReadable"


TOKEN = {"name": "a", "role": "viewer", "user": "a", "created_by": "x", "created_at": "2026-01-01T00:00:00Z"}
TOKEN |= dict.fromkeys(("expires_at", "revoked_at", "last_used_at"), "2026-01-02T00:00:00Z")


def page(*items: object, cursor: str | None = None) -> Answer:
    return (200, "application/json", json.dumps({"items": items, "next_cursor": cursor}).encode())


@pytest.mark.parametrize(
    ("verb", "said", "answers"),
    [
        ("clusters", {}, [EMPTY]),
        ("pools", {"cluster": "hpc"}, [EMPTY]),
        ("nodes", {"pool": "a100", "health": Health.READY}, [problem(503), EMPTY]),
        ("tokens", {}, [page(TOKEN, cursor="c"), page(TOKEN | {"name": "b"})]),
        ("create_token", {"name": "x", "role": Role.VIEWER, "expires_in_seconds": 60}, [problem(409)]),
        ("create_token", {"name": "", "role": Role.VIEWER, "expires_in_seconds": 60}, []),
        ("revoke_token", {"name": "a/b"}, [(200, "application/json", json.dumps(TOKEN).encode())]),
        ("plan", {"fleet": "x", "source": "f"}, [problem(422)]),
        ("apply", {"fleet": "x", "source": "f", "fingerprints": {"a": "b"}, "force": True}, [problem(503)]),
        ("adopt", {"cluster": "hpc", "objects": [ObjectRef(kind="qos", name="x")]}, [problem(403)]),
        ("applies", {"most": 3}, [EMPTY]),
        ("apply_detail", {"number": 3}, [problem(404)]),
        ("apply_progress", {"number": 3}, [problem(404)]),
        ("drift", {}, [EMPTY]),
        ("budgets", {}, [problem(403)]),
        ("teams", {}, [EMPTY]),
        ("interventions", {"cluster": "hpc"}, [page(cursor="c"), EMPTY]),
        ("render", {"fleet": "x", "source": "f", "cluster": "hpc"}, [problem(422)]),
        ("import_policy", {"cluster": "hpc"}, [problem(404)]),
        ("whoami", {}, [problem(401)]),
        ("report_capacity", {"window": "30d"}, [problem(403)]),
        ("close_month", {"month": "2026-10"}, [problem(409)]),
        ("export_focus", {"window": "30d"}, [(200, "text/csv", b"a,b")]),
        ("export_focus", {"window": "30d", "team": "x"}, [problem(403)]),
        ("export_jobs", {"days": 7}, [(200, "text/csv", b"at,seconds")]),
    ],
)
def test_whoever_awaits_asks_and_hears_the_same(
    playing: Playing, verb: str, said: dict[str, object], answers: list[Answer]
) -> None:
    def heard(call: Callable[[], object]) -> tuple[object, list[tuple[str, str, str | None]]]:
        playing.answers, playing.asked = list(answers), []
        try:
            found = call()
        except FairwayError as error:
            found = (type(error), error.code, error.message)
        return found, playing.asked

    def plainly() -> object:
        with Client(Target(playing.url, "fw_x")) as client:
            found = getattr(client, verb)(**said)
            return list(found) if isinstance(found, Iterator | ItemQuery) else found

    async def awaited() -> object:
        async with AsyncClient(Target(playing.url, "fw_x")) as client:
            found = getattr(client, verb)(**said)
            return (
                [one async for one in found]
                if isinstance(found, AsyncIterator | AsyncItemQuery)
                else await found
            )

    assert heard(plainly) == heard(lambda: asyncio.run(awaited()))
    assert len(playing.asked) == len(answers)
