"""A thousand hostile requests a run: made-up values for every route, raw HTTP, floods. Never a 500.

Health probes go on meanwhile, each within a second. The requests follow from one seed, which a failure names.
"""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from tests.integration.server.test_rights import ROLES, Api, serving
from tests.integration.server_process import Server
from tests.waiting import Deadline

SEED = 15
API, PAGES, RAW = 600, 200, 250
AT_ONCE = 20
PROBE_SECONDS = 1.0
TEXTS = (
    "",
    "\0",
    "\ud800",
    "\u202e",
    "'; DROP TABLE job; --",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "%00",
    "a" * 5000,
    "{{7*7}}",
    "-1",
    "9" * 40,
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59",
    "WyJcdWRjMDAiLCJhIl0",
    "nan",
    "null",
    "[]",
)
VALUES: tuple[object, ...] = (None, True, -1, 0, 10**30, 1.5e308, [], {}, [[[[]]]], {"a": {"b": {}}})
PAGE_PATHS = ("/jobs", "/cost", "/policy/history", "/teams", "/pools/{}", "/jobs/{}", "/policy/revisions/{}")
RAW_REQUESTS = (
    b"",
    b"\0\0\0\0",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\ntoken=",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Api]]:
    with serving() as (server, api):
        api.submit("my-member", 20)
        yield server, api


def test_nothing_is_answered_by_500_and_probes_are_answered_in_time(served: tuple[Server, Api]) -> None:
    server, api = served
    rng = random.Random(SEED)
    routes = [
        (method.upper(), path, [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"])
        for path, operations in api.http().get("/openapi.json").json()["paths"].items()
        for method, operation in operations.items()
        if path != "/v1/tokens/{name}"
    ]
    tokens = [None, "wrong", *(api.tokens[role] for role in ROLES)]
    asked: list[Callable[[], tuple[str, int]]] = []
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        asked += [_api(client, rng, rng.choice(routes), rng.choice(tokens)) for _ in range(API)]
        asked += [_page(client, rng) for _ in range(PAGES)]
        asked += [_raw(server.url, rng.choice(RAW_REQUESTS)) for _ in range(RAW)]
        rng.shuffle(asked)
        with Probes(server.url) as probes, ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda ask: ask(), asked))
    assert [what for what, status in answers if status == 500] == [], f"seed {SEED}"
    found = server.log.find("Traceback")
    assert found < 0, server.log[max(0, found - 800) : found + 6000]
    statuses = Counter(status for _, status in answers)
    assert statuses[200] > 50, statuses  # not everything was refused at the door
    assert statuses[422] > 100, statuses
    assert probes.late == [], "slower than a second"
    assert probes.count > 5


class Probes:
    """Asks for the server's health while the context is open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.late: list[str] = []
        self.count = 0

    def __enter__(self) -> Probes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.wait(0.1):
            deadline, began = Deadline(PROBE_SECONDS), time.monotonic()
            status = httpx2.get(f"{self._url}/healthz", timeout=30).status_code
            self.count += 1
            if deadline.passed or status != 200:
                self.late.append(f"{status} after {time.monotonic() - began:.2f} s")


def _api(
    client: httpx2.Client, rng: random.Random, route: tuple[str, str, list[str]], token: str | None
) -> Callable[[], tuple[str, int]]:
    method, template, parameters = route
    path = re.sub(r"{\w+}", lambda _: quote(_text(rng), safe=""), template)
    chosen = rng.sample(parameters, min(len(parameters), rng.randint(0, 3)))
    query = "&".join(f"{name}={quote(_text(rng), safe='')}" for name in chosen)
    body = None if method in ("GET", "DELETE") else _body(rng)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    target = f"{path}?{query}" if query else path

    def ask() -> tuple[str, int]:
        answer = client.request(method, target, content=body, headers=headers)
        return f"{method} {target} {body!r}"[:500], answer.status_code

    return ask


def _page(client: httpx2.Client, rng: random.Random) -> Callable[[], tuple[str, int]]:
    path = rng.choice(PAGE_PATHS).format(quote(_text(rng), safe=""))
    target = f"{path}?q={quote(_text(rng), safe='')}&user={quote(_text(rng), safe='')}"

    def ask() -> tuple[str, int]:
        answer = client.get(target, headers={"Accept": "text/html", "Cookie": "fairway_session=x"})
        return f"GET {target}"[:500], answer.status_code

    return ask


def _raw(url: str, request: bytes) -> Callable[[], tuple[str, int]]:
    host, port = urlsplit(url).hostname, urlsplit(url).port

    def ask() -> tuple[str, int]:
        with socket.create_connection((host, port), timeout=15) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(4096)
            except OSError:
                answer = b""
        status = re.match(rb"HTTP/1.1 (\d+)", answer)
        return repr(request[:100]), int(status[1]) if status else 0

    return ask


def _text(rng: random.Random) -> str:
    text = rng.choice(TEXTS)
    return (
        text.encode("utf-8", "surrogatepass").decode("latin-1")
        if rng.random() < 0.5
        else text.replace("\ud800", "�")
    )


def _body(rng: random.Random, depth: int = 0) -> bytes:
    if rng.random() < 0.2:
        return rng.choice((b"", b"\xff\xfe", b"{", b"[" * 5000, b'{"jobs":' + b"[" * 3000, b"null", b'"x"'))
    return json.dumps(_json(rng, depth)).encode()


def _json(rng: random.Random, depth: int) -> object:
    keys = (
        "jobs",
        "name",
        "command",
        "team",
        "as",
        "fleet",
        "source",
        "cluster",
        "objects",
        "role",
        "key",
        "id",
    )
    if depth > 3 or rng.random() < 0.4:
        return rng.choice((*VALUES, *TEXTS))
    if rng.random() < 0.5:
        return [_json(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {rng.choice(keys): _json(rng, depth + 1) for _ in range(rng.randint(1, 6))}
