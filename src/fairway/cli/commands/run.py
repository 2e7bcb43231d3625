"""The commands `fairway run` and `fairway submit`: submit jobs given by flags or by files."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel

from fairway.cli import completion
from fairway.cli.connect import connect, connect_reader, server_options
from fairway.cli.errors import INTERRUPTED
from fairway.cli.output.faults import show_fault
from fairway.cli.output.format import (
    Format,
    Function,
    ScreenLine,
    count,
    data_text,
    output_option,
    show_document,
    show_lines,
    to_dicts,
)
from fairway.cli.output.messages import in_context
from fairway.files import (
    Fault,
    JobReport,
    check_flags,
    check_job_bytes,
    check_job_file,
    given_by_flags,
    gpus_text,
    name_of_command,
)
from fairway.files.job.load import MAX_CHARACTERS
from fairway.files.yaml import MappingNode
from fairway.model.errors import PermanentError
from fairway.model.job import JobSpec, JobState, parse_job_id
from fairway.model.text import clean
from fairway.wire import jobs as wire

_MAX_LISTED: Final = 20
"""The most jobs that are listed one by one; the rest are counted."""

_FLAGS: Final = (
    ("gpus", "GPUS", "GPUs per node: 8, H100:8, A100-80GB:8, 40GB..80GB, 1g.10gb:2."),
    ("name", "NAME", "Name of the job."),
    ("team", "NAME", "Team to charge.  [default: your default team]"),
    ("project", "NAME", "Project that the cost is for."),
    ("priority", "NAME", "Priority.  [default: the fleet's default]"),
    ("pool", "NAME", "Pool to run in.  [default: Fairway chooses]"),
    ("nodes", "N", "Number of nodes, which start together.  [default: 1]"),
    ("cpus", "N", "CPU cores per node."),
    ("memory", "64GB", "Memory per node."),
    ("time", "TIME", "Time limit: 72h, 90m or 1-12:00:00."),
    ("image", "IMAGE", "Container image (Kubernetes only)."),
    ("setup", "LINE", "Shell line to run first: 'module load cuda'."),
    ("workdir", "FOLDER", "Working directory; a relative path starts from the current directory."),
    ("array", "INDICES", "Array job with one task per index: 0-99 or 1,3,5-7."),
    ("retries", "N", "Number of retries after a failure."),
    ("together", "rack", "Wait until all nodes fit into one rack."),
)

_LISTS: Final = (
    ("tolerates", "WORD", "Allow preemption or spot nodes (repeatable)."),
    ("after", "JOB[:WHEN]", "Start after this job: `ok` (default), `failed` or `ended` (repeatable)."),
    ("env", "NAME=VALUE", "Set an environment variable (repeatable). Not for secrets."),
    ("label", "KEY=VALUE", "Add a label, which reports can group by (repeatable)."),
)

_EXAMPLES = """\b
Examples:
  fairway run --gpus A100-80GB:8 -- python train.py --lr 3e-4
  fairway run --gpus 40GB..80GB --time 2h --follow -- ./bench.sh
  fairway run --gpus 1g.10gb --array 0-99 --retries 2 -- python sweep.py
  fairway run --gpus H100:8 --nodes 4 --together rack --dry-run -- torchrun train.py
"""

_SUBMIT_EXAMPLES = """\b
Examples:
  fairway submit job.yaml                          a job file with one or more jobs
  fairway submit train.sh                          a script with #SBATCH lines
  fairway submit k8s-job.yaml --team research      a Kubernetes Job; flags override the file
  fairway submit llm.yaml --pool a100              a Deployment, JobSet, RayJob, PyTorchJob, ...
  fairway submit job.yaml --dry-run                show the placement and what would be sent
  fairway submit --again 8f3k --time 4h            an earlier job, with a new time limit
  make-job | fairway submit -                      from a pipe
