"""Render pages: one Jinja environment, one set of headers, whole pages and their live parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from fairway import __version__
from fairway.api.problems import ApiError
from fairway.ledger import Token
from fairway.model.access import Role
from fairway.web.format import FILTERS
from fairway.web.static import StaticFiles

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Without a referrer, browsers also omit the origin of a form, which `same_site` checks.
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}

NAVIGATION: Final = (
    ("Home", "/", "h"),
    ("Fleet", "/fleet", "f"),
    ("Teams", "/teams", "t"),
    ("Jobs", "/jobs", "j"),
    ("Cost", "/cost", "c"),
    ("Policy", "/policy", "p"),
)
"""Name, URL, and the key that opens it after `g`."""

_HINTS: Final = {
    "NoSuchPath": "the address may be mistyped, or what it showed is gone",
    "MethodNotAllowed": "go back, and load the page again",
    "NoSuchJob": "its id may be mistyped, or it is older than what is kept",
    "InvalidRequest": "the address may be mistyped; go back and follow a link",
}
"""Hints for users, for errors whose own hints are meant for programs."""


_MARKS: Final = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_marks(value: object) -> object:
    """Take marks of direction out of a text that a template shows: they let a name look like another."""
    if not isinstance(value, str) or value.isascii():
        return value
    return type(value)(_MARKS.sub("", value))


def is_part(request: Request, part: str | None = None) -> bool:
    """Return whether an open page asks for a part of itself, or for this one."""
    target = request.headers.get("hx-target") if request.headers.get("hx-request") else None
    return bool(target) if part is None else target == part


class PageRenderer:
    """The Jinja templates and their common values."""

    def __init__(self, static: StaticFiles) -> None:
        self._environment = Environment(
            loader=PackageLoader("fairway.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=without_marks,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(static=static.url, version=__version__, navigation=NAVIGATION)

    def show(
        self,
        request: Request,
        template: str,
        values: Mapping[str, object],
        *,
        part: str | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        """Render a page, or only a part of it if an open page requests one.

        A part is a block of the template; htmx names it by the id of the element to replace. `part` forces
        one. Keep what a part needs cheap: open pages request it repeatedly.
        """
        block_name = part or (request.headers.get("hx-target") if is_part(request) else None)
        page = self._environment.get_template(template)
        values = self._common_values(request) | dict(values)
        if block_name is not None and (block := page.blocks.get(block_name.replace("-", "_"))):
            body = "".join(block(page.new_context(values)))
        else:
            body = page.render(values)
        return HTMLResponse(body, status, headers=HEADERS | {"Vary": "HX-Request, HX-Target, Cookie"})

    def error(self, request: Request, error: ApiError) -> Response:
        """Render an error with a hint."""
        values = {
            "error": error,
            "hint": _HINTS.get(error.code, error.hint),
            "request_id": getattr(request.state, "request_id", ""),
        }
        response = self.show(request, "error.html", values, status=error.status)
        response.headers.update(error.headers)
        return response

    def _common_values(self, request: Request) -> dict[str, object]:
        caller: Token | None = getattr(request.state, "caller", None)
        return {
            "path": request.url.path,
            "query": request.url.query,
            "caller": caller,
            "is_operator": caller is not None and caller.role.may(Role.OPERATOR),
            "csrf": getattr(request.state, "csrf", ""),
            "now": datetime.now(UTC),
        }
