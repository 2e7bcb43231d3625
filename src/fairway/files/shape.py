"""What a file may hold, said once: a shape reads a node of the tree, and says itself as JSON Schema.

Both come from one definition, so that what an editor accepts and what `fairway check` accepts cannot
drift apart. What a schema cannot say (names that refer to each other) is in fleet_checks.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from fairway.files.faults import FaultCode, Faults, Severity, Spot, dotted, shown
from fairway.files.spelling import did_you_mean, listed
from fairway.files.tree import Kind, Listing, Mapping, Mark, Node, Scalar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Schema = dict[str, Any]

# What YAML 1.1, and so PyYAML and much else, takes for true or false.
_AMBIGUOUS: Final = re.compile(r"y|yes|n|no|on|off", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found(Generic[T_co]):
    """A value that was read, and where it stands."""

    value: T_co
    spot: Spot


@dataclass(frozen=True, slots=True)
class At:
    """Where a shape reads: the path to it, and the key that leads there."""

    path: tuple[str | int, ...]
    key: Mark

    def spot(self, node: Node) -> Spot:
        """The value's own place; if nothing stands there, that of its key."""
        if isinstance(node, Scalar) and node.plain and not node.text:
            return self.key_spot()
        return Spot(*node.mark, dotted(self.path), shown(node.text) if isinstance(node, Scalar) else "")

    def key_spot(self, *more: str) -> Spot:
        """The place of the key, for what is missing or has no value of its own."""
        return Spot(*self.key, dotted((*self.path, *more)), "")

    @property
    def label(self) -> str:
        """The thing, for a sentence."""
        return dotted(self.path) or "the file"


class Shape(ABC, Generic[T_co]):
    """One kind of value."""

    @abstractmethod
    def read(self, node: Node, at: At, faults: Faults) -> Found[T_co] | None:
        """The value, or None with at least one fault reported."""

    @abstractmethod
    def schema(self) -> Schema:
        """The same, as JSON Schema."""


