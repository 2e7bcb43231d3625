"""The API against its own description: what fits it, or nearly does, is answered as it says, never by 5xx.

Schemathesis makes up requests from the OpenAPI document; a real server with its embedded PostgreSQL and a
virtual cluster answers them. Bounded: so many requests a route, from one seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fairway.api.openapi import document
from tests.integration.server.test_rights import serving

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
REQUESTS: Final = 6
"""Of each kind to each route."""

MAX_ITEMS: Final = 4
MAX_CHARACTERS: Final = 60


def smaller(schema: Any) -> Any:
    """The document with smaller upper bounds: making up megabytes takes minutes and finds nothing more."""
    if isinstance(schema, list):
        return [smaller(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    most = {"maxItems": MAX_ITEMS, "maxProperties": MAX_ITEMS, "maxLength": MAX_CHARACTERS}
    return {k: min(v, most[k]) if k in most and isinstance(v, int) else smaller(v) for k, v in schema.items()}


SCHEMA: Final = schemathesis.openapi.from_dict(smaller(json.loads(document())))
OPERATIONS: Final[list[Any]] = [found.ok() for found in SCHEMA.get_all_operations()]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Door:
    """A server, and what to ask it with."""

    url: str
    tokens: dict[str, str]
    job: str
    """One that is there."""
    session: requests.Session


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as (server, api), requests.Session() as session:
        (job,) = api.submit("my-member")
        yield Door(server.url, {r: api.tokens[r] for r in ("member", "admin")}, job, session)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "not"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.label)
def test_answers_are_as_described(door: Door, operation: Any, mode: GenerationMode) -> None:
    try:
        ask(door, operation, mode)
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # without parameters nothing can be wrong


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if "{id}" in o.path], ids=lambda o: o.label)
def test_of_a_job_that_is_there(door: Door, operation: Any) -> None:
    ask(door, operation, GenerationMode.POSITIVE, path_parameters={"id": door.job})


def ask(door: Door, operation: Any, mode: GenerationMode, **fixed: Any) -> None:
    """Each request with each token."""

    @settings(
        max_examples=REQUESTS,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode, **fixed))
    def run(case: Any) -> None:
        for token in door.tokens.values():
            headers = {"Authorization": f"Bearer {token}"}
            response = case.call(base_url=door.url, session=door.session, headers=headers, timeout=20)
            case.validate_response(response, checks=CHECKS, headers=headers)

    run()
