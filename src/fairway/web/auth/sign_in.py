"""Sign in with a token, and sign out. OpenID Connect sign-in ends here too: see `oidc_pages`."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import token_of
from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE, PAGE_PUBLIC, cookie_name, form_of, from_here, is_secure, session_secret

REFUSED: Final = "This token is unknown, expired or revoked."
ELSEWHERE: Final = "This form came from another site. Sign in here instead."
_LONGEST_PATH: Final = 2000

log = structlog.get_logger("fairway.web")


def add_sign_in(site: PageContext) -> None:
    """Add the sign-in and sign-out routes."""
    app, ledger = site.app, site.ledger

    @app.get("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Show the sign-in page."""
        return ask(site, request, own_path(next))

    @app.post("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        """Sign in with a token."""
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
        """End the session in the ledger and remove the cookie."""
        await ledger.sessions.end(hash_secret(session_secret(request)))
        answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        take_cookie(request, answer, cookie_name(request))
        return answer


def ask(site: PageContext, request: Request, where: str, refused: str = "") -> Response:
    """Render the sign-in page, with the reason if a sign-in was refused."""
    known = {"next": where, "refused": refused, "oidc": site.settings.oidc_issuer is not None}
    status = HTTPStatus.UNAUTHORIZED if refused else HTTPStatus.OK
    return site.pages.show(request, "sign-in.html", known, status=status)


async def signed_in(
    site: PageContext,
    request: Request,
    where: str,
    *,
    token: Token | None,
    user: UserName,
    role: Role,
    issuer: str = "",
) -> Response:
    """Create a session and redirect to `where`.

    End the browser's previous session: one that was planted or stolen must be worthless afterwards.
    """
    ledger: Ledger = site.ledger
    before = session_secret(request)
    if before:
        await ledger.sessions.end(hash_secret(before))
    secret, seconds = secrets.token_urlsafe(32), site.settings.session_hours * 3600
    await ledger.sessions.create(
        hash_secret(secret), token=token, user=user, role=role, issuer=issuer, seconds=seconds
    )
    answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
    give_cookie(request, answer, cookie_name(request), secret, seconds)
    return answer


def give_cookie(request: Request, answer: Response, name: str, value: str, seconds: float) -> None:
    """Set a cookie that scripts cannot read and that forms of other sites do not send."""
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
    """Delete a cookie. The attributes must match, or browsers ignore it for `__Host-` names."""
    answer.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=is_secure(request))


def own_path(text: str) -> str:
    """Return `text` if it is a path on this server, else `/`: sign-in must not redirect to other sites."""
    plain = (
        text.startswith("/")
        and not text.startswith("//")
        and "\\" not in text
        and text.isprintable()
        and len(text) <= _LONGEST_PATH
    )
    return text if plain and not text.startswith(("/sign-in", "/sign-out", "/live")) else "/"
