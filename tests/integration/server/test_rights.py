"""Who may do what, asked of a real server: every role, every route, and jobs near and far.

The tables here are written by hand, from what the docs promise, and know nothing of the code that decides.
What the engines' own tools let people do with each other's jobs (scancel, scontrol hold, kubectl delete) is
played by the scenarios `isolation` and `access` in tests/scenarios, on real Slurm and Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.api_rights import ROUTES
from tests.integration.server_process import Server, temporary_home

ROLES = ("viewer", "member", "lead", "operator", "admin")

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: rights
currency: USD
clusters:
  lab: { engine: virtual }
pools:
  lab-a100:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    virtual: { nodes: 4, gpus_per_node: 8 }
teams:
  institute:
    guarantee: { lab-a100: 16 }
    budget: { amount: 90000, at_limit: stop }
    members: [upper]
    teams:
      research:
        guarantee: { lab-a100: 8 }
        budget: { amount: 50000, at_limit: stop }
        members: [mate, my-viewer, my-member, my-lead, my-operator, my-admin]
        teams:
          nlp:
            guarantee: { lab-a100: 4 }
            budget: { amount: 20000, at_limit: stop }
            members: [inner]
  product:
    guarantee: { lab-a100: 16 }
    budget: { amount: 70000, at_limit: stop }
    members: [bob]
"""

# Whose job it is, seen by somebody in research.
OWNERS = {"team": "mate", "inside": "inner", "above": "upper", "other": "bob"}
RELATIONS = ("own", *OWNERS)

# The least role that may, by whose job it is.
READ = {"own": "viewer", "team": "lead", "inside": "lead", "above": "operator", "other": "operator"}
CHANGE = {"own": "member", "team": "lead", "inside": "lead", "above": "operator", "other": "operator"}
SUBMIT_AS = {
    "own": "member",
    "team": "operator",
    "inside": "operator",
    "above": "operator",
    "other": "operator",
}

# The least role that may request and approve a raise of a team's budget, seen by somebody in research.
RAISED = {"team": "research", "inside": "nlp", "above": "institute", "other": "product"}
REQUEST_RAISE = {"team": "lead", "inside": "lead", "above": "operator", "other": "operator"}
APPROVE_RAISE = {"team": "operator", "inside": "lead", "above": "operator", "other": "operator"}


def allowed(role: str, least: str | None) -> bool:
    if "alerts" in (role, least):  # Alertmanager's role does this, and nothing else
        return least is None or (least == "alerts" and role in ("alerts", "admin"))
    return least is None or ROLES.index(role) >= ROLES.index(least)


