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


class NotSignedIn(ApiError):
    """There is no session, or it ended: the page asks to sign in instead of refusing."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.UNAUTHORIZED, "NotSignedIn", "you are not signed in", "sign in at /sign-in"
        )


class PageRule(Rule):
    """As the API's rules; what changes something must also come from one of our own pages."""

    async def identify(self, request: Request) -> Token:
        secret = request.cookies.get(COOKIE, "")
        ledger: Ledger = request.app.state.ledger
        caller = await ledger.session_caller(hash_secret(secret)) if secret else None
        if caller is None:
            raise NotSignedIn
        if request.method not in _SAFE:
            await check_csrf(request, secret)
        request.state.csrf = csrf_of(secret)
        return caller


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
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a posted form, each once. The edge bounds its size."""
    body = (await request.body()).decode("utf-8", "replace")
    return {
        name: values[-1]
        for name, values in parse_qs(body, keep_blank_values=True, max_num_fields=100).items()
    }


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
                    raise
                return error_page(request, known)

        return answered


def to_sign_in(request: Request) -> Response:
    """To the sign-in page, and back here afterwards."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = f"/sign-in?next={quote(here, safe='')}" if request.method in _SAFE and here != "/" else "/sign-in"
    if request.headers.get("hx-request"):  # htmx follows a plain redirect inside the part it asked for
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"HX-Redirect": where})
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)


def error_page(request: Request, error: ApiError) -> Response:
    """What went wrong, as a page with a hint."""
    app: FastAPI = request.app
    response: Response = app.state.pages.error(request, error)
    return response
