"""Collect the faults of a file: code, position, expected and found value, and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Self

from fairway.model.errors import PermanentError
from fairway.model.text import first_few, nearest

MAX_FAULTS: Final = 100
"""Maximum number of faults reported; a broken file of a megabyte could have one on every line."""

_MAX_SHOWN: Final = 60

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")

_PASSWORD: Final = re.compile(r"[^\s/@:]+:[^\s/@]+@")
"""The `user:password@` part of a URL, masked because the output of a check ends up in logs."""


class Severity(StrEnum):
    """Whether a file with the fault can be used."""

    ERROR = "error"
    WARNING = "warning"


class FaultCode(StrEnum):
    """The code of a fault in a file. Codes are stable, so that scripts can match on them."""

    explanation: str

    def __new__(cls, code: str, explanation: str = "") -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.explanation = explanation
        return member

    FILE_UNREADABLE = "FileUnreadable", "The file does not exist, is a folder, or may not be read."
    FILE_TOO_LARGE = "FileTooLarge", "The file is larger than any fleet or job needs."
    NOT_UTF8 = "NotUtf8", "The file is not UTF-8 text."
    NOT_YAML = "NotYaml", "The text breaks YAML's own rules, so nothing in it can be read."
    EMPTY_FILE = "EmptyFile", "There is nothing in the file but, perhaps, comments."
    SEVERAL_DOCUMENTS = "SeveralDocuments", "The file holds more than one YAML document; where one belongs."
    TOO_DEEP = "TooDeep", "Values are nested deeper than any file needs."
    TOO_MANY_VALUES = "TooManyValues", "With its aliases written out the file would be far too large."
    UNKNOWN_ALIAS = "UnknownAlias", "An alias (*name) has no anchor (&name) before it."
    ENDLESS_ALIAS = "EndlessAlias", "An alias stands inside what it refers to."
    TAG_NOT_ALLOWED = "TagNotAllowed", "A YAML tag (!name) asks for a type; Fairway's files need none."
    BAD_MERGE = "BadMerge", "A merge key (<<) takes a mapping, or a list of mappings."
    DUPLICATE_KEY = "DuplicateKey", "A key stands twice in one mapping; one of them would be lost."
    KEY_NOT_TEXT = "KeyNotText", "A key is no text: a number, a truth value, a list or a mapping."
    TOO_MANY_FAULTS = "TooManyFaults", "There are more faults than are shown."
    WRONG_TYPE = "WrongType", "A value has another type than its key takes."
    UNKNOWN_KEY = "UnknownKey", "A key that nothing reads, most often a typo."
    MISSING_KEY = "MissingKey", "A key that must be there is not."
    NOT_SUPPORTED_YET = "NotSupportedYet", "A section that a later release will read."
    BAD_VALUE = "BadValue", "A value does not have the form its key takes."
    BAD_NAME = "BadName", "A name that not every engine could use."
    BAD_URL = "BadUrl", "A URL that cannot be the address of a slurmrestd."
    BAD_PATH = "BadPath", "A path that depends on who reads it."
    SECRET_IN_FILE = "SecretInFile", "A secret stands in the fleet file; it belongs in a file of its own."
    NOT_ONE_OF = "NotOneOf", "A word that is not among those allowed here."
    OUT_OF_RANGE = "OutOfRange", "A number is too small, too large or too finely divided."
    NOT_EXACTLY_ONE = "NotExactlyOne", "Of a group of keys exactly one must be there."
    REPEATED_VALUE = "RepeatedValue", "A list names the same thing twice."
    AMBIGUOUS_WORD = "AmbiguousWord", "A word that other YAML readers take for true or false."
    PLAIN_HTTP = "PlainHttp", "Tokens would cross the network unencrypted."
    KNOWN_GPU_TYPE = "KnownGpuType", "gpu_types names a type that Fairway knows already."
    UNKNOWN_CLUSTER = "UnknownCluster", "A pool names a cluster that the file does not have."
    UNKNOWN_GPU_TYPE = "UnknownGpuType", "A pool names a GPU type that neither Fairway nor the file knows."
    UNKNOWN_SLICE = "UnknownSlice", "A slice that this GPU type cannot be cut into, or this pool is not."
    NO_MIG = "NoMig", "Slices of a GPU type that cannot be cut."
    SLICES_DO_NOT_FIT = "SlicesDoNotFit", "These slices do not fit on one GPU together."
    SLICES_DISAGREE = "SlicesDisagree", "slices and slices_per_gpu or device_classes name different slices."
    WRONG_ENGINE = "WrongEngine", "A pool's place is written for another engine than its cluster's."
    SAME_CLUSTER = "SameCluster", "Two clusters of the file are one and the same."
    SAME_GPUS = "SameGpus", "Two pools claim the same GPUs, which would be counted twice."
    OVERLAPPING_POOLS = "OverlappingPools", "Nodes of a pool also suit a pool before it, which gets them."
    TOPOLOGY_UNUSED = "TopologyUnused", "topology names node labels, which this engine does not have."
    GPUS_DISAGREE = "GpusDisagree", "gpus says another number than the nodes of the virtual pool have."
    RESERVED_NAME = "ReservedName", "A name that the engines, or Fairway on them, use for something else."
    DUPLICATE_TEAM = "DuplicateTeam", "Two teams have one name; names are unique, whatever the parent."
    NAME_IN_USE = "NameInUse", "A team is renamed from one that still exists, or from one that another was."
    DUPLICATE_ACCOUNT = "DuplicateAccount", "Two teams have one account on Slurm, so their jobs are mixed up."
    UNKNOWN_POOL = "UnknownPool", "A grant or a rule on a pool that the file does not have."
    SLICED_POOL = "SlicedPool", "A grant of whole GPUs on a pool whose GPUs are cut into slices."
    WHOLE_POOL = "WholePool", "A grant of slices on a pool whose GPUs are not cut."
    GUARANTEES_TOO_HIGH = "GuaranteesTooHigh", "Guarantees add up to more than the pool has."
    ABOVE_PARENT = "AboveParent", "Guarantees of teams add up to more than the team they are in has."
    PARENT_WITHOUT = "ParentWithout", "A grant on a pool on which the team's parent has none."
    CEILING_ABOVE_PARENT = "CeilingAboveParent", "A team may hold more than its parent, which has no effect."
    LIMIT_ABOVE_CEILING = (
        "LimitAboveCeiling",
        "A limit above all that the team may hold, which has no effect.",
    )
    NOT_ONE_DEFAULT = "NotOneDefault", "Exactly one priority must be the default."
    SAME_RANK = "SameRank", "Two priorities have one rank, so that neither goes first."
    PREEMPTIBLE_TOO_HIGH = "PreemptibleTooHigh", "A preemptible priority does not rank below the default."
    UNKNOWN_PRIORITY = "UnknownPriority", "A team names a priority that the fleet does not have."
    UNUSED_PRIORITY = "UnusedPriority", "A priority that no team may use."
    DEFAULT_NOT_ALLOWED = (
        "DefaultNotAllowed",
        "A team may not use the priority that its jobs get without a word.",
    )
    CANNOT_RUN = "CannotRun", "A team that can never run anything."
    NO_MEMBERS = "NoMembers", "A team to which nobody belongs, nor to any team inside it."
    STILL_DRAINING = "StillDraining", "A team inside a draining one drains too, whatever it says."
    DUPLICATE_BUDGET = "DuplicateBudget", "A budget has the name of a team, whose own budget has it."
    EMPTY_BUDGET = "EmptyBudget", "A budget of nothing, which would be spent before anything ran."
    BUDGET_ABOVE_PARENT = "BudgetAboveParent", "A budget larger than one around it, which is spent first."
    NOTHING_IS_LOW = "NothingIsLow", "at_limit: low-only where nobody may use a preemptible priority."
    NO_EFFECT = "NoEffect", "A key that means nothing beside what another one says."
    SEVERAL_TEAMS = "SeveralTeams", "Who is in several teams needs a default one."
    UNKNOWN_TEAM = "UnknownTeam", "A team that the file does not have."
    NOT_A_MEMBER = "NotAMember", "A user's default team is none that they are a member of."
    SYSTEM_USER = "SystemUser", "A member that is a user of the system, or Fairway's own user on a cluster."
    NOT_IN_ORDER = "NotInOrder", "Days that must follow each other do not."
    UNKNOWN_TIME_ZONE = "UnknownTimeZone", "A time zone that nobody knows."
    COMMITTED_TOO_MUCH = "CommittedTooMuch", "Commitments are for more GPUs than the pool has."
    IDLE_UNMEASURED = "IdleUnmeasured", "Idle rules, but no cluster with telemetry: they never apply."
    SLICE_PRICES_DIFFER = (
        "SlicePricesDiffer",
        "Slices at prices of their own cost more or less than is paid for the GPUs they are cut from.",
    )
    NO_PRICE = "NoPrice", "The pool's price is 0 and nothing else says what it costs: its charges will be 0."
    SLO_NEVER_MET = (
        "SloNeverMet",
        "An SLO that counts no jobs, or promises more GPU-hours than the GPUs of the team can deliver.",
    )
    UNSUPPORTED_OPTION = (
        "NoWordForIt",
        "Part of a script or manifest that changes the job; Fairway cannot say it.",
    )
    LEFT_OUT = "LeftOut", "Part of a script or manifest that means nothing here and is left out."
    AS_WRITTEN = (
        "AsWritten",
        "A Kubernetes Job says more than a job file can: it is submitted as it is, to Kubernetes only.",
    )
    BAD_MANIFEST = "BadManifest", "A Kubernetes object cannot be submitted through Fairway as it is."
    NOT_A_JOB = "NotAJob", "The file is something else than a job."


class Location(NamedTuple):
    """A position in a file and the value found there."""

    line: int
    column: int
    path: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One error or warning about a file."""

    severity: Severity
    code: FaultCode
    message: str
    source: str
    line: int
    column: int
    path: str
    found: str
    expected: str
    hint: str
    related: tuple[Location, ...] = ()

    @property
    def locations(self) -> tuple[Location, ...]:
        """Return all positions the fault refers to, its own first."""
        return (Location(self.line, self.column, self.path, self.found), *self.related)


