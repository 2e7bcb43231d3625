"""Parsers of settings: each returns the value, or raises ValueError with the expected value."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from fairway.model.access import Role

Value = TypeVar("Value")


def words(value: object) -> str:
    """Parse a non-blank text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("some text")
    return value.strip()


def database(value: object) -> str:
    """Parse a PostgreSQL URL."""
    url = words(value)
    if not re.match(r"postgres(ql)?(\+psycopg)?://", url):
        raise ValueError("a URL such as postgresql://USER:PASSWORD@HOST:5432/DATABASE")
    return url


def folder(value: object) -> Path:
    """Parse a path and make it absolute."""
    return Path(words(str(value))).expanduser().absolute()


def number(least: float, most: float) -> Callable[[object], float]:
    """Return a parser of numbers within bounds."""

    def parse(value: object) -> float:
        expected = f"a number from {least:g} to {most:g}"
        try:
            found = float(str(value))  # a bool is no number here, whatever Python says
        except ValueError:
            raise ValueError(expected) from None
        if not least <= found <= most:
            raise ValueError(expected)
        return found

    return parse


def whole(least: int, most: int) -> Callable[[object], int]:
    """Return a parser of whole numbers within bounds."""

    def parse(value: object) -> int:
        found = number(least, most)(value)
        if found != int(found):
            raise ValueError(f"a whole number from {least} to {most}")
        return int(found)

    return parse


def archive(value: object) -> str | None:
    """Parse the URL of an object store. Returns None for `none`."""
    url = words(value)
    if url == "none":
        return None
    if not re.match(r"(s3a?|gs|az|azure|abfss?|https|file|memory)://", url):
        raise ValueError("a URL such as s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER")
    return url


def web_address(value: object) -> str:
    """Parse an HTTP URL of a page or provider."""
    url = words(value).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise ValueError("a URL such as https://fairway.example.org")
    return url


def mail_server(value: object) -> str:
    """Parse the URL of a mail server."""
    url = words(value)
    if not re.fullmatch(r"smtps?://([^\s/?#@:]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?", url):
        raise ValueError("a URL such as smtp://mail.example.org:587 or smtps://mail.example.org")
    return url


def mail_address(value: object) -> str:
    """Parse a mail address."""
    address = words(value)
    if not re.fullmatch(r"[^\s@<>,;:\"]+@[A-Za-z0-9.-]+", address):
        raise ValueError("a mail address such as fairway@example.org")
    return address


def optional(parse: Callable[[object], Value]) -> Callable[[object], Value | None]:
    """Return a parser that returns None for `none`."""
    return lambda value: None if value == "none" else parse(value)


def yes_or_no(value: object) -> bool:
    """Parse yes or no."""
    word = str(value).strip().lower()
    if word not in ("yes", "no", "true", "false"):
        raise ValueError("yes or no")
    return word in ("yes", "true")


_ROLES: Final = tuple(role.value for role in Role if role is not Role.ALERTS)


def group_roles(value: object) -> tuple[tuple[str, str], ...]:
    """Parse `GROUP=ROLE, …`; a group may occur several times, and the highest role counts."""
    pairs = value.items() if isinstance(value, dict) else _pairs(str(value))
    found = tuple((str(group).strip(), str(role).strip().lower()) for group, role in pairs)
    if any(not group or role not in _ROLES for group, role in found):
        raise ValueError(f"GROUP=ROLE, …  with roles out of {', '.join(_ROLES)}")
    return found


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = [] if text.strip() == "none" else [part for part in text.split(",") if part.strip()]
    cut = [part.rpartition("=") for part in parts]
    return [(group, role) for group, _, role in cut]


def one_of(*known: str) -> Callable[[object], str]:
    """Return a parser of one of these words, ignoring case."""

    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return word

    return parse
