"""The command group `fairway get`: list the resources of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any, Final

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.budgets import budgets_view
from fairway.cli.output.fleet import clusters_view, loops_view, nodes_view, pools_view
from fairway.cli.output.format import (
    Format,
    Function,
    Listing,
    moment,
    output_option,
    show,
    show_document,
)
from fairway.cli.output.gpu_health import cordons_view, failing_gpus_view, gpu_events_view
from fairway.cli.output.jobs import JobGroup, group_jobs, jobs_view, with_unfollowed
from fairway.cli.output.policy import (
    drift_view,
    idle_view,
    interventions_view,
    revisions_view,
    teams_view,
    with_stopped,
)
from fairway.cli.parameter import ParsedParam
from fairway.cli.shared.watch import watch as show_repeatedly
from fairway.client.client import Client
from fairway.client.requests import Filters
from fairway.model.job import JobState
from fairway.model.observation import Health
from fairway.model.text import clean, parse_duration
from fairway.wire.jobs import Job

_MAX_READ: Final = 2000
"""The most jobs to read to fill a screen: an array of ten thousand tasks is one line of it."""


def _parse_age(text: str) -> int:
    """Parse an age into seconds."""
    seconds = parse_duration(text)
    if seconds is None or seconds > 100 * 366 * 86_400:
        raise ValueError(f"{text!r} is not an age; write it like 30m, 2h or 7d")
    return seconds


_AGE: Final = ParsedParam("age", _parse_age)


def _show_options(function: Function) -> Function:
    function = output_option(server_options(function))
    function = click.option("-w", "--watch", is_flag=True, help="Go on showing it until Ctrl-C.")(function)
    return click.option(
        "--every",
        type=click.FloatRange(0.2, 3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="How often --watch asks.",
    )(function)


def _list_options(fetch: Callable[..., Listing]) -> Callable[..., None]:
    """Turn `fetch`, which reads a list with a client, into a command that prints it once or repeatedly."""

    @wraps(fetch)
    def command(
        *, context: str | None, url: str | None, output: Format, watch: bool, every: float, **filters: Any
    ) -> None:
        run = partial(fetch, output=output, **filters)
        _run(run, context=context, url=url, output=output, watch=watch, every=every)

    return _show_options(command)


@click.group(
    epilog="""\b
Examples:
  fairway get clusters
  fairway get jobs --mine
  fairway get pools --watch
  fairway get nodes --health down -o json
  fairway get drift
"""
)
def get() -> None:
    """Show jobs, clusters, pools, nodes, teams, GPU events, budgets, drift, interventions or the fleet."""


@get.command(
    epilog="""\b
Examples:
  fairway get clusters             is each one reachable, how full is it
  fairway get clusters -o wide     with slices, pools and reasons
  fairway get clusters -o json     for programs
"""
)
@_list_options
def clusters(client: Client, output: Format) -> Listing:
    """Show the fleet's clusters.

    One that cannot be reached is shown with the reason, since when, and its last known state. Below the
    table is what could not be looked at, and what an administrator has yet to install.
    """
    found = client.clusters()
    return Listing(found, clusters_view(found, datetime.now(UTC), wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get pools
  fairway get pools --cluster hpc
  fairway get pools -o json | jq '.[] | {name, free: .gpus.free}'
"""
)
@click.option("--cluster", metavar="NAME", help="Only pools of this cluster.")
@_list_options
def pools(client: Client, output: Format, *, cluster: str | None) -> Listing:
    """Show the fleet's pools: GPUs in use, free and unhealthy, by pool and kind of slice.

    With -o wide also how many of those in use were measured and busy in the last five minutes read.
    """
    found = client.pools(cluster)
    wide = output is Format.WIDE
    return Listing(found, pools_view(found, wide=wide, used=client.use_now() if wide else ()))


