"""What `run` and `submit` have in common: jobs to the server, and what came of it in a few lines."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from pydantic import BaseModel

from fairway.api import job_wire as wire
from fairway.cli.connect import connect
from fairway.cli.failures import INTERRUPTED
from fairway.cli.layout import Line
from fairway.cli.output import Format, plain, show_document, show_lines, yaml_text
from fairway.cli.words import count
from fairway.files import gpus_text
from fairway.model.errors import PermanentError
from fairway.model.job import JobSpec, JobState
from fairway.model.wording import clean

Function = TypeVar("Function", bound=Callable[..., Any])

_NAMED: Final = 20
"""More jobs than that are counted, not listed."""


@dataclass(frozen=True, slots=True)
class How:
    """How jobs are submitted, whatever they are."""

    hold: bool
    as_user: str | None
    key: str | None
    dry_run: bool
    follow: bool
    context: str | None
    url: str | None
    output: Format


def sending_options(function: Function) -> Function:
    """Adds the options that say how to submit."""
    for option in (
        click.option("--follow", is_flag=True, help="Show what it prints until it is over."),
        click.option("--dry-run", is_flag=True, help="Say what would be sent and whether it could run."),
        click.option("--key", metavar="KEY", help="Submitting again under the same key makes no second job."),
        click.option("--as", "as_user", metavar="USER", help="Whose job it is; others' need an operator."),
        click.option("--hold", is_flag=True, help="Keep it back until  fairway release."),
    ):
        function = option(function)
    return function


class Rehearsal(BaseModel):
    """A job that was not submitted, and what would become of it."""

    job: wire.JobSpec
    answer: wire.DryRun


def send(jobs: Sequence[JobSpec], how: How) -> None:
    """Submit the jobs, or only say what would become of them."""
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


def _kept_lines(kept: Sequence[wire.SubmittedJob]) -> Iterator[Line]:
    for job in kept[:_NAMED]:
        what = f"array {job.id} of {count(len(job.ids), 'task')}" if len(job.ids) > 1 else f"job {job.id}"
        yield Line(f"{clean(job.name)} is {what}: {place(job.placement)}")
    if len(kept) > _NAMED:
        yield Line(f"and {count(len(kept) - _NAMED, 'more job')}; -o json has them all")


def place(placement: wire.Placement) -> str:
    """`hpc-a100 on hpc, because it has 8 GPUs free now`."""
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


def _follow(job: wire.SubmittedJob, how: How) -> None:
    """What `fairway logs -f` does; the exit code is whether the job went well."""
    from fairway.cli.joblogs import logs

    try:
        click.get_current_context().invoke(
            logs, job=job.id, follow=True, attempt=None, node=0, context=how.context, url=how.url
        )
    except KeyboardInterrupt:
        click.echo(f"\n{job.id} goes on; see it again with:  fairway logs -f {job.id}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    with connect(how.context, how.url) as client:
        if client.job(job.id).state is not JobState.DONE:
            raise click.exceptions.Exit(1)


# --- dry runs ---------------------------------------------------------------------------------------------


def _rehearse(jobs: Sequence[JobSpec], asked: Sequence[wire.JobSpec], how: How) -> None:
    if len(jobs) > _NAMED:
        raise click.UsageError(f"--dry-run takes at most {_NAMED} jobs")
    with connect(how.context, how.url) as client:
        answers = [client.dry_run(job, as_user=how.as_user) for job in asked]
    played = [Rehearsal(job=job, answer=answer) for job, answer in zip(asked, answers, strict=True)]
    match how.output:
        case Format.JSON:
            import json

            click.echo(json.dumps(plain(played), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(plain(played)), nl=False)
        case _:
            for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
                show_lines([*([Line("")] if i else []), *rehearsal_lines(job, answer)])
    sys.stdout.flush()
    if not all(answer.could_run for answer in answers):
        raise click.exceptions.Exit(1)


def rehearsal_lines(job: JobSpec, answer: wire.DryRun) -> list[Line]:
    """What would become of a job: where, why, what else there is, and what the engine would get."""
    size = f"{gpus_text(job.gpus)} on {count(job.nodes, 'node')}"
    tasks = f", {count(len(job.array), 'task')}" if job.array else ""
    if not answer.could_run or answer.placement is None:
        lines = [Line(f"{job.name} ({size}{tasks}) could never run: {clean(answer.why)}", "red")]
        return [*lines, Line(""), Line(f"hint: {clean(answer.hint)}")] if answer.hint else lines
    chosen = answer.placement
    lines = [Line(f"{job.name} ({size}{tasks}) would go to {place(chosen)}")]
    others = [o for o in answer.options if (o.pool, o.slice) != (chosen.pool, chosen.slice)]
    if others:
        lines += [Line(""), Line("It would also fit on")]
    for option in others[:_NAMED]:
        supply = f"{option.pool}/{option.slice}" if option.slice else option.pool
        lines.append(Line(f"  {supply} on {option.cluster}, which {clean(option.why)}"))
    if answer.preview:
        sent = [Line(f"  {clean(line)}") for line in answer.preview.splitlines()]
        lines += [Line(""), Line(f"What {chosen.cluster} would get"), *sent]
    return [*lines, Line(""), Line("Nothing was submitted.")]
