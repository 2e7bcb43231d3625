"""Authorize page requests: the API's rules, with a session cookie instead of a bearer token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends as DependsParam
from starlette.responses import RedirectResponse

from fairway.api.auth import AccessRule, GuardedRoute, limiter_of
from fairway.api.load import RequestKind
from fairway.api.problems import ApiError, as_api_error
from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.services.errors import RequestError
from fairway.services.tokens import hash_secret

COOKIE: Final = "fairway_session"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_SECRET_LENGTH: Final = 128


class NotSignedIn(ApiError):
    """There is no session, or it has ended: the page redirects to sign-in instead of refusing."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.UNAUTHORIZED, "NotSignedIn", "you are not signed in", "sign in at /sign-in"
        )


class PageRule(AccessRule):
    """The API's rule for pages; requests that change something must also pass the CSRF check."""

    async def identify(self, request: Request) -> Token:
        secret = session_secret(request)
        caller = await session_caller(request)
        if caller is None:
            raise NotSignedIn
        if request.method not in _SAFE:
            await check_csrf(request, secret)
        request.state.csrf = csrf_of(secret)
        return caller

    def credentials_of(self, request: Request) -> Mapping[str, str]:
        """Return the session, by both names: browsers may use https here and the other server none.

        Where the request came from was checked here, by headers that mean nothing to the other server.
        """
        secret = session_secret(request)
        return {"Cookie": f"{COOKIE}={secret}; __Host-{COOKIE}={secret}", CSRF_HEADER: csrf_of(secret)}


def is_secure(request: Request) -> bool:
    """Return whether browsers use https, to this server or to a proxy in front of it.

    The proxy's header is believed: it can only make a cookie stricter, for the one who sends it.
    """
    public: str | None = request.app.state.public_url
    if public:
        return public.startswith("https:")
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower())


def cookie_name(request: Request, name: str = COOKIE) -> str:
    """Return the cookie's name; with https prefixed by `__Host-`, so that no sibling domain can set it."""
    return f"__Host-{name}" if is_secure(request) else name


def session_secret(request: Request) -> str:
    """Return the session secret in the cookie. Returns an empty string if there is none or it is too long."""
    secret = request.cookies.get(cookie_name(request), "")
    return secret if len(secret) <= _MAX_SECRET_LENGTH else ""


async def session_caller(request: Request) -> Token | None:
    """Return the signed-in caller. Returns None if there is no valid session."""
    secret = session_secret(request)
    if not secret:
        return None
    ledger: Ledger = request.app.state.ledger
    limiter = limiter_of(request)
    digest = hash_secret(secret)
    async with limiter.looking_up(digest):
        caller = await ledger.sessions.caller(digest)
    if caller is not None:
        limiter.record_valid(digest)
    return caller


def csrf_of(secret: str) -> str:
    """Derive the CSRF token of a session: it cannot be computed without the cookie."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


async def check_csrf(request: Request, secret: str) -> None:
    """Raise ApiError unless the request has the session's CSRF token and comes from this site."""
    token = request.headers.get(CSRF_HEADER) or (await form_of(request)).get(CSRF_FIELD, "")
    if not hmac.compare_digest(token.encode(), csrf_of(secret).encode()) or not same_site(request):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "NotFromHere",
            "this did not come from one of Fairway's own pages, or the page is from before you signed in",
            "load the page again and repeat it",
        )


def same_site(request: Request) -> bool:
    """Return whether the browser's headers say that the request comes from this site.

    A request without such headers passes: the CSRF token is the actual protection.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    public: str | None = request.app.state.public_url
    own_hosts = {request.headers.get("host"), urlsplit(public).netloc if public else None}
    return origin is None or urlsplit(origin).netloc in own_hosts


async def form_of(request: Request) -> dict[str, str]:
    """Parse a posted form; of repeated fields, the last counts. The middleware limits its size."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "FormTooLong", "the form has too many fields", "load the page again"
        ) from None
    return {name: values[-1] for name, values in fields.items()}


def page_allow(
    role: Role | None, *, max_body_bytes: int | None = None, kind: RequestKind | None = None
) -> Sequence[DependsParam]:
    """Return the `dependencies=` of a page."""
    return [DependsParam(PageRule(role, max_body_bytes, kind))]


PAGE_PUBLIC: Final = page_allow(None)
PAGE_UNLIMITED: Final = page_allow(None, kind=RequestKind.UNLIMITED)
PAGE: Final = page_allow(Role.VIEWER)
"""Every signed-in user; the page itself decides what they may see, as the API does."""
REPORT_PAGE: Final = page_allow(Role.VIEWER, kind=RequestKind.REPORT)
ENGINE_PAGE: Final = page_allow(Role.VIEWER, kind=RequestKind.ENGINE)
"""Pages that ask an engine."""
PAGE_MEMBER: Final = page_allow(Role.MEMBER)
PAGE_OPERATOR: Final = page_allow(Role.OPERATOR)
PAGE_OPERATOR_UNLIMITED: Final = page_allow(Role.OPERATOR, kind=RequestKind.UNLIMITED)


class PageRoute(GuardedRoute):
    """A route that renders errors as pages, and redirects to sign-in without a session."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def render_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except NotSignedIn:
                return to_sign_in(request)
            except (ApiError, RequestError) as error:
                return error_page(request, as_api_error(error))
            except Exception as error:
                api_error = as_api_error(error)
                if api_error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise  # the middleware logs it, and responds with a page
                return error_page(request, api_error)

        return render_errors


def to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which returns here afterwards."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    returns = request.method in _SAFE and here not in ("/", "/live")
    url = f"/sign-in?next={quote(here, safe='')}" if returns else "/sign-in"
    if request.headers.get("hx-request"):  # htmx follows a plain redirect inside the part it asked for
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"HX-Redirect": url})
    return RedirectResponse(url, HTTPStatus.SEE_OTHER)


def error_page(request: Request, error: ApiError) -> Response:
    """Render an error as a page with a hint."""
    app: FastAPI = request.app
    response: Response = app.state.pages.error(request, error)
    return response


async def error_page_with_navigation(request: Request, error: ApiError) -> Response:
    """Render an error of a request that matched no route, looking up the caller first."""
    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR and not hasattr(request.state, "caller"):
        caller = await session_caller(request)
        if caller is not None:
            request.state.caller, request.state.csrf = caller, csrf_of(session_secret(request))
    return error_page(request, error)
