"""Encode and decode opaque cursors: the key of the last row of a page, valid while rows come and go."""

from __future__ import annotations

import base64
import binascii
import json
from http import HTTPStatus

from fairway.api.problems import ApiError

_MAX_LENGTH = 1024
_DIGITS = 19
"""A number of fewer digits fits into PostgreSQL's bigint."""


def encode_cursor(*key: str) -> str:
    """Encode the key of a row as a cursor: the next page begins after this row."""
    text = json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str, parts: int) -> tuple[str, ...]:
    """Decode the key in a cursor. Raises ApiError if this API did not issue it."""
    try:
        if len(cursor) > _MAX_LENGTH:
            raise _bad_cursor()
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeError, binascii.Error, ValueError, RecursionError):
        raise _bad_cursor() from None
    if not isinstance(key, list) or len(key) != parts or not all(isinstance(part, str) for part in key):
        raise _bad_cursor()
    if not all(storable(part) for part in key):
        raise _bad_cursor()
    return tuple(key)


def decode_number(cursor: str | None) -> int | None:
    """Decode the id in a cursor of a list that is ordered by id. Raises ApiError."""
    if cursor is None:
        return None
    (text,) = decode_cursor(cursor, 1)
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
        raise _bad_cursor()
    return int(text)


def storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text: neither NUL nor half of a surrogate pair is in it."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _bad_cursor() -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "InvalidCursor",
        "the cursor does not belong to this list",
        "omit cursor to start again, then pass next_cursor unchanged",
    )
