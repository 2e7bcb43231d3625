"""Define the shapes of job file values that have several forms: GPUs, times, commands, indices, retries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeVar

from fairway.files.diagnostics import FaultCode, Faults, Spot, shown
from fairway.files.job import durations, gpus
from fairway.files.schema.containers import Key, ListOf, Record
from fairway.files.schema.values import (
    At,
    DurationValue,
    Integer,
    OneOf,
    ParsedValue,
    Problem,
    Schema,
    ValueSchema,
    wrong_type,
)
from fairway.files.yaml.tree import Listing, Mapping, Node, Scalar, ScalarKind
from fairway.model.job import MOST_TASKS, After, GpuRequest, JobId, Retries, When, parse_job_id

T = TypeVar("T")

LARGEST_INDEX: Final = 10**9 - 1
_DIGITS: Final = "0-9A-HJKMNP-TV-Za-hjkmnp-tv-z"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters except tab and line feed, and lone surrogates: not allowed in shell lines."""


def _report(problem: Problem, spot: Spot, expected: str, faults: Faults) -> None:
    faults.add(
        problem.code, spot, problem.message, expected=expected, hint=problem.hint, severity=problem.severity
    )


def _unprintable(label: str, found: str) -> Problem:
    message = f"{label} holds {found!a}, which no program takes"
    unix = "save the file with Unix line ends:  dos2unix FILE"
    return Problem(FaultCode.BAD_VALUE, message, unix if found == "\r" else "take that character away")


