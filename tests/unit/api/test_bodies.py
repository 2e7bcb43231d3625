"""Large bodies are decoded by the structure of their type, and few of them at a time."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import httpx2
import pytest
from fastapi.exceptions import RequestValidationError

from fairway.api.bodies import LARGE_BYTES, MAX_LARGE, MAX_VALUES, SMALL_BYTES, LargeBodies
from fairway.api.problems import ApiError
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.wire.jobs import ChangeRequest, DryRunRequest, SubmitRequest
from tests.unit.api.conftest import bearer

MIB = 1024 * 1024
JOB = {"name": "train", "command": ["x"], "env": {"A": "b"}, "gpus": {"count": 2, "memory_gb": {"least": 40}}}


def filled(item: bytes, size: int, before: bytes = b'{"jobs":[', after: bytes = b"]}") -> bytes:
    """A body of about `size` bytes whose list holds the item again and again."""
    return before + b",".join([item] * (size // (len(item) + 1))) + after


@pytest.mark.parametrize(
    ("item", "size", "where", "message"),
    [
        (b"[[]]", 31, "body", f"has more than {MAX_VALUES} values"),
        (b"{}", 31, "body", f"has more than {MAX_VALUES} values"),
        (b"[[]]", 2, "body.jobs.0", "Expected `object`, got `array`"),
        (b'"' + b"x" * 1000 + b'"', 31, "body.jobs.0", "Expected `object`, got `str`"),
        (b'{"name":"a","commands":[]}', 4, "body.jobs.0", "unknown field `commands`"),
        (b'{"name":"a","env":{"A":[]}}', 4, "body.jobs.0.env", "got `array`"),
        (b'{"name":"' + b"x" * 190 + b'"}', 31, "body.jobs", "length <= 10000"),
        (b'{"name":"' + b"x" * 5000 + b'"}', 31, "body.jobs.0.name", "at most 200 characters"),
    ],
)
async def test_a_wrong_body_is_refused_for_little_memory(
    item: bytes, size: int, where: str, message: str
) -> None:
    body = filled(item, size * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(RequestValidationError) as caught:
            await LargeBodies().decode(body, SubmitRequest)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    first = caught.value.errors()[0]
    assert message in first["msg"]
    assert ".".join(map(str, first["loc"])) == where
    assert peak < 4 * len(body)


async def test_a_right_body_is_what_pydantic_makes_of_it() -> None:
    for model, value in (
        (SubmitRequest, {"jobs": [JOB | {"array": [1, 2]}] * 5000, "as": "alice", "key": None, "hold": True}),
        (DryRunRequest, {"job": JOB | {"script": "é\n" * 100_000, "command": []}}),
        (ChangeRequest, {"jobs": [f"{n:04}" for n in range(9999)]}),
    ):
        body = json.dumps(value).encode()
        assert len(body) > SMALL_BYTES
        assert await LargeBodies().decode(body, model) == model.model_validate(value)


@pytest.mark.parametrize("body", [b"[" * 2 * MIB, b"\xff" * 2 * MIB, b"{" + b" " * MIB, b'"' + b"x" * MIB])
async def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestValidationError):
        await LargeBodies().decode(body, SubmitRequest)


async def test_each_route_has_its_own_limit(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = {**await bearer(ledger, Role.MEMBER), "Content-Type": "application/json"}
    for path, size, status, code in (
        ("/v1/jobs/cancel", 31 * MIB, 413, "BodyTooLarge"),
        ("/v1/jobs/hold", 2 * MIB, 413, "BodyTooLarge"),
        ("/v1/jobs/release", 2 * MIB, 413, "BodyTooLarge"),
        ("/v1/jobs/dry-run", 3 * MIB, 413, "BodyTooLarge"),
        ("/v1/jobs", 33 * MIB, 413, "BodyTooLarge"),
        ("/v1/jobs/cancel", MIB // 2, 422, "InvalidRequest"),
        ("/v1/jobs", 2 * MIB, 422, "InvalidRequest"),
    ):
        answer = await http.post(path, headers=headers, content=filled(b"[[]]", size))
        problem: dict[str, Any] = answer.json()
        assert (answer.status_code, problem["code"]) == (status, code), (path, size)
    assert problem["detail"] == "body.jobs.0: Expected `object`, got `array`"


async def test_few_large_bodies_are_received_at_once(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    transport: Any = http._transport
    large: LargeBodies = transport.app.state.large_bodies
    headers = {**await bearer(ledger, Role.MEMBER), "Content-Type": "application/json"}
    for _ in range(MAX_LARGE):
        large.enter()
    with pytest.raises(ApiError):
        large.enter()
    small = await http.post("/v1/jobs", headers=headers, content=filled(b"[[]]", LARGE_BYTES // 2))
    assert small.status_code == 422
    refused = await http.post("/v1/jobs", headers=headers, content=filled(b"[[]]", 2 * LARGE_BYTES))
    assert (refused.status_code, refused.json()["code"]) == (503, "TooManyLargeRequests")
    assert refused.headers["retry-after"]
    large.leave()
    for _ in range(2):  # a request leaves when it ends, also when it fails
        answer = await http.post("/v1/jobs", headers=headers, content=filled(b"[[]]", 2 * LARGE_BYTES))
        assert answer.status_code == 422
