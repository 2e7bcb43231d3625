"""Define the shapes of scalar values. A shape reads a node of the YAML tree and describes it as JSON Schema.

Both come from one definition, so that what an editor accepts and what `fairway check` accepts cannot
diverge. What a schema cannot express (names that refer to each other) is in fleet/checks.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import urlsplit

from fairway.files.diagnostics import (
    FaultCode,
    Faults,
    Location,
    Severity,
    did_you_mean,
    dotted,
    listed,
    shown,
)
from fairway.files.yaml import MappingNode, Mark, Node, ScalarKind, ScalarNode, SequenceNode
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
    location: Location


@dataclass(frozen=True, slots=True)
class FieldPath:
    """The location at which a shape reads: the path, and the position of the key that leads there."""

    path: tuple[str | int, ...]
    key: Mark

    def location(self, node: Node) -> Location:
        """Return the position of the value, or of its key if the value is empty."""
        if isinstance(node, ScalarNode) and node.plain and not node.text:
            return self.key_location()
        return Location(
            *node.mark, dotted(self.path), shown(node.text) if isinstance(node, ScalarNode) else ""
        )

    def key_location(self, *more: str) -> Location:
        """Return the position of the key, for values that are missing."""
        return Location(*self.key, dotted((*self.path, *more)))

    @property
    def label(self) -> str:
        """Return the path as text for a fault's message."""
        return dotted(self.path) or "the file"


class ValueSchema(ABC, Generic[T_co]):
    """A kind of value: reads it from a YAML node and describes it as JSON Schema."""

    @abstractmethod
    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[T_co] | None:
        """Read the value. Returns None if it is invalid, with at least one fault reported."""

    @abstractmethod
    def schema(self) -> Schema:
        """Return the shape as JSON Schema."""


def wrong_type(node: Node, at: FieldPath, faults: Faults, expected: str, hint: str) -> None:
    """Report a value whose type is not the `expected` one."""
    match node:
        case ScalarNode():
            found = str(node.kind)
        case SequenceNode():
            found = "a list"
        case MappingNode():
            found = "a mapping"
    if found == ScalarKind.NULL:
        hint = "write a value after the ':', or take the key away"
    faults.add(
        FaultCode.WRONG_TYPE,
        at.location(node),
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

    def report(self, location: Location, expected: str, faults: Faults) -> None:
        """Add the problem to the faults of a file."""
        faults.add(
            self.code, location, self.message, expected=expected, hint=self.hint, severity=self.severity
        )


class ScalarSchema(ValueSchema[T_co]):
    """A kind of value that is one scalar."""

    kinds: ClassVar = frozenset({ScalarKind.STRING})
    """The kinds of scalar that are parsed; all others are of the wrong type."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """Describe the valid values, for a fault's message."""

    @abstractmethod
    def parse(self, text: str, label: str) -> T_co | Problem:
        """Parse the text of the scalar. Returns a Problem, about the key `label`, if it is invalid."""

    def type_hint(self, _node: Node) -> str:
        """Return the hint for a value of the wrong type."""
        return f"write {self.expected}"

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[T_co] | None:
        if not isinstance(node, ScalarNode) or node.kind not in self.kinds:
            wrong_type(node, at, faults, self.expected, self.type_hint(node))
            return None
        value = self.parse(node.text, at.label)
        if isinstance(value, Problem):
            value.report(at.location(node), self.expected, faults)
            return None
        return ParsedValue(value, at.location(node))


@dataclass(frozen=True, slots=True)
class Text(ValueSchema[str]):
    """A string with a pattern for its form and an optional function for further rules."""

    expected: str
    pattern: str = ""
    max_length: int = 253
    code: FaultCode = FaultCode.BAD_VALUE
    normalize: Callable[[str], str] | None = None
    """Returns the text probably meant; suggested only if it matches the pattern."""
    rule: Callable[[str], Problem | None] | None = None
    suggestions: tuple[str, ...] = ()
    """Values for editors to complete; others are allowed too."""
    examples: tuple[str, ...] = ()

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, ScalarNode) or node.kind is not ScalarKind.STRING:
            written = node.text if isinstance(node, ScalarNode) else ""
            wrong_type(
                node, at, faults, self.expected, self._hint(written, f'put it in quotes:  "{shown(written)}"')
            )
            return None
        if not self._has_form(node.text):
            example = f", for example {self.examples[0]}" if self.examples else ""
            faults.add(
                self.code,
                at.location(node),
                f"{shown(node.text) or 'an empty text'} is not {self.expected}",
                expected=self.expected,
                hint=self._hint(node.text, f"write {self.expected}{example}"),
            )
            return None
        problem = self.rule(node.text) if self.rule else None
        if problem:
            problem.report(at.location(node), self.expected, faults)
            if problem.severity is Severity.ERROR:
                return None
        if node.plain and _AMBIGUOUS.fullmatch(node.text):
            faults.add(
                FaultCode.AMBIGUOUS_WORD,
                at.location(node),
                f"many YAML readers take {node.text} for a truth value; Fairway reads it as a word",
                hint=f'put it in quotes, so that every tool reads the same:  "{node.text}"',
                severity=Severity.WARNING,
            )
        return ParsedValue(node.text, at.location(node))

    def schema(self) -> Schema:
        schema: Schema = {"type": "string", "minLength": 1, "maxLength": self.max_length}
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
            0 < len(text) <= self.max_length
            and text.isprintable()
            and (not self.pattern or re.fullmatch(self.pattern, text) is not None)
        )

    def _hint(self, text: str, otherwise: str) -> str:
        meant = self.normalize(text) if self.normalize and text else ""
        if meant and meant != text and self._has_form(meant):
            return f"write {shown(meant)}"
        return did_you_mean(text, self.suggestions, otherwise)


Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class OneOf(ScalarSchema[Word]):
    """One of a fixed set of words: the members of an enum, or a tuple of strings."""

    words: Iterable[Word]

    @property
    def expected(self) -> str:
        choices = [str(word) for word in self.words]
        return f"one of {listed(choices)}" if len(choices) > 1 else choices[0]

    def parse(self, text: str, label: str) -> Word | Problem:
        choices = {str(word): word for word in self.words}
        if text in choices:
            return choices[text]
        hint = did_you_mean(text, choices, f"write {self.expected}")
        message = f"{shown(text) or 'an empty text'} is not a value of {label}"
        return Problem(FaultCode.NOT_ONE_OF, message, hint)

    def schema(self) -> Schema:
        choices = [str(word) for word in self.words]
        return {"const": choices[0]} if len(choices) == 1 else {"enum": choices}


