"""Collect the faults of a file: code, position, expected and found value, and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from fairway.model.errors import PermanentError
from fairway.model.text import first_few, nearest

MOST_FAULTS: Final = 100
"""Maximum number of faults reported; a broken file of a megabyte could have one on every line."""

_SHOWN: Final = 60

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")

_PASSWORD: Final = re.compile(r"[^\s/@:]+:[^\s/@]+@")
"""The `user:password@` part of a URL, masked because the output of a check ends up in logs."""


class Severity(StrEnum):
    """Whether a file with the fault can be used."""

    ERROR = "error"
    WARNING = "warning"


class FaultCode(StrEnum):
    """The code of a fault in a file. Codes are stable, so that scripts can match on them."""

    FILE_UNREADABLE = "FileUnreadable"
    FILE_TOO_LARGE = "FileTooLarge"
    NOT_UTF8 = "NotUtf8"
    NOT_YAML = "NotYaml"
    EMPTY_FILE = "EmptyFile"
    SEVERAL_DOCUMENTS = "SeveralDocuments"
    TOO_DEEP = "TooDeep"
    TOO_MANY_VALUES = "TooManyValues"
    UNKNOWN_ALIAS = "UnknownAlias"
    ENDLESS_ALIAS = "EndlessAlias"
    TAG_NOT_ALLOWED = "TagNotAllowed"
    BAD_MERGE = "BadMerge"
    DUPLICATE_KEY = "DuplicateKey"
    KEY_NOT_TEXT = "KeyNotText"
    TOO_MANY_FAULTS = "TooManyFaults"
    WRONG_TYPE = "WrongType"
    UNKNOWN_KEY = "UnknownKey"
    MISSING_KEY = "MissingKey"
    NOT_SUPPORTED_YET = "NotSupportedYet"
    BAD_VALUE = "BadValue"
    BAD_NAME = "BadName"
    BAD_URL = "BadUrl"
    BAD_PATH = "BadPath"
    SECRET_IN_FILE = "SecretInFile"  # noqa: S105  a code, not a secret
    NOT_ONE_OF = "NotOneOf"
    OUT_OF_RANGE = "OutOfRange"
    NOT_EXACTLY_ONE = "NotExactlyOne"
    REPEATED_VALUE = "RepeatedValue"
    AMBIGUOUS_WORD = "AmbiguousWord"
    PLAIN_HTTP = "PlainHttp"
    KNOWN_GPU_TYPE = "KnownGpuType"
    UNKNOWN_CLUSTER = "UnknownCluster"
    UNKNOWN_GPU_TYPE = "UnknownGpuType"
    UNKNOWN_SLICE = "UnknownSlice"
    NO_MIG = "NoMig"
    SLICES_DO_NOT_FIT = "SlicesDoNotFit"
    SLICES_DISAGREE = "SlicesDisagree"
    WRONG_ENGINE = "WrongEngine"
    SAME_CLUSTER = "SameCluster"
    SAME_GPUS = "SameGpus"
    OVERLAPPING_POOLS = "OverlappingPools"
    TOPOLOGY_UNUSED = "TopologyUnused"
    GPUS_DISAGREE = "GpusDisagree"
    RESERVED_NAME = "ReservedName"
    DUPLICATE_TEAM = "DuplicateTeam"
    UNKNOWN_POOL = "UnknownPool"
    SLICED_POOL = "SlicedPool"
    WHOLE_POOL = "WholePool"
    GUARANTEES_TOO_HIGH = "GuaranteesTooHigh"
    ABOVE_PARENT = "AboveParent"
    PARENT_WITHOUT = "ParentWithout"
    CEILING_ABOVE_PARENT = "CeilingAboveParent"
    LIMIT_ABOVE_CEILING = "LimitAboveCeiling"
    NOT_ONE_DEFAULT = "NotOneDefault"
    SAME_RANK = "SameRank"
    PREEMPTIBLE_TOO_HIGH = "PreemptibleTooHigh"
    UNKNOWN_PRIORITY = "UnknownPriority"
    UNUSED_PRIORITY = "UnusedPriority"
    DEFAULT_NOT_ALLOWED = "DefaultNotAllowed"
    CANNOT_RUN = "CannotRun"
    NO_MEMBERS = "NoMembers"
    STILL_DRAINING = "StillDraining"
    EMPTY_BUDGET = "EmptyBudget"
    BUDGET_ABOVE_PARENT = "BudgetAboveParent"
    NOTHING_IS_LOW = "NothingIsLow"
    NO_EFFECT = "NoEffect"
    SEVERAL_TEAMS = "SeveralTeams"
    UNKNOWN_TEAM = "UnknownTeam"
    NOT_A_MEMBER = "NotAMember"
    NOT_IN_ORDER = "NotInOrder"
    UNKNOWN_TIME_ZONE = "UnknownTimeZone"
    COMMITTED_TOO_MUCH = "CommittedTooMuch"
    NO_PRICE = "NoPrice"
    NO_WORD_FOR_IT = "NoWordForIt"
    LEFT_OUT = "LeftOut"
    NOT_A_JOB = "NotAJob"


EXPLANATIONS: Final[dict[FaultCode, str]] = {
    FaultCode.FILE_UNREADABLE: "The file does not exist, is a folder, or may not be read.",
    FaultCode.FILE_TOO_LARGE: "The file is larger than any fleet or job needs.",
    FaultCode.NOT_UTF8: "The file is not UTF-8 text.",
    FaultCode.NOT_YAML: "The text breaks YAML's own rules, so nothing in it can be read.",
    FaultCode.EMPTY_FILE: "There is nothing in the file but, perhaps, comments.",
    FaultCode.SEVERAL_DOCUMENTS: "The file holds more than one YAML document; where one belongs.",
    FaultCode.TOO_DEEP: "Values are nested deeper than any file needs.",
    FaultCode.TOO_MANY_VALUES: "With its aliases written out the file would be far too large.",
    FaultCode.UNKNOWN_ALIAS: "An alias (*name) has no anchor (&name) before it.",
    FaultCode.ENDLESS_ALIAS: "An alias stands inside what it refers to.",
    FaultCode.TAG_NOT_ALLOWED: "A YAML tag (!name) asks for a type; Fairway's files need none.",
    FaultCode.BAD_MERGE: "A merge key (<<) takes a mapping, or a list of mappings.",
    FaultCode.DUPLICATE_KEY: "A key stands twice in one mapping; one of them would be lost.",
    FaultCode.KEY_NOT_TEXT: "A key is no text: a number, a truth value, a list or a mapping.",
    FaultCode.TOO_MANY_FAULTS: "There are more faults than are shown.",
    FaultCode.WRONG_TYPE: "A value has another type than its key takes.",
    FaultCode.UNKNOWN_KEY: "A key that nothing reads, most often a typo.",
    FaultCode.MISSING_KEY: "A key that must be there is not.",
    FaultCode.NOT_SUPPORTED_YET: "A section that a later release will read.",
    FaultCode.BAD_VALUE: "A value does not have the form its key takes.",
    FaultCode.BAD_NAME: "A name that not every engine could use.",
    FaultCode.BAD_URL: "A URL that cannot be the address of a slurmrestd.",
    FaultCode.BAD_PATH: "A path that depends on who reads it.",
    FaultCode.SECRET_IN_FILE: "A secret stands in the fleet file; it belongs in a file of its own.",
    FaultCode.NOT_ONE_OF: "A word that is not among those allowed here.",
    FaultCode.OUT_OF_RANGE: "A number is too small, too large or too finely divided.",
    FaultCode.NOT_EXACTLY_ONE: "Of a group of keys exactly one must be there.",
    FaultCode.REPEATED_VALUE: "A list names the same thing twice.",
    FaultCode.AMBIGUOUS_WORD: "A word that other YAML readers take for true or false.",
    FaultCode.PLAIN_HTTP: "Tokens would cross the network unencrypted.",
    FaultCode.KNOWN_GPU_TYPE: "gpu_types names a type that Fairway knows already.",
    FaultCode.UNKNOWN_CLUSTER: "A pool names a cluster that the file does not have.",
    FaultCode.UNKNOWN_GPU_TYPE: "A pool names a GPU type that neither Fairway nor the file knows.",
    FaultCode.UNKNOWN_SLICE: "A slice that this GPU type cannot be cut into, or this pool is not.",
    FaultCode.NO_MIG: "Slices of a GPU type that cannot be cut.",
    FaultCode.SLICES_DO_NOT_FIT: "These slices do not fit on one GPU together.",
    FaultCode.SLICES_DISAGREE: "slices and slices_per_gpu name different slices.",
    FaultCode.WRONG_ENGINE: "A pool's place is written for another engine than its cluster's.",
    FaultCode.SAME_CLUSTER: "Two clusters of the file are one and the same.",
    FaultCode.SAME_GPUS: "Two pools claim the same GPUs, which would be counted twice.",
    FaultCode.OVERLAPPING_POOLS: "Nodes of a pool also suit a pool before it, which gets them.",
    FaultCode.TOPOLOGY_UNUSED: "topology names node labels, which this engine does not have.",
    FaultCode.GPUS_DISAGREE: "gpus says another number than the nodes of the virtual pool have.",
    FaultCode.RESERVED_NAME: "A name that the engines, or Fairway on them, use for something else.",
    FaultCode.DUPLICATE_TEAM: "Two teams have one name; names are unique, whatever the parent.",
    FaultCode.UNKNOWN_POOL: "A grant on a pool that the file does not have.",
    FaultCode.SLICED_POOL: "A grant of whole GPUs on a pool whose GPUs are cut into slices.",
    FaultCode.WHOLE_POOL: "A grant of slices on a pool whose GPUs are not cut.",
    FaultCode.GUARANTEES_TOO_HIGH: "Guarantees add up to more than the pool has.",
    FaultCode.ABOVE_PARENT: "Guarantees of teams add up to more than the team they are in has.",
    FaultCode.PARENT_WITHOUT: "A grant on a pool on which the team's parent has none.",
    FaultCode.CEILING_ABOVE_PARENT: "A team may hold more than its parent, which has no effect.",
    FaultCode.LIMIT_ABOVE_CEILING: "A limit above all that the team may hold, which has no effect.",
    FaultCode.NOT_ONE_DEFAULT: "Exactly one priority must be the default.",
    FaultCode.SAME_RANK: "Two priorities have one rank, so that neither goes first.",
    FaultCode.PREEMPTIBLE_TOO_HIGH: "A preemptible priority does not rank below the default.",
    FaultCode.UNKNOWN_PRIORITY: "A team names a priority that the fleet does not have.",
    FaultCode.UNUSED_PRIORITY: "A priority that no team may use.",
    FaultCode.DEFAULT_NOT_ALLOWED: "A team may not use the priority that its jobs get without a word.",
    FaultCode.CANNOT_RUN: "A team that can never run anything.",
    FaultCode.NO_MEMBERS: "A team to which nobody belongs, nor to any team inside it.",
    FaultCode.STILL_DRAINING: "A team inside a draining one drains too, whatever it says.",
    FaultCode.EMPTY_BUDGET: "A budget of nothing, which would be spent before anything ran.",
    FaultCode.BUDGET_ABOVE_PARENT: "A budget larger than one around it, which is spent first.",
    FaultCode.NOTHING_IS_LOW: "at_limit: low-only where nobody may use a preemptible priority.",
    FaultCode.NO_EFFECT: "A key that means nothing beside what another one says.",
    FaultCode.SEVERAL_TEAMS: "Who is in several teams needs a default one.",
    FaultCode.UNKNOWN_TEAM: "A team that the file does not have.",
    FaultCode.NOT_A_MEMBER: "A user's default team is none that they are a member of.",
    FaultCode.NOT_IN_ORDER: "Days that must follow each other do not.",
    FaultCode.UNKNOWN_TIME_ZONE: "A time zone that nobody knows.",
    FaultCode.COMMITTED_TOO_MUCH: "Commitments are for more GPUs than the pool has.",
    FaultCode.NO_PRICE: "The pool's price is 0 and nothing else says what it costs: its charges will be 0.",
    FaultCode.NO_WORD_FOR_IT: "Part of a script or manifest that changes the job; Fairway cannot say it.",
    FaultCode.LEFT_OUT: "Part of a script or manifest that means nothing here and is left out.",
    FaultCode.NOT_A_JOB: "The file is something else than a job.",
}


class Spot(NamedTuple):
    """A position in a file and the value found there."""

    line: int
    column: int
    path: str
    value: str


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
    related: tuple[Spot, ...] = ()

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Return all positions the fault refers to, its own first."""
        return (Spot(self.line, self.column, self.path, self.found), *self.related)


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
    """A collector of the faults of one file, up to MOST_FAULTS."""

    source: str
    error_count: int = 0
    """Number of errors so far, including omitted ones; compare before and after to see if a part is valid."""
    _kept: list[Fault] = field(default_factory=list)
    _left_out: int = 0

    @property
    def full(self) -> bool:
        """Return whether further faults are only counted, so that callers can skip computing hints."""
        return len(self._kept) >= MOST_FAULTS and self.errors

    @property
    def any(self) -> bool:
        """Return whether any fault was recorded."""
        return bool(self._kept)

    @property
    def errors(self) -> bool:
        """Return whether any error was recorded, so that the file cannot be used."""
        return self.error_count > 0

    def add(
        self,
        code: FaultCode,
        spot: Spot,
        message: str,
        *,
        hint: str,
        expected: str = "",
        related: Sequence[Spot] = (),
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Record a fault; if MOST_FAULTS is reached, only count it."""
        self.error_count += severity is Severity.ERROR
        # The first error always gets room: a file must not pass because warnings filled the list.
        first_error = severity is Severity.ERROR and self.error_count == 1
        if len(self._kept) >= MOST_FAULTS and not first_error:
            self._left_out += 1
            return
        self._kept.append(
            Fault(severity, code, message, self.source, *spot, expected, hint, tuple(related)),
        )

    def sorted(self) -> tuple[Fault, ...]:
        """Return the faults in file order, with a final one that says how many were omitted."""
        faults = sorted(self._kept, key=lambda f: (f.line, f.column))
        if self._left_out:
            last = faults[-1]
            faults.append(
                Fault(
                    faults[-1].severity,
                    FaultCode.TOO_MANY_FAULTS,
                    f"{self._left_out} more faults are not shown",
                    self.source,
                    last.line,
                    last.column,
                    "",
                    "",
                    "",
                    "mend these first, then check again",
                )
            )
        return tuple(faults)


def location_lines(fault: Fault) -> tuple[str, ...]:
    """Format `file:line:column  path  value` for each position of the fault, aligned in columns."""
    rows = [(f"{fault.source}:{s.line}:{s.column}", s.path, s.value) for s in fault.spots]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return tuple(f"{at:{widths[0]}}  {path:{widths[1]}}   {value}".rstrip() for at, path, value in rows)


def shown(text: str, most: int = _SHOWN) -> str:
    """Make a user's text safe to print: one line, no control characters, no password, at most `most` long."""
    if "@" in text:
        text = _PASSWORD.sub("…@", text[: 10 * _SHOWN])
    short = text if len(text) <= most else text[: most - 1] + "…"
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


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join names for a sentence, at most `most` of them."""
    return first_few([shown(name) for name in names], most)