class Api:
    """A server and a token for each role, all of people in research."""

    def __init__(self, url: str, admin: str) -> None:
        self.url = url
        self.clients: dict[str, httpx2.Client] = {}
        self.tokens = {"root": admin}
        for role in (*ROLES, "alerts"):
            body = {"name": f"t-{role}", "role": role, "user": f"my-{role}"}
            self.tokens[role] = self.ask("root", "POST", "/v1/tokens", 201, body)["secret"]

    def http(self, address: str = "127.0.0.1") -> httpx2.Client:
        """Return a client that the server sees at this loopback address."""
        if address not in self.clients:
            transport = httpx2.HTTPTransport(local_address=address)
            self.clients[address] = httpx2.Client(base_url=self.url, timeout=20, transport=transport)
        return self.clients[address]

    def send(
        self, token: str | None, method: str, path: str, body: object = None, *, address: str = "127.0.0.1"
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if token else {}
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        return self.http(address).request(method, path, headers=headers, content=content)

    def ask(self, token: str, method: str, path: str, status: int, body: object = None) -> Any:
        response = self.send(token, method, path, body)
        assert response.status_code == status, response.text
        return response.json()

    def submit(self, owner: str, count: int = 1) -> list[str]:
        """Held jobs of somebody's, so that they stay as they are."""
        jobs = [{"name": "quiet", "command": ["sleep", "1"]}] * count
        made = self.ask("root", "POST", "/v1/jobs", 201, {"jobs": jobs, "as": owner, "hold": True})
        return [job["id"] for job in made["jobs"]]

    def job(self, id: str) -> Any:  # noqa: A002
        return self.ask("root", "GET", f"/v1/jobs/{id}", 200)


@contextmanager
def serving() -> Iterator[tuple[Server, Api]]:
    """A server that the fleet was applied to; it stops without a fault."""
    with temporary_home() as home:
        file = home.folder / "fleet.yaml"
        file.write_text(FLEET)
        server = home.start("-f", str(file), "--listen", "127.0.0.1:0")
        applied = home.fairway("apply", "-f", str(file), "--yes")
        assert applied.returncode == 0, applied.stderr
        yield server, Api(server.url, home.token_file.read_text().strip())
        assert server.stop() == 0, server.log


@contextmanager
def serving_apart(database_url: str) -> Iterator[tuple[Server, Server, Api]]:
    """A server that looks after clusters, one that only answers, and its API; both stop without a fault."""
    given = {"FAIRWAY_DATABASE_URL": database_url}
    with temporary_home() as home:
        file = home.folder / "fleet.yaml"
        file.write_text(FLEET)
        at = ("--listen", "127.0.0.1:0")
        control = home.start("-f", str(file), *at, FAIRWAY_SERVE="loops", **given)
        given |= {"FAIRWAY_SERVE": "api", "FAIRWAY_MIGRATE": "no", "FAIRWAY_ENGINE_SERVER": control.url}
        server = home.start(*at, **given)
        applied = home.fairway("apply", "-f", str(file), "--yes")
        assert applied.returncode == 0, applied.stderr
        yield control, server, Api(server.url, home.token_file.read_text().strip())
        for process in (server, control):
            assert process.process.poll() is not None or process.stop() == 0, process.log
            assert "Traceback" not in process.log  # also: no engine was built where there are none


@pytest.fixture(scope="module", params=["one server", "servers apart"])
def api(request: pytest.FixtureRequest, make_database: Callable[[str | None], str]) -> Iterator[Api]:
    if request.param == "one server":
        with serving() as (_, made):
            yield made
    else:
        with serving_apart(make_database(None)) as (_, _, made):
            yield made


def owner_of(role: str, relation: str) -> str:
    return f"my-{role}" if relation == "own" else OWNERS[relation]


def test_every_route_is_in_the_table(api: Api) -> None:
    paths = api.http().get("/openapi.json").json()["paths"]
    found = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert found == set(ROUTES)


@pytest.mark.parametrize("role", [None, "alerts", *ROLES])
def test_routes_by_role(api: Api, role: str | None) -> None:
    wrong = []
    for route, least in ROUTES.items():
        method, _, path = route.partition(" ")
        path = path.format(number="1", id="zzzz", name="nobody", month="2026-10", pool="nothing")
        response = api.send(role, method, path, {} if method in ("POST", "PUT") else None)
        if role is None:
            right = (response.status_code == 401) == (least is not None)
        else:
            refused = response.status_code == 403 and response.json()["code"] == "RoleTooLow"
            right = refused is not allowed(role, least)
        if not right:
            wrong.append((route, response.status_code, response.text))
    assert not wrong


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("role", ROLES)
def test_looking_and_reading(api: Api, role: str, relation: str) -> None:
    (job,) = api.submit(owner_of(role, relation))
    may = allowed(role, READ[relation])
    seen = api.ask(role, "GET", f"/v1/jobs/{job}", 200)  # that it is there, everybody may know
    assert (seen["spec"] is not None) is may
    assert bool(seen["spec_note"]) is not may
    assert job in [j["id"] for j in api.ask(role, "GET", "/v1/jobs?limit=500", 200)["items"]]
    log = api.send(role, "GET", f"/v1/jobs/{job}/log")
    assert log.status_code == (200 if may else 403), log.text
    if not may:
        assert log.json()["code"] == "NotYourJob"


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("role", ROLES)
def test_changing(api: Api, role: str, relation: str, verb: str) -> None:
    (job,) = api.submit(owner_of(role, relation))
    if verb == "hold":
        api.ask("root", "POST", "/v1/jobs/release", 200, {"jobs": [job]})
    before = api.job(job)["desired_state"]
    answer = api.send(role, "POST", f"/v1/jobs/{verb}", {"jobs": [job]})
    wanted = {"cancel": "cancel", "hold": "hold", "release": "run"}[verb]
    if allowed(role, CHANGE[relation]):
        assert answer.status_code == 200, answer.text
        assert answer.json()["changed"] == [job]
        assert api.job(job)["desired_state"] == wanted
    else:
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] in ("NotYourJob", "RoleTooLow")
        assert api.job(job)["desired_state"] == before