@dataclass(frozen=True, slots=True)
class Integer(ScalarSchema[int]):
    """An integer within limits."""

    kinds = frozenset({ScalarKind.INTEGER})
    minimum: int
    maximum: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.minimum:,} to {self.maximum:,}"

    def type_hint(self, node: Node) -> str:
        return _number_hint(node, self.expected)

    def parse(self, text: str, label: str) -> int | Problem:
        # 010 is ten to some readers and eight to others; nobody who writes it can know.
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
            return _not_plain_number(text, label)
        # The length first: int() of a thousand digits is slow, of ten thousand an exception.
        if len(text) > 18 or not self.minimum <= int(text) <= self.maximum:
            return _out_of_range(text, label, self.expected)
        return int(text)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True)
class Price(ScalarSchema[Decimal]):
    """An amount of money, parsed as Decimal from its digits, never through a float."""

    kinds = frozenset({ScalarKind.INTEGER, ScalarKind.FLOAT})
    maximum: int = 1_000_000
    places: int = 6
    minimum: int = 0

    @property
    def expected(self) -> str:
        limits = f"from {self.minimum} to {self.maximum:,}"
        return f"a number {limits} with at most {self.places} digits after the point"

    def type_hint(self, node: Node) -> str:
        return _number_hint(node, "a number, for example 1.90")

    def parse(self, text: str, label: str) -> Decimal | Problem:
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?", text):
            return _not_plain_number(text, label)
        digits, _, fraction = text.lstrip("+").partition(".")
        if (
            len(digits) > 18
            or len(fraction) > self.places
            or not self.minimum <= Decimal(text) <= self.maximum
        ):
            return _out_of_range(text, label, self.expected)
        # abs() turns -0, which compares as 0 and prints as -0, into 0.
        return abs(Decimal(text))

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


def _number_hint(node: Node, expected: str) -> str:
    if isinstance(node, ScalarNode) and not node.plain and re.fullmatch(r"[0-9]+(\.[0-9]+)?", node.text):
        return f"take the quotes away:  {shown(node.text)}"
    return f"write {expected}"


def bad_value(text: str, what: str, hint: str) -> Problem:
    """Return the Problem of a text that is not `what` it should be."""
    return Problem(FaultCode.BAD_VALUE, f"{shown(text) or 'an empty text'} is not {what}", hint)


