"""The flags of `run` and `submit` that say what a job is: the keys of a job file, one flag each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import click

if TYPE_CHECKING:
    from fairway.files import Fault
    from fairway.files.tree import Mapping as Tree

Function = TypeVar("Function", bound=Callable[..., Any])

_FLAGS: Final = (
    ("gpus", "GPUS", "GPUs on each node: A100-80GB:8, H100:8, 8, 40GB..80GB, 1g.10gb:2."),
    ("name", "NAME", "What people call it."),
    ("team", "NAME", "Whose job it is.  [your default team]"),
    ("priority", "NAME", "One of the fleet's priorities.  [its default]"),
    ("pool", "NAME", "Where it runs.  [Fairway picks, and says why]"),
    ("nodes", "N", "How many nodes; they start together or not at all.  [1]"),
    ("cpus", "N", "Cores on each node."),
    ("memory", "64GB", "Memory on each node."),
    ("time", "TIME", "The longest it may run: 72h, 90m, 1-12:00:00."),
    ("image", "IMAGE", "What pods run on Kubernetes; Slurm has none."),
    ("setup", "LINE", "A shell line before the command: 'module load cuda'."),
    ("workdir", "FOLDER", "The folder it starts in; a relative one counts from here."),
    ("array", "INDICES", "One task for each index: 0-99 or 1,3,5-7."),
    ("retries", "N", "How often it comes back after a failure."),
    ("together", "rack", "All its nodes in one rack, or it waits."),
)
_LISTS: Final = (
    ("tolerates", "WORD", "What it puts up with: preemption, spot. Again for more."),
    ("after", "JOB[:WHEN]", "A job that must have ended first: ok, failed or ended. Again for more."),
    ("env", "NAME=VALUE", "A variable of its environment. Again for more; no secrets."),
)


class Flags(TypedDict, total=False):
    """What the flags said; None or empty: nothing."""

    gpus: str | None
    name: str | None
    team: str | None
    priority: str | None
    pool: str | None
    nodes: str | None
    cpus: str | None
    memory: str | None
    time: str | None
    image: str | None
    setup: str | None
    workdir: str | None
    array: str | None
    retries: str | None
    together: str | None
    tolerates: tuple[str, ...]
    after: tuple[str, ...]
    env: tuple[str, ...]


def job_flags(function: Function) -> Function:
    """Adds a flag for each key of a job file."""
    for name, metavar, about in reversed(_LISTS):
        function = click.option(f"--{name}", multiple=True, metavar=metavar, help=about)(function)
    for name, metavar, about in reversed(_FLAGS):
        function = click.option(f"--{name}", metavar=metavar, help=about)(function)
    return function


def given(flags: Flags, command: Sequence[str] = ()) -> Tree:
    """What the flags say, as the keys of a job file. Raises UsageError, with every fault."""
    from fairway.files import check_flags, given_by_flags

    said: dict[str, str | Sequence[str] | Mapping[str, str]] = {
        key: value  # type: ignore[misc]  # a TypedDict's values are objects to mypy
        for key, value in flags.items()
        if value is not None and value != ()
    }
    if "env" in said:
        said["env"] = _variables(flags["env"])
    if "workdir" in said:
        said["workdir"] = os.path.normpath(Path(str(said["workdir"])).absolute())
    if command:
        said["command"] = command
    tree = given_by_flags(said)
    faults = check_flags(tree).faults
    wrong = [fault for fault in faults if fault.severity == "error"]
    if wrong:
        raise click.UsageError("; ".join(_sentence(fault) for fault in wrong))
    return tree


def _sentence(fault: Fault) -> str:
    flag = fault.path.replace("[", ".").split(".")[0]
    return f"--{flag}: {fault.message} ({fault.hint})"


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    told = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--env: {name} has no value (write {name}=VALUE)")
        told[name] = value
    return told