class InvalidFile(PermanentError):
    """Raised for a file that has errors. `faults` has all errors and warnings."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        errors = [f for f in self.faults if f.severity is Severity.ERROR]
        first = errors[0]
        if len(errors) == 1:
            super().__init__("InvalidFile", first.message, first.hint)
        else:
            super().__init__(
                "InvalidFile",
                f"{source} has {len(errors)} errors, the first: {first.message}",
                f"see them all, each with a hint:  fairway check -f {source}",
            )
        self.details = location_lines(first)


@dataclass(slots=True)
class Faults:
    """A collector of the faults of one file, up to MAX_FAULTS."""

    source: str
    tolerated: frozenset[FaultCode] = frozenset()
    """Faults that are warnings here: a fleet that was stored before they were faults is read all the same."""
    error_count: int = 0
    """Number of errors so far, including omitted ones; compare before and after to see if a part is valid."""
    _recorded: list[Fault] = field(default_factory=list)
    _omitted: int = 0

    @property
    def full(self) -> bool:
        """Return whether further faults are only counted, so that callers can skip computing hints."""
        return len(self._recorded) >= MAX_FAULTS and self.errors

    @property
    def any(self) -> bool:
        """Return whether any fault was recorded."""
        return bool(self._recorded)

    @property
    def errors(self) -> bool:
        """Return whether any error was recorded, so that the file cannot be used."""
        return self.error_count > 0

    def add(
        self,
        code: FaultCode,
        location: Location,
        message: str,
        *,
        hint: str,
        expected: str = "",
        related: Sequence[Location] = (),
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Record a fault; if MAX_FAULTS is reached, only count it."""
        if code in self.tolerated:
            severity = Severity.WARNING
        self.error_count += severity is Severity.ERROR
        # The first error is always recorded: a file must not pass because warnings filled the list.
        first_error = severity is Severity.ERROR and self.error_count == 1
        if len(self._recorded) >= MAX_FAULTS and not first_error:
            self._omitted += 1
            return
        self._recorded.append(
            Fault(severity, code, message, self.source, *location, expected, hint, tuple(related))
        )

    def sorted(self) -> tuple[Fault, ...]:
        """Return the faults in file order, with a final one that says how many were omitted."""
        faults = sorted(self._recorded, key=lambda f: (f.line, f.column))
        if self._omitted:
            faults.append(
                replace(
                    faults[-1],
                    code=FaultCode.TOO_MANY_FAULTS,
                    message=f"{self._omitted} more faults are not shown",
                    path="",
                    found="",
                    expected="",
                    hint="mend these first, then check again",
                    related=(),
                )
            )
        return tuple(faults)


