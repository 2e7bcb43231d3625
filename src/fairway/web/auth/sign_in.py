"""Sign in with a token, and sign out. OpenID Connect sign-in ends here too: see `oidc_pages`."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import find_token
from fairway.ledger import Token
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE, PAGE_PUBLIC, cookie_name, form_of, is_secure, same_site, session_secret

REFUSED: Final = "This token is unknown, expired or revoked."
FROM_OTHER_SITE: Final = "This form came from another site. Sign in here instead."
_MAX_PATH_LENGTH: Final = 2000

log = structlog.get_logger("fairway.web")


def add_sign_in(site: PageContext) -> None:
    """Add the sign-in and sign-out routes."""
    app = site.app

    @app.get("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Show the sign-in page."""
        return sign_in_page(site, request, local_path(next))

    @app.post("/sign-in", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        """Sign in with a token."""
        form = await form_of(request)
        path = local_path(form.get("next", "/"))
        if not same_site(request):
            return sign_in_page(site, request, path, FROM_OTHER_SITE)
        token = await find_token(request, form.get("token", "").strip())
        if token is None:
            return sign_in_page(site, request, path, REFUSED)
        log.info("signed in", user=token.user, role=token.role, by="token", token=token.name)
        return await start_session(site, request, path, token=token, user=token.user, role=token.role)

    @app.post("/sign-out", dependencies=PAGE, include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        """End the session in the ledger and remove the cookie."""
        await site.ledger.sessions.end(hash_secret(session_secret(request)))
        response = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        delete_cookie(request, response, cookie_name(request))
        return response


def sign_in_page(site: PageContext, request: Request, path: str, refused: str = "") -> Response:
    """Render the sign-in page, with the reason if a sign-in was refused."""
    values = {"next": path, "refused": refused, "oidc": site.settings.oidc_issuer is not None}
    status = HTTPStatus.UNAUTHORIZED if refused else HTTPStatus.OK
    return site.pages.show(request, "sign-in.html", values, status=status)


async def start_session(
    site: PageContext,
    request: Request,
    path: str,
    *,
    token: Token | None,
    user: UserName,
    role: Role,
    issuer: str = "",
) -> Response:
    """Create a session and redirect to `path`.

    End the browser's previous session: one that was planted or stolen must be worthless afterwards.
    """
    if previous := session_secret(request):
        await site.ledger.sessions.end(hash_secret(previous))
    secret, seconds = secrets.token_urlsafe(32), site.settings.session_hours * 3600
    await site.ledger.sessions.create(
        hash_secret(secret), token=token, user=user, role=role, issuer=issuer, seconds=seconds
    )
    response = RedirectResponse(path, HTTPStatus.SEE_OTHER)
    set_cookie(request, response, cookie_name(request), secret, seconds)
    return response


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: float) -> None:
    """Set a cookie that scripts cannot read and that forms of other sites do not send."""
    response.set_cookie(
        name,
        value,
        max_age=max(1, int(seconds)),
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie. The attributes must match, or browsers ignore it for `__Host-` names."""
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=is_secure(request))


def local_path(text: str) -> str:
    """Return `text` if it is a path on this server, else `/`: sign-in must not redirect to other sites."""
    is_path = (
        text.startswith("/")
        and not text.startswith("//")
        and "\\" not in text
        and text.isprintable()
        and len(text) <= _MAX_PATH_LENGTH
    )
    return text if is_path and not text.startswith(("/sign-in", "/sign-out", "/live")) else "/"
