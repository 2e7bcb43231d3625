"""The routes of OpenID Connect sign-in: redirect to the provider, and callback."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.web.auth.oidc_flow import (
    OidcFault,
    SignInAttempt,
    attempt_of,
    authorization_url,
    code_of,
    person_of,
    scopes_of,
)
from fairway.web.auth.oidc_provider import Provider, client_of
from fairway.web.auth.sign_in import give_cookie, own_path, signed_in, take_cookie
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE_PUBLIC, cookie_name, error_page

BACK: Final = "/sign-in/oidc/back"
ATTEMPT_SECONDS: Final = 600
"""How long a user may take at the provider."""
_COOKIE: Final = "fairway_oidc"

log = structlog.get_logger("fairway.web")


def add_oidc(site: PageContext) -> None:
    """Add the routes. Does nothing if no provider is configured."""
    client = client_of(site.settings)
    if client is None:
        return
    app, settings, provider = site.app, site.settings, Provider(client)

    @app.get("/sign-in/oidc", dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def begin(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Redirect to the provider."""
        attempt = SignInAttempt(secrets.token_urlsafe(32), own_path(next))
        try:
            metadata = await provider.metadata()
        except OidcFault as fault:
            return _failed(request, fault)
        scopes = scopes_of(metadata, settings.oidc_groups_claim)
        where = authorization_url(
            metadata["authorization_endpoint"], client.id, _redirect_uri(request), scopes, attempt
        )
        answer = RedirectResponse(where, HTTPStatus.SEE_OTHER)
        give_cookie(request, answer, cookie_name(request, _COOKIE), attempt.as_cookie(), ATTEMPT_SECONDS)
        return answer

    @app.get(BACK, dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def come_back(request: Request) -> Response:
        """Handle the provider's callback and create a session."""
        attempt = attempt_of(request.cookies.get(cookie_name(request, _COOKIE), ""))
        try:
            metadata = await provider.metadata()
            named = metadata.get("authorization_response_iss_parameter_supported") is True
            code = code_of(request.query_params, attempt, metadata["issuer"], names_issuer=named)
            assert attempt is not None  # noqa: S101 - `code_of` refused it otherwise
            wanted = (settings.oidc_user_claim, settings.oidc_groups_claim)
            claims = await provider.claims(code, attempt, _redirect_uri(request), *wanted)
            person = person_of(claims, *wanted, settings.oidc_roles)
        except OidcFault as fault:
            answer = _failed(request, fault)
        else:
            log.info(
                "signed in", user=person.user, role=person.role, by="oidc", subject=str(claims["sub"])[:80]
            )
            answer = await signed_in(
                site,
                request,
                own_path(attempt.next),
                token=None,
                user=person.user,
                role=person.role,
                issuer=metadata["issuer"],
            )
        take_cookie(request, answer, cookie_name(request, _COOKIE))  # once, whatever came of it
        return answer


def _redirect_uri(request: Request) -> str:
    """Return the redirect URI; it must be registered with the provider exactly so."""
    public: str | None = request.app.state.public_url
    return f"{public or f'{request.url.scheme}://{request.url.netloc}'}{BACK}"


def _failed(request: Request, fault: OidcFault) -> Response:
    log.warning("sign-in failed", code=fault.code, message=fault.message, why=fault.why)
    return error_page(request, fault)