def _out_of_range(text: str, label: str, expected: str) -> Problem:
    message = f"{label} is {shown(text)}, which is out of range"
    return Problem(FaultCode.OUT_OF_RANGE, message, f"write {expected}")


def _not_plain_number(text: str, label: str) -> Problem:
    return Problem(
        FaultCode.BAD_VALUE,
        f"{label} is {shown(text)}, a number that can be read in more than one way",
        "write it in plain decimal digits, without exponent, prefix or leading zero",
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


def _url_rule(text: str, server: str, example: str) -> Problem | None:
    """Check the address of a server that tokens are sent to."""
    hint = f"write scheme, host and port, for example {example}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not a URL: {shown(str(error))}", hint)
    if parts.username is not None or parts.password is not None:
        return Problem(
            FaultCode.SECRET_IN_FILE,
            "the URL holds a user name or password",
            "take it out of the URL and name a file with a token:  token_file: PATH",
        )
    if not host or parts.query or parts.fragment:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not the address of a {server}", hint)
    if parts.scheme == "http" and not (is_loopback(host) or host.endswith(".localhost")):
        return Problem(
            FaultCode.PLAIN_HTTP,
            f"tokens for {shown(host)} would cross the network unencrypted",
            f"serve {server} behind TLS and write https://{shown(host)}",
            Severity.WARNING,
        )
    return None


def _url(server: str, example: str) -> Text:
    return Text(
        "an http or https URL",
        r"https?://[^\s\\]+",
        2048,
        FaultCode.BAD_URL,
        normalize=lambda text: text if "://" in text else f"https://{text}",
        rule=lambda text: _url_rule(text, server, example),
        examples=(example,),
    )


NAME: Final = Text(NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, normalize=as_name)

PATH: Final = Text("a path", max_length=4096, rule=_path_rule, examples=("/etc/fairway/hpc.jwt",))

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

URL: Final = _url("slurmrestd", "https://slurm.example.org:6820")

PROMETHEUS_URL: Final = _url("Prometheus", "https://prometheus.example.org:9090")

WEBHOOK_URL: Final = _url("receiver", "https://hooks.example.org/fairway")

MAIL_ADDRESS: Final = Text(
    "a mail address",
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?",
    254,
    examples=("gpu-ops@example.org",),
)

LABEL_MATCHERS: Final = Text(
    "label matchers of PromQL",
    r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"[^"\\{}]*"'
    r'(\s*,\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"[^"\\{}]*")*',
    1024,
    examples=('cluster="hpc"',),
)

CURRENCY: Final = Text(
    "a currency code of three capital letters",
    "[A-Z]{3}",
    3,
    normalize=lambda t: t.strip().upper(),
    examples=("USD", "EUR"),
)

USER: Final = Text("a user name", r"[A-Za-z_][A-Za-z0-9_.@-]*", 64)

