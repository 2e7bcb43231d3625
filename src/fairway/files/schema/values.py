"""Define the shapes of scalar values. A shape reads a node of the YAML tree and describes it as JSON Schema.

Both come from one definition, so that what an editor accepts and what `fairway check` accepts cannot
diverge. What a schema cannot express (names that refer to each other) is in fleet/checks.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from fairway.files.diagnostics import FaultCode, Faults, Severity, Spot, did_you_mean, dotted, listed, shown
from fairway.files.yaml.tree import Listing, Mapping, Mark, Node, Scalar, ScalarKind
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.hosts import is_loopback
from fairway.model.names import NAME_PATTERN, NAME_RULE
from fairway.model.text import DURATION_PATTERN, duration_text, nearest, parse_duration

T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)

Schema = dict[str, Any]


# What YAML 1.1, and so PyYAML and much else, takes for true or false.
_AMBIGUOUS: Final = re.compile(r"y|yes|n|no|on|off", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ParsedValue(Generic[T_co]):
    """A value that was read, with its position."""

    value: T_co
    spot: Spot


@dataclass(frozen=True, slots=True)
class At:
    """The location at which a shape reads: the path, and the position of the key that leads there."""

    path: tuple[str | int, ...]
    key: Mark

    def spot(self, node: Node) -> Spot:
        """Return the position of the value, or of its key if the value is empty."""
        if isinstance(node, Scalar) and node.plain and not node.text:
            return self.key_spot()
        return Spot(*node.mark, dotted(self.path), shown(node.text) if isinstance(node, Scalar) else "")

    def key_spot(self, *more: str) -> Spot:
        """Return the position of the key, for values that are missing."""
        return Spot(*self.key, dotted((*self.path, *more)), "")

    @property
    def label(self) -> str:
        """Return the path as text for a fault's message."""
        return dotted(self.path) or "the file"


class ValueSchema(ABC, Generic[T_co]):
    """A kind of value: reads it from a YAML node and describes it as JSON Schema."""

    @abstractmethod
    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[T_co] | None:
        """Read the value. Returns None if it is invalid, with at least one fault reported."""

    @abstractmethod
    def schema(self) -> Schema:
        """Return the shape as JSON Schema."""


def wrong_type(node: Node, at: At, faults: Faults, expected: str, hint: str) -> None:
    """Report a value whose type is not the `expected` one."""
    match node:
        case Scalar():
            found = str(node.kind)
        case Listing():
            found = "a list"
        case Mapping():
            found = "a mapping"
    if found == ScalarKind.NOTHING:
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
    """A fault without a position, as returned by rules and parsers of single values."""

    code: FaultCode
    message: str
    hint: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Text(ValueSchema[str]):
    """A string with a pattern for its form and an optional function for further rules."""

    expected: str
    pattern: str = ""
    longest: int = 253
    code: FaultCode = FaultCode.BAD_VALUE
    mend: Callable[[str], str] | None = None
    """Returns the text probably meant; suggested only if it matches the pattern."""
    rule: Callable[[str], Problem | None] | None = None
    suggestions: tuple[str, ...] = ()
    """Values for editors to complete; others are allowed too."""
    examples: tuple[str, ...] = ()

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TEXT:
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
        return ParsedValue(node.text, at.spot(node))

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
    """Warn about an unquoted word that other YAML parsers read as a boolean."""
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
class OneOf(ValueSchema[W]):
    """One of a fixed set of words, an enum."""

    words: type[W]

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[W] | None:
        choices = [str(word) for word in self.words]
        expected = f"one of {listed(choices)}" if len(choices) > 1 else choices[0]
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TEXT:
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
        return ParsedValue(self.words(node.text), at.spot(node))

    def schema(self) -> Schema:
        choices = [str(word) for word in self.words]
        return {"const": choices[0]} if len(choices) == 1 else {"enum": choices}


@dataclass(frozen=True, slots=True)
class Integer(ValueSchema[int]):
    """An integer within limits."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """Describe the valid values, for a fault's message."""
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[int] | None:
        expected = self.expected
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.WHOLE:
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
        return ParsedValue(int(node.text), at.spot(node))

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Price(ValueSchema[Decimal]):
    """An amount of money, parsed as Decimal from its digits, never through a float."""

    most: int = 1_000_000
    places: int = 6

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[Decimal] | None:
        expected = f"a number from 0 to {self.most:,} with at most {self.places} digits after the point"
        if not isinstance(node, Scalar) or node.kind not in {ScalarKind.WHOLE, ScalarKind.DECIMAL}:
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
        return ParsedValue(abs(Decimal(node.text)), at.spot(node))

    def schema(self) -> Schema:
        return {"type": "number", "minimum": 0, "maximum": self.most}


