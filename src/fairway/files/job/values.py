"""Define the shapes of job file values that have several forms: GPUs, times, commands, indices, retries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeVar

from fairway.files.diagnostics import FaultCode, Faults, Location, shown
from fairway.files.job import durations, gpus
from fairway.files.schema.containers import Key, ListOf, Record, Section
from fairway.files.schema.values import (
    DurationValue,
    FieldPath,
    Integer,
    OneOf,
    ParsedValue,
    Problem,
    ScalarSchema,
    Schema,
    ValueSchema,
    wrong_type,
)
from fairway.files.yaml import MappingNode, Node, ScalarKind, ScalarNode, SequenceNode
from fairway.model.job import MAX_TASKS, After, GpuRequest, JobId, Retries, When, parse_job_id

T = TypeVar("T")

MAX_INDEX: Final = 10**9 - 1
_DIGITS: Final = "0-9A-HJKMNP-TV-Za-hjkmnp-tv-z"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters except tab and line feed, and lone surrogates: not allowed in shell lines."""


def _can_be_passed(text: str, max_length: int, label: str, location: Location, faults: Faults) -> bool:
    """Check that a text can be passed to a program: not too long, and without control characters."""
    if len(text) > max_length:
        message = f"{label} is longer than {max_length:,} characters"
        faults.add(FaultCode.OUT_OF_RANGE, location, message, hint="put it in a file the job can read")
        return False
    if control := _CONTROL.search(text):
        message = f"{label} holds {control[0]!a}, which no program takes"
        unix = "save the file with Unix line ends:  dos2unix FILE"
        hint = unix if control[0] == "\r" else "take that character away"
        faults.add(FaultCode.BAD_VALUE, location, message, hint=hint)
        return False
    return True


@dataclass(frozen=True, slots=True)
class Gpus(ValueSchema[GpuRequest]):
    """The GPUs per node, as a GpuRequest."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[GpuRequest] | None:
        if not isinstance(node, ScalarNode) or node.kind not in (ScalarKind.STRING, ScalarKind.INTEGER):
            wrong_type(node, at, faults, gpus.EXPECTED, f"write {gpus.EXPECTED}")
            return None
        request, problem = gpus.parse_gpus(node.text)
        if problem is not None:
            problem.report(at.location(node), gpus.EXPECTED, faults)
        return ParsedValue(request, at.location(node)) if request else None

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": gpus.MAX_GPUS},
                {"type": "string", "pattern": f"^({gpus.GPUS_PATTERN})$"},
            ],
            "examples": list(gpus.GPUS_EXAMPLES),
        }


@dataclass(frozen=True, slots=True)
class TimeLimit(ScalarSchema[int]):
    """A time limit, read in seconds."""

    kinds = frozenset({ScalarKind.STRING, ScalarKind.INTEGER, ScalarKind.FLOAT})
    expected = durations.EXPECTED

    def parse(self, text: str, _label: str) -> int | Problem:
        return durations.parse_time(text)

    def schema(self) -> Schema:
        return {
            "type": "string",
            "pattern": f"^({durations.TIME_PATTERN})$",
            "examples": ["72h", "90m", "1-12:00:00"],
        }


@dataclass(frozen=True, slots=True)
class MultilineText(ValueSchema[str]):
    """A text of one or more lines."""

    expected: str
    max_length: int
    hint: str
    shebang: bool = False
    """Whether it must begin with a #! line."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, ScalarNode) or node.kind is not ScalarKind.STRING:
            wrong_type(node, at, faults, self.expected, self.hint)
            return None
        text = node.text
        location = at.location(node)._replace(value=shown(text.split("\n", 1)[0]))
        if not _can_be_passed(text, self.max_length, at.label, location, faults):
            return None
        if not text.strip() or (self.shebang and not text.startswith("#!")):
            message = f"{at.label} is not {self.expected}"
            faults.add(FaultCode.BAD_VALUE, location, message, expected=self.expected, hint=self.hint)
            return None
        return ParsedValue(text, location)

    def schema(self) -> Schema:
        start = {"pattern": r"^#!"} if self.shebang else {}
        return {"type": "string", "minLength": 1, "maxLength": self.max_length, **start}


@dataclass(frozen=True, slots=True)
class AsWritten(ValueSchema[str]):
    """A scalar passed to a program as text, whatever its YAML type: `3`, `1e-4`, `true`."""

    max_length: int
    hint: str

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, ScalarNode) or node.kind is ScalarKind.NULL:
            wrong_type(node, at, faults, "text or a number", self.hint)
            return None
        location = at.location(node)._replace(value="")  # it may be a secret, which must not be logged
        valid = _can_be_passed(node.text, self.max_length, at.label, location, faults)
        return ParsedValue(node.text, location) if valid else None

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


MAX_TEXT_LENGTH: Final = 128 * 1024
"""Maximum length of one argument: the limit of Linux."""
_ARGUMENT: Final = AsWritten(MAX_TEXT_LENGTH, 'write each argument as text; an empty one as  ""')
_LINE: Final = MultilineText(
    "a command", MAX_TEXT_LENGTH, "write a list of arguments, or one line for the shell"
)


