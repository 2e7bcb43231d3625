"""The options of `sbatch`: which of them a job file can say, and how they stand in a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from fairway.files.faults import FaultCode, Faults, Severity, Spot, shown
from fairway.files.tree import Mark

MOST_LINES: Final = 500
LONGEST_LINE: Final = 10_000
_SHORT: Final = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus",
    "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
_WITHOUT_VALUE: Final = frozenset(
    [
        "contiguous",
        "exclusive",
        "get-user-env",
        "hold",
        "ignore-pbs",
        "nice",
        "no-kill",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "use-min-nodes",
        "verbose",
        "wait",
    ]
)
"""Options that stand alone; some take a value behind `=` only."""

TRANSLATED: Final = frozenset(
    [
        "account",
        "array",
        "chdir",
        "cpus-per-gpu",
        "cpus-per-task",
        "dependency",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "job-name",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "no-requeue",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "partition",
        "qos",
        "requeue",
        "time",
    ]
)
LEFT_OUT: Final = {
    **dict.fromkeys(("output", "error", "open-mode"), "fairway logs JOB  shows what it prints"),
    **dict.fromkeys(
        ("mail-type", "mail-user"), "Fairway sends no mail; fairway get jobs --watch  shows how it goes"
    ),
    "wait": "say it to the command:  fairway submit --follow",
    "nice": "say it by  --qos, which is read as the priority",
    **dict.fromkeys(
        [
            "comment",
            "distribution",
            "get-user-env",
            "hint",
            "ignore-pbs",
            "no-kill",
            "parsable",
            "profile",
            "propagate",
            "quiet",
            "verbose",
            "wckey",
            "cpu-freq",
            "acctg-freq",
            "mem-bind",
            "gpu-bind",
            "threads-per-core",
            "ntasks-per-gpu",
            "wait-all-nodes",
        ],
        "take the line away to be rid of this warning",
    ),
}
NO_WORD: Final = {
    **dict.fromkeys(("hold", "test-only"), "say it to the command:  fairway submit --hold, or --dry-run"),
    **dict.fromkeys(
        ("nodelist", "exclude", "nodefile", "constraint", "prefer"), "name the pool:  --pool NAME"
    ),
    **dict.fromkeys(("clusters", "reservation", "licenses", "tmp"), "name a pool that has it:  --pool NAME"),
    **dict.fromkeys(("exclusive", "core-spec"), "ask for all GPUs of the node:  --gpus-per-node=8"),
    **dict.fromkeys(("switches", "contiguous", "spread-job"), "say  --together rack  to the command"),
    **dict.fromkeys(("begin", "deadline", "time-min"), "submit it when it should start, or hold it:  --hold"),
    "signal": "bring it back with  --retries, and keep checkpoints in $FAIRWAY_CHECKPOINT_DIR",
    **dict.fromkeys(("input", "wrap"), "write it into the script"),
    **dict.fromkeys(("gpus-per-socket", "gpu-freq", "tres-per-task"), "ask by  --gpus-per-node"),
    **dict.fromkeys(
        ("overcommit", "oversubscribe", "extra-node-info", "sockets-per-node", "cores-per-socket"),
        "ask by  --cpus-per-task  and  --gpus-per-node",
    ),
    **dict.fromkeys(("uid", "gid"), "an operator says it to the command:  fairway submit --as USER"),
    **dict.fromkeys(("container", "container-image", "container-mounts"), "name the image:  --image IMAGE"),
}
KNOWN: Final = (*TRANSLATED, *LEFT_OUT, *NO_WORD)


class Option(NamedTuple):
    """One option of a script, by its long name."""

    name: str
    value: str
    mark: Mark

    @property
    def written(self) -> str:
        """As it could stand in the script."""
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def options_of(text: str, faults: Faults) -> Iterator[Option]:
    """Every option, in order. Slurm stops looking at the first line that is no comment."""
    header, lines = True, 0
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"#SBATCH(\s|$)", line):
            lines += 1
            if lines > MOST_LINES:
                spot = Spot(number, 1, "", shown(line.strip()))
                message = f"there are more than {MOST_LINES} lines with options"
                faults.add(FaultCode.OUT_OF_RANGE, spot, message, hint="is it the right file?")
                return
            if header:
                yield from _of_line(line, number, faults)
            else:
                faults.add(
                    FaultCode.LEFT_OUT,
                    Spot(number, 1, "", shown(line.strip())),
                    "this line comes after the first command, so that Slurm would not read it either",
                    hint="move it up, or take it away",
                    severity=Severity.WARNING,
                )
        elif line.strip() and not line.lstrip().startswith("#"):
            header = False


def _of_line(line: str, number: int, faults: Faults) -> Iterator[Option]:
    if len(line) > LONGEST_LINE:
        spot = Spot(number, 1, "", shown(line.strip()))
        message = f"this line has more than {LONGEST_LINE:,} characters"
        faults.add(FaultCode.OUT_OF_RANGE, spot, message, hint="write it as a job file:  fairway schema job")
        return
    try:
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
    except ValueError as error:
        spot = Spot(number, 1, "", shown(line.strip()))
        message = f"this line cannot be read: {shown(str(error)).lower()}"
        faults.add(FaultCode.BAD_VALUE, spot, message, hint="close the quotes")
        return
    mark, waiting = Mark(number, 1), iter(words)
    for written in waiting:
        name, value, complete = _split(written)
        if not name:
            spot = Spot(number, 1, "", shown(line.strip()))
            hint = "write options like  --time=1:00:00"
            faults.add(FaultCode.BAD_VALUE, spot, f"{shown(written)} is no option", hint=hint)
            return
        yield Option(name, value if complete else next(waiting, ""), mark)


def _split(written: str) -> tuple[str, str, bool]:
    """Name, value, and whether the value, if there is any, is part of the word."""
    if long := re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?", written, re.DOTALL):
        return long[1], long[2] or "", long[2] is not None or long[1] in _WITHOUT_VALUE
    if short := re.fullmatch(r"-([A-Za-z])(.*)", written, re.DOTALL):
        name = _SHORT.get(short[1], short[1])
        return name, short[2].removeprefix("="), bool(short[2]) or name in _WITHOUT_VALUE
    return "", "", True
