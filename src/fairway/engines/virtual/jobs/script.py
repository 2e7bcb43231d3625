"""Interpret the command of a virtual job: nothing is executed, a few commands are understood.

`sleep`, `echo`, `exit`, `true` and `false` act, one after the other or joined by `;`, `&&` and `||`, also
inside `bash -c`. Any other command takes VIRTUAL_SECONDS of the job's environment (default 60) and exits with
VIRTUAL_EXIT (default 0); a list like `7,0` has a value for each attempt. The demo sets both for its jobs
outside their environment. A script that uses more of the shell counts as one such command. Deterministic: the
same order always gives the same result.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from string import Template
from types import MappingProxyType
from typing import Final

from fairway.model.job import Order, format_job_id

OTHER_SECONDS: Final = 60.0
MIN_SECONDS: Final = 0.2
"""No job starts and ends at the same time."""
MAX_SECONDS: Final = 10.0 * 366 * 86_400
MAX_SCRIPT_LENGTH: Final = 100_000
STEPS: Final = 100
"""Lines of progress that an unknown command prints."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})
_NO_TIME: Final = frozenset({":", "true", "cd", "export", "module", "set", "source", ".", "ulimit", "umask"})
"""Commands that prepare a job: they take no time and have no effect here."""
_KEYWORDS: Final = frozenset({"for", "while", "until", "if", "case", "function", "select", "trap", "{", "[["})
_OPERATORS: Final = frozenset({";", "&&", "||"})
_OTHER_SYNTAX: Final = re.compile(r"[();<>|&]+|.*(\$\(|`).*")
_NO_SETTINGS: Final = MappingProxyType[str, str]({})


def _training_step(step: int) -> str:
    return f"step {step}/{STEPS}  loss {0.4 + 3.2 / (1 + step / 9):.3f}"


def _notebook_step(step: int) -> str:
    if step == 1:
        return "Jupyter Server is running at http://localhost:8888/lab"
    return "Saving file at /analysis.ipynb" if step % 20 == 0 else ""


_PROGRESS: Final[Mapping[str, Callable[[int], str]]] = {
    "jupyter": _notebook_step,
    "evaluate": lambda step: f"batch {step}/{STEPS}  accuracy {0.5 + 0.3 * step / (step + 12):.3f}",
    "embed": lambda step: f"embedded {step * 2000:,} of {STEPS * 2000:,} documents",
    "sweep": lambda step: f"trial {step}/{STEPS}  validation loss {0.9 + step * 37 % 61 / 200:.3f}",
    "train": _training_step,
    "finetune": _training_step,
}
"""What a command prints in each step, by a word in it; an empty text prints nothing."""


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line of a job's log, printed `at` seconds after its start."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The duration, exit code and output of a job if nothing interferes."""

    seconds: float
    exit_code: int
    lines: tuple[PrintedLine, ...]

    def printed(self, seconds: float) -> str:
        """Return the output of its first `seconds`."""
        return "".join(f"{line.text}\n" for line in self.lines if line.at <= seconds)


def environment(order: Order, attempt: int) -> Mapping[str, str]:
    """Return the job's environment; `attempt` from 1 within this engine job."""
    variables = {
        **order.spec.env,
        "FAIRWAY_JOB_ID": format_job_id(order.job),
        "FAIRWAY_JOB_NAME": order.spec.name,
        "FAIRWAY_TEAM": str(order.team),
        "FAIRWAY_ATTEMPT": str(order.attempts_before + attempt),
        "USER": str(order.user),
    }
    if order.array is not None and order.array_index is not None:
        variables |= {
            "FAIRWAY_ARRAY_ID": format_job_id(order.array),
            "FAIRWAY_ARRAY_INDEX": str(order.array_index),
        }
    return variables


def interpret(order: Order, attempt: int = 1, settings: Mapping[str, str] = _NO_SETTINGS) -> ScriptResult:
    """Interpret the setup and the script or command of a job.

    `settings`: variables to read that its environment does not set.
    """
    spec = order.spec
    job = _Interpreter({**settings, **environment(order, attempt)})
    if spec.setup:
        job.run(spec.setup)
    if spec.script is not None:
        job.run(spec.script)
    elif spec.command:
        job.run_command(spec.command)
    return ScriptResult(max(MIN_SECONDS, job.clock), job.status, tuple(job.lines))