@dataclass(frozen=True, slots=True)
class Command(ValueSchema[tuple[str, ...]]):
    """The command of a job: a list is run as is, without a shell; a text is a line for `bash -c`."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[tuple[str, ...]] | None:
        if isinstance(node, ScalarNode):
            line = _LINE.read(node, at, faults)
            return ParsedValue(("bash", "-c", line.value), line.location) if line else None
        if isinstance(node, MappingNode) or not 0 < len(node.items) <= 4096:
            wrong_type(
                node, at, faults, "a line for the shell, or a list of arguments", "write  [python, train.py]"
            )
            return None
        read = [_ARGUMENT.read(n, FieldPath((*at.path, i), n.mark), faults) for i, n in enumerate(node.items)]
        if None in read:
            return None
        arguments = tuple(found.value for found in read if found)
        if not arguments[0]:
            faults.add(
                FaultCode.BAD_VALUE,
                at.location(node),
                "the first argument is empty",
                hint="begin with the program",
            )
            return None
        return ParsedValue(arguments, at.location(node))

    def schema(self) -> Schema:
        return {
            "anyOf": [
                _LINE.schema(),
                {"type": "array", "items": _ARGUMENT.schema(), "minItems": 1, "maxItems": 4096},
            ],
            "examples": [["python", "train.py", "--epochs", "3"], "python train.py > out.txt"],
        }


@dataclass(frozen=True, slots=True)
class Indices(ValueSchema[tuple[int, ...]]):
    """The indices of an array's tasks: `0-99`, `1,3,5-7`, `0-90:10`, or a list of numbers."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[tuple[int, ...]] | None:
        match node:
            case ScalarNode(text=text, kind=ScalarKind.STRING):
                indices = parse_indices(text)
            case SequenceNode():
                indices = self._listed(node)
            case _:
                one = (
                    shown(node.text)
                    if isinstance(node, ScalarNode) and node.kind is ScalarKind.INTEGER
                    else "99"
                )
                hint = f"write the first and the last:  0-{one}; for one index a list:  [{one}]"
                wrong_type(node, at, faults, _INDICES, hint)
                return None
        if isinstance(indices, Problem):
            indices.report(at.location(node), _INDICES, faults)
            return None
        return ParsedValue(indices, at.location(node))

    def _listed(self, node: SequenceNode) -> tuple[int, ...] | Problem:
        texts = [item.text if isinstance(item, ScalarNode) else "?" for item in node.items[: MAX_TASKS + 1]]
        if not texts or not all(re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) for text in texts):
            hint = "write whole numbers:  [0, 1, 2]"
            return Problem(FaultCode.BAD_VALUE, "not every item of the list is an index", hint)
        indices = sorted({int(text) for text in texts})
        return _too_many() if len(indices) > MAX_TASKS else tuple(indices)

    def schema(self) -> Schema:
        number = {"type": "integer", "minimum": 0, "maximum": MAX_INDEX}
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^{_INDICES_PATTERN}$"},
                {"type": "array", "items": number, "minItems": 1, "maxItems": MAX_TASKS},
            ],
            "examples": ["0-99", "1,3,5-7", [1, 2, 3]],
        }


_INDICES: Final = "indices of tasks, like 0-99 or 1,3,5-7"
_PART: Final = r"[0-9]{1,9}(-[0-9]{1,9}(:[1-9][0-9]{0,8})?)?"
_INDICES_PATTERN: Final = rf"{_PART}(,{_PART})*"


def parse_indices(text: str) -> tuple[int, ...] | Problem:
    """Parse indices like `1,3,5-7` or `0-90:10` into a sorted tuple without duplicates.

    Returns a Problem if the text is invalid.
    """
    if "%" in text:
        return Problem(
            FaultCode.UNSUPPORTED_OPTION,
            f"{shown(text)} limits how many tasks run at once, which Fairway leaves to the team's limits",
            f"take it away:  {shown(text.partition('%')[0])}",
        )
    if not text.isascii() or len(text) > 20 * MAX_TASKS or not re.fullmatch(_INDICES_PATTERN, text):
        meant = re.sub(r"\.\.\.?", "-", re.sub(r"\s+", "", text[:200]))
        corrected = re.fullmatch(_INDICES_PATTERN, meant) is not None and meant != text
        return Problem(
            FaultCode.BAD_VALUE,
            f"{shown(text) or 'an empty text'} is not {_INDICES}",
            f"write {shown(meant)}" if corrected else f"write {_INDICES}",
        )
    found: set[int] = set()
    for part in text.split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        low, high = int(first), int(last or first)
        if high < low:
            return Problem(FaultCode.BAD_VALUE, f"{part} ends before it begins", f"write {high}-{low}")
        if (high - low) // int(step or 1) >= MAX_TASKS:
            return _too_many()
        found.update(range(low, high + 1, int(step or 1)))
        if len(found) > MAX_TASKS:
            return _too_many()
    return tuple(sorted(found))