@get.command(
    epilog="""\b
Examples:
  fairway get nodes
  fairway get nodes --cluster hpc --health down
  fairway get nodes --pool hpc-a100 -o wide
"""
)
@click.option("--cluster", metavar="NAME", help="Only nodes of this cluster.")
@click.option("--pool", metavar="NAME", help="Only nodes with GPUs of this pool.")
@click.option("--health", type=click.Choice([h.value for h in Health]), help="Only nodes that are so.")
@_list_options
def nodes(
    client: Client, output: Format, *, cluster: str | None, pool: str | None, health: str | None
) -> Listing:
    """Show nodes: health, the engine's reason, GPUs by pool."""
    found = list(client.nodes(cluster, pool, Health(health) if health else None))
    filtered = any((cluster, pool, health))
    view = nodes_view(found, datetime.now(UTC), wide=output is Format.WIDE, filtered=filtered)
    return Listing(found, view)


@get.command(
    "gpu-events",
    epilog="""\b
Examples:
  fairway get gpu-events                       what went wrong with GPUs, the newest first
  fairway get gpu-events --node gpu017         on one node
  fairway get gpu-events --job 8f3k            under one job
  fairway get gpu-events --gpu GPU-5f3c…       of one GPU, by UUID or serial number
""",
)
@click.option("--cluster", metavar="NAME", help="Only of this cluster.")
@click.option("--node", metavar="NAME", help="Only of this node.")
@click.option("--gpu", metavar="UUID", help="Only of this GPU, by UUID or serial number.")
@click.option("--job", metavar="ID", help="Only on GPUs that this job held, or may have held.")
@click.option("--days", type=click.IntRange(1, 400), default=30, show_default=True, help="How far back.")
@click.option("--most", type=click.IntRange(1, 2000), default=50, show_default=True, help="How many to show.")
@_list_options
def gpu_events(
    client: Client,
    output: Format,
    *,
    cluster: str | None,
    node: str | None,
    gpu: str | None,
    job: str | None,
    days: int,
    most: int,
) -> Listing:
    """Show what went wrong with GPUs: XIDs, memory errors, heat, GPUs that fell off the bus.

    What lasts is one line. A job that hardware ended comes back without using up a retry.
    """
    found = client.gpu_events(cluster, node, gpu, job, days, most)
    return Listing(found, gpu_events_view(found, datetime.now(UTC), wide=output is Format.WIDE))