def _number_hint(node: Node, expected: str) -> str:
    if isinstance(node, Scalar) and not node.plain and re.fullmatch(r"[0-9]+(\.[0-9]+)?", node.text):
        return f"take the quotes away:  {shown(node.text)}"
    return f"write {expected}"


def out_of_range(node: Scalar, at: At, faults: Faults, expected: str) -> None:
    """Report a value that is too small, too large or has too many decimal places."""
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


def as_name(text: str) -> str:
    """Convert a text to the nearest valid name: HPC_A100 becomes hpc-a100."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-0123456789")[:40].rstrip("-")


def _memory(text: str) -> str:
    amount = re.match(r"\s*([0-9]+)", text)
    return f"{amount[1]}GB" if amount else ""


def _path_rule(text: str) -> Problem | None:
    if text.startswith("~"):
        return Problem(
            FaultCode.BAD_PATH,
            f"{shown(text)} begins with ~, which is another folder for every user",
            "write the whole path, or one relative to this file",
        )
    return None


def _url_rule(text: str) -> Problem | None:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not a URL: {shown(str(error))}", _URL_HINT)
    if parts.username is not None or parts.password is not None:
        return Problem(
            FaultCode.SECRET_IN_FILE,
            "the URL holds a user name or password",
            "take it out of the URL and name a file under credentials: { token_file: PATH }",
        )
    if not host or parts.query or parts.fragment:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not the address of a slurmrestd", _URL_HINT)
    if parts.scheme == "http" and not (is_loopback(host) or host.endswith(".localhost")):
        return Problem(
            FaultCode.PLAIN_HTTP,
            f"tokens for {shown(host)} would cross the network unencrypted",
            f"serve slurmrestd behind TLS and write https://{shown(host)}",
            Severity.WARNING,
        )
    return None


_URL_HINT: Final = "write scheme, host and port, for example https://slurm.example.org:6820"


NAME: Final = Text(NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, mend=as_name)

PATH: Final = Text("a path", longest=4096, rule=_path_rule, examples=("/etc/fairway/hpc.jwt",))

SHARED_PATH: Final = Text(
    "a whole path, beginning with /",
    r"/.*",
    4096,
    FaultCode.BAD_PATH,
    rule=_path_rule,
    examples=("/shared/logs",),
)

CHECKPOINTS: Final = Text(
    "a whole path, or pvc/CLAIM on Kubernetes",
    r"/.*|pvc/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
    4096,
    FaultCode.BAD_PATH,
    examples=("/shared/checkpoints", "pvc/checkpoints"),
)

URL: Final = Text(
    "an http or https URL",
    r"https?://[^\s\\]+",
    2048,
    FaultCode.BAD_URL,
    mend=lambda text: text if "://" in text else f"https://{text}",
    rule=_url_rule,
    examples=("https://slurm.example.org:6820",),
)

CURRENCY: Final = Text(
    "a currency code of three capital letters",
    "[A-Z]{3}",
    3,
    mend=lambda t: t.strip().upper(),
    examples=("USD", "EUR"),
)

USER: Final = Text("a user name", r"[A-Za-z_][A-Za-z0-9_.@-]*", 64)

# A Slurm login or a Kubernetes user name: alice@example.org, oidc:alice, 4711.
PERSON: Final = Text("a user, as the engines know them", r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*", 128)

CONTEXT: Final = Text("the name of a kubeconfig context")

PARTITION: Final = Text("the name of a Slurm partition", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", 64)

GRES: Final = Text(
    "a GRES type, without 'gpu:'",
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*",
    64,
    mend=lambda t: t.removeprefix("gres/").removeprefix("gpu:").split(":")[0],
    examples=("a100",),
)

_LABEL_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

_LABEL_KEY: Final = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"

LABEL_KEY: Final = Text("a Kubernetes label key", _LABEL_KEY, 317)

LABEL_VALUE: Final = Text("a Kubernetes label value", _LABEL_NAME, 63)

RESOURCE: Final = Text(
    "a Kubernetes resource name", _LABEL_KEY, 317, examples=("nvidia.com/gpu", "amd.com/gpu")
)

TAINT: Final = Text(
    "a taint: key, key=value or key=value:Effect",
    rf"{_LABEL_KEY}(=({_LABEL_NAME})?)?(:(NoSchedule|PreferNoSchedule|NoExecute))?",
    400,
    examples=("fairway/spot", "fairway/spot=true:NoSchedule"),
)

GPU_NAME: Final = Text(
    "a GPU type", r"[A-Za-z0-9][A-Za-z0-9._-]*", 63, suggestions=tuple(CATALOGUE), examples=("A100-80GB",)
)

NEW_GPU_NAME: Final = Text("letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]*", 63)

SLICE: Final = Text(
    "a MIG profile",
    r"[1-9]g\.[1-9][0-9]*gb([+-][a-z.]+)?",
    32,
    mend=str.lower,
    suggestions=tuple(dict.fromkeys(str(p.name) for gpu in CATALOGUE.values() for p in gpu.profiles)),
    examples=("1g.10gb", "3g.40gb"),
)

MEMORY: Final = Text("an amount of memory in GB", r"[1-9][0-9]{0,4}GB", 7, mend=_memory, examples=("48GB",))

PRODUCT: Final = Text("a product name", examples=("NVIDIA-A100-SXM4-80GB",))


UNLIMITED: Final = "unlimited"

PERCENT_PATTERN: Final = r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?%"

_MEANT_UNLIMITED: Final = frozenset({"all", "any", "inf", "infinite", "infinity", "max", "none", "unbounded"})

_MEANT_TRUTH: Final = dict.fromkeys(("yes", "on", "y", "true", "1"), "true") | dict.fromkeys(
    ("no", "off", "n", "false", "0"), "false"
)

_UNITS: Final = {"day": "d", "hour": "h", "hr": "h", "minute": "m", "min": "m", "second": "s", "sec": "s"}


@dataclass(frozen=True, slots=True)
class Boolean(ValueSchema[bool]):
    """A boolean: true or false."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[bool] | None:
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TRUTH:
            word = node.text.lower() if isinstance(node, Scalar) else ""
            hint = f"write {_MEANT_TRUTH.get(word, 'true or false')}"
            wrong_type(node, at, faults, "true or false", hint)
            return None
        return ParsedValue(node.text.lower() == "true", at.spot(node))

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class DurationValue(ValueSchema[int]):
    """A duration, read in seconds."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """Describe the valid values, for a fault's message."""
        return f"a time from {duration_text(self.least)} to {duration_text(self.most)}, for example 1d12h"

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[int] | None:
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TEXT:
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
        return ParsedValue(seconds, at.spot(node))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{DURATION_PATTERN}$", "examples": ["7d", "1d12h", "90s"]}


