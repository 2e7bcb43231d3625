"""A server without engines and the one that has them, real processes on one ledger: the same answers."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from fairway.web.sessions import csrf_of
from tests.integration.server.test_rights import FLEET, Api, serving_apart
from tests.integration.server_process import Server, temporary_home
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

Apart = tuple[Server, Server, Api]
JOB = {"name": "hello", "command": ["echo", "hello from the cluster"]}
HUGE = {"name": "huge", "command": ["true"], "gpus": {"count": 9}}
"""More GPUs than a node has."""
TRIES = 20
"""Of asking both servers within one second."""


@pytest.fixture(scope="module")
def apart(make_database: Callable[[str | None], str]) -> Iterator[Apart]:
    with serving_apart(make_database(None)) as made:
        yield made


@pytest.fixture(scope="module")
def job(apart: Apart) -> str:
    """A job that ran and printed something."""
    _, _, api = apart
    made = api.ask("root", "POST", "/v1/jobs", 201, {"jobs": [JOB], "as": "my-member"})
    found: str = made["jobs"][0]["id"]
    until(lambda: api.job(found)["state"] == "done", 60, "the job's end")
    return found


def asked(api: Api, url: str, method: str, path: str, body: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {api.tokens['root']}", "X-Request-Id": "the-same-id"}
    return httpx2.request(method, f"{url}{path}", json=body, headers=headers, timeout=30)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/plans", {"fleet": FLEET, "source": "fleet.yaml"}, 200),
        ("POST", "/v1/plans", {"fleet": "name: [", "source": "fleet.yaml"}, 422),
        ("POST", "/v1/imports", {"cluster": "lab"}, None),
        ("POST", "/v1/imports", {"cluster": "nowhere"}, 404),
        ("POST", "/v1/renders", {"fleet": FLEET, "source": "fleet.yaml", "cluster": "lab"}, 422),
        ("POST", "/v1/leaves/plan", {"cluster": "lab"}, None),
        ("POST", "/v1/jobs/dry-run", {"job": JOB, "as": "my-member"}, 200),
        ("POST", "/v1/jobs/dry-run", {"job": HUGE, "as": "my-member"}, 200),
        ("POST", "/v1/jobs", {"jobs": [HUGE], "as": "my-member"}, 422),
        ("POST", "/v1/jobs", {"jobs": 7}, 422),
        ("GET", "/v1/jobs/{job}/why", None, 200),
        ("GET", "/v1/jobs/{job}/log", None, 200),
        ("GET", "/v1/jobs/{job}/log?offset=6&limit=16", None, 200),
        ("GET", "/v1/jobs/{job}/log?attempt=7", None, 404),
        ("GET", "/v1/jobs/zzzz/why", None, 404),
    ],
)
def test_answers_are_those_of_the_other_server(
    apart: Apart, job: str, method: str, path: str, body: Any, status: int | None
) -> None:
    control, server, api = apart
    for _ in range(TRIES):  # an answer may say how long ago something was
        direct, forwarded, again = (
            asked(api, url, method, path.format(job=job), body)
            for url in (control.url, server.url, control.url)
        )
        if again.content == direct.content:
            break
    assert status in (None, direct.status_code), direct.text
    assert forwarded.status_code == direct.status_code, forwarded.text
    assert forwarded.content == direct.content
    given = set(direct.headers) - {"date"}
    assert {name: forwarded.headers[name] for name in given} == {n: direct.headers[n] for n in given}


def test_a_log_is_read_through_it(apart: Apart, job: str) -> None:
    _, _, api = apart
    assert "hello from the cluster" in api.ask("member", "GET", f"/v1/jobs/{job}/log", 200)["text"]


def test_pages(apart: Apart, job: str) -> None:
    control, server, api = apart
    with httpx2.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=30) as browser:
        assert browser.post("/sign-in", data={"token": api.tokens["operator"]}).status_code == 303
        for path in (f"/jobs/{job}", f"/jobs/{job}/log", f"/jobs/{job}/log/download"):
            answer = browser.get(path)
            assert answer.status_code == 200, answer.text
            other = httpx2.get(f"{control.url}{path}", cookies=dict(browser.cookies), timeout=30)
            assert other.status_code == 200
            for header in ("content-type", "content-security-policy", "content-disposition"):
                assert answer.headers.get(header) == other.headers.get(header)
        assert "hello from the cluster" in answer.text
        form = {"fleet": FLEET, "csrf": csrf_of(browser.cookies["fairway_session"])}
        planned = browser.post("/policy/plan", data=form)
        assert planned.status_code == 200, planned.text
        assert "lab" in planned.text
        assert browser.post("/policy/plan", data=form | {"csrf": "wrong"}).status_code == 403


def test_without_a_token_the_other_server_says_nothing_either(apart: Apart, job: str) -> None:
    control, server, _ = apart
    wrong = {"Authorization": "Bearer fw_wrong"}
    for url in (control.url, server.url):
        for headers in ({}, wrong):
            answer = httpx2.get(f"{url}/v1/jobs/{job}/log", headers=headers)
            assert answer.status_code == 401, answer.text


def test_the_other_server_is_away(make_database: Callable[[str | None], str]) -> None:
    with serving_apart(make_database(None)) as (control, _, api):
        (held,) = api.submit("my-member")
        control.send(signal.SIGSTOP)  # takes connections, and never answers
        queued = {"name": "later", "command": ["true"]}
        try:
            started = time.monotonic()
            answer = api.http().post(
                "/v1/jobs",
                json={"jobs": [queued], "as": "my-member"},
                headers={"Authorization": f"Bearer {api.tokens['root']}"},
                timeout=60,
            )
            assert (answer.status_code, answer.json()["code"]) == (504, "EngineServerSilent")
            assert time.monotonic() - started < 40
        finally:
            control.send(signal.SIGCONT)
        assert control.stop() == 0
        for path in (f"/v1/jobs/{held}/why", f"/v1/jobs/{held}/log"):
            started = time.monotonic()
            answer = api.send("member", "GET", path)
            assert (answer.status_code, answer.json()["code"]) == (503, "EngineServerAway"), answer.text
            assert answer.headers["retry-after"] == "5"
            assert time.monotonic() - started < 10
        assert api.job(held)["state"] == "held"  # the ledger is still there
        api.ask("member", "POST", "/v1/jobs/cancel", 200, {"jobs": [held]})


def test_the_other_server_is_known_by_its_certificate(empty_database_url: str) -> None:
    with temporary_home() as home:
        key, cert = home.folder / "key.pem", home.folder / "cert.pem"
        certificate = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        names = ["-subj", "/CN=control", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", str(key), "-out", str(cert)]
        subprocess.run([*certificate.split(), *names, *files], check=True, capture_output=True)
        file = home.folder / "fleet.yaml"
        file.write_text(FLEET)
        given = {"FAIRWAY_DATABASE_URL": empty_database_url}
        at = ("--listen", "127.0.0.1:0")
        tls = ("--tls-cert", str(cert), "--tls-key", str(key))
        control = home.start("-f", str(file), *at, *tls, FAIRWAY_SERVE="loops", **given)
        port = control.url.rpartition(":")[2]
        given |= {"FAIRWAY_SERVE": "api", "FAIRWAY_MIGRATE": "no"}
        headers = {"Authorization": f"Bearer {home.token_file.read_text().strip()}"}
        for host, ca, status in (
            ("localhost", str(cert), 200),
            ("localhost", "none", 503),  # no authority of the machine knows it
            ("127.0.0.1", str(cert), 503),  # not the name in the certificate
        ):
            given |= {"FAIRWAY_ENGINE_SERVER": f"https://{host}:{port}", "FAIRWAY_ENGINE_SERVER_CA": ca}
            # Not by a proxy, which would see the token.
            server = home.start(
                *at, **given, HTTPS_PROXY="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9"
            )
            body = {"fleet": FLEET, "source": "fleet.yaml"}
            answer = httpx2.post(f"{server.url}/v1/plans", json=body, headers=headers, timeout=30)
            assert answer.status_code == status, answer.text
            assert server.stop() == 0
        assert control.stop() == 0
