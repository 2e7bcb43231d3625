"""Who may open what: every page with no session, and with each role."""

from __future__ import annotations

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from fairway.api.auth import rule_of
from fairway.model.access import Role
from fairway.web.sessions import PageRoute
from tests.unit.web.conftest import SignIn


def pages(app: FastAPI) -> list[tuple[str, PageRoute]]:
    """Method and route of every page; parameters in its path are filled with something harmless."""
    found = [
        (method, route)
        for route in app.routes
        if isinstance(route, PageRoute)
        for method in route.methods or ()
    ]
    assert found
    return found


def filled(route: APIRoute) -> str:
    """The route's path with words for its parameters."""
    return route.path.format(**dict.fromkeys(route.param_convertors, "nothing"))


async def test_a_stranger_is_sent_to_sign_in(app: FastAPI, stranger: httpx2.AsyncClient) -> None:
    for method, route in pages(app):
        rule = rule_of(route)
        assert rule is not None
        if rule.role is None:
            continue
        answer = await stranger.request(method, filled(route))
        assert answer.status_code == 303, (method, route.path)
        assert answer.headers["location"].startswith("/sign-in"), (method, route.path)


@pytest.mark.parametrize("role", list(Role))
async def test_every_page_with_every_role(app: FastAPI, sign_in: SignIn, role: Role) -> None:
    client = await sign_in(role)
    for method, route in pages(app):
        rule = rule_of(route)
        assert rule is not None
        if rule.role is None or method not in ("GET", "HEAD") or route.path == "/live":
            continue
        answer = await client.request(method, filled(route))
        if role.may(rule.role):
            assert answer.status_code < 500 and answer.status_code != 401, (method, route.path, answer.text)
        else:
            assert answer.status_code == 403, (method, route.path)
            assert "RoleTooLow" in answer.text


@pytest.mark.parametrize("role", list(Role))
async def test_nothing_is_changed_without_the_forms_secret(app: FastAPI, sign_in: SignIn, role: Role) -> None:
    client = await sign_in(role)
    for method, route in pages(app):
        rule = rule_of(route)
        if rule is None or rule.role is None or method in ("GET", "HEAD"):
            continue
        answer = await client.request(method, filled(route))
        assert answer.status_code == 403, (method, route.path)
        assert "NotFromHere" in answer.text, (method, route.path)
