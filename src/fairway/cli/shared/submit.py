"""Submit jobs for `run` and `submit`, and print the result."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import click
from pydantic import BaseModel

from fairway.cli.connect import connect
from fairway.cli.errors import INTERRUPTED
from fairway.cli.output.format import Format, count, plain, show_document, show_lines, yaml_text
from fairway.cli.output.table import ScreenLine
from fairway.files import gpus_text
from fairway.model.errors import PermanentError
from fairway.model.job import JobSpec, JobState
from fairway.model.text import clean
from fairway.wire import jobs as wire

if TYPE_CHECKING:
    from fairway.files import Fault
    from fairway.files.yaml.tree import Mapping as Tree


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
    """The values of the flags. None or empty means not given."""

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
    """Add a flag for each key of a job file."""
    for name, metavar, about in reversed(_LISTS):
        function = click.option(f"--{name}", multiple=True, metavar=metavar, help=about)(function)
    for name, metavar, about in reversed(_FLAGS):
        function = click.option(f"--{name}", metavar=metavar, help=about)(function)
    return function


def given(flags: Flags, command: Sequence[str] = ()) -> Tree:
    """Convert the flags to the keys of a job file. Raises UsageError with every fault."""
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


_NAMED: Final = 20
"""Larger numbers of jobs are counted, not listed."""


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of a submission that do not depend on the job."""

    hold: bool
    as_user: str | None
    key: str | None
    dry_run: bool
    follow: bool
    context: str | None
    url: str | None
    output: Format


def sending_options(function: Function) -> Function:
    """Add the options of a submission: `--hold`, `--as`, `--key`, `--dry-run`, `--follow`."""
    for option in (
        click.option("--follow", is_flag=True, help="Show what it prints until it is over."),
        click.option("--dry-run", is_flag=True, help="Say what would be sent and whether it could run."),
        click.option("--key", metavar="KEY", help="Submitting again under the same key makes no second job."),
        click.option("--as", "as_user", metavar="USER", help="Whose job it is; others' need an operator."),
        click.option("--hold", is_flag=True, help="Keep it back until  fairway release."),
    ):
        function = option(function)
    return function


class DryRunResult(BaseModel):
    """A job that was not submitted, and what would become of it."""

    job: wire.JobSpec
    answer: wire.DryRun


def send(jobs: Sequence[JobSpec], how: SubmitOptions) -> None:
    """Submit the jobs, or with `--dry-run` show where they would be placed."""
    if how.follow and (how.dry_run or len(jobs) != 1 or jobs[0].array):
        raise click.UsageError("--follow goes with exactly one job that is no array and is submitted")
    if how.follow and how.output not in (Format.TABLE, Format.WIDE):
        raise click.UsageError("--follow shows what the job prints, which is neither JSON nor YAML")
    tasks = sum(len(job.array) or 1 for job in jobs)
    if tasks > wire.MOST_JOBS:
        raise PermanentError(
            "TooManyJobs",
            f"these are {tasks:,} jobs with every task, and the most at once is {wire.MOST_JOBS:,}",
            "submit fewer files at once, or split an array",
        )
    asked = [wire.JobSpec.from_model(job) for job in jobs]
    if how.dry_run:
        _rehearse(jobs, asked, how)
        return
    # One key for all tries: an answer that was lost on the way makes no second job.
    key = how.key or secrets.token_hex(16)
    with connect(how.context, how.url) as client:
        kept = client.submit(asked, key=key, as_user=how.as_user, hold=how.hold)
    show_document(wire.Submitted(jobs=kept), lambda: list(_kept_lines(kept)), how.output)
    if how.follow:
        _follow(kept[0], how)
    elif how.output in (Format.TABLE, Format.WIDE):
        click.echo("\n" + _next(kept, hold=how.hold), err=True)


def _kept_lines(kept: Sequence[wire.SubmittedJob]) -> Iterator[ScreenLine]:
    for job in kept[:_NAMED]:
        what = f"array {job.id} of {count(len(job.ids), 'task')}" if len(job.ids) > 1 else f"job {job.id}"
        yield ScreenLine(f"{clean(job.name)} is {what}: {place(job.placement)}")
    if len(kept) > _NAMED:
        yield ScreenLine(f"and {count(len(kept) - _NAMED, 'more job')}; -o json has them all")