@pytest.mark.parametrize("relation", RAISED)
@pytest.mark.parametrize("role", ROLES)
def test_raises_of_budgets(api: Api, role: str, relation: str) -> None:
    wanted = {"team": RAISED[relation], "amount": "10", "reason": f"{role} {relation}"}
    answer = api.send(role, "POST", "/v1/budget-raises", wanted)
    if allowed(role, REQUEST_RAISE[relation]):
        assert answer.status_code == 201, answer.text
        own = answer.json()["id"]
        if not allowed(role, "operator"):  # nobody else approves what they requested
            refused = api.send(role, "POST", f"/v1/budget-raises/{own}/approve", {})
            assert (refused.status_code, refused.json()["code"]) == (403, "CannotDecideRaise")
        api.ask(role, "POST", f"/v1/budget-raises/{own}/deny", 200, {})  # withdrawn
    else:
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] in ("NotYourTeam", "RoleTooLow")
    theirs = api.ask("root", "POST", "/v1/budget-raises", 201, wanted)["id"]
    for verb in ("deny", "approve") if not allowed(role, APPROVE_RAISE[relation]) else ("approve",):
        decided = api.send(role, "POST", f"/v1/budget-raises/{theirs}/{verb}", {})
        if allowed(role, APPROVE_RAISE[relation]):
            assert decided.status_code == 200, decided.text
        else:
            assert decided.status_code in (403, 404), decided.text
            assert decided.json()["code"] in ("CannotDecideRaise", "NoSuchRaise", "RoleTooLow")
    if not allowed(role, APPROVE_RAISE[relation]):
        api.ask("root", "POST", f"/v1/budget-raises/{theirs}/deny", 200, {})


def test_all_or_nothing(api: Api) -> None:
    (mine,), (theirs,) = api.submit("my-member"), api.submit("bob")
    refused = api.send("member", "POST", "/v1/jobs/cancel", {"jobs": [mine, theirs]})
    assert refused.status_code == 403
    assert theirs in refused.json()["detail"]
    assert mine not in refused.json()["detail"]
    missing = api.send("member", "POST", "/v1/jobs/cancel", {"jobs": [mine, "zzzz", "what?"]})
    assert missing.status_code == 404
    assert missing.json()["code"] == "NoSuchJob"
    assert "zzzz, what?" in missing.json()["detail"]
    assert api.job(mine)["desired_state"] == "hold"


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/jobs/dry-run"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("role", ROLES)
def test_submitting_as_somebody(api: Api, role: str, relation: str, route: str) -> None:
    spec = {"name": "theirs", "command": ["true"]}
    body: dict[str, Any] = {"as": owner_of(role, relation)}
    body |= {"job": spec} if route.endswith("dry-run") else {"jobs": [spec], "hold": True}
    answer = api.send(role, "POST", route, body)
    if allowed(role, SUBMIT_AS[relation]):
        assert answer.status_code in (200, 201), answer.text
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "RoleTooLow"), answer.text


@pytest.mark.parametrize("team", ["nlp", "institute", "product"])
@pytest.mark.parametrize("role", ROLES[1:])
def test_nobody_submits_for_a_team_they_are_no_member_of(api: Api, role: str, team: str) -> None:
    body = {"jobs": [{"name": "strange", "command": ["true"], "team": team}]}
    answer = api.send(role, "POST", "/v1/jobs", body)
    assert (answer.status_code, answer.json()["code"]) == (403, "NotAMember"), answer.text
    assert answer.json()["hint"]


def test_a_token_without_a_user_is_the_user_of_its_name(api: Api) -> None:
    secret = api.ask("root", "POST", "/v1/tokens", 201, {"name": "bob", "role": "member"})["secret"]
    api.tokens["bob"] = secret
    assert api.ask("bob", "GET", "/v1/whoami", 200)["user"] == "bob"
    (job,) = api.submit("bob")
    assert api.ask("bob", "POST", "/v1/jobs/cancel", 200, {"jobs": [job]})["changed"] == [job]


def test_a_revoked_token_may_nothing(api: Api) -> None:
    secret = api.ask("root", "POST", "/v1/tokens", 201, {"name": "gone", "role": "admin"})["secret"]
    api.tokens["gone"] = secret
    api.ask("root", "DELETE", "/v1/tokens/gone", 200)
    for n, (route, least) in enumerate(ROUTES.items()):
        method, _, path = route.partition(" ")
        path = path.format(number="1", id="zzzz", name="nobody", month="2026-10", pool="nothing")
        # After 60 wrong tokens of one address the server refuses all others of it: come from several.
        address = f"127.0.0.{2 + n // 40}"
        body: object = {} if method in ("POST", "PUT") else None
        status = api.send("gone", method, path, body, address=address).status_code
        assert (status == 401) is (least is not None), route