def _too_many() -> Problem:
    hint = "split it into several arrays"
    return Problem(FaultCode.OUT_OF_RANGE, f"an array has at most {MAX_TASKS:,} tasks", hint)


def _read_valid(record: Record, node: Node, at: FieldPath, faults: Faults) -> Section | None:
    """Read a record. Returns None if anything in it is invalid."""
    errors_before = faults.error_count
    found = record.read(node, at, faults)
    return found.value if found and faults.error_count == errors_before else None


RETRY_COUNT: Final = Key("count", Integer(0, 1000), "How often it may come back.", example="3", required=True)
RETRY_FIRST: Final = Key(
    "first", DurationValue(1, 86_400), "Wait before the first; doubled each time.", default="30s"
)
RETRY_LONGEST: Final = Key("longest", DurationValue(1, 7 * 86_400), "The longest wait.", default="1h")
_RETRIES: Final = Record("Retries after a failure", (RETRY_COUNT, RETRY_FIRST, RETRY_LONGEST))


@dataclass(frozen=True, slots=True)
class RetryValue(ValueSchema[Retries]):
    """The retries of a job: a count, or a mapping with count and waiting times."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[Retries] | None:
        if not isinstance(node, MappingNode):
            count = RETRY_COUNT.shape.read(node, at, faults)
            return ParsedValue(Retries(count.value), count.location) if count else None
        retries, default = _read_valid(_RETRIES, node, at, faults), Retries()
        if retries is None:
            return None
        first = retries.get(RETRY_FIRST) or default.first_seconds
        longest = retries.get(RETRY_LONGEST) or max(default.longest_seconds, first)
        if longest < first:
            message = "the longest wait is shorter than the first"
            faults.add(
                FaultCode.OUT_OF_RANGE, at.location(node), message, hint="raise longest, or lower first"
            )
            return None
        return ParsedValue(Retries(retries.require(RETRY_COUNT), first, longest), at.location(node))

    def schema(self) -> Schema:
        return {"anyOf": [RETRY_COUNT.shape.schema(), _RETRIES.schema()], "examples": [3, {"count": 3}]}


@dataclass(frozen=True, slots=True)
class JobIdValue(ValueSchema[JobId]):
    """A job id. Ids such as `1e10` or `0042`, which YAML reads as numbers, are ids here."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[JobId] | None:
        number = parse_job_id(node.text) if isinstance(node, ScalarNode) else None
        if number is None:
            written = shown(node.text) if isinstance(node, ScalarNode) else "this"
            faults.add(
                FaultCode.BAD_VALUE,
                at.location(node),
                f"{written or 'an empty text'} is not the id of a job",
                expected="an id like 8f3k",
                hint="fairway get jobs  shows them",
            )
            return None
        return ParsedValue(number, at.location(node))

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^[{_DIGITS}]{{4,12}}$"},
                {"type": "number", "minimum": 0},
            ],
            "examples": ["8f3k"],
        }


AFTER_JOB: Final = Key(
    "job", JobIdValue(), "The job's id; the first task's for a whole array.", example="8f3k", required=True
)
AFTER_WHEN: Final = Key("when", OneOf(When), "What must have become of it.", default="ok")
_AFTER: Final = Record("A job that must have ended first", (AFTER_JOB, AFTER_WHEN))


@dataclass(frozen=True, slots=True)
class DependencyValue(ValueSchema[After]):
    """A dependency on a job: its id, or `{ job: 8f3k, when: ended }`."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[After] | None:
        if not isinstance(node, MappingNode):
            job = AFTER_JOB.shape.read(node, at, faults)
            return ParsedValue(After(job.value), job.location) if job else None
        after = _read_valid(_AFTER, node, at, faults)
        job = after.found(AFTER_JOB) if after else None
        if after is None or job is None:
            return None
        return ParsedValue(After(job.value, after.get(AFTER_WHEN) or When.OK), job.location)

    def schema(self) -> Schema:
        return {"anyOf": [AFTER_JOB.shape.schema(), _AFTER.schema()]}


@dataclass(frozen=True, slots=True)
class OneOrMore(ValueSchema[tuple[ParsedValue[T], ...]]):
    """A list, or a single item without the brackets."""

    items: ListOf[T]
    max_items: int

    def read(
        self, node: Node, at: FieldPath, faults: Faults
    ) -> ParsedValue[tuple[ParsedValue[T], ...]] | None:
        if not isinstance(node, SequenceNode):
            one = self.items.item.read(node, at, faults)
            return ParsedValue((one,), one.location) if one else None
        if len(node.items) > self.max_items:
            message = f"{at.label} has more than {self.max_items:,} {self.items.plural}"
            faults.add(FaultCode.OUT_OF_RANGE, at.location(node), message, hint="take some of them away")
            return None
        return self.items.read(node, at, faults)

    def schema(self) -> Schema:
        return {"anyOf": [self.items.item.schema(), self.items.schema() | {"maxItems": self.max_items}]}
