"""Serve static files: read once, addressed by content hash, cached by browsers."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import FastAPI, Request, Response

from fairway.api.problems import ApiError
from fairway.web.sessions import PAGE_UNLIMITED

_KEEP: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    digest: str


class StaticFiles:
    """The files in `static/`. A request can only name one of these."""

    def __init__(self) -> None:
        self._files = dict(_read(files("fairway.web") / "static", ""))

    def url(self, name: str) -> str:
        """Return the URL of `name`, which changes with its content."""
        return f"/static/{name}?v={self._files[name].digest}"

    def add_route(self, app: FastAPI) -> None:
        """Add the route, public because the sign-in page needs the files."""

        @app.get("/static/{name:path}", dependencies=PAGE_UNLIMITED, include_in_schema=False)
        async def static_file(request: Request, name: str) -> Response:
            """Serve one file."""
            found = self._files.get(name)
            if found is None:
                raise ApiError(HTTPStatus.NOT_FOUND, "NoSuchPath", "there is no such file", "go back to  /")
            etag = f'"{found.digest}"'
            headers = {"Cache-Control": _KEEP, "ETag": etag}
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
            return Response(found.body, media_type=found.media_type, headers=headers)


def _read(folder: Traversable, prefix: str) -> list[tuple[str, _File]]:
    found: list[tuple[str, _File]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif (kind := mimetypes.guess_type(entry.name)[0]) is not None:
            body = entry.read_bytes()
            found.append((name, _File(body, kind, hashlib.sha256(body).hexdigest()[:16])))
    return found