def wrong_type(node: Node, at: At, faults: Faults, expected: str, hint: str) -> None:
    """Report that another kind of value stands where `expected` belongs."""
    match node:
        case Scalar():
            found = str(node.kind)
        case Listing():
            found = "a list"
        case Mapping():
            found = "a mapping"
    if found == Kind.NOTHING:
        hint = "write a value after the ':', or take the key away"
    faults.add(
        FaultCode.WRONG_TYPE,
        at.spot(node),
        f"{at.label} is {found}, but takes {expected}",
        expected=expected,
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule finds wrong with a text."""

    code: FaultCode
    message: str
    hint: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Text(Shape[str]):
    """A piece of text: its form as a pattern, and further rules as a function."""

    expected: str
    pattern: str = ""
    longest: int = 253
    code: FaultCode = FaultCode.BAD_VALUE
    mend: Callable[[str], str] | None = None
    """Makes what was probably meant; offered only if it has the right form."""
    rule: Callable[[str], Problem | None] | None = None
    suggestions: tuple[str, ...] = ()
    """What an editor offers; other texts are allowed too."""
    examples: tuple[str, ...] = ()

    def read(self, node: Node, at: At, faults: Faults) -> Found[str] | None:
        if not isinstance(node, Scalar) or node.kind is not Kind.TEXT:
            written = node.text if isinstance(node, Scalar) else ""
            wrong_type(
                node, at, faults, self.expected, self._hint(written, f'put it in quotes:  "{shown(written)}"')
            )
            return None
        if not self._has_form(node.text):
            example = f", for example {self.examples[0]}" if self.examples else ""
            faults.add(
                self.code,
                at.spot(node),
                f"{shown(node.text) or 'an empty text'} is not {self.expected}",
                expected=self.expected,
                hint=self._hint(node.text, f"write {self.expected}{example}"),
            )
            return None
        problem = self.rule(node.text) if self.rule else None
        if problem:
            spot = at.spot(node)
            faults.add(
                problem.code,
                spot,
                problem.message,
                expected=self.expected,
                hint=problem.hint,
                severity=problem.severity,
            )
            if problem.severity is Severity.ERROR:
                return None
        warn_of_ambiguity(node, at.spot(node), faults)
        return Found(node.text, at.spot(node))

    def schema(self) -> Schema:
        schema: Schema = {"type": "string", "minLength": 1, "maxLength": self.longest}
        if self.pattern:
            schema["pattern"] = f"^{self.pattern}$"
        if self.suggestions:
            # anyOf and not enum alone: the list completes, the second branch keeps other names legal.
            schema = {"anyOf": [{"enum": list(self.suggestions)}, schema]}
        if self.examples:
            schema["examples"] = list(self.examples)
        return schema

    def _has_form(self, text: str) -> bool:
        return (
            0 < len(text) <= self.longest
            and text.isprintable()
            and (not self.pattern or re.fullmatch(self.pattern, text) is not None)
        )

    def _hint(self, text: str, otherwise: str) -> str:
        mended = self.mend(text) if self.mend and text else ""
        if mended and mended != text and self._has_form(mended):
            return f"write {shown(mended)}"
        return did_you_mean(text, self.suggestions, otherwise)


def warn_of_ambiguity(node: Scalar, spot: Spot, faults: Faults) -> None:
    """Point at words that other YAML readers would not read as words."""
    if node.plain and _AMBIGUOUS.fullmatch(node.text):
        faults.add(
            FaultCode.AMBIGUOUS_WORD,
            spot,
            f"many YAML readers take {node.text} for a truth value; Fairway reads it as a word",
            hint=f'put it in quotes, so that every tool reads the same:  "{node.text}"',
            severity=Severity.WARNING,
        )


W = TypeVar("W", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Word(Shape[W]):
    """One of a few words."""

    words: type[W]

    def read(self, node: Node, at: At, faults: Faults) -> Found[W] | None:
        choices = [str(word) for word in self.words]
        expected = f"one of {listed(choices)}" if len(choices) > 1 else choices[0]
        if not isinstance(node, Scalar) or node.kind is not Kind.TEXT:
            wrong_type(node, at, faults, expected, f"write {expected}")
            return None
        if node.text not in choices:
            faults.add(
                FaultCode.NOT_ONE_OF,
                at.spot(node),
                f"{shown(node.text) or 'an empty text'} is not a value of {at.label}",
                expected=expected,
                hint=did_you_mean(node.text, choices, f"write {expected}"),
            )
            return None
        return Found(self.words(node.text), at.spot(node))

    def schema(self) -> Schema:
        choices = [str(word) for word in self.words]
        return {"const": choices[0]} if len(choices) == 1 else {"enum": choices}


@dataclass(frozen=True, slots=True)
class Whole(Shape[int]):
    """A whole number within limits."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """What belongs there, for a sentence."""
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, node: Node, at: At, faults: Faults) -> Found[int] | None:
        expected = self.expected
        if not isinstance(node, Scalar) or node.kind is not Kind.WHOLE:
            wrong_type(node, at, faults, expected, _number_hint(node, expected))
            return None
        # 010 is ten to some readers and eight to others; nobody who writes it can know.
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", node.text):
            _not_plain_number(node, at, faults, expected)
            return None
        # The length first: int() of a thousand digits is slow, of ten thousand an exception.
        if len(node.text) > 18 or not self.least <= int(node.text) <= self.most:
            out_of_range(node, at, faults, expected)
            return None
        return Found(int(node.text), at.spot(node))

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Price(Shape[Decimal]):
    """An amount of money, taken from its digits: no binary fraction comes between."""

    most: int = 1_000_000
    places: int = 6

    def read(self, node: Node, at: At, faults: Faults) -> Found[Decimal] | None:
        expected = f"a number from 0 to {self.most:,} with at most {self.places} digits after the point"
        if not isinstance(node, Scalar) or node.kind not in {Kind.WHOLE, Kind.DECIMAL}:
            wrong_type(node, at, faults, expected, _number_hint(node, "a number, for example 1.90"))
            return None
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?", node.text):
            _not_plain_number(node, at, faults, expected)
            return None
        digits, _, fraction = node.text.lstrip("+").partition(".")
        if len(digits) > 18 or len(fraction) > self.places or not 0 <= Decimal(node.text) <= self.most:
            out_of_range(node, at, faults, expected)
            return None
        # abs() turns -0, which compares as 0 and prints as -0, into 0.
        return Found(abs(Decimal(node.text)), at.spot(node))

    def schema(self) -> Schema:
        return {"type": "number", "minimum": 0, "maximum": self.most}


def _number_hint(node: Node, expected: str) -> str:
    if isinstance(node, Scalar) and not node.plain and re.fullmatch(r"[0-9]+(\.[0-9]+)?", node.text):
        return f"take the quotes away:  {shown(node.text)}"
    return f"write {expected}"


def out_of_range(node: Scalar, at: At, faults: Faults, expected: str) -> None:
    """Say that what was written is too small, too large or too finely divided."""
    faults.add(
        FaultCode.OUT_OF_RANGE,
        at.spot(node),
        f"{at.label} is {shown(node.text)}, which is out of range",
        expected=expected,
        hint=f"write {expected}",
    )


def _not_plain_number(node: Scalar, at: At, faults: Faults, expected: str) -> None:
    faults.add(
        FaultCode.BAD_VALUE,
        at.spot(node),
        f"{at.label} is {shown(node.text)}, a number that can be read in more than one way",
        expected=expected,
        hint="write it in plain decimal digits, without exponent, prefix or leading zero",
    )
