"""Shapes for how much, which part, how long and whether."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fairway.files.faults import FaultCode, Faults, shown
from fairway.files.shape import At, Found, Schema, Shape, Whole, out_of_range, wrong_type
from fairway.files.tree import Kind, Node, Scalar
from fairway.model.duration import DURATION_PATTERN, duration_text, parse_duration
from fairway.model.spelling import nearest

UNLIMITED: Final = "unlimited"
PERCENT_PATTERN: Final = r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?%"
_MEANT_UNLIMITED: Final = frozenset({"all", "any", "inf", "infinite", "infinity", "max", "none", "unbounded"})
_MEANT_TRUTH: Final = dict.fromkeys(("yes", "on", "y", "true", "1"), "true") | dict.fromkeys(
    ("no", "off", "n", "false", "0"), "false"
)
_UNITS: Final = {"day": "d", "hour": "h", "hr": "h", "minute": "m", "min": "m", "second": "s", "sec": "s"}


@dataclass(frozen=True, slots=True)
class Truth(Shape[bool]):
    """true or false."""

    def read(self, node: Node, at: At, faults: Faults) -> Found[bool] | None:
        if not isinstance(node, Scalar) or node.kind is not Kind.TRUTH:
            word = node.text.lower() if isinstance(node, Scalar) else ""
            hint = f"write {_MEANT_TRUTH.get(word, 'true or false')}"
            wrong_type(node, at, faults, "true or false", hint)
            return None
        return Found(node.text.lower() == "true", at.spot(node))

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Duration(Shape[int]):
    """A length of time, in seconds."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """What belongs there, for a sentence."""
        return f"a time from {duration_text(self.least)} to {duration_text(self.most)}, for example 1d12h"

    def read(self, node: Node, at: At, faults: Faults) -> Found[int] | None:
        if not isinstance(node, Scalar) or node.kind is not Kind.TEXT:
            written = node.text if isinstance(node, Scalar) else ""
            plain = re.fullmatch(r"[0-9]{1,9}", written)
            hint = f"add the unit, e.g.  {written}h  or  {written}m" if plain else f"write {self.expected}"
            wrong_type(node, at, faults, self.expected, hint)
            return None
        seconds = parse_duration(node.text)
        if seconds is None:
            meant = mended_duration(node.text)
            faults.add(
                FaultCode.BAD_VALUE,
                at.spot(node),
                f"{shown(node.text) or 'an empty text'} is not a length of time",
                expected=self.expected,
                hint=f"write {meant}" if meant else f"write {self.expected}",
            )
            return None
        if not self.least <= seconds <= self.most:
            out_of_range(node, at, faults, self.expected)
            return None
        return Found(seconds, at.spot(node))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{DURATION_PATTERN}$", "examples": ["7d", "1d12h", "90s"]}


@dataclass(frozen=True, slots=True)
class Percent(Shape[Decimal]):
    """A part of a hundred, written with its sign: `80%` reads as 0.8, exactly."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """What belongs there, for a sentence."""
        return f"a part from {self.least}% to {self.most}%, for example 80%"

    def read(self, node: Node, at: At, faults: Faults) -> Found[Decimal] | None:
        written = node.text.strip() if isinstance(node, Scalar) else ""
        if not isinstance(node, Scalar) or node.kind is not Kind.TEXT:
            number = re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4})?", written)
            meant = f"{Decimal(written) * (100 if Decimal(written) <= 1 else 1):f}" if number else ""
            whole = meant.rstrip("0").rstrip(".") if "." in meant else meant
            hint = f"write {whole}%" if number else f"write {self.expected}"
            wrong_type(node, at, faults, self.expected, hint)
            return None
        if not re.fullmatch(PERCENT_PATTERN, node.text):
            faults.add(
                FaultCode.BAD_VALUE,
                at.spot(node),
                f"{shown(node.text) or 'an empty text'} is not a part of a hundred",
                expected=self.expected,
                hint=f"write {self.expected}",
            )
            return None
        part = Decimal(node.text[:-1])
        if not self.least <= part <= self.most:
            out_of_range(node, at, faults, self.expected)
            return None
        return Found((part / 100).normalize() + 0, at.spot(node))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{PERCENT_PATTERN}$", "examples": ["80%"]}


def percent_text(part: Decimal) -> str:
    """0.8 as it is written: `80%`."""
    return f"{(part * 100).normalize():f}%"


def mended_duration(text: str) -> str:
    """What was probably meant by `3 days`, `1.5h` or Slurm's `3-00:00:00`."""
    if slurm := re.fullmatch(r"(?:([0-9]{1,5})-)?([0-9]{1,5}):([0-9]{1,2})(?::([0-9]{1,2}))?", text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in slurm.groups())
        return duration_text(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if words := re.fullmatch(r"([0-9]{1,6})\s*([a-z]+?)s?", text.strip().lower()):
        unit = _UNITS.get(words[2], words[2] if words[2] in set("dhms") else "")
        return f"{words[1]}{unit}" if unit else ""
    return ""


@dataclass(frozen=True, slots=True)
class OrUnlimited(Shape[int | None]):
    """A number or a time, or the word `unlimited`, which reads as None."""

    amount: Whole | Duration

    def read(self, node: Node, at: At, faults: Faults) -> Found[int | None] | None:
        if isinstance(node, Scalar) and node.kind is Kind.TEXT:
            if node.text == UNLIMITED:
                return Found(None, at.spot(node))
            word = node.text.strip().lower()
            if word in _MEANT_UNLIMITED or nearest(word, [UNLIMITED]):
                faults.add(
                    FaultCode.NOT_ONE_OF,
                    at.spot(node),
                    f"{shown(node.text)} is not a value of {at.label}",
                    expected=f"{self.amount.expected}, or {UNLIMITED}",
                    hint=f"write {UNLIMITED}",
                )
                return None
        found = self.amount.read(node, at, faults)
        return None if found is None else Found(found.value, found.spot)

    def schema(self) -> Schema:
        return {"anyOf": [self.amount.schema(), {"const": UNLIMITED}]}
