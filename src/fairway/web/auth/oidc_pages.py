"""The routes of OpenID Connect sign-in: redirect to the provider, and callback."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.model.access import Role
from fairway.web.auth import oidc_flow
from fairway.web.auth.oidc_flow import OidcError
from fairway.web.auth.oidc_provider import Provider, client_of
from fairway.web.auth.sign_in import delete_cookie, local_path, set_cookie, start_session
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE_PUBLIC, cookie_name, error_page

CALLBACK_PATH: Final = "/sign-in/oidc/back"
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
    async def redirect_to_provider(request: Request, next: str = "/") -> Response:  # noqa: A002 - the word in the address
        """Redirect to the provider."""
        attempt = oidc_flow.SignInAttempt(secrets.token_urlsafe(32), local_path(next))
        try:
            metadata = await provider.metadata()
        except OidcError as fault:
            return _failed(request, fault)
        scopes = oidc_flow.scopes_of(metadata, settings.oidc_groups_claim)
        url = oidc_flow.authorization_url(
            metadata["authorization_endpoint"], client.id, _redirect_uri(request), scopes, attempt
        )
        response = RedirectResponse(url, HTTPStatus.SEE_OTHER)
        set_cookie(request, response, cookie_name(request, _COOKIE), attempt.as_cookie(), ATTEMPT_SECONDS)
        return response

    @app.get(CALLBACK_PATH, dependencies=PAGE_PUBLIC, include_in_schema=False)
    async def handle_callback(request: Request) -> Response:
        """Handle the provider's callback and create a session."""
        attempt = oidc_flow.decode_attempt(request.cookies.get(cookie_name(request, _COOKIE), ""))
        try:
            metadata = await provider.metadata()
            names_issuer = metadata.get("authorization_response_iss_parameter_supported") is True
            code = oidc_flow.code_of(
                request.query_params, attempt, metadata["issuer"], names_issuer=names_issuer
            )
            assert attempt is not None  # noqa: S101 - `code_of` refused it otherwise
            claim_names = (settings.oidc_user_claim, settings.oidc_groups_claim)
            claims = await provider.claims(code, attempt, _redirect_uri(request), *claim_names)
            default = None if settings.oidc_default_role == "none" else Role(settings.oidc_default_role)
            identity = oidc_flow.identity_of(claims, *claim_names, settings.oidc_roles, default)
        except OidcError as fault:
            response = _failed(request, fault)
        else:
            user, role, subject = identity.user, identity.role, str(claims["sub"])[:80]
            log.info("signed in", user=user, role=role, by="oidc", subject=subject)
            path, issuer = local_path(attempt.next), metadata["issuer"]
            response = await start_session(
                site, request, path, token=None, user=user, role=role, issuer=issuer
            )
        delete_cookie(request, response, cookie_name(request, _COOKIE))  # an attempt can be used once
        return response


def _redirect_uri(request: Request) -> str:
    """Return the redirect URI; it must be registered with the provider exactly so."""
    public: str | None = request.app.state.public_url
    return f"{public or f'{request.url.scheme}://{request.url.netloc}'}{CALLBACK_PATH}"


def _failed(request: Request, fault: OidcError) -> Response:
    log.warning("sign-in failed", code=fault.code, message=fault.message, why=fault.why)
    return error_page(request, fault)
