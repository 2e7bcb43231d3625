"""Requests that no client of ours sends: each is refused in words, and none is an internal error."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import pytest

from fairway.ledger import Ledger
from fairway.model.access import Role
from tests.unit.api.conftest import bearer
from tests.unit.api.test_policy import FLEET

SURROGATE, NUL = "\ud800", "a\0b"


def cursor(*key: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def fingerprint(text: str) -> dict[str, Any]:
    return {"fleet": FLEET, "fingerprints": {"hpc": text}, "force": True}


def adoption(kind: str, name: str) -> dict[str, Any]:
    return {"cluster": "hpc", "objects": [{"kind": kind, "name": name}]}


def point(at: str) -> dict[str, Any]:
    return {"points": [{"at": at, "per_gpu_hour": "1.10"}]}


POINTS = "/v1/pools/hpc-a100/price-points"


@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"),
    [
        ("GET", "/v1/jobs?since=0001-01-01T00:00:00Z", None, {200}),
        ("GET", "/v1/jobs?until=9999-12-31T23:59:59Z", None, {200}),
        ("GET", "/v1/jobs?since=9999-12-31T23:59:59-23:59", None, {200}),
        ("GET", "/v1/jobs?until=0001-01-01T00:00:00%2B23:59", None, {200}),
        ("GET", f"/v1/nodes?cursor={cursor(SURROGATE, 'a')}", None, {422}),
        ("GET", f"/v1/drift?cursor={cursor(SURROGATE, 'a', 'b', 'c')}", None, {422}),
        ("GET", f"/v1/jobs/{'%00'}", None, {404, 422}),
        ("POST", "/v1/adoptions", adoption(NUL, "a"), {422}),
        ("POST", "/v1/adoptions", adoption("qos", NUL), {422}),
        ("POST", "/v1/adoptions", adoption("qos", SURROGATE), {422}),
        ("POST", "/v1/applies", fingerprint(NUL), {422}),
        ("POST", "/v1/applies", fingerprint(SURROGATE), {422}),
        ("POST", "/v1/applies", fingerprint("f" * 2_000_000), {422}),
        ("PUT", POINTS, point("9999-12-31T23:59:59-23:59"), {422}),
        ("PUT", POINTS, point("0001-01-01T00:00:00+23:59"), {422}),
        ("PUT", POINTS, point("2026-10-01T00:00:00"), {200, 422}),
    ],
)
async def test_a_hostile_request_is_refused_in_words(
    http: httpx2.AsyncClient, ledger: Ledger, method: str, path: str, body: Any, statuses: set[int]
) -> None:
    headers = {**await bearer(ledger, Role.ADMIN), "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body)
    answer = await http.request(method, path, headers=headers, content=content)
    assert answer.status_code in statuses, answer.text
    if answer.status_code >= 400:
        assert answer.json()["code"] != "InternalError"
        assert answer.json()["hint"]
