"""What a setting may be: each reads a value as it was given, or raises ValueError with what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairway.model.access import Role


def words(value: object) -> str:
    """Any text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("some text")
    return value.strip()


def database(value: object) -> str:
    """Where PostgreSQL is."""
    url = words(value)
    if not re.match(r"postgres(ql)?(\+psycopg)?://", url):
        raise ValueError("a URL such as postgresql://USER:PASSWORD@HOST:5432/DATABASE")
    return url


def folder(value: object) -> Path:
    """A folder or file, made absolute."""
    return Path(words(str(value))).expanduser().absolute()


def number(least: float, most: float) -> Callable[[object], float]:
    """A number within bounds."""

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
    """A whole number within bounds."""

    def parse(value: object) -> int:
        found = number(least, most)(value)
        if found != int(found):
            raise ValueError(f"a whole number from {least} to {most}")
        return int(found)

    return parse


def archive(value: object) -> str | None:
    """Where old usage goes; None: nowhere."""
    url = words(value)
    if url == "none":
        return None
    if not re.match(r"(s3a?|gs|az|azure|abfss?|https|file|memory)://", url):
        raise ValueError("a URL such as s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER")
    return url


def web_address(value: object) -> str:
    """Where a page or a provider is."""
    url = words(value).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise ValueError("a URL such as https://fairway.example.org")
    return url


def optional(parse: Callable[[object], object]) -> Callable[[object], object]:
    """None where the word is none."""
    return lambda value: None if value == "none" else parse(value)


def yes_or_no(value: object) -> bool:
    """A truth value, in words."""
    word = str(value).strip().lower()
    if word not in ("yes", "no", "true", "false"):
        raise ValueError("yes or no")
    return word in ("yes", "true")


_ROLES: Final = tuple(role.value for role in Role)


def group_roles(value: object) -> tuple[tuple[str, str], ...]:
    """`GROUP=ROLE, …`; later ones do not hide earlier ones: the highest role counts."""
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
    """One of these words, in any case."""

    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return word

    return parse
