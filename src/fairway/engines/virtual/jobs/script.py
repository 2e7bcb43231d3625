"""Work out what a virtual job does, from its command: nothing is run, a few commands are understood.

`sleep`, `echo`, `exit`, `true` and `false` act, one after the other or joined by `;`, `&&` and `||`, also
inside of `bash -c`. Any other command takes VIRTUAL_SECONDS (60 unless the job's environment says otherwise)
and ends with VIRTUAL_EXIT (0); of several values, `7,0`, each attempt has its own. A script that uses more of
the shell counts as one such command. Deterministic: the same order always does the same.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from string import Template
from typing import Final

from fairway.model.job import Order, format_job_id

OTHER_SECONDS: Final = 60.0
LEAST_SECONDS: Final = 0.2
"""Nothing starts and ends in the same moment."""
LONGEST_SECONDS: Final = 10.0 * 366 * 86_400
LONGEST_SCRIPT: Final = 100_000
STEPS: Final = 100
"""Of progress, that a command which is not understood shows."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})
_NO_TIME: Final = frozenset({":", "true", "cd", "export", "module", "set", "source", ".", "ulimit", "umask"})
"""What prepares a job: it takes no time, and changes nothing here."""
_KEYWORDS: Final = frozenset({"for", "while", "until", "if", "case", "function", "select", "trap", "{", "[["})
_JOINTS: Final = frozenset({";", "&&", "||"})
_OTHER_SYNTAX: Final = re.compile(r"[();<>|&]+|.*(\$\(|`).*")


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line of a job's log, so many seconds after its start."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """What a job does if left alone."""

    seconds: float
    exit_code: int
    lines: tuple[PrintedLine, ...]

    def printed(self, seconds: float) -> str:
        """Return all that it printed in its first seconds."""
        return "".join(f"{line.text}\n" for line in self.lines if line.at <= seconds)


def environment(order: Order, attempt: int) -> Mapping[str, str]:
    """Return the job's environment; `attempt` from 1 within this engine job."""
    given = {
        **order.spec.env,
        "FAIRWAY_JOB_ID": format_job_id(order.job),
        "FAIRWAY_JOB_NAME": order.spec.name,
        "FAIRWAY_TEAM": str(order.team),
        "FAIRWAY_ATTEMPT": str(order.attempts_before + attempt),
        "USER": str(order.user),
    }
    if order.array is not None and order.array_index is not None:
        given |= {
            "FAIRWAY_ARRAY_ID": format_job_id(order.array),
            "FAIRWAY_ARRAY_INDEX": str(order.array_index),
        }
    return given


def interpret(order: Order, attempt: int = 1) -> ScriptResult:
    """Work out how long a job takes, what it prints, and how it ends."""
    spec = order.spec
    job = _Interpreter(environment(order, attempt))
    if spec.setup:
        job.run(spec.setup)
    if spec.script is not None:
        job.run(spec.script)
    elif spec.command:
        job.run_command(spec.command)
    return ScriptResult(max(LEAST_SECONDS, job.clock), job.status, tuple(job.lines))


class _Interpreter:
    """Steps through commands; time passes as they say."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = defaultdict(str, env)
        self._over = False
        self.clock = 0.0
        self.status = 0
        self.lines: list[PrintedLine] = []

    def run(self, text: str) -> None:
        commands = _parse(text)
        for joint, words in [(";", ["script"])] if commands is None else commands:
            if joint != ("&&" if self.status else "||"):
                self.run_command([Template(word).safe_substitute(self._env) for word in words])

    def run_command(self, words: Sequence[str]) -> None:
        if self._over:
            return
        name, rest = words[0].rpartition("/")[2], words[1:]
        if name in _SHELLS and len(rest) > 1 and rest[0].startswith("-") and rest[0].endswith("c"):
            self.run(rest[1])
            self._over = False
        elif name == "sleep":
            self._sleep(rest)
        elif name == "echo":
            self._print(" ".join(rest))
            self.status = 0
        elif name == "exit":
            self.status = int(rest[0]) & 255 if rest and rest[0].isdecimal() else self.status
            self._over = True
        elif name in _NO_TIME or name == "false":
            self.status = int(name == "false")
        else:
            self._take_time(" ".join(words[:2]))

    def _print(self, text: str, after: float = 0.0) -> None:
        self.lines.append(PrintedLine(self.clock + after, text))

    def _sleep(self, times: Sequence[str]) -> None:
        self.status = 0
        for word in times:
            number, unit = (word[:-1], word[-1]) if word[-1:] in _UNITS else (word, "s")
            try:
                self.clock = min(self.clock + max(0.0, float(number)) * _UNITS[unit], LONGEST_SECONDS)
            except ValueError:
                self._print(f"sleep: invalid time interval '{word}'")
                self.status = 1

    def _take_time(self, name: str) -> None:
        """Pass the time of a command that is not understood, and show how far it is."""
        seconds = self._setting("VIRTUAL_SECONDS", OTHER_SECONDS)
        self._print(f"{name}: started, attempt {self._env['FAIRWAY_ATTEMPT']}")
        for step in range(1, STEPS + 1):
            loss = 0.4 + 3.2 / (1 + step / 9)
            self._print(f"{name}: step {step}/{STEPS}  loss {loss:.3f}", seconds * step / STEPS)
        self.clock += seconds
        self.status = int(self._setting("VIRTUAL_EXIT", 0)) & 255
        if self.status:
            self._print(f"{name}: error: exit status {self.status}")

    def _setting(self, name: str, default: float) -> float:
        """Read a value for this attempt from the environment; the last of several is for all later ones."""
        values = self._env[name].split(",")
        try:
            value = float(values[min(len(values), int(self._env["FAIRWAY_ATTEMPT"])) - 1])
        except ValueError:
            return default
        return min(max(0.0, value), LONGEST_SECONDS)


def _parse(text: str) -> list[tuple[str, list[str]]] | None:
    """Split a script into commands, each with what joins it to the one before; None: it uses more."""
    commands: list[tuple[str, list[str]]] = []
    joint = ";"
    for line in text.splitlines() if len(text) <= LONGEST_SCRIPT else ["("]:
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        reader.commenters = ""
        words: list[str] = []
        try:
            parts = [*takewhile(lambda part: not part.startswith("#"), reader), ";"]
        except ValueError:  # a quotation that does not end on the line
            return None
        for part in parts:
            if part in _JOINTS:
                if words:
                    commands.append((joint, words))
                if words or part != ";":
                    joint, words = part, []
            elif (part in _KEYWORDS and not words) or _OTHER_SYNTAX.fullmatch(part):
                return None
            else:
                words.append(part)
    return commands