@dataclass(frozen=True, slots=True)
class Percent(ValueSchema[Decimal]):
    """A percentage written with its sign: `80%` reads as exactly 0.8."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """Describe the valid values, for a fault's message."""
        return f"a part from {self.least}% to {self.most}%, for example 80%"

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[Decimal] | None:
        written = node.text.strip() if isinstance(node, Scalar) else ""
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TEXT:
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
        return ParsedValue((part / 100).normalize() + 0, at.spot(node))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{PERCENT_PATTERN}$", "examples": ["80%"]}


def percent_text(part: Decimal) -> str:
    """Format 0.8 as `80%`."""
    return f"{(part * 100).normalize():f}%"


def mended_duration(text: str) -> str:
    """Return the duration probably meant by `3 days` or Slurm's `3-00:00:00`; empty if there is none."""
    if slurm := re.fullmatch(r"(?:([0-9]{1,5})-)?([0-9]{1,5}):([0-9]{1,2})(?::([0-9]{1,2}))?", text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in slurm.groups())
        return duration_text(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if words := re.fullmatch(r"([0-9]{1,6})\s*([a-z]+?)s?", text.strip().lower()):
        unit = _UNITS.get(words[2], words[2] if words[2] in set("dhms") else "")
        return f"{words[1]}{unit}" if unit else ""
    return ""


@dataclass(frozen=True, slots=True)
class OrUnlimited(ValueSchema[int | None]):
    """A number or a duration, or the word `unlimited`, which reads as None."""

    amount: Integer | DurationValue

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[int | None] | None:
        if isinstance(node, Scalar) and node.kind is ScalarKind.TEXT:
            if node.text == UNLIMITED:
                return ParsedValue(None, at.spot(node))
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
        return None if found is None else ParsedValue(found.value, found.spot)

    def schema(self) -> Schema:
        return {"anyOf": [self.amount.schema(), {"const": UNLIMITED}]}