@dataclass(frozen=True, slots=True)
class Gpus(ValueSchema[GpuRequest]):
    """The GPUs per node, as a GpuRequest."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[GpuRequest] | None:
        if not isinstance(node, Scalar) or node.kind not in (ScalarKind.TEXT, ScalarKind.WHOLE):
            wrong_type(node, at, faults, gpus.EXPECTED, f"write {gpus.EXPECTED}")
            return None
        request, problem = gpus.parse_gpus(node.text)
        if problem is not None:
            _report(problem, at.spot(node), gpus.EXPECTED, faults)
        return ParsedValue(request, at.spot(node)) if request else None

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": gpus.MOST_GPUS},
                {"type": "string", "pattern": f"^({gpus.GPUS_PATTERN})$"},
            ],
            "examples": list(gpus.GPUS_EXAMPLES),
        }


@dataclass(frozen=True, slots=True)
class TimeLimit(ValueSchema[int]):
    """A time limit, read in seconds."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[int] | None:
        if not isinstance(node, Scalar) or node.kind not in (
            ScalarKind.TEXT,
            ScalarKind.WHOLE,
            ScalarKind.DECIMAL,
        ):
            wrong_type(node, at, faults, durations.EXPECTED, f"write {durations.EXPECTED}")
            return None
        read = durations.parse_time(node.text)
        if isinstance(read, Problem):
            _report(read, at.spot(node), durations.EXPECTED, faults)
            return None
        return ParsedValue(read, at.spot(node))

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
    longest: int
    hint: str
    shebang: bool = False
    """Whether it must begin with a #! line."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, Scalar) or node.kind is not ScalarKind.TEXT:
            wrong_type(node, at, faults, self.expected, self.hint)
            return None
        text = node.text
        spot = at.spot(node)._replace(value=shown(text.split("\n", 1)[0]))
        if len(text) > self.longest:
            message = f"{at.label} is longer than {self.longest:,} characters"
            faults.add(FaultCode.OUT_OF_RANGE, spot, message, hint="put it in a file the job can read")
            return None
        if control := _CONTROL.search(text):
            _report(_unprintable(at.label, control[0]), spot, "", faults)
            return None
        if not text.strip() or (self.shebang and not text.startswith("#!")):
            message = f"{at.label} is not {self.expected}"
            faults.add(FaultCode.BAD_VALUE, spot, message, expected=self.expected, hint=self.hint)
            return None
        return ParsedValue(text, spot)

    def schema(self) -> Schema:
        start = {"pattern": r"^#!"} if self.shebang else {}
        return {"type": "string", "minLength": 1, "maxLength": self.longest, **start}


@dataclass(frozen=True, slots=True)
class AsWritten(ValueSchema[str]):
    """A scalar passed to a program as text, whatever its YAML type: `3`, `1e-4`, `true`."""

    longest: int
    hint: str

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[str] | None:
        if not isinstance(node, Scalar) or node.kind is ScalarKind.NOTHING:
            wrong_type(node, at, faults, "text or a number", self.hint)
            return None
        spot = at.spot(node)._replace(value="")  # may be what nobody should read in a log
        if len(node.text) > self.longest:
            message = f"{at.label} is longer than {self.longest:,} characters"
            faults.add(FaultCode.OUT_OF_RANGE, spot, message, hint="put it in a file the job can read")
            return None
        if control := _CONTROL.search(node.text):
            _report(_unprintable(at.label, control[0]), spot, "", faults)
            return None
        return ParsedValue(node.text, spot)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


LONGEST_TEXT: Final = 128 * 1024
"""Maximum length of one argument: the limit of Linux."""
_ARGUMENT: Final = AsWritten(LONGEST_TEXT, 'write each argument as text; an empty one as  ""')
_LINE: Final = MultilineText(
    "a command", LONGEST_TEXT, "write a list of arguments, or one line for the shell"
)


@dataclass(frozen=True, slots=True)
class Command(ValueSchema[tuple[str, ...]]):
    """The command of a job: a list is run as is, without a shell; a text is a line for `bash -c`."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[tuple[str, ...]] | None:
        if isinstance(node, Scalar):
            line = _LINE.read(node, at, faults)
            return ParsedValue(("bash", "-c", line.value), line.spot) if line else None
        if isinstance(node, Mapping) or not 0 < len(node.items) <= 4096:
            wrong_type(
                node, at, faults, "a line for the shell, or a list of arguments", "write  [python, train.py]"
            )
            return None
        read = [_ARGUMENT.read(n, At((*at.path, i), n.mark), faults) for i, n in enumerate(node.items)]
        if None in read:
            return None
        words = tuple(found.value for found in read if found)
        if not words[0]:
            faults.add(
                FaultCode.BAD_VALUE,
                at.spot(node),
                "the first argument is empty",
                hint="begin with the program",
            )
            return None
        return ParsedValue(words, at.spot(node))

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

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[tuple[int, ...]] | None:
        match node:
            case Scalar(text=text, kind=ScalarKind.TEXT):
                read = parse_indices(text)
            case Listing():
                read = self._listed(node)
            case _:
                one = shown(node.text) if isinstance(node, Scalar) and node.kind is ScalarKind.WHOLE else "99"
                hint = f"write the first and the last:  0-{one}; for one index a list:  [{one}]"
                wrong_type(node, at, faults, _INDICES, hint)
                return None
        if isinstance(read, Problem):
            _report(read, at.spot(node), _INDICES, faults)
            return None
        return ParsedValue(read, at.spot(node))

    def _listed(self, node: Listing) -> tuple[int, ...] | Problem:
        words = [item.text if isinstance(item, Scalar) else "?" for item in node.items[: MOST_TASKS + 1]]
        if not words or not all(re.fullmatch(r"[0-9]{1,9}", w, re.ASCII) for w in words):
            hint = "write whole numbers:  [0, 1, 2]"
            return Problem(FaultCode.BAD_VALUE, "not every item of the list is an index", hint)
        return _bounded(sorted({int(word) for word in words}))

    def schema(self) -> Schema:
        number = {"type": "integer", "minimum": 0, "maximum": LARGEST_INDEX}
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^{_INDICES_PATTERN}$"},
                {"type": "array", "items": number, "minItems": 1, "maxItems": MOST_TASKS},
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
            FaultCode.NO_WORD_FOR_IT,
            f"{shown(text)} limits how many tasks run at once, which Fairway leaves to the team's limits",
            f"take it away:  {shown(text.partition('%')[0])}",
        )
    if not text.isascii() or len(text) > 20 * MOST_TASKS or not re.fullmatch(_INDICES_PATTERN, text):
        meant = re.sub(r"\.\.\.?", "-", re.sub(r"\s+", "", text[:200]))
        mended = re.fullmatch(_INDICES_PATTERN, meant) is not None and meant != text
        return Problem(
            FaultCode.BAD_VALUE,
            f"{shown(text) or 'an empty text'} is not {_INDICES}",
            f"write {shown(meant)}" if mended else f"write {_INDICES}",
        )
    found: set[int] = set()
    for part in text.split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        low, high = int(first), int(last or first)
        if high < low:
            return Problem(FaultCode.BAD_VALUE, f"{part} ends before it begins", f"write {high}-{low}")
        if (high - low) // int(step or 1) >= MOST_TASKS:
            return _too_many()
        found.update(range(low, high + 1, int(step or 1)))
        if len(found) > MOST_TASKS:
            return _too_many()
    return _bounded(sorted(found))


def _bounded(indices: list[int]) -> tuple[int, ...] | Problem:
    return _too_many() if len(indices) > MOST_TASKS else tuple(indices)


def _too_many() -> Problem:
    hint = "split it into several arrays"
    return Problem(FaultCode.OUT_OF_RANGE, f"an array has at most {MOST_TASKS:,} tasks", hint)


