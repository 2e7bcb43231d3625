"""Who may open a page: the API's rules, with a session's cookie instead of a token in a header."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends as DependsParam
from starlette.responses import RedirectResponse

from fairway.api.access import GuardedRoute, Rule, hash_secret
from fairway.api.problems import ApiError, as_api_error
from fairway.ledger import Ledger, Token
from fairway.model.access import Role

COOKIE: Final = "fairway_session"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf"
_SAFE: Final = frozenset({"GET", "HEAD"})
_LONGEST_SECRET: Final = 128


class NotSignedIn(ApiError):
    """There is no session, or it ended: the page asks to sign in instead of refusing."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.UNAUTHORIZED, "NotSignedIn", "you are not signed in", "sign in at /sign-in"
        )


class PageRule(Rule):
    """As the API's rules; what changes something must also come from one of our own pages."""

    async def identify(self, request: Request) -> Token:
        secret = session_secret(request)
        caller = await session_caller(request)
        if caller is None:
            raise NotSignedIn
        if request.method not in _SAFE:
            await check_csrf(request, secret)
        request.state.csrf = csrf_of(secret)
        return caller


def is_secure(request: Request) -> bool:
    """Whether browsers reach us by https, here or at what is in front of us."""
    public: str | None = request.app.state.public_url
    return public.startswith("https:") if public else request.url.scheme == "https"


def cookie_name(request: Request, name: str = COOKIE) -> str:
    """By https no neighbour under the same domain can plant a cookie of this name: browsers see to it."""
    return f"__Host-{name}" if is_secure(request) else name


def session_secret(request: Request) -> str:
    """What the browser shows; empty: nothing that could be a session."""
    given = request.cookies.get(cookie_name(request), "")
    return given if len(given) <= _LONGEST_SECRET else ""


async def session_caller(request: Request) -> Token | None:
    """Who signed in, if somebody did."""
    secret = session_secret(request)
    ledger: Ledger = request.app.state.ledger
    return await ledger.session_caller(hash_secret(secret)) if secret else None


def csrf_of(secret: str) -> str:
    """What a form of this session carries: nobody who does not have the cookie can know it."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


async def check_csrf(request: Request, secret: str) -> None:
    """Raise ApiError unless a page of ours sent this."""
    given = request.headers.get(CSRF_HEADER) or (await form_of(request)).get(CSRF_FIELD, "")
    if not hmac.compare_digest(given.encode(), csrf_of(secret).encode()) or not from_here(request):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "NotFromHere",
            "this did not come from one of Fairway's own pages, or the page is from before you signed in",
            "load the page again and repeat it",
        )


def from_here(request: Request) -> bool:
    """Whether the browser says that the request comes from our own pages. One that says nothing is let pass:
    the form's secret is what counts."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    public: str | None = request.app.state.public_url
    own = {request.headers.get("host"), urlsplit(public).netloc if public else None}
    return origin is None or urlsplit(origin).netloc in own


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a posted form, each once. The edge bounds its size."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "FormTooLong", "the form has too many fields", "load the page again"
        ) from None
    return {name: values[-1] for name, values in fields.items()}


def page_allow(role: Role | None, *, most_body_bytes: int | None = None) -> Sequence[DependsParam]:
    """The `dependencies=` of a page."""
    return [DependsParam(PageRule(role, most_body_bytes))]


PAGE_PUBLIC: Final = page_allow(None)
PAGE: Final = page_allow(Role.VIEWER)
"""Everybody who signed in; what of it they may see, the page itself decides, as the API does."""
PAGE_MEMBER: Final = page_allow(Role.MEMBER)
PAGE_OPERATOR: Final = page_allow(Role.OPERATOR)


class PageRoute(GuardedRoute):
    """Answers a refusal with a page, and sends who is not signed in to where they can."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except NotSignedIn:
                return to_sign_in(request)
            except ApiError as error:
                return error_page(request, error)
            except Exception as error:
                known = as_api_error(error)
                if known.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise  # the edge logs it, and answers with a page
                return error_page(request, known)

        return answered


def to_sign_in(request: Request) -> Response:
    """To the sign-in page, and back here afterwards."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    again = request.method in _SAFE and here not in ("/", "/live")
    where = f"/sign-in?next={quote(here, safe='')}" if again else "/sign-in"
    if request.headers.get("hx-request"):  # htmx follows a plain redirect inside the part it asked for
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"HX-Redirect": where})
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


def error_page(request: Request, error: ApiError) -> Response:
    """What went wrong, as a page with a hint."""
    app: FastAPI = request.app
    response: Response = app.state.pages.error(request, error)
    return response


async def error_page_with_navigation(request: Request, error: ApiError) -> Response:
    """The page of an error that came from no route: nobody asked yet who it is."""
    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR and not hasattr(request.state, "caller"):
        caller = await session_caller(request)
        if caller is not None:
            request.state.caller, request.state.csrf = caller, csrf_of(session_secret(request))
    return error_page(request, error)
