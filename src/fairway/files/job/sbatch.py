"""Translate a script with `#SBATCH` lines to the keys of a job file.

An option that changes the job and has no equivalent is an error; an option without meaning here is left out
with a warning that names the line. Nothing is dropped silently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fairway.files.diagnostics import FaultCode, Faults, Location, Severity, did_you_mean, shown
from fairway.files.job.durations import slurm_seconds
from fairway.files.job.gpus import MAX_GPUS, parse_gpus
from fairway.files.job.schema import as_job_name
from fairway.files.yaml import (
    MappingNode,
    Mark,
    Node,
    ScalarNode,
    mapping_node,
    quoted,
    sequence_node,
    unquoted,
)
from fairway.model.text import duration_text

_DEPENDENCIES: Final = {"afterok": "ok", "afternotok": "failed", "afterany": "ended"}

_MEGABYTES: Final = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}

MAX_LINES: Final = 500

MAX_LINE_LENGTH: Final = 10_000

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
"""Options that need no value; some take one, but only after `=`."""

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

UNSUPPORTED: Final = {
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

KNOWN_OPTIONS: Final = tuple(sorted((*TRANSLATED, *LEFT_OUT, *UNSUPPORTED)))


class ScriptOption(NamedTuple):
    """One `#SBATCH` option of a script, by its long name."""

    name: str
    value: str
    mark: Mark

    @property
    def written(self) -> str:
        """Format the option as in a script."""
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def is_script(text: str) -> bool:
    """Return whether a text is a script rather than YAML."""
    return text.startswith("#!") or re.search(r"^#SBATCH\s", text, re.MULTILINE) is not None


def translate(text: str, default_name: str, given: frozenset[str], faults: Faults) -> MappingNode:
    """Translate a script to a job; keys in `given` are set elsewhere, e.g. by flags, and may be missing."""
    return _ScriptTranslator(text, default_name, given, faults).job()


def options_of(text: str, faults: Faults) -> Iterator[ScriptOption]:
    """Yield every option, in order. Warn of options after the first command, which Slurm ignores too."""
    header, lines = True, 0
    for number, line in enumerate(text.split("\n"), 1):
        if not re.match(r"#SBATCH(\s|$)", line):
            header = header and (not line.strip() or line.lstrip().startswith("#"))
            continue
        lines += 1
        location = Location(number, 1, "", shown(line.strip()))
        if lines > MAX_LINES:
            message = f"there are more than {MAX_LINES} lines with options"
            faults.add(FaultCode.OUT_OF_RANGE, location, message, hint="is it the right file?")
            return
        if header:
            yield from _options_of_line(line, location, faults)
        else:
            faults.add(
                FaultCode.LEFT_OUT,
                location,
                "this line comes after the first command, so that Slurm would not read it either",
                hint="move it up, or take it away",
                severity=Severity.WARNING,
            )


def _options_of_line(line: str, location: Location, faults: Faults) -> Iterator[ScriptOption]:
    if len(line) > MAX_LINE_LENGTH:
        message = f"this line has more than {MAX_LINE_LENGTH:,} characters"
        hint = "write it as a job file:  fairway schema job"
        faults.add(FaultCode.OUT_OF_RANGE, location, message, hint=hint)
        return
    try:
        words = iter(shlex.split(line.removeprefix("#SBATCH"), comments=True))
    except ValueError as error:
        message = f"this line cannot be read: {shown(str(error)).lower()}"
        faults.add(FaultCode.BAD_VALUE, location, message, hint="close the quotes")
        return
    for written in words:
        name, value, complete = _split(written)
        if not name:
            hint = "write options like  --time=1:00:00"
            faults.add(FaultCode.BAD_VALUE, location, f"{shown(written)} is no option", hint=hint)
            return
        yield ScriptOption(name, value if complete else next(words, ""), Mark(location.line, 1))


def _split(written: str) -> tuple[str, str, bool]:
    """Split a word into name and value; the third item is whether no value follows as the next word."""
    if long := re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?", written, re.DOTALL):
        return long[1], long[2] or "", long[2] is not None or long[1] in _WITHOUT_VALUE
    if short := re.fullmatch(r"-([A-Za-z])(.*)", written, re.DOTALL):
        name = _SHORT.get(short[1], short[1])
        return name, short[2].removeprefix("="), bool(short[2]) or name in _WITHOUT_VALUE
    return "", "", True


@dataclass(slots=True)
class _ScriptTranslator:
    """Translates the options of one script; `keys` are those of the job file."""

    text: str
    default_name: str
    given: frozenset[str]
    faults: Faults
    options: dict[str, ScriptOption] = field(default_factory=dict)
    keys: dict[str, Node] = field(default_factory=dict)
    numbers: dict[str, int | None] = field(default_factory=dict)

    def job(self) -> MappingNode:
        for option in options_of(self.text, self.faults):
            self._classify(option)
        start = Mark(1, 1)
        self.keys = {"name": quoted(as_job_name(self.default_name) or "job", start)}
        self.keys["script"] = quoted(self.text, start)
        self._names()
        self._size()
        self._gpus()
        self._memory()
        self._rest()
        return mapping_node(self.keys, start)

    # --- options --------------------------------------------------------------------------------------------

    def _classify(self, option: ScriptOption) -> None:
        if option.name in TRANSLATED:
            self.options[option.name] = option
        elif option.name in UNSUPPORTED:
            self._unsupported(option, UNSUPPORTED[option.name])
        elif option.name in LEFT_OUT:
            self._left_out(option, LEFT_OUT[option.name])
        else:
            hint = did_you_mean(option.name, KNOWN_OPTIONS, "take the line away if the job does not need it")
            self._left_out(
                option, hint, f"{shown(option.written)} is not an option that Fairway knows; it is ignored"
            )

    def _unsupported(self, option: ScriptOption, hint: str, message: str = "") -> None:
        message = message or f"{shown(option.written)} is not supported"
        self.faults.add(FaultCode.UNSUPPORTED_OPTION, _location(option), message, hint=hint)

    def _left_out(self, option: ScriptOption, hint: str, message: str = "") -> None:
        message = message or f"{shown(option.written)} is left out"
        location = _location(option)
        self.faults.add(FaultCode.LEFT_OUT, location, message, hint=hint, severity=Severity.WARNING)

    def _bad(self, option: ScriptOption, expected: str) -> None:
        message = f"{shown(option.written)} does not name {expected}"
        self.faults.add(
            FaultCode.BAD_VALUE, _location(option), message, expected=expected, hint=f"write {expected}"
        )

    def _number(self, name: str) -> int | None:
        if name not in self.numbers:
            option = self.options.get(name)
            valid = option is not None and re.fullmatch(r"[1-9][0-9]{0,8}", option.value, re.ASCII)
            if option and not valid:
                self._bad(option, "a whole number from 1")
            self.numbers[name] = int(option.value) if option and valid else None
        return self.numbers[name]

    # --- keys -----------------------------------------------------------------------------------------------

    def _names(self) -> None:
        if named := self.options.get("job-name"):
            name = as_job_name(named.value)
            if name and name != named.value:
                self._left_out(
                    named, f"write {name}", f"the job is called {name}: names have letters, digits, . _ -"
                )
            self.keys["name"] = quoted(name or named.value, named.mark)
        for name, key in (("account", "team"), ("qos", "priority"), ("chdir", "workdir"), ("array", "array")):
            if option := self.options.get(name):
                self.keys[key] = quoted(option.value, option.mark)
        if (partition := self.options.get("partition")) and "pool" not in self.given:
            self.keys["pool"] = quoted(partition.value, partition.mark)
            message = f"the partition {shown(partition.value)} is read as the pool of that name"
            self._left_out(partition, "name the pool:  --pool NAME; fairway get pools  shows them", message)

    def _size(self) -> None:
        nodes, tasks, per_node = (self._number(n) for n in ("nodes", "ntasks", "ntasks-per-node"))
        if nodes:
            self.keys["nodes"] = unquoted(str(nodes), self.options["nodes"].mark)
        option = (
            "ntasks-per-node" if (per_node or 1) > 1 else "ntasks" if tasks not in (None, nodes or 1) else ""
        )
        if option:
            message = "the script is started once, on the first node; Fairway starts no tasks of it"
            hint = f"say it in the script:  srun --{option}={self.options[option].value} …, or torchrun"
            self._unsupported(self.options[option], hint, message)
        cores = self._number("cpus-per-task")
        if cores is not None:
            self.keys["cpus"] = unquoted(str(cores), self.options["cpus-per-task"].mark)

    def _gpus(self) -> None:
        if "gpus" in self.given:
            return
        nodes = self._number("nodes") or 1
        found: dict[str, ScriptOption] = {}
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            option = self.options.get(name)
            gpus = self._gpus_per_node(option, nodes) if option else None
            if option and gpus:
                found.setdefault(gpus, option)
        if len(found) > 1:
            (_, first), (_, other), *_ = found.items()
            message = f"{shown(first.written)} and {shown(other.written)} ask for different GPUs"
            self._unsupported(other, "take one of them away", message)
        elif found:
            ((gpus, option),) = found.items()
            self.keys["gpus"] = quoted(gpus, option.mark)
        elif not self.options.keys() & {"gpus-per-node", "gres", "gpus", "gpus-per-task"}:
            self.faults.add(
                FaultCode.MISSING_KEY,
                Location(1, 1),
                "the script does not say which GPUs it needs",
                hint="add a line:  #SBATCH --gpus-per-node=8, or say it to the command:  --gpus A100-80GB:8",
            )

    def _gpus_per_node(self, option: ScriptOption, nodes: int) -> str | None:
        """Return the GPUs per node as in a job file. Returns None if invalid, with the fault reported."""
        parts = [part.removeprefix("gres/").removeprefix("gres:") for part in option.value.split(",")]
        if option.name == "gres":
            others = [part for part in parts if part.split(":")[0] != "gpu"]
            if others:
                self._unsupported(
                    option, "name a pool that has it:  --pool NAME", f"{shown(others[0])} is no GPU"
                )
                return None
            parts = [part.removeprefix("gpu").lstrip(":") or "1" for part in parts]
        kind, _, number = parts[0].rpartition(":")
        if len(parts) > 1 or not re.fullmatch(r"[1-9][0-9]{0,5}", number, re.ASCII):
            if len(parts) > 1 or kind or not re.fullmatch(r"[A-Za-z0-9._-]+", number) or number.isdigit():
                self._bad(option, "GPUs of one kind, like a100:8 or 8")
                return None
            kind, number = number, "1"
        count = int(number)
        if option.name == "gpus":
            if count % nodes:
                message = f"{count} GPUs do not divide evenly among {nodes} nodes"
                self._unsupported(option, "ask by  --gpus-per-node", message)
                return None
            count //= nodes
        if count > MAX_GPUS:
            self._bad(option, f"at most {MAX_GPUS} GPUs on one node")
            return None
        return f"{_kind(kind)}:{count}" if kind else str(count)

    def _memory(self) -> None:
        gpus = self.keys.get("gpus")
        count = re.search(r"[0-9]+$", gpus.text) if isinstance(gpus, ScalarNode) else None
        cores = self._number("cpus-per-task")
        if (per_gpu := self._number("cpus-per-gpu")) and count and not cores:
            cores = per_gpu * int(count[0])
            self.keys["cpus"] = unquoted(str(cores), self.options["cpus-per-gpu"].mark)
        for name, factor in (
            ("mem", 1),
            ("mem-per-cpu", cores or 1),
            ("mem-per-gpu", int(count[0]) if count else 1),
        ):
            option = self.options.get(name)
            if option is None:
                continue
            amount = re.fullmatch(r"([0-9]{1,9})([KMGT]?)B?", option.value, re.ASCII | re.IGNORECASE)
            if amount is None or int(amount[1]) == 0:
                self._bad(option, "an amount of memory, like 64G (0 for all of it has no word)")
                continue
            megabytes = int(amount[1]) * _MEGABYTES[amount[2].upper() or "M"] * factor
            self.keys["memory"] = quoted(f"{max(1, -int(-megabytes // 1024))}GB", option.mark)

    def _rest(self) -> None:
        if (limit := self.options.get("time")) and limit.value.lower() not in ("unlimited", "infinite", "-1"):
            seconds = slurm_seconds(limit.value)
            if seconds is None:
                self._bad(limit, "a time as Slurm writes it, like 72:00:00 or 3-00")
            elif seconds:  # 0 means no limit to Slurm
                self.keys["time"] = quoted(duration_text(seconds), limit.mark)
        if requeue := self.options.get("requeue"):
            self.keys["tolerates"] = quoted("preemption", requeue.mark)
        if depends := self.options.get("dependency"):
            self._after(depends)
        if export := self.options.get("export"):
            self._environment(export)
        if "array" in self.options and "SLURM_ARRAY_" in self.text:
            message = "the script reads SLURM_ARRAY_…, which tasks of Fairway do not have"
            self._left_out(self.options["array"], "read $FAIRWAY_ARRAY_INDEX instead", message)

    def _after(self, option: ScriptOption) -> None:
        jobs: list[Node] = []
        for part in option.value.split(","):
            condition, *ids = part.split(":")
            if condition not in _DEPENDENCIES or not ids or "?" in part or "+" in part:
                hint = f"use {', '.join(_DEPENDENCIES)} with ids of Fairway:  --dependency=afterok:8f3k"
                self._unsupported(option, hint, f"the dependency {shown(part)} is not supported")
                continue
            for job in ids:
                if re.fullmatch(r"[1-9][0-9]*", job, re.ASCII):
                    message = f"{shown(job)} is read as an id of Fairway's, not as a number of Slurm's"
                    self._left_out(option, "fairway get jobs  shows the ids", message)
                dependency = {
                    "job": quoted(job, option.mark),
                    "when": quoted(_DEPENDENCIES[condition], option.mark),
                }
                jobs.append(mapping_node(dependency, option.mark))
        if jobs:
            self.keys["after"] = sequence_node(jobs, option.mark)

    def _environment(self, option: ScriptOption) -> None:
        variables: dict[str, Node] = {}
        for part in option.value.split(","):
            name, equals, value = part.partition("=")
            if equals:
                variables[name] = quoted(value, option.mark)
            elif part.upper() == "ALL":
                hint = "name what the job needs:  --export=NAME=VALUE, or  --env NAME=VALUE"
                self._left_out(option, hint, "the environment of who submits stays where it is")
            elif part.upper() not in ("NONE", "NIL"):
                hint = "write its value:  --export=NAME=VALUE, or say it to the command:  --env NAME=VALUE"
                self._unsupported(option, hint, f"--export names {shown(part) or 'nothing'} without a value")
        if variables:
            self.keys["env"] = mapping_node(variables, option.mark)


def _kind(gres: str) -> str:
    """Translate a GRES type to a job file's GPU type: `a100` is A100, `a100_1g.10gb` a slice."""
    if profile := re.search(r"(?:^|[_-])([1-9]g\.[1-9][0-9]*gb)$", gres, re.IGNORECASE | re.ASCII):
        return profile[1].lower()
    for name in (gres, gres.replace("_", "-"), f"{gres.replace('_', '-')}B"):
        request, problem = parse_gpus(name)
        if request and request.model and not problem:
            return request.model
    return gres


def _location(option: ScriptOption) -> Location:
    return Location(*option.mark, shown(f"--{option.name}"), shown(option.value))
