"""Who may call what: every role against every route. A route nobody thought of here fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from fairway.api.auth import PUBLIC, allow, require_rules, rule_of
from fairway.api.rate_limit import WrongTokenLimiter
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.services.tokens import hash_secret, new_secret
from tests.api_rights import ROUTES
from tests.unit.api.conftest import bearer

EXPECTED: Final[dict[tuple[str, str], Role | None]] = {
    (method, path): None if least is None else Role(least)
    for route, least in (ROUTES | {"GET /openapi.json": None}).items()
    for method, _, path in (route.partition(" "),)
}
"""What is not here must not exist."""

WHOLE_BILLS: Final = {("GET", "/v1/reports/capacity"), ("GET", "/v1/reports/commitments")}
"""Of everybody's money: a member and a lead see their own teams' alone, whatever a viewer may."""

BODIES: Final[dict[str, dict[str, object]]] = {
    "/v1/tokens": {"name": "made", "role": "viewer"},
    "/v1/logins": {"challenge": "A" * 43},
    "/v1/logins/redeem": {"verifier": "x" * 43},
    "/v1/logout": {},
    "/v1/plans": {"fleet": "name: x"},
    "/v1/uncordon": {"cluster": "hpc", "node": "n1"},
    "/v1/applies": {"fleet": "name: x", "fingerprints": {"hpc": "f"}},
    "/v1/adoptions": {"cluster": "hpc", "objects": [{"kind": "qos", "name": "made"}]},
    "/v1/leaves/plan": {"cluster": "hpc"},
    "/v1/leaves": {"cluster": "hpc"},
    "/v1/releases": {"cluster": "hpc"},
    "/v1/renders": {"fleet": "name: x", "cluster": "hpc"},
    "/v1/imports": {"cluster": "hpc"},
    "/v1/jobs": {"jobs": []},
    "/v1/jobs/dry-run": {
        "job": {}
    },  # told what is wrong with it: tests/integration/server/test_rights.py submits
    "/v1/jobs/cancel": {"jobs": ["8f3k"]},
    "/v1/jobs/hold": {"jobs": ["8f3k"]},
    "/v1/jobs/release": {"jobs": ["8f3k"]},
    "/v1/jobs/keep": {"jobs": ["8f3k"], "seconds": 3600},
    "/v1/jobs/{id}/change": {"gpus": 4},
    "/v1/jobs/{id}/counts": {"steps": 1000},
    "/v1/budget-raises": {"team": "nlp", "amount": "500", "reason": "a deadline"},
    "/v1/budget-raises/{number}/approve": {},
    "/v1/budget-raises/{number}/deny": {},
    "/v1/alerts": {
        "alerts": [
            {"status": "firing", "labels": {}, "startsAt": "2026-10-01T00:00:00Z", "fingerprint": "a1"}
        ]
    },
    "/v1/statements/{month}/close": {},
    "/v1/notices/rules": {"kinds": {"budget": "daily"}},
    "/v1/notices/test": {},
    "/v1/pools/{pool}/price-points": {"points": [{"at": "2026-10-01T00:00:00Z", "per_gpu_hour": "1.10"}]},
}


SIGN_IN: Final = {"/v1/logins": 409, "/v1/logins/redeem": 404}
"""What everybody hears who asks this server, which has no provider, to sign in: no such sign-in."""


def routes(app: FastAPI) -> set[tuple[str, str]]:
    found = set()
    for route in app.routes:
        assert isinstance(route, APIRoute), route
        found |= {(method, route.path_format) for method in route.methods or ()}
    return found


async def call(http: httpx2.AsyncClient, route: tuple[str, str], headers: dict[str, str]) -> httpx2.Response:
    method, path = route
    body = BODIES[path] if method in ("POST", "PUT") else None
    filled = path.replace("{name}", "nobody").replace("{number}", "1").replace("{id}", "8f3k")
    filled = filled.replace("{month}", "2026-10").replace("{pool}", "hpc-a100")
    return await http.request(method, filled, headers=headers, json=body)


def test_every_route_is_expected_and_none_is_missing(app: FastAPI) -> None:
    assert routes(app) == set(EXPECTED)


def test_declared_rules_are_the_expected_ones(app: FastAPI) -> None:
    for route in app.routes:
        assert isinstance(route, APIRoute)
        rule = rule_of(route)
        assert rule is not None
        for method in route.methods or ():
            assert rule.role == EXPECTED[method, route.path_format]


@pytest.mark.parametrize("role", list(Role))
async def test_matrix(app: FastAPI, http: httpx2.AsyncClient, ledger: Ledger, role: Role) -> None:
    await bearer(ledger, Role.ADMIN, "spare")
    headers = await bearer(ledger, role)
    for route in sorted(routes(app)):
        needed = EXPECTED[route]
        answer = await call(http, route, headers)
        if route in WHOLE_BILLS and role in (Role.MEMBER, Role.LEAD):
            assert (answer.status_code, answer.json()["code"]) == (403, "NotYourMoney")
        elif needed is None or role.may(needed):
            assert answer.status_code not in (401, 403), (route, role, answer.text)
            assert answer.status_code < 500, (route, role, answer.text)
        else:
            assert answer.status_code == 403, (route, role, answer.text)
            assert answer.json()["code"] == "RoleTooLow"
            assert f"--role {needed}" in answer.json()["hint"]
    # What was refused did not happen.
    made = {t.name for t in await ledger.tokens.all()}
    assert ("made" in made) == (role is Role.ADMIN)
    assert bool(await ledger.applies.page()) == role.may(Role.OPERATOR)


async def test_bad_credentials_open_nothing(app: FastAPI, http: httpx2.AsyncClient, ledger: Ledger) -> None:
    # So many are wrong here: tests/unit/web/auth/test_sign_in.py bounds them.
    app.state.token_limiter = WrongTokenLimiter(max_attempts=10_000)
    expired, revoked = new_secret(), new_secret()
    await ledger.tokens.create(
        "old", Role.ADMIN, hash_secret(expired), "test", datetime.now(UTC) - timedelta(seconds=1)
    )
    await ledger.tokens.create("gone", Role.ADMIN, hash_secret(revoked), "test")
    good = (await bearer(ledger, Role.ADMIN))["Authorization"]
    await ledger.tokens.revoke("gone")
    bad = {
        "none": {},
        "empty": {"Authorization": ""},
        "only the scheme": {"Authorization": "Bearer"},
        "another scheme": {"Authorization": good.replace("Bearer", "Basic")},
        "unknown": {"Authorization": f"Bearer {new_secret()}"},
        "cut short": {"Authorization": good[:-1]},
        "too long": {"Authorization": good + "x" * 4000},
        "other case": {"Authorization": good.swapcase()},
        "the hash itself": {"Authorization": f"Bearer {hash_secret(good.split()[1]).hex()}"},
        "not a letter": {"Authorization": "Bearer fw_\xff"},
        "expired": {"Authorization": f"Bearer {expired}"},
        "revoked": {"Authorization": f"Bearer {revoked}"},
    }
    for route in sorted(routes(app)):
        for name, headers in bad.items():
            answer = await http.request(
                route[0],
                route[1].replace("{name}", "gone").replace("{number}", "1"),
                headers=[(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
                json=BODIES[route[1]] if route[0] in ("POST", "PUT") else None,
            )
            if EXPECTED[route] is None:
                assert answer.status_code == SIGN_IN.get(route[1], 200), (route, name)
            else:
                assert answer.status_code == 401, (route, name, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["code"] in ("TokenMissing", "TokenNotValid")
    assert "made" not in {t.name for t in await ledger.tokens.all()}
    assert await ledger.applies.page() == ()


async def test_strangers_learn_nothing_about_their_request(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    for headers, status in (({}, 401), ({"Authorization": "Bearer fw_x"}, 401), (viewer, 403)):
        json = {**headers, "Content-Type": "application/json"}
        assert (await http.post("/v1/tokens", content=b"{", headers=json)).status_code == status
        assert (await http.post("/v1/tokens?limit=x", content=b"{", headers=json)).status_code == status
    assert (await http.get("/v1/nodes?limit=x")).status_code == 401


async def test_revoking_counts_at_once(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.VIEWER, "short")
    assert (await http.get("/v1/whoami", headers=headers)).status_code == 200
    await ledger.tokens.revoke("short")
    assert (await http.get("/v1/whoami", headers=headers)).status_code == 401


def test_an_app_with_a_route_without_a_rule_is_refused(app: FastAPI) -> None:
    require_rules(app)
    app.add_api_route("/v1/forgotten", lambda: None)
    with pytest.raises(FairwayError) as caught:
        require_rules(app)
    assert "/v1/forgotten" in caught.value.message


@pytest.mark.parametrize("how", ["mount", "router", "two rules", "docs"])
def test_what_cannot_be_checked_is_refused(how: str) -> None:
    app = FastAPI(openapi_url="/o.json" if how == "docs" else None)
    other = FastAPI(openapi_url=None)
    other.add_api_route("/x", lambda: None, dependencies=PUBLIC)
    match how:
        case "mount":
            app.mount("/m", other)
        case "router":
            app.include_router(other.router)
        case "two rules":
            app.add_api_route("/x", lambda: None, dependencies=[*PUBLIC, *allow(Role.ADMIN)])
    with pytest.raises(FairwayError, match="no access rule"):
        require_rules(app)


def test_secrets_are_long_random_and_kept_only_as_hashes() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(s.startswith("fw_") and len(s) == 3 + 43 for s in secrets)
    assert hash_secret("fw_a") == bytes.fromhex("".join(f"{b:02x}" for b in hash_secret("fw_a")))
    assert len(hash_secret("fw_a")) == 32


def test_roles_are_ordered() -> None:
    order = ["viewer", "member", "lead", "operator", "admin"]
    people = [role for role in Role if role is not Role.ALERTS]
    assert people == order
    for role in people:
        assert [needed for needed in people if role.may(needed)] == order[: order.index(role) + 1]


def test_alertmanagers_role_reports_alerts_and_nothing_else() -> None:
    assert [needed for needed in Role if Role.ALERTS.may(needed)] == [Role.ALERTS]
    assert [role for role in Role if role.may(Role.ALERTS)] == [Role.ALERTS, Role.ADMIN]
