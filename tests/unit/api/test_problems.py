"""Every error is problem+json with a code and a hint, and nothing of the server's insides is in it."""

from __future__ import annotations

import random

import httpx2
import pytest
import structlog
from fastapi import FastAPI

from fairway.api.auth import PUBLIC
from fairway.api.middleware import MAX_BODY_BYTES
from fairway.api.problems import as_api_error
from fairway.ledger import Ledger, LedgerUnreachable
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.wire.fleet import Fault
from tests.unit.api.conftest import bearer

FIELDS = {"type", "title", "status", "detail", "code", "hint", "request_id", "faults"}


def check(answer: httpx2.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, object] = answer.json()
    assert set(problem) == FIELDS
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:fairway:problem:{code}"
    assert problem["title"] and problem["detail"] and problem["hint"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


async def test_unknown_path(http: httpx2.AsyncClient) -> None:
    check(await http.get("/v1/nothing"), 404, "NoSuchPath")
    check(await http.get("/v1/clusters/"), 404, "NoSuchPath")


async def test_wrong_method(http: httpx2.AsyncClient) -> None:
    answer = await http.put("/v1/clusters")
    problem = check(answer, 405, "MethodNotAllowed")
    assert answer.headers["allow"] == "GET"
    assert problem["hint"] == "use GET"


async def test_no_token(http: httpx2.AsyncClient) -> None:
    check(await http.get("/v1/clusters"), 401, "TokenMissing")


async def test_invalid_query(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    for query, where in (
        ("limit=0", "query.limit"),
        ("limit=501", "query.limit"),
        ("limit=x", "query.limit"),
        ("health=fine", "query.health"),
        ("cluster=a%00b", "query.cluster"),
        ("pool=" + "x" * 254, "query.pool"),
    ):
        problem = check(await http.get(f"/v1/nodes?{query}", headers=headers), 422, "InvalidRequest")
        assert [fault["where"] for fault in problem["faults"]] == [where]  # type: ignore[attr-defined]


async def test_invalid_cursor(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    for path in ("/v1/nodes", "/v1/pools", "/v1/clusters", "/v1/tokens"):
        for cursor in ("", "x", "W10", "é", "[]"):
            check(await http.get(path, params={"cursor": cursor}, headers=headers), 422, "InvalidCursor")


async def test_invalid_body(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = {**await bearer(ledger, Role.ADMIN), "Content-Type": "application/json"}
    for body, where in (
        (b"{", "body.1"),
        (b"[]", "body"),
        (b'{"name": "x"}', "body.role"),
        (b'{"name": "x", "role": "king"}', "body.role"),
        (b'{"name": "No Name", "role": "viewer"}', "body.name"),
        (b'{"name": "x", "role": "viewer", "expires": 9}', "body.expires"),
        (b'{"name": "x", "role": "viewer", "expires_in_seconds": 0}', "body.expires_in_seconds"),
    ):
        problem = check(await http.post("/v1/tokens", content=body, headers=headers), 422, "InvalidRequest")
        assert [fault["where"] for fault in problem["faults"]] == [where]  # type: ignore[attr-defined]


async def test_what_was_sent_is_not_sent_back(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    answer = await http.post(
        "/v1/tokens", json={"name": "fw_oops-a-secret", "role": "viewer"}, headers=headers
    )
    check(answer, 422, "InvalidRequest")
    assert "oops" not in answer.text


async def test_large_bodies(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = {**await bearer(ledger, Role.ADMIN), "Content-Type": "application/json"}
    large = b" " * (MAX_BODY_BYTES + 1)

    async def chunks() -> object:  # no length is announced
        for _ in range(3):
            yield large[: MAX_BODY_BYTES // 2]

    check(await http.post("/v1/tokens", content=large, headers=headers), 413, "BodyTooLarge")
    check(await http.post("/v1/tokens", content=chunks(), headers=headers), 413, "BodyTooLarge")  # type: ignore[arg-type]


async def test_long_targets(http: httpx2.AsyncClient) -> None:
    check(await http.get("/v1/nodes?pool=" + "x" * 9000), 414, "TargetTooLong")


async def test_taken_names_unknown_tokens_and_the_last_admin(
    http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    headers = await bearer(ledger, Role.ADMIN, "boss")
    new = {"name": "boss", "role": "viewer"}
    check(await http.post("/v1/tokens", json=new, headers=headers), 409, "TokenNameTaken")
    check(await http.delete("/v1/tokens/nobody", headers=headers), 404, "NoSuchToken")
    check(await http.delete("/v1/tokens/boss", headers=headers), 409, "LastAdmin")
    await bearer(ledger, Role.ADMIN, "second")
    assert (await http.delete("/v1/tokens/boss", headers=headers)).status_code == 200


async def test_a_defect_says_nothing_but_where_to_look(app: FastAPI, http: httpx2.AsyncClient) -> None:
    def fail() -> None:
        raise ZeroDivisionError("postgresql://user:hunter2@host")

    app.add_api_route("/fails", fail, dependencies=PUBLIC)
    with structlog.testing.capture_logs() as logs:
        answer = await http.get("/fails")
    check(answer, 500, "InternalError")
    assert "hunter2" not in answer.text and "ZeroDivision" not in answer.text
    failed = [entry for entry in logs if entry["event"] == "request failed"]
    assert [entry["request_id"] for entry in failed] == [answer.headers["x-request-id"]]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ErrorKind.INVALID, 422),
        (ErrorKind.FORBIDDEN, 403),
        (ErrorKind.NOT_FOUND, 404),
        (ErrorKind.CONFLICT, 409),
        (ErrorKind.ENGINE_FAILED, 502),
    ],
)
async def test_what_a_service_refuses_is_a_problem_by_its_kind(
    app: FastAPI, http: httpx2.AsyncClient, kind: ErrorKind, status: int
) -> None:
    async def refuse() -> None:
        raise RequestError(kind, "No", "it may not be", "ask", faults=[Fault(where="x", message="is wrong")])

    app.add_api_route("/refuses", refuse, dependencies=PUBLIC)
    with structlog.testing.capture_logs() as logs:
        problem = check(await http.get("/refuses"), status, "No")
    assert (problem["detail"], problem["hint"]) == ("it may not be", "ask")
    assert [fault["where"] for fault in problem["faults"]] == ["x"]  # type: ignore[attr-defined]
    assert [entry["event"] for entry in logs] == ["request"]


def test_every_kind_of_error_has_a_status() -> None:
    statuses = {as_api_error(RequestError(kind, "No", "it may not be", "ask")).status for kind in ErrorKind}
    assert len(statuses) == len(ErrorKind)


async def test_what_caused_a_refusal_is_logged(app: FastAPI, http: httpx2.AsyncClient) -> None:
    async def refuse() -> None:
        cause = PermanentError("NoLog", "the file is not there", "look for it")
        raise RequestError.wrap(ErrorKind.NOT_FOUND, cause) from cause

    app.add_api_route("/refuses", refuse, dependencies=PUBLIC)
    with structlog.testing.capture_logs() as logs:
        check(await http.get("/refuses"), 404, "NoLog")
    assert [entry["code"] for entry in logs if entry["event"] == "the file is not there"] == ["NoLog"]


async def test_a_ledger_that_is_gone(http: httpx2.AsyncClient, app: FastAPI) -> None:
    async def gone() -> None:
        raise LedgerUnreachable("LedgerUnreachable", "no answer from db.internal:5432", "start it")

    app.add_api_route("/gone", gone, dependencies=PUBLIC)
    with structlog.testing.capture_logs() as logs:
        answer = await http.get("/gone")
    check(answer, 503, "LedgerUnreachable")
    assert answer.headers["retry-after"] == "5"
    assert "db.internal" not in answer.text
    assert any("db.internal" in entry["event"] for entry in logs)


async def test_ready_only_with_current_tables(http: httpx2.AsyncClient, empty_database_url: str) -> None:
    from prometheus_client import CollectorRegistry

    from fairway.api.app import create_app
    from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
    from fairway.services.fleets import NO_FLEET

    assert (await http.get("/readyz")).json() == {"status": "ready"}
    bare = await Ledger.connect(empty_database_url)
    try:
        app = create_app(
            bare, CollectorRegistry(), Fleets(bare, lambda _: NO_FLEET), NO_POLICY_SERVICES, NO_JOB_SERVICES
        )
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
            check(await client.get("/readyz"), 503, "LedgerNotMigrated")
            assert (await client.get("/healthz")).json() == {"status": "ok"}
    finally:
        await bare.close()


async def test_every_answer_carries_the_security_headers(http: httpx2.AsyncClient) -> None:
    for path in ("/healthz", "/v1/nothing", "/v1/clusters"):
        headers = (await http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]


async def test_request_ids(http: httpx2.AsyncClient) -> None:
    given = await http.get("/healthz", headers={"X-Request-Id": "abc-12345"})
    assert given.headers["x-request-id"] == "abc-12345"
    forged = await http.get("/healthz", headers={"X-Request-Id": "a b\tlevel=info"})
    assert len(forged.headers["x-request-id"]) == 16


async def test_nothing_secret_in_the_log(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    with structlog.testing.capture_logs() as logs:
        made = await http.post("/v1/tokens", json={"name": "new", "role": "viewer"}, headers=headers)
        await http.get("/v1/nodes?cluster=confidential", headers=headers)
        await http.get("/v1/nodes", headers={"Authorization": "Bearer fw_almost-a-token"})
    said = repr(logs)
    assert len(logs) >= 3
    for secret in (
        made.json()["secret"],
        headers["Authorization"].split()[1],
        "almost-a-token",
        "confidential",
    ):
        assert secret not in said


async def test_no_query_breaks_it(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    chance = random.Random(1)
    pieces = [
        "%00",
        "%ff",
        "%C3%A9",
        "%ED%A0%80",
        "%F0%9F%98%80",
        "'",
        "--",
        "a",
        "-1",
        "1e9",
        "%",
        "[]",
        "null",
        "=",
        "%25",
    ]
    for _ in range(400):
        value = "".join(chance.choices(pieces, k=chance.randint(0, 6)))
        path = chance.choice(["/v1/nodes", "/v1/pools", "/v1/clusters", "/v1/tokens", "/v1/tokens/"])
        key = chance.choice(["cursor", "cluster", "pool", "health", "limit", value])
        target = path + value if path.endswith("/") else f"{path}?{key}={value}"
        method = "DELETE" if path.endswith("/") else "GET"
        answer = await http.request(method, target, headers=headers)
        assert answer.status_code < 500, (target, answer.text)
        if answer.status_code != 200:
            assert answer.headers["content-type"] == "application/problem+json", target