"""


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


class DryRunResult(BaseModel):
    """A job that was not submitted, and what would become of it."""

    job: wire.JobSpec
    answer: wire.DryRun


def job_flags(function: Function) -> Function:
    """Add a flag for each key of a job file."""
    complete = {"team": completion.teams, "pool": completion.pools, "after": completion.jobs}
    for name, metavar, about in reversed(_LISTS):
        function = click.option(
            f"--{name}", multiple=True, metavar=metavar, help=about, shell_complete=complete.get(name)
        )(function)
    for name, metavar, about in reversed(_FLAGS):
        function = click.option(f"--{name}", metavar=metavar, help=about, shell_complete=complete.get(name))(
            function
        )
    return function


def submit_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a submission, and pass them to `function` as one SubmitOptions."""

    @wraps(function)
    def collect(
        *,
        hold: bool,
        as_user: str | None,
        key: str | None,
        dry_run: bool,
        follow: bool,
        context: str | None,
        url: str | None,
        output: Format,
        **others: Any,
    ) -> None:
        function(SubmitOptions(hold, as_user, key, dry_run, follow, context, url, output), **others)

    decorated = server_options(output_option(collect))
    for option in (
        click.option(
            "--follow", is_flag=True, help="Show the output until the job ends, and exit with its exit code."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Show the placement and what would be sent, without submitting."
        ),
        click.option("--key", metavar="KEY", help="Idempotency key: the same key never submits twice."),
        click.option("--as", "as_user", metavar="USER", help="Submit for another user (operators only)."),
        click.option("--hold", is_flag=True, help="Submit on hold, until `fairway release`."),
    ):
        decorated = option(decorated)
    return decorated


@click.command(epilog=_EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@job_flags
@submit_options
def run(options: SubmitOptions, *, command: tuple[str, ...], **flags: Any) -> None:
    """Run a command on GPUs.

    Fairway places the job in the pool where it starts soonest, unless you choose one. The command runs
    without a shell and without your environment: pass what it needs with --env, --workdir, --setup or
    --image.
    """
    if not flags.get("gpus"):
        raise click.UsageError("choose GPUs with --gpus, such as --gpus 1 or --gpus A100-80GB:8")
    if not flags.get("name"):
        flags["name"] = name_of_command(command)
    flags["after"] = _job_ids(flags["after"], options)
    report = check_flags(_flag_values(flags, command))
    for fault in report.warnings:
        show_fault(fault)
    _submit(report.jobs or (), options)


@click.command(epilog=_SUBMIT_EXAMPLES)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--again",
    multiple=True,
    metavar="JOB",
    help="Submit this job again: an id, a name or an engine id (repeatable).",
    shell_complete=completion.jobs,
)
@job_flags
@submit_options
def submit(options: SubmitOptions, *, files: tuple[str, ...], again: tuple[str, ...], **flags: Any) -> None:
    """Submit job files, #SBATCH scripts or Kubernetes manifests.

    Either all jobs are submitted or, if a file has an error, none. Flags override the values in the files,
    and those of a job that is submitted again.
    """
    if not files and not again:
        raise click.UsageError("name a file, or a job with --again")
    flags["after"] = _job_ids(flags["after"], options)
    overrides = _flag_values(flags)
    reports = [_check_file(file, overrides) for file in files]
    reports += [_check_earlier(word, overrides, options) for word in again]
    _submit(_jobs(reports), options)


# --- read flags and files ---------------------------------------------------------------------------------


def _flag_values(flags: Mapping[str, Any], command: Sequence[str] = ()) -> MappingNode:
    """Convert the flags to the keys of a job file. Raises UsageError with every fault."""
    values = {key: value for key, value in flags.items() if value is not None and value != ()}
    if "env" in values:
        values["env"] = _parse_pairs("env", values["env"])
    if "label" in values:
        values["labels"] = _parse_pairs("label", values.pop("label"))
    if "workdir" in values:
        values["workdir"] = os.path.normpath(Path(values["workdir"]).absolute())
    if command:
        values["command"] = command
    tree = given_by_flags(values)
    errors = [fault for fault in check_flags(tree).faults if fault.severity == "error"]
    if errors:
        raise click.UsageError("; ".join(_flag_error(fault) for fault in errors))
    return tree


def _job_ids(after: Sequence[str], options: SubmitOptions) -> tuple[str, ...]:
    """Replace names and engine ids in the values of --after by ids, which the server looks up."""
    found = []
    for text in after:
        word, colon, when = text.rpartition(":") if ":" in text else (text, "", "")
        if parse_job_id(word) is None:
            with connect_reader(options.context, options.url) as reader:
                word = reader.job(word).id
        found.append(f"{word}{colon}{when}")
    return tuple(found)