# A Slurm login or a Kubernetes user name: alice@example.org, oidc:alice, 4711.
PERSON: Final = Text("a user, as the engines know them", r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*", 128)

CONTEXT: Final = Text("the name of a kubeconfig context")

PARTITION: Final = Text("the name of a Slurm partition", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", 64)

ACCOUNT: Final = Text(
    "the name of a Slurm account", r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", 128, examples=("ml_team",)
)

GRES: Final = Text(
    "a GRES type, without 'gpu:'",
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*",
    64,
    normalize=lambda t: t.removeprefix("gres/").removeprefix("gpu:").split(":")[0],
    examples=("a100",),
)

_LABEL_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

_LABEL_KEY: Final = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"

LABEL_KEY: Final = Text("a Kubernetes label key", _LABEL_KEY, 317)

LABEL_VALUE: Final = Text("a Kubernetes label value", _LABEL_NAME, 63)

RESOURCE: Final = Text(
    "a Kubernetes resource name", _LABEL_KEY, 317, examples=("nvidia.com/gpu", "amd.com/gpu")
)

DEVICE_CLASS: Final = Text(
    "the name of a DeviceClass",
    r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*",
    253,
    examples=("gpu.nvidia.com",),
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
    "a MIG profile, or shared-N: one of N replicas of a GPU",
    r"([1-9]g\.[1-9][0-9]*gb([+-][a-z.]+)?|shared-([2-9]|[1-9][0-9]{1,2}))",
    32,
    normalize=str.lower,
    suggestions=tuple(dict.fromkeys(str(p.name) for gpu in CATALOGUE.values() for p in gpu.profiles)),
    examples=("1g.10gb", "3g.40gb", "shared-4"),
)

MEMORY: Final = Text(
    "an amount of memory in GB", r"[1-9][0-9]{0,4}GB", 7, normalize=_memory, examples=("48GB",)
)

PRODUCT: Final = Text("a product name", examples=("NVIDIA-A100-SXM4-80GB",))


UNLIMITED: Final = "unlimited"

PERCENT_PATTERN: Final = r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?%"

_MEANT_UNLIMITED: Final = frozenset({"all", "any", "inf", "infinite", "infinity", "max", "none", "unbounded"})

_MEANT_TRUTH: Final = dict.fromkeys(("yes", "on", "y", "true", "1"), "true") | dict.fromkeys(
    ("no", "off", "n", "false", "0"), "false"
)

_UNITS: Final = {"day": "d", "hour": "h", "hr": "h", "minute": "m", "min": "m", "second": "s", "sec": "s"}


@dataclass(frozen=True, slots=True)
class Boolean(ScalarSchema[bool]):
    """A boolean: true or false."""

    kinds = frozenset({ScalarKind.BOOLEAN})
    expected = "true or false"

    def type_hint(self, node: Node) -> str:
        word = node.text.lower() if isinstance(node, ScalarNode) else ""
        return f"write {_MEANT_TRUTH.get(word, self.expected)}"

    def parse(self, text: str, _label: str) -> bool:
        return text.lower() == "true"

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class DurationValue(ScalarSchema[int]):
    """A duration, read in seconds."""

    minimum: int
    maximum: int

    @property
    def expected(self) -> str:
        limits = f"from {duration_text(self.minimum)} to {duration_text(self.maximum)}"
        return f"a time {limits}, for example 1d12h"

    def type_hint(self, node: Node) -> str:
        written = node.text if isinstance(node, ScalarNode) else ""
        plain = re.fullmatch(r"[0-9]{1,9}", written)
        return f"add the unit, e.g.  {written}h  or  {written}m" if plain else f"write {self.expected}"

    def parse(self, text: str, label: str) -> int | Problem:
        seconds = parse_duration(text)
        if seconds is None:
            return bad_value(text, "a length of time", f"write {corrected_duration(text) or self.expected}")
        if not self.minimum <= seconds <= self.maximum:
            return _out_of_range(text, label, self.expected)
        return seconds

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{DURATION_PATTERN}$", "examples": ["7d", "1d12h", "90s"]}


@dataclass(frozen=True, slots=True)
class Percent(ScalarSchema[Decimal]):
    """A percentage written with its sign: `80%` reads as exactly 0.8."""

    minimum: int
    maximum: int

    @property
    def expected(self) -> str:
        return f"a part from {self.minimum}% to {self.maximum}%, for example 80%"

    def type_hint(self, node: Node) -> str:
        written = node.text.strip() if isinstance(node, ScalarNode) else ""
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4})?", written):
            return f"write {self.expected}"
        meant = f"{Decimal(written) * (100 if Decimal(written) <= 1 else 1):f}"
        return f"write {meant.rstrip('0').rstrip('.') if '.' in meant else meant}%"

    def parse(self, text: str, label: str) -> Decimal | Problem:
        if not re.fullmatch(PERCENT_PATTERN, text):
            return bad_value(text, "a part of a hundred", f"write {self.expected}")
        part = Decimal(text[:-1])
        if not self.minimum <= part <= self.maximum:
            return _out_of_range(text, label, self.expected)
        return (part / 100).normalize() + 0

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{PERCENT_PATTERN}$", "examples": ["80%"]}


def percent_text(part: Decimal) -> str:
    """Format 0.8 as `80%`."""
    return f"{(part * 100).normalize():f}%"


def corrected_duration(text: str) -> str:
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

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[int | None] | None:
        if isinstance(node, ScalarNode) and node.kind is ScalarKind.STRING:
            if node.text == UNLIMITED:
                return ParsedValue(None, at.location(node))
            word = node.text.strip().lower()
            if word in _MEANT_UNLIMITED or nearest(word, [UNLIMITED]):
                faults.add(
                    FaultCode.NOT_ONE_OF,
                    at.location(node),
                    f"{shown(node.text)} is not a value of {at.label}",
                    expected=f"{self.amount.expected}, or {UNLIMITED}",
                    hint=f"write {UNLIMITED}",
                )
                return None
        found = self.amount.read(node, at, faults)
        return None if found is None else ParsedValue(found.value, found.location)

    def schema(self) -> Schema:
        return {"anyOf": [self.amount.schema(), {"const": UNLIMITED}]}