class _Interpreter:
    """Interprets commands one by one on a clock of its own."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = defaultdict(str, env)
        self._exited = False
        self.clock = 0.0
        self.status = 0
        self.lines: list[PrintedLine] = []

    def run(self, text: str) -> None:
        commands = _parse(text)
        for operator, argv in [(";", ["script"])] if commands is None else commands:
            if operator != ("&&" if self.status else "||"):
                self.run_command([Template(word).safe_substitute(self._env) for word in argv])

    def run_command(self, argv: Sequence[str]) -> None:
        if self._exited:
            return
        name, args = argv[0].rpartition("/")[2], argv[1:]
        if name in _SHELLS and len(args) > 1 and args[0].startswith("-") and args[0].endswith("c"):
            self.run(args[1])
            self._exited = False
        elif name == "sleep":
            self._sleep(args)
        elif name == "echo":
            self._print(" ".join(args))
            self.status = 0
        elif name == "exit":
            self.status = int(args[0]) & 255 if args and args[0].isdecimal() else self.status
            self._exited = True
        elif name in _NO_TIME or name == "false":
            self.status = int(name == "false")
        else:
            programs = [word for word in args if word.endswith(".py")] or args
            self._take_time(" ".join([argv[0], *programs[:1]]))

    def _print(self, text: str, after: float = 0.0) -> None:
        self.lines.append(PrintedLine(self.clock + after, text))

    def _sleep(self, times: Sequence[str]) -> None:
        self.status = 0
        for word in times:
            number, unit = (word[:-1], word[-1]) if word[-1:] in _UNITS else (word, "s")
            try:
                self.clock = min(self.clock + max(0.0, float(number)) * _UNITS[unit], MAX_SECONDS)
            except ValueError:
                self._print(f"sleep: invalid time interval '{word}'")
                self.status = 1

    def _take_time(self, name: str) -> None:
        """Run an unknown command: advance the clock and print progress."""
        seconds = self._setting("VIRTUAL_SECONDS", OTHER_SECONDS)
        self._print(f"{name}: started, attempt {self._env['FAIRWAY_ATTEMPT']}")
        progress = next((text for word, text in _PROGRESS.items() if word in name), _other_step)
        for step in range(1, STEPS + 1):
            if text := progress(step):
                self._print(f"{name}: {text}", seconds * step / STEPS)
        self.clock += seconds
        self.status = int(self._setting("VIRTUAL_EXIT", 0)) & 255
        if self.status:
            self._print(f"{name}: error: exit status {self.status}")

    def _setting(self, name: str, default: float) -> float:
        """Read a value for this attempt from the environment; the last one is for all later attempts."""
        values = self._env[name].split(",")
        try:
            value = float(values[min(len(values), int(self._env["FAIRWAY_ATTEMPT"])) - 1])
        except ValueError:
            return default
        return min(max(0.0, value), MAX_SECONDS)


def _other_step(step: int) -> str:
    return f"step {step}/{STEPS}"


def _parse(text: str) -> list[tuple[str, list[str]]] | None:
    """Split a script into commands, each with the operator before it. Returns None on other syntax."""
    commands: list[tuple[str, list[str]]] = []
    operator = ";"
    for line in text.splitlines() if len(text) <= MAX_SCRIPT_LENGTH else ["("]:
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        reader.commenters = ""
        argv: list[str] = []
        try:
            parts = [*takewhile(lambda part: not part.startswith("#"), reader), ";"]
        except ValueError:  # a quote that does not end on the line
            return None
        for part in parts:
            if part in _OPERATORS:
                if argv:
                    commands.append((operator, argv))
                if argv or part != ";":
                    operator, argv = part, []
            elif (part in _KEYWORDS and not argv) or _OTHER_SYNTAX.fullmatch(part):
                return None
            else:
                argv.append(part)
    return commands