def _flag_error(fault: Fault) -> str:
    flag = fault.path.replace("[", ".").split(".")[0]
    flag = "label" if flag == "labels" else flag
    return f"--{flag}: {fault.message} ({fault.hint})"


def _parse_pairs(flag: str, pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--{flag} {name} has no value; use {name}=VALUE")
        found[name] = value
    return found


def _check_file(file: str, overrides: MappingNode) -> JobReport:
    if file == "-":
        return check_job_bytes(sys.stdin.buffer.read(4 * MAX_CHARACTERS + 1), "<stdin>", overrides)
    return check_job_file(Path(file), overrides)


def _check_earlier(word: str, overrides: MappingNode, options: SubmitOptions) -> JobReport:
    """Check the job file of an earlier job. Raises PermanentError if the caller may not have it."""
    from fairway.files.job.write import compose_job

    with connect(options.context, options.url) as client:
        found = client.job(word)
    if found.spec is None:
        raise PermanentError(
            "NotFairways",
            f"{found.id} cannot be submitted again: {found.spec_note}",
            "submit its script:  fairway submit script.sh",
        )
    text = compose_job(found.spec.to_model())
    return check_job_bytes(text.encode(), f"{found.name} ({found.id})", overrides)


def _jobs(reports: list[JobReport]) -> list[JobSpec]:
    """Return the jobs of all files. Prints their faults and exits with 1 if one is an error."""
    for report in reports:
        for fault in report.faults:
            show_fault(fault)
    refused = [report for report in reports if report.jobs is None]
    for report in refused:
        errors = sum(fault.severity == "error" for fault in report.faults)
        click.echo(f"{report.source}: {count(errors, 'error')}, nothing was submitted", err=True)
    if refused:
        raise click.exceptions.Exit(1)
    return [job for report in reports for job in report.jobs or ()]


# --- submit -----------------------------------------------------------------------------------------------


def _submit(jobs: Sequence[JobSpec], options: SubmitOptions) -> None:
    """Submit the jobs, or with `--dry-run` show where they would be placed."""
    if options.follow and (options.dry_run or len(jobs) != 1 or jobs[0].array):
        raise click.UsageError("--follow needs exactly one job that is not an array, and no --dry-run")
    if options.follow and options.output not in (Format.TABLE, Format.WIDE):
        raise click.UsageError("--follow cannot be combined with -o json or -o yaml")
    tasks = sum(len(job.array) or 1 for job in jobs)
    if tasks > wire.MAX_JOBS:
        raise PermanentError(
            "TooManyJobs",
            f"{tasks:,} jobs, counting array tasks, exceed the limit of {wire.MAX_JOBS:,} per submission",
            "submit fewer files at once, or split the array",
        )
    specs = [wire.JobSpec.from_model(job) for job in jobs]
    if options.dry_run:
        _dry_run(jobs, specs, options)
        return
    # One key for all tries: a response that was lost on the way must not lead to a second job.
    key = options.key or secrets.token_hex(16)
    with connect(options.context, options.url) as client:
        submitted = client.submit(specs, key=key, as_user=options.as_user, hold=options.hold)
    show_document(wire.Submitted(jobs=submitted), lambda: list(_submitted_lines(submitted)), options.output)
    if options.follow:
        _follow(submitted[0], options)
    elif options.output in (Format.TABLE, Format.WIDE):
        click.echo("\n" + in_context(_next_step(submitted, hold=options.hold)), err=True)


def _submitted_lines(jobs: Sequence[wire.SubmittedJob]) -> Iterator[ScreenLine]:
    for job in jobs[:_MAX_LISTED]:
        what = f"array {job.id} of {count(len(job.ids), 'task')}" if len(job.ids) > 1 else f"job {job.id}"
        yield ScreenLine(f"{clean(job.name)} is {what}: {_placement_text(job.placement)}")
    if len(jobs) > _MAX_LISTED:
        yield ScreenLine(f"and {count(len(jobs) - _MAX_LISTED, 'more job')}; -o json has them all")


def _placement_text(placement: wire.Placement) -> str:
    """Format a placement: `hpc-a100 on hpc, because it has 8 GPUs free now`."""
    supply = _supply_text(placement)
    why = clean(placement.why)
    because = f"it {why.removeprefix(supply).lstrip()}" if why.startswith(f"{supply} ") else why
    return f"{supply} on {placement.cluster}, because {because}"


def _supply_text(placement: wire.Placement) -> str:
    return f"{placement.pool}/{placement.slice}" if placement.slice else placement.pool


def _next_step(jobs: Sequence[wire.SubmittedJob], *, hold: bool) -> str:
    if hold:
        return f"Release it with:  fairway release {' '.join(job.id for job in jobs[:_MAX_LISTED])}"
    if len(jobs) > 1:
        return "List them with:  fairway get jobs --mine"
    (job,) = jobs
    if len(job.ids) > 1:
        return f"Show its tasks with:  fairway get jobs --array {job.id} --tasks"
    return f"Follow its output with:  fairway logs -f {job.id}"


def _follow(job: wire.SubmittedJob, options: SubmitOptions) -> None:
    """Follow the job's log as `fairway logs -f` does. Exits with the job's exit code, or 1 if it has none."""
    from fairway.cli.shared.job_log import print_log

    with connect(options.context, options.url) as client:
        try:
            print_log(client, job.id, attempt=None, node=0, follow=True)
        except KeyboardInterrupt:
            again = in_context(f"fairway logs -f {job.id}")
            click.echo(f"\n{job.id} continues. Follow it again with:  {again}", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        ended = client.job(job.id)
    if ended.state is not JobState.DONE:
        raise click.exceptions.Exit(ended.exit_code if ended.exit_code and 0 < ended.exit_code < 256 else 1)


def _dry_run(jobs: Sequence[JobSpec], specs: Sequence[wire.JobSpec], options: SubmitOptions) -> None:
    """Print where each job would be placed. Exits with 1 if one could never run."""
    if len(jobs) > _MAX_LISTED:
        raise click.UsageError(f"--dry-run takes at most {_MAX_LISTED} jobs")
    with connect(options.context, options.url) as client:
        answers = [client.dry_run(spec, as_user=options.as_user) for spec in specs]
    results = [DryRunResult(job=spec, answer=answer) for spec, answer in zip(specs, answers, strict=True)]
    if options.output in (Format.JSON, Format.YAML):
        click.echo(data_text(to_dicts(results), options.output), nl=False)
    else:
        for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            show_lines([*([ScreenLine("")] if i else []), *_dry_run_lines(job, answer)])
    sys.stdout.flush()
    if not all(answer.could_run for answer in answers):
        raise click.exceptions.Exit(1)


def _dry_run_lines(job: JobSpec, answer: wire.DryRun) -> list[ScreenLine]:
    """Format the result of a dry run: placement, reason, alternatives, and what the engine would get."""
    size = f"{gpus_text(job.gpus)} on {count(job.nodes, 'node')}"
    tasks = f", {count(len(job.array), 'task')}" if job.array else ""
    if not answer.could_run or answer.placement is None:
        lines = [ScreenLine(f"{job.name} ({size}{tasks}) could never run: {clean(answer.why)}", "red")]
        return [*lines, ScreenLine(""), ScreenLine(f"hint: {clean(answer.hint)}")] if answer.hint else lines
    chosen = answer.placement
    lines = [ScreenLine(f"{job.name} ({size}{tasks}) would go to {_placement_text(chosen)}")]
    others = [o for o in answer.options if (o.pool, o.slice) != (chosen.pool, chosen.slice)]
    if others:
        lines += [ScreenLine(""), ScreenLine("It would also fit on")]
    for option in others[:_MAX_LISTED]:
        lines.append(ScreenLine(f"  {_supply_text(option)} on {option.cluster}, which {clean(option.why)}"))
    if answer.preview:
        sent = [ScreenLine(f"  {clean(line)}") for line in answer.preview.splitlines()]
        lines += [ScreenLine(""), ScreenLine(f"What {chosen.cluster} would get"), *sent]
    return [*lines, ScreenLine(""), ScreenLine("Nothing was submitted.")]