def place(placement: wire.Placement) -> str:
    """Format a placement: `hpc-a100 on hpc, because it has 8 GPUs free now`."""
    supply = f"{placement.pool}/{placement.slice}" if placement.slice else placement.pool
    why = clean(placement.why)
    begins = why.startswith(f"{supply} ")
    because = f"it {why.removeprefix(supply).lstrip()}" if begins else why
    return f"{supply} on {placement.cluster}, because {because}"


def _next(kept: Sequence[wire.SubmittedJob], *, hold: bool) -> str:
    if hold:
        return f"Let it start with:  fairway release {' '.join(job.id for job in kept[:_NAMED])}"
    if len(kept) > 1:
        return "See how they go with:  fairway get jobs --mine"
    (job,) = kept
    if len(job.ids) > 1:
        return f"See how its tasks go with:  fairway describe job {job.id}"
    return f"See what it prints with:  fairway logs -f {job.id}"


def _follow(job: wire.SubmittedJob, how: SubmitOptions) -> None:
    """Follow the job's log as `fairway logs -f` does. Exits with 1 unless the job succeeds."""
    from fairway.cli.shared.job_log import print_log

    with connect(how.context, how.url) as client:
        try:
            print_log(client, job.id, attempt=None, node=0, follow=True)
        except KeyboardInterrupt:
            click.echo(f"\n{job.id} goes on; see it again with:  fairway logs -f {job.id}", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        if client.job(job.id).state is not JobState.DONE:
            raise click.exceptions.Exit(1)


# --- dry runs ---------------------------------------------------------------------------------------------


def _rehearse(jobs: Sequence[JobSpec], asked: Sequence[wire.JobSpec], how: SubmitOptions) -> None:
    if len(jobs) > _NAMED:
        raise click.UsageError(f"--dry-run takes at most {_NAMED} jobs")
    with connect(how.context, how.url) as client:
        answers = [client.dry_run(job, as_user=how.as_user) for job in asked]
    played = [DryRunResult(job=job, answer=answer) for job, answer in zip(asked, answers, strict=True)]
    match how.output:
        case Format.JSON:
            import json

            click.echo(json.dumps(plain(played), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(plain(played)), nl=False)
        case _:
            for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
                show_lines([*([ScreenLine("")] if i else []), *rehearsal_lines(job, answer)])
    sys.stdout.flush()
    if not all(answer.could_run for answer in answers):
        raise click.exceptions.Exit(1)


def rehearsal_lines(job: JobSpec, answer: wire.DryRun) -> list[ScreenLine]:
    """Format the result of a dry run: placement, reason, alternatives, and what the engine would get."""
    size = f"{gpus_text(job.gpus)} on {count(job.nodes, 'node')}"
    tasks = f", {count(len(job.array), 'task')}" if job.array else ""
    if not answer.could_run or answer.placement is None:
        lines = [ScreenLine(f"{job.name} ({size}{tasks}) could never run: {clean(answer.why)}", "red")]
        return [*lines, ScreenLine(""), ScreenLine(f"hint: {clean(answer.hint)}")] if answer.hint else lines
    chosen = answer.placement
    lines = [ScreenLine(f"{job.name} ({size}{tasks}) would go to {place(chosen)}")]
    others = [o for o in answer.options if (o.pool, o.slice) != (chosen.pool, chosen.slice)]
    if others:
        lines += [ScreenLine(""), ScreenLine("It would also fit on")]
    for option in others[:_NAMED]:
        supply = f"{option.pool}/{option.slice}" if option.slice else option.pool
        lines.append(ScreenLine(f"  {supply} on {option.cluster}, which {clean(option.why)}"))
    if answer.preview:
        sent = [ScreenLine(f"  {clean(line)}") for line in answer.preview.splitlines()]
        lines += [ScreenLine(""), ScreenLine(f"What {chosen.cluster} would get"), *sent]
    return [*lines, ScreenLine(""), ScreenLine("Nothing was submitted.")]
