"""Signing in by a token, and out again. Signing in by OpenID Connect ends here too: see `oidc_pages`."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.access import hash_secret, token_of
from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.web.rules import PAGE, PAGE_PUBLIC, cookie_name, form_of, from_here, is_secure, session_secret
from fairway.web.site import Site

REFUSED: Final = "This token is unknown, expired or revoked."
ELSEWHERE: Final = "This form came from another site. Sign in here instead."
_LONGEST_PATH: Final = 2000

log = structlog.get_logger("fairway.web")


def add_sign_in(site: Site) -> None:
    """The pages that everybody may see."""
    app, ledger = site.app, site.ledger

    @app.get("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Ask who it is."""
        return ask(site, request, own_path(next))

    @app.post("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        """By a token."""
        form = await form_of(request)
        where = own_path(form.get("next", "/"))
        if not from_here(request):
            return ask(site, request, where, ELSEWHERE)
        found = await token_of(request, form.get("token", "").strip())
        if found is None:
            return ask(site, request, where, REFUSED)
        log.info("signed in", user=found.user, role=found.role, by="token", token=found.name)
        return await signed_in(site, request, where, token=found, user=found.user, role=found.role)

    @app.post("/sign-out", dependencies=PAGE, include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        """End the session, here and in the browser."""
        await ledger.end_session(hash_secret(session_secret(request)))
        answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        take_cookie(request, answer, cookie_name(request))
        return answer


def ask(site: Site, request: Request, where: str, refused: str = "") -> Response:
    """The sign-in page, with why it is shown again."""
    known = {"next": where, "refused": refused, "oidc": site.settings.oidc_issuer is not None}
    status = HTTPStatus.UNAUTHORIZED if refused else HTTPStatus.OK
    return site.pages.show(request, "sign-in.html", known, status=status)


async def signed_in(
    site: Site,
    request: Request,
    where: str,
    *,
    token: Token | None,
    user: UserName,
    role: Role,
    issuer: str = "",
) -> Response:
    """A new session, and on to where they wanted to go. One the browser had before ends: what somebody may
    have planted there or read from there is worth nothing afterwards."""
    ledger: Ledger = site.ledger
    before = session_secret(request)
    if before:
        await ledger.end_session(hash_secret(before))
    secret, seconds = secrets.token_urlsafe(32), site.settings.session_hours * 3600
    await ledger.create_session(
        hash_secret(secret), token=token, user=user, role=role, issuer=issuer, seconds=seconds
    )
    answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
    give_cookie(request, answer, cookie_name(request), secret, seconds)
    return answer


def give_cookie(request: Request, answer: Response, name: str, value: str, seconds: float) -> None:
    """A cookie that scripts cannot read and other sites' forms do not carry."""
    answer.set_cookie(
        name,
        value,
        max_age=max(1, int(seconds)),
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )


def take_cookie(request: Request, answer: Response, name: str) -> None:
    """Have the browser forget it. It ignores this for `__Host-` names unless it looks as it was given."""
    answer.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=is_secure(request))


def own_path(text: str) -> str:
    """A path on this server, whatever was asked for: nobody is sent elsewhere after signing in."""
    plain = (
        text.startswith("/")
        and not text.startswith("//")
        and "\\" not in text
        and text.isprintable()
        and len(text) <= _LONGEST_PATH
    )
    return text if plain and not text.startswith(("/sign-in", "/sign-out", "/live")) else "/"
