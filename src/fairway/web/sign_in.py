"""Signing in and out: by a token, later also by OpenID Connect."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.responses import RedirectResponse

from fairway.api.access import hash_secret
from fairway.ledger import Ledger, Token
from fairway.settings import Settings
from fairway.web.pages import Pages
from fairway.web.rules import COOKIE, PAGE, PAGE_PUBLIC, form_of, from_here


def add_sign_in(app: FastAPI, ledger: Ledger, pages: Pages, settings: Settings) -> None:
    """The pages that everybody may see."""

    @app.get("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Ask who it is."""
        return pages.show(request, "sign-in.html", {"next": own_path(next), "refused": ""})

    @app.post("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        """By a token."""
        form = await form_of(request)
        where = own_path(form.get("next", "/"))
        found = await ledger.token_by_hash(hash_secret(form.get("token", "").strip()))
        if found is None or not from_here(request):
            known = {"next": where, "refused": "This token is unknown, expired or revoked."}
            return pages.show(request, "sign-in.html", known, status=HTTPStatus.UNAUTHORIZED)
        return await signed_in(request, ledger, settings, found, where)

    @app.post("/sign-out", dependencies=PAGE, include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        """End the session."""
        await ledger.end_session(hash_secret(request.cookies[COOKIE]))
        answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(COOKIE, path="/")
        return answer


async def signed_in(
    request: Request, ledger: Ledger, settings: Settings, token: Token, where: str
) -> Response:
    """A session for whoever has this token, and on to where they wanted to go."""
    secret, seconds = secrets.token_urlsafe(32), settings.session_hours * 3600
    await ledger.create_session(
        hash_secret(secret), token=token, user=token.user, role=token.role, seconds=seconds
    )
    answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=int(seconds),
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https" or (settings.public_url or "").startswith("https:"),
    )
    return answer


def own_path(text: str) -> str:
    """A path on this server, whatever was asked for: nobody is sent elsewhere after signing in."""
    plain = (
        text.startswith("/")
        and not text.startswith(("//", "/\\"))
        and "\\" not in text
        and text.isprintable()
    )
    return text if plain else "/"