@get.command(
    "failing-gpus",
    epilog="""\b
Examples:
  fairway get failing-gpus               which GPUs to replace first
  fairway get failing-gpus --days 365
""",
)
@click.option("--cluster", metavar="NAME", help="Only events on this cluster.")
@click.option("--days", type=click.IntRange(1, 400), default=90, show_default=True, help="How far back.")
@click.option("--most", type=click.IntRange(1, 2000), default=50, show_default=True, help="How many to show.")
@_list_options
def failing_gpus(client: Client, output: Format, *, cluster: str | None, days: int, most: int) -> Listing:
    """Show GPUs whose hardware failed, by UUID, those that fail in most weeks first."""
    found = client.failing_gpus(cluster, days, most)
    return Listing(found, failing_gpus_view(found, datetime.now(UTC), wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get loops            is every loop running, and does it succeed?
"""
)
@_list_options
def loops(client: Client, output: Format) -> Listing:
    """List the loops of Fairway's servers: where each runs, its last success and its errors."""
    del output
    found = client.loops()
    return Listing(found, loops_view(found))


@get.command(
    epilog="""\b
Examples:
  fairway get cordons
  fairway uncordon gpu017 --cluster hpc
"""
)
@click.option("--cluster", metavar="NAME", help="Only of this cluster.")
@_list_options
def cordons(client: Client, output: Format, *, cluster: str | None) -> Listing:
    """Show the nodes that Fairway closed to new jobs because of broken GPUs."""
    found = client.cordons(cluster)
    return Listing(found, cordons_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get budgets            what is spent, how fast, what is held for it
  fairway get budgets -o wide    with what happens when one is spent, and what last happened
  fairway get budgets -o json | jq '.[] | select(.hold)'
"""
)
@_list_options
def budgets(client: Client, output: Format) -> Listing:
    """Show budgets: what is spent of each, at what rate, when it runs out, and whom it holds.

    Members and leads see those of their own teams.
    """
    found = client.budgets()
    return Listing(found.budgets, budgets_view(found, wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get teams              who may have what, as last applied
  fairway get teams -o wide      with limits, priorities and members
"""
)
@_list_options
def teams(client: Client, output: Format) -> Listing:
    """Show teams: share, guarantee and borrowing by pool, as last applied."""
    found = client.teams()
    view = teams_view(found, wide=output is Format.WIDE)
    return Listing(found, with_stopped(view, client.stopped_applies()))


@get.command(
    epilog="""\b
Examples:
  fairway get drift                    what somebody changed since the last apply
  fairway get drift --cluster hpc
  fairway get drift -o json | jq length
"""
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@_list_options
def drift(client: Client, *, output: Format, cluster: str | None) -> Listing:
    """Show what differs from what was last applied: object, field, both values, who did it.

    `fairway apply` with the same fleet file heals it.
    """
    found = client.drift(cluster)
    clusters = [c for c in client.clusters() if cluster in (None, c.name)]
    stopped = [s for s in client.stopped_applies() if cluster in (None, s.cluster)]
    return Listing(found, with_stopped(drift_view(found, datetime.now(UTC), clusters), stopped))


@get.command(
    epilog="""\b
Examples:
  fairway get fleet > fleet.yaml      the fleet file as last applied
  fairway get fleet --revision 4      as it was then
  fairway rollback 4                  apply that again
"""
)
@click.option("--revision", type=click.IntRange(min=1), metavar="N", help="This one, not the applied one.")
@server_options
@output_option
def fleet(*, revision: int | None, context: str | None, url: str | None, output: Format) -> None:
    """Print the fleet file as it was last applied, or an older revision, exactly as it was written."""
    with connect(context, url) as client:
        found = client.fleet_file(revision)
    if output is Format.JSON:
        show_document(found, list, output)
        return
    click.echo(found.text, nl=not found.text.endswith("\n"))
    click.echo(
        f"revision {found.revision}, written {moment(found.created_at, '')} by {clean(found.created_by)}",
        err=True,
    )


@get.command(
    epilog="""\b
Examples:
  fairway get revisions               the newest, with the clusters on which each is in force
  fairway get revisions --most 100
"""
)
@click.option(
    "--most", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to show."
)
@_list_options
def revisions(client: Client, *, output: Format, most: int) -> Listing:
    """Show revisions of the fleet file: when, by whom, and where each is in force."""
    found = client.revisions(most)
    return Listing(found, revisions_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get idle                     what idle rules did, or would have done
  fairway get idle --most 500 -o json
"""
)
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many to show."
)
@_list_options
def idle(client: Client, *, output: Format, most: int) -> Listing:
    """Show what idle rules did to jobs, or would have done in a dry run, the newest first."""
    found = client.idle_steps(most)
    return Listing(found, idle_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get interventions            the newest, with the promise each one kept
  fairway get interventions --cluster hpc --most 500
"""
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many to show."
)
@_list_options
def interventions(client: Client, *, output: Format, cluster: str | None, most: int) -> Listing:
    """List the commands Fairway ran because an engine alone would not keep a promise."""
    found = client.interventions(cluster, most)
    return Listing(found, interventions_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get jobs                               the newest, an array as one line
  fairway get jobs --mine --state open           what of mine runs or waits
  fairway get jobs --team nlp --since 2h --all   all that a team submitted within two hours
  fairway get jobs --array 8f3k --tasks          each task of an array
  fairway get jobs --state failed -o json
"""
)
@click.option("--mine", is_flag=True, help="Only jobs of the user behind your token.")
@click.option("--user", metavar="LOGIN", help="Only jobs of this user.")
@click.option("--team", metavar="NAME", help="Only jobs of this team.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", "ended", *(s.value for s in JobState)]),
    help="Only jobs in this state; may be repeated. open: not over, ended: over.",
)
@click.option("--pool", metavar="NAME", help="Only jobs of this pool.")
@click.option("--node", metavar="NAME", help="Only jobs that are running on this node.")
@click.option("--cluster", metavar="NAME", help="Only jobs of this cluster.")
@click.option("--name", metavar="NAME", help="Only jobs called so.")
@click.option("--array", metavar="ID", help="Only tasks of this array, by its first task.")
@click.option("--native/--ours", default=None, help="Only jobs made with the engine's own tools, or without.")
@click.option("--since", type=_AGE, metavar="AGE", help="Submitted within this time: 30m, 2h, 7d.")
@click.option("--before", type=_AGE, metavar="AGE", help="Submitted longer ago than this.")
@click.option("--tasks", is_flag=True, help="A line for each task of an array.")
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many lines to show."
)
@click.option("--all", "all_", is_flag=True, help="Every one, however many.")
@_show_options
def jobs(
    *,
    mine: bool,
    states: tuple[str, ...],
    since: int | None,
    before: int | None,
    tasks: bool,
    most: int,
    all_: bool,
    context: str | None,
    url: str | None,
    output: Format,
    watch: bool,
    every: float,
    **named: Any,
) -> None:
    """Show jobs of all clusters, the newest first: Fairway's and those made by sbatch or kubectl."""
    if mine and named["user"]:
        raise click.UsageError("give --mine or --user, not both")
    filtered = mine or bool(states) or since is not None or before is not None
    filtered = filtered or any(value is not None for value in named.values())

    def fetch(client: Client) -> Listing:
        now = datetime.now(UTC)
        filters: Filters = {**named, "states": states}  # type: ignore[typeddict-item]
        if mine:
            filters["user"] = client.whoami().user
        if since is not None:
            filters["since"] = now - timedelta(seconds=since)
        if before is not None:
            filters["until"] = now - timedelta(seconds=before)
        if output in (Format.JSON, Format.YAML):
            found = list(client.jobs(most=None if all_ else most, **filters))
            return Listing(found, jobs_view([], now, wide=False, filtered=filtered, more=False))
        clusters = [c for c in client.clusters() if named["cluster"] in (None, c.name)]
        found, groups, more = _job_lines(client, filters, None if all_ else most, each=tasks)
        view = jobs_view(groups, now, wide=output is Format.WIDE, filtered=filtered, more=more)
        view = with_unfollowed(view, clusters, now)
        return Listing(found, view)

    _run(fetch, context=context, url=url, output=output, watch=watch, every=every)


def _job_lines(
    client: Client, filters: Filters, max_lines: int | None, *, each: bool
) -> tuple[list[Job], list[JobGroup], bool]:
    """Return the newest jobs as lines, and whether there are more.

    Tasks of an array share a line, so more jobs are read than lines shown, up to a limit. The server
    counts the tasks of an array that was not read to its end.
    """
    if each:
        found = list(client.jobs(most=max_lines and max_lines + 1, **filters))
        more = max_lines is not None and len(found) > max_lines
        return found[:max_lines], [JobGroup(job) for job in found[:max_lines]], more
    found, lines, more = [], set(), False
    for job in client.jobs(most=None if max_lines is None else _MAX_READ, **filters):
        lines.add(job.array or job.id)
        if max_lines is not None and len(lines) > max_lines:
            more = True
            break
        found.append(job)
    more = more or (max_lines is not None and len(found) >= _MAX_READ)
    # Reading may have stopped inside the last array. The server counts its tasks, but in all states.
    task_counts = {}
    if more and found and found[-1].array is not None and not filters.get("states"):
        task_counts[found[-1].array] = client.task_counts(found[-1].array)
    return found, group_jobs(found, task_counts), more


def _run(
    fetch: Callable[[Client], Listing],
    *,
    context: str | None,
    url: str | None,
    output: Format,
    watch: bool,
    every: float,
) -> None:
    with connect(context, url) as client:
        if watch:
            show_repeatedly(lambda: fetch(client), output, every)
        else:
            show(fetch(client), output)