def location_lines(fault: Fault) -> tuple[str, ...]:
    """Format `file:line:column  path  value` for each position of the fault, aligned in columns."""
    rows = [(f"{fault.source}:{s.line}:{s.column}", s.path, s.value) for s in fault.locations]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return tuple(f"{at:{widths[0]}}  {path:{widths[1]}}   {value}".rstrip() for at, path, value in rows)


def shown(text: str, max_length: int = _MAX_SHOWN) -> str:
    """Make a user's text safe to print: one line, no control characters, no password, limited length."""
    if "@" in text:
        text = _PASSWORD.sub("…@", text[: 10 * _MAX_SHOWN])
    short = text if len(text) <= max_length else text[: max_length - 1] + "…"
    if short.isprintable():
        return short
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in short)


def dotted(parts: Sequence[str | int]) -> str:
    """Format a path in a file, e.g. `pools.hpc.slices[0]`; unusual keys are quoted."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if _PLAIN_KEY.fullmatch(part) else f'"{shown(part)}"'
            path += f".{name}" if path else name
    return path


def did_you_mean(word: str, choices: Iterable[str], otherwise: str) -> str:
    """Return a hint with the choices nearest to `word`, or `otherwise` if none is near."""
    found = nearest(word, choices)
    return f"did you mean {' or '.join(shown(name) for name in found)}?" if found else otherwise


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Join names for a sentence, at most `limit` of them."""
    return first_few([shown(name) for name in names], limit)
