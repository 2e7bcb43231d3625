"""The calls about the fleet, its tokens and its policy, for both clients: each verb is one of these, sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from fairway.client.http import Answer, Call, get, post
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.model.observation import Health
from fairway.wire import budgets as budget_wire
from fairway.wire import fleet as wire
from fairway.wire import policy as policy_wire

# The server looks at every cluster for as long as a minute, eight at a time.
_LOOKING: Final = httpx2.Timeout(600.0, connect=5.0)


def whoami() -> Call[wire.Whoami]:
    """Who the server takes this client for."""
    return get("/v1/whoami", wire.Whoami)


def clusters() -> Call[wire.Page[wire.Cluster]]:
    """Every cluster of the fleet."""
    return _list("/v1/clusters", wire.Page[wire.Cluster])


def pools(cluster: str | None) -> Call[wire.Page[wire.Pool]]:
    """Every pool of the fleet, or of one cluster."""
    return _list("/v1/pools", wire.Page[wire.Pool], cluster=cluster)


def nodes(cluster: str | None, pool: str | None, health: Health | None) -> Call[wire.Page[wire.Node]]:
    """Every node that fits."""
    return _list("/v1/nodes", wire.Page[wire.Node], cluster=cluster, pool=pool, health=health)


def tokens() -> Call[wire.Page[wire.Token]]:
    """Every token ever made."""
    return _list("/v1/tokens", wire.Page[wire.Token])


def create_token(
    name: str, role: Role, expires_in_seconds: int | None, user: str | None
) -> Call[wire.MadeToken]:
    """Make a token; the answer holds its secret."""
    try:
        new = wire.NewToken(name=name, role=role, user=user, expires_in_seconds=expires_in_seconds)
    except ValidationError as error:
        fault = error.errors()[0]
        raise PermanentError(
            "InvalidRequest", f"{fault['loc'][0]}: {fault['msg']}", "fairway token create --help"
        ) from error
    return post("/v1/tokens", new, wire.MadeToken)


def revoke_token(name: str) -> Call[wire.Token]:
    """End a token's life."""
    return Call("DELETE", f"/v1/tokens/{quote(name, safe='')}", wire.Token)


def plan(fleet: str, source: str, cluster: str | None) -> Call[policy_wire.Plan]:
    """What a fleet file would change."""
    asked = policy_wire.PlanRequest(fleet=fleet, source=source, cluster=cluster)
    return _look("/v1/plans", asked, policy_wire.Plan)


def apply(
    fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
) -> Call[policy_wire.Apply]:
    """Ask for a planned fleet to be made so."""
    asked = policy_wire.ApplyRequest(fleet=fleet, source=source, fingerprints=dict(fingerprints), force=force)
    return _look("/v1/applies", asked, policy_wire.Apply)


def adopt(cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> Call[policy_wire.Apply]:
    """Ask for Fairway's mark on these objects."""
    asked = policy_wire.AdoptionRequest(cluster=cluster, objects=list(objects))
    return _look("/v1/adoptions", asked, policy_wire.Apply)


def applies(cluster: str | None, most: int) -> Call[wire.Page[policy_wire.Apply]]:
    """The newest applies, of one cluster if it is named."""
    return _list("/v1/applies", wire.Page[policy_wire.Apply], most, cluster=cluster)


def apply_detail(number: int) -> Call[policy_wire.ApplyDetail]:
    """One apply with every change."""
    return get(f"/v1/applies/{number}", policy_wire.ApplyDetail)


def apply_progress(number: int) -> Call[policy_wire.Apply]:
    """One apply without its changes: cheap enough to ask twice a second."""
    return get(f"/v1/applies/{number}/progress", policy_wire.Apply)


def drift(cluster: str | None) -> Call[wire.Page[policy_wire.Drift]]:
    """Every difference between the clusters and what was last applied to them."""
    return _list("/v1/drift", wire.Page[policy_wire.Drift], cluster=cluster)


def budgets() -> Call[budget_wire.Budgets]:
    """How the budgets the caller may see stand."""
    return get("/v1/budgets", budget_wire.Budgets)


def teams() -> Call[wire.Page[policy_wire.Team]]:
    """The teams as last applied."""
    return _list("/v1/teams", wire.Page[policy_wire.Team])


def nudges(cluster: str | None, most: int) -> Call[wire.Page[policy_wire.Nudge]]:
    """The newest nudges, of one cluster if it is named."""
    return _list("/v1/nudges", wire.Page[policy_wire.Nudge], most, cluster=cluster)


def render(fleet: str, source: str, cluster: str) -> Call[policy_wire.Rendered]:
    """The files of an engine that Fairway does not write itself."""
    asked = policy_wire.RenderRequest(fleet=fleet, source=source, cluster=cluster)
    return _look("/v1/renders", asked, policy_wire.Rendered)


def import_policy(cluster: str) -> Call[policy_wire.Imported]:
    """An existing cluster as a fleet file."""
    return _look("/v1/imports", policy_wire.ImportRequest(cluster=cluster), policy_wire.Imported)


def _list(path: str, page: type[Answer], most: int = wire.MOST_PER_PAGE, **query: str | None) -> Call[Answer]:
    """The first page; none is larger than needed."""
    return get(path, page, [*query.items(), ("limit", min(most, wire.MOST_PER_PAGE))])


def _look(path: str, asked: BaseModel, answer: type[Answer]) -> Call[Answer]:
    return post(path, asked, answer, timeout=_LOOKING)
