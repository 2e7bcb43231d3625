"""What a virtual job makes of its command: nothing is run, a few words of the shell are understood.

`sleep`, `echo`, `exit`, `true`, `false`, `test`, plain assignments and `if` do what they say. Whatever else a
job calls takes VIRTUAL_SECONDS (60 unless the job's environment says otherwise) and ends with
VIRTUAL_EXIT (0); of several values, `7,0`, each attempt has its own.
Deterministic: the same order always acts alike.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.model.job import Order, job_word

UNKNOWN_SECONDS: Final = 60.0
LEAST_SECONDS: Final = 0.2
"""Nothing starts and ends in the same moment."""
LONGEST_SECONDS: Final = 10.0 * 366 * 86_400
LONGEST_SCRIPT: Final = 100_000
STEPS: Final = 100
"""Of progress, that a command which is not understood shows."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})
_QUIET: Final = frozenset(
    {"", ":", "true", "set", "cd", "export", "module", "source", ".", "ulimit", "umask"}
)
_TOO_MUCH: Final = frozenset(
    {"for", "while", "until", "case", "function", "select", "trap", "{", "}", "(", ")"}
)
"""Words of the shell beyond what is understood: the whole script counts as one command."""
_QUESTIONS: Final = frozenset({"if", "elif"})
_TURNS: Final = _QUESTIONS | {"then", "else", "fi"}
_SEPARATORS: Final = frozenset({";", "&", "&&", "||", "\n"})
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_TO_THE_LOG: Final = re.compile(r"\d?>&\d")
_AWAY: Final = re.compile(r"\d?&?>")
_ASSIGNMENT: Final = re.compile(r"(\w+)=(.*)", re.DOTALL)
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class Line:
    """Something printed, so many seconds after the start."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Act:
    """What a job does if left alone."""

    seconds: float
    exit_code: int
    lines: tuple[Line, ...]

    def printed(self, seconds: float) -> str:
        """All that it printed in its first seconds."""
        return "".join(f"{line.text}\n" for line in self.lines if line.at <= seconds)


def environment(order: Order, attempt: int) -> dict[str, str]:
    """What the job finds in its environment; `attempt` from 1 within this engine job."""
    given = {
        **order.spec.env,
        "FAIRWAY_JOB_ID": job_word(order.job),
        "FAIRWAY_JOB_NAME": order.spec.name,
        "FAIRWAY_TEAM": str(order.team),
        "FAIRWAY_ATTEMPT": str(order.attempts_before + attempt),
        "USER": str(order.user),
    }
    if order.array is not None and order.array_index is not None:
        given |= {"FAIRWAY_ARRAY_ID": job_word(order.array), "FAIRWAY_ARRAY_INDEX": str(order.array_index)}
    return given


def act(order: Order, attempt: int = 1) -> Act:
    """What the job does."""
    spec = order.spec
    played = _Play(environment(order, attempt))
    if spec.setup:
        played.script(spec.setup)
    if spec.script is not None:
        played.script(spec.script)
    elif spec.command:
        played.command(spec.command)
    return Act(max(LEAST_SECONDS, played.clock), played.status, tuple(played.lines))


class _Play:
    """Steps through commands; time passes as they say."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables
        self.clock = 0.0
        self.status = 0
        self.lines: list[Line] = []
        self._stops_at_failure = False
        self._over = False

    def script(self, text: str) -> None:
        """A whole script. One that goes beyond what is understood is one command."""
        body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        body = _TO_THE_LOG.sub("", body)
        words = None if len(body) > LONGEST_SCRIPT else _tokens(body)
        if words is None or _TOO_MUCH.intersection(words) or "$(" in body or "`" in body or "<<" in body:
            self._unknown(("script",))
            return
        self._lines(list(_commands(words)))

    def command(self, words: Iterable[str]) -> None:
        """One command, argument by argument."""
        self._one(tuple(words))

    def _lines(self, commands: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        branches: list[bool] = []
        """Of each `if` that is open: whether its present branch is taken."""
        for joint, given in commands:
            if self._over:
                return
            words = self._turned(given, branches)
            failed = self.status != 0
            if not words or not all(branches) or joint == ("&&" if failed else "||"):
                continue
            self._one(tuple(self._expanded(word) for word in words))
            asks = given[0] in _QUESTIONS or joint in ("&&", "||")
            if self.status and self._stops_at_failure and not asks:
                self._over = True

    def _turned(self, words: tuple[str, ...], branches: list[bool]) -> tuple[str, ...]:
        """What is left of a command after the words that open, turn and close branches."""
        while words and words[0] in _TURNS:
            word, words = words[0], words[1:]
            if word == "if":
                branches.append(True)
            elif not branches:
                continue
            elif word == "then":
                branches[-1] = branches[-1] and self.status == 0
            elif word == "fi":
                branches.pop()
            else:
                branches[-1] = not branches[-1]
        return words

    def _one(self, words: tuple[str, ...]) -> None:
        while words and (given := _ASSIGNMENT.fullmatch(words[0])):
            self._variables[given[1]] = given[2]
            words = words[1:]
        words, silent = _redirected(words)
        name, rest = (words[0].rpartition("/")[2], words[1:]) if words else ("", ())
        if name == "exec":
            self._one(rest)
            self._over = bool(rest)
        elif name in _SHELLS and "-c" in _flags(rest):
            self._inner(rest)
        elif name == "sleep":
            self._sleep(rest)
        elif name == "echo":
            if not silent:
                self.lines.append(Line(self.clock, " ".join(rest[1:] if rest[:1] == ("-n",) else rest)))
            self.status = 0
        elif name == "exit":
            self.status = int(rest[0]) & 255 if rest and rest[0].isdecimal() else self.status
            self._over = True
        elif name == "false":
            self.status = 1
        elif name in ("test", "["):
            self.status = _tested(rest)
        elif name in _QUIET:
            self._stops_at_failure |= name == "set" and any(r.startswith("-") and "e" in r for r in rest)
            if name == "export":
                self._variables.update({m[1]: m[2] for r in rest if (m := _ASSIGNMENT.fullmatch(r))})
            self.status = 0
        else:
            self._unknown(words)

    def _inner(self, rest: tuple[str, ...]) -> None:
        text = next((word for word in rest if not word.startswith("-")), "")
        inner = _Play(dict(self._variables))
        inner.clock = self.clock
        inner._stops_at_failure = any("e" in flag for flag in _flags(rest))
        inner.script(text)
        self.clock, self.status = inner.clock, inner.status
        self.lines += inner.lines

    def _sleep(self, rest: tuple[str, ...]) -> None:
        for word in rest:
            number, unit = (word[:-1], word[-1]) if word[-1:] in _SECONDS else (word, "s")
            try:
                self.clock = min(self.clock + max(0.0, float(number)) * _SECONDS[unit], LONGEST_SECONDS)
            except ValueError:
                self.lines.append(Line(self.clock, f"sleep: invalid time interval '{word}'"))
                self.status = 1
                return
        self.status = 0

    def _unknown(self, words: tuple[str, ...]) -> None:
        """Something this cluster cannot play: it takes its time, and shows how far it is."""
        seconds = self._told("VIRTUAL_SECONDS", UNKNOWN_SECONDS)
        name = " ".join(words[:2])
        self.lines.append(Line(self.clock, f"{name}: started, attempt {self._variables['FAIRWAY_ATTEMPT']}"))
        for step in range(1, STEPS + 1):
            loss = 0.4 + 3.2 / (1 + step / 9)
            self.lines.append(
                Line(self.clock + seconds * step / STEPS, f"{name}: step {step}/{STEPS}  loss {loss:.3f}")
            )
        self.clock += seconds
        self.status = int(self._told("VIRTUAL_EXIT", 0)) & 255
        if self.status:
            self.lines.append(Line(self.clock, f"{name}: error: exit status {self.status}"))

    def _told(self, name: str, otherwise: float) -> float:
        """What the environment says of this attempt; the last of several values is for all later ones."""
        values = self._variables.get(name, "").split(",")
        told = values[min(len(values), int(self._variables["FAIRWAY_ATTEMPT"])) - 1]
        try:
            return min(max(0.0, float(told)), LONGEST_SECONDS)
        except ValueError:
            return otherwise

    def _expanded(self, word: str) -> str:
        return _VARIABLE.sub(lambda m: self._variables.get(m[1] or m[3]) or m[2] or "", word)


def _tokens(text: str) -> list[str] | None:
    """The words and separators of a script; None: it cannot be read."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|\n()")
    reader.whitespace = " \t\r"
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return None


def _commands(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command with what joins it to the one before."""
    joint, found, comment = ";", list[str](), False
    for word in words:
        separator = word.strip("\n") or "\n" if set(word) <= set(";&|\n") and word else None
        if separator in _SEPARATORS:
            if found:
                yield joint, tuple(found)
                joint = ";"
            joint = separator if separator in ("&&", "||") else joint if not found else ";"
            found, comment = [], comment and separator != "\n" and "\n" not in word
        elif not comment:
            comment = word.startswith("#")
            if not comment:
                found.append(word)
    if found:
        yield joint, tuple(found)


def _redirected(words: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """A command without where its words go, and whether that is away from the log. Pipes count as none."""
    for place, word in enumerate(words):
        if word == "|" or word.startswith("<"):
            return words[:place], False
        if _AWAY.match(word):
            return words[:place], not word.startswith("2")
    return words, False


def _flags(words: tuple[str, ...]) -> tuple[str, ...]:
    """`-c`, `-lc`, `-e`: what stands before the script; any that has a c counts as `-c`."""
    flags = [word for word in words if word.startswith("-")]
    return tuple("-c" if "c" in flag and not flag.startswith("--") else flag for flag in flags)


def _tested(words: tuple[str, ...]) -> int:
    """The exit status of `test` or `[`: 0 true, 1 false, 2 not understood."""
    match tuple(word for word in words if word != "]"):
        case ("!", *rest):
            true = _tested(tuple(rest)) == 1
        case (left, ("=" | "=="), right):
            true = left == right
        case (left, "!=", right):
            true = left != right
        case (left, compare, right) if compare in _COMPARE and left.isdecimal() and right.isdecimal():
            true = _COMPARE[compare](int(left), int(right))
        case ("-n", word) | (word,):
            true = bool(word)
        case ("-z", word):
            true = not word
        case _:
            return 2
    return 0 if true else 1