RETRY_COUNT: Final = Key("count", Integer(0, 1000), "How often it may come back.", example="3")
RETRY_FIRST: Final = Key(
    "first",
    DurationValue(1, 86_400),
    "Wait before the first; doubled each time.",
    required=False,
    default="30s",
)
RETRY_LONGEST: Final = Key(
    "longest", DurationValue(1, 7 * 86_400), "The longest wait.", required=False, default="1h"
)
_RETRIES: Final = Record("Retries after a failure", (RETRY_COUNT, RETRY_FIRST, RETRY_LONGEST))


@dataclass(frozen=True, slots=True)
class RetryValue(ValueSchema[Retries]):
    """The retries of a job: a count, or a mapping with count and waiting times."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[Retries] | None:
        if not isinstance(node, Mapping):
            count = RETRY_COUNT.shape.read(node, at, faults)
            return ParsedValue(Retries(count.value), count.spot) if count else None
        errors = faults.error_count
        section = _RETRIES.read(node, at, faults)
        if section is None or faults.error_count > errors:
            return None
        usual, told = Retries(), section.value
        first = told.get(RETRY_FIRST) or usual.first_seconds
        longest = told.get(RETRY_LONGEST) or max(usual.longest_seconds, first)
        if longest < first:
            message = "the longest wait is shorter than the first"
            faults.add(FaultCode.OUT_OF_RANGE, at.spot(node), message, hint="raise longest, or lower first")
            return None
        return ParsedValue(Retries(told.need(RETRY_COUNT), first, longest), at.spot(node))

    def schema(self) -> Schema:
        return {"anyOf": [RETRY_COUNT.shape.schema(), _RETRIES.schema()], "examples": [3, {"count": 3}]}


@dataclass(frozen=True, slots=True)
class JobIdValue(ValueSchema[JobId]):
    """A job id. Ids such as `1e10` or `0042`, which YAML reads as numbers, are ids here."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[JobId] | None:
        number = parse_job_id(node.text) if isinstance(node, Scalar) else None
        if number is None:
            written = shown(node.text) if isinstance(node, Scalar) else "this"
            faults.add(
                FaultCode.BAD_VALUE,
                at.spot(node),
                f"{written or 'an empty text'} is not the id of a job",
                expected="an id like 8f3k",
                hint="fairway get jobs  shows them",
            )
            return None
        return ParsedValue(number, at.spot(node))

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^[{_DIGITS}]{{4,12}}$"},
                {"type": "number", "minimum": 0},
            ],
            "examples": ["8f3k"],
        }


AFTER_JOB: Final = Key(
    "job", JobIdValue(), "The job's id; the first task's for a whole array.", example="8f3k"
)
AFTER_WHEN: Final = Key("when", OneOf(When), "What must have become of it.", required=False, default="ok")
_AFTER: Final = Record("A job that must have ended first", (AFTER_JOB, AFTER_WHEN))


@dataclass(frozen=True, slots=True)
class DependencyValue(ValueSchema[After]):
    """A dependency on a job: its id, or `{ job: 8f3k, when: ended }`."""

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[After] | None:
        if not isinstance(node, Mapping):
            job = AFTER_JOB.shape.read(node, at, faults)
            return ParsedValue(After(job.value), job.spot) if job else None
        errors = faults.error_count
        section = _AFTER.read(node, at, faults)
        job = section.value.found(AFTER_JOB) if section else None
        if section is None or job is None or faults.error_count > errors:
            return None
        return ParsedValue(After(job.value, section.value.get(AFTER_WHEN) or When.OK), job.spot)

    def schema(self) -> Schema:
        return {"anyOf": [AFTER_JOB.shape.schema(), _AFTER.schema()]}


@dataclass(frozen=True, slots=True)
class OneOrMore(ValueSchema[tuple[ParsedValue[T], ...]]):
    """A list, or a single item without the brackets."""

    items: ListOf[T]
    most: int

    def read(self, node: Node, at: At, faults: Faults) -> ParsedValue[tuple[ParsedValue[T], ...]] | None:
        if not isinstance(node, Listing):
            one = self.items.item.read(node, at, faults)
            return ParsedValue((one,), one.spot) if one else None
        if len(node.items) > self.most:
            message = f"{at.label} has more than {self.most:,} {self.items.things}"
            faults.add(FaultCode.OUT_OF_RANGE, at.spot(node), message, hint="take some of them away")
            return None
        return self.items.read(node, at, faults)

    def schema(self) -> Schema:
        return {"anyOf": [self.items.item.schema(), self.items.schema() | {"maxItems": self.most}]}
