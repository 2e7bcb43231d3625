"""The command group `fairway get`: list the resources of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fairway.cli import completion
from fairway.cli.connect import connect, connect_reader, server_options
from fairway.cli.group import Group
from fairway.cli.output.format import (
    DATA_FORMATS,
    Format,
    Function,
    Listing,
    moment,
    output_option,
    show,
    show_document,
)
from fairway.cli.parameter import ParsedParam
from fairway.model.job import JobState
from fairway.model.observation import Health
from fairway.model.text import clean, parse_duration

if TYPE_CHECKING:
    from fairway.cli.output.jobs import JobGroup
    from fairway.client.client import Client
    from fairway.client.filters import Filters
    from fairway.client.reader import Reader
    from fairway.wire.jobs import Job

_MAX_READ: Final = 2000
"""The most jobs to read to fill a screen: an array of ten thousand tasks is one line of it."""

Connection = TypeVar("Connection", "Client", "Reader")


_STATE_ALIASES: Final = {"finished": JobState.DONE.value, "on-hold": JobState.HELD.value}
"""The words of tables for states that JSON names otherwise."""


def _parse_age(text: str) -> int:
    """Parse an age into seconds."""
    seconds = parse_duration(text)
    if seconds is None or seconds > 100 * 366 * 86_400:
        raise ValueError(f"{text!r} is not an age; use 30m, 2h or 7d")
    return seconds


_UNHEALTHY: Final = "unhealthy"

_AGE: Final = ParsedParam("age", _parse_age)


def _show_options(function: Function) -> Function:
    function = output_option(server_options(function))
    function = click.option(
        "--every",
        type=click.FloatRange(0.2, 3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Refresh interval of --watch.",
    )(function)
    return click.option("-w", "--watch", is_flag=True, help="Refresh until you press Ctrl-C.")(function)


def _cluster_option(function: Function) -> Function:
    return click.option(
        "--cluster", metavar="NAME", help="Only this cluster.", shell_complete=completion.clusters
    )(function)


def _limit_option(default: int, most: int) -> Callable[[Function], Function]:
    return click.option(
        "--limit",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        metavar="N",
        help="Show at most N rows.",
    )


def _list_options(fetch: Callable[..., Listing]) -> Callable[..., None]:
    """Turn `fetch`, which reads a list with a Client, into a command that prints it once or repeatedly."""
    return _listing_command(fetch, connect)


def _reader_options(fetch: Callable[..., Listing]) -> Callable[..., None]:
    """Do the same for a `fetch` that takes a Reader, which starts faster."""
    return _listing_command(fetch, connect_reader)


def _listing_command(
    fetch: Callable[..., Listing], open_: Callable[[str | None, str | None], Connection]
) -> Callable[..., None]:
    @wraps(fetch)
    def command(
        *, context: str | None, url: str | None, output: Format, watch: bool, every: float, **filters: Any
    ) -> None:
        run = partial(fetch, output=output, **filters)
        with open_(context, url) as client:
            _show(lambda: run(client), output=output, watch=watch, every=every)

    return _show_options(command)


def _show(fetch: Callable[[], Listing], *, output: Format, watch: bool, every: float) -> None:
    if watch:
        from fairway.cli.shared.watch import watch as show_repeatedly

        show_repeatedly(fetch, output, every)
    else:
        show(fetch(), output)


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway get jobs --mine                  your jobs
  fairway get pools --watch                free GPUs by pool, refreshed
  fairway get nodes --health down -o json
  fairway get fleet > fleet.yaml           the fleet file in force
""",
)
def get() -> None:
    """List jobs, pools, nodes, teams, budgets and other resources."""


@get.command(
    epilog="""\b
Examples:
  fairway get clusters
  fairway get clusters -o wide     also slices, pools and reasons
"""
)
@_reader_options
def clusters(client: Reader, output: Format) -> Listing:
    """List clusters: whether each is reachable, and how full it is.

    An unreachable cluster is listed with the reason and its last known state.
    """
    from fairway.cli.output.fleet import clusters_view

    found = client.clusters()
    if output in DATA_FORMATS:
        return Listing(found)
    return Listing(found, clusters_view(found, datetime.now(UTC), wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get pools
  fairway get pools --cluster hpc
  fairway get pools -o json | jq '.[] | {name, free: .gpus.free}'
"""
)
@_cluster_option
@_reader_options
def pools(client: Reader, output: Format, *, cluster: str | None) -> Listing:
    """List pools: GPUs and slices in use, free and unhealthy.

    With -o wide, also nodes, prices and how busy the GPUs in use were in the last five minutes.
    """
    from fairway.cli.output.fleet import pools_view

    found = client.pools(cluster)
    if output in DATA_FORMATS:
        return Listing(found)
    wide = output is Format.WIDE
    return Listing(found, pools_view(found, wide=wide, used=client.use_now() if wide else ()))


@get.command(
    epilog="""\b
Examples:
  fairway get nodes
  fairway get nodes --health unhealthy
  fairway get nodes --pool hpc-a100 -o wide
"""
)
@_cluster_option
@click.option(
    "--pool", metavar="NAME", help="Only nodes with GPUs in this pool.", shell_complete=completion.pools
)
@click.option(
    "--health",
    type=click.Choice([*(h.value for h in Health), _UNHEALTHY]),
    help=f"Only nodes with this health; `{_UNHEALTHY}` is drained or down.",
)
@_list_options
def nodes(
    client: Client, output: Format, *, cluster: str | None, pool: str | None, health: str | None
) -> Listing:
    """List nodes: health, the engine's reason, and GPUs by pool."""
    from fairway.cli.output.fleet import nodes_view

    one = Health(health) if health and health != _UNHEALTHY else None
    found = [
        node
        for node in client.nodes(cluster, pool, one)
        if health != _UNHEALTHY or node.health is not Health.READY
    ]
    filtered = any((cluster, pool, health))
    view = nodes_view(found, datetime.now(UTC), wide=output is Format.WIDE, filtered=filtered)
    return Listing(found, view)


@get.command(
    "gpu-events",
    epilog="""\b
Examples:
  fairway get gpu-events                       newest first
  fairway get gpu-events --node gpu017
  fairway get gpu-events --job 8f3k
  fairway get gpu-events --gpu GPU-5f3c…       by UUID or serial number
""",
)
@_cluster_option
@click.option("--node", metavar="NAME", help="Only this node.", shell_complete=completion.nodes)
@click.option("--gpu", metavar="UUID", help="Only this GPU, by UUID or serial number.")
@click.option(
    "--job",
    metavar="JOB",
    help="Only GPUs that this job held, or may have held.",
    shell_complete=completion.jobs,
)
@click.option(
    "--days", type=click.IntRange(1, 400), default=30, show_default=True, help="How many days to look back."
)
@_limit_option(50, 2000)
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
    limit: int,
) -> Listing:
    """List GPU errors: XIDs, memory errors, overheating, GPUs that fell off the bus.

    An error that persists is one row. A job that broken hardware ended is retried without using up a retry.
    """
    from fairway.cli.output.gpu_health import gpu_events_view

    found = client.gpu_events(cluster, node, gpu, job, days, limit)
    return Listing(found, gpu_events_view(found, datetime.now(UTC), wide=output is Format.WIDE))


@get.command(
    "failing-gpus",
    epilog="""\b
Examples:
  fairway get failing-gpus               which GPUs to replace first
  fairway get failing-gpus --days 365
""",
)
@_cluster_option
@click.option(
    "--days", type=click.IntRange(1, 400), default=90, show_default=True, help="How many days to look back."
)
@_limit_option(50, 2000)
@_list_options
def failing_gpus(client: Client, output: Format, *, cluster: str | None, days: int, limit: int) -> Listing:
    """List GPUs with hardware failures, the most frequent first."""
    from fairway.cli.output.gpu_health import failing_gpus_view

    found = client.failing_gpus(cluster, days, limit)
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
    from fairway.cli.output.fleet import loops_view

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
@_cluster_option
@_list_options
def cordons(client: Client, output: Format, *, cluster: str | None) -> Listing:
    """List nodes that Fairway cordoned because of broken GPUs."""
    from fairway.cli.output.gpu_health import cordons_view

    found = client.cordons(cluster)
    return Listing(found, cordons_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get budgets
  fairway get budgets -o wide    also the action at the limit, and the last event
  fairway get budgets -o json | jq '.[] | select(.hold)'
"""
)
@_list_options
def budgets(client: Client, output: Format) -> Listing:
    """List budgets: spending, rate, forecast, and teams on hold.

    Members and leads see the budgets of their own teams.
    """
    from fairway.cli.output.budgets import budgets_view

    found = client.budgets()
    return Listing(found.budgets, budgets_view(found, wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get slos
  fairway get slos -o wide    also how many events were late, and each objective in words
  fairway get slos -o json | jq '.[] | select(.met == false)'
"""
)
@_list_options
def slos(client: Client, output: Format) -> Listing:
    """List service level objectives (SLOs): compliance, error budget and burn rates.

    Members and leads see the objectives of their own teams.
    """
    from fairway.cli.output.slos import slos_view

    found = client.slos()
    return Listing(found.slos, slos_view(found, wide=output is Format.WIDE))


@get.command(
    epilog="""\b
Examples:
  fairway get teams
  fairway get teams -o wide      also limits, priorities and members
"""
)
@_list_options
def teams(client: Client, output: Format) -> Listing:
    """List teams: share, guarantee, borrowing and loans by pool, as last applied."""
    from fairway.cli.output.policy import teams_view, with_stopped

    found = client.teams()
    view = teams_view(found, wide=output is Format.WIDE)
    return Listing(found, with_stopped(view, client.stopped_applies()))


@get.command(
    epilog="""\b
Examples:
  fairway get drift                    changes made outside Fairway since the last apply
  fairway get drift --cluster hpc
  fairway get drift -o json | jq length
"""
)
@_cluster_option
@_list_options
def drift(client: Client, *, output: Format, cluster: str | None) -> Listing:
    """List differences between the clusters and the applied policy.

    Each row has the object, the field, both values and, if known, who changed it. `fairway apply` with the
    same fleet file removes the drift.
    """
    from fairway.cli.output.policy import drift_view, with_stopped

    found = client.drift(cluster)
    clusters = [c for c in client.clusters() if cluster in (None, c.name)]
    stopped = [s for s in client.stopped_applies() if cluster in (None, s.cluster)]
    return Listing(found, with_stopped(drift_view(found, datetime.now(UTC), clusters), stopped))


@get.command(
    epilog="""\b
Examples:
  fairway get fleet > fleet.yaml      the fleet file in force
  fairway get fleet --revision 4      an earlier revision
  fairway rollback 4                  apply that revision again
"""
)
@click.option(
    "--revision",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print this revision instead.",
    shell_complete=completion.revisions,
)
@server_options
@output_option
def fleet(*, revision: int | None, context: str | None, url: str | None, output: Format) -> None:
    """Print the fleet file that was applied last, exactly as it was written."""
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
  fairway get revisions
  fairway get revisions --limit 100
"""
)
@_limit_option(20, 10_000)
@_list_options
def revisions(client: Client, *, output: Format, limit: int) -> Listing:
    """List revisions of the fleet file: time, author, and where each is in force."""
    from fairway.cli.output.policy import revisions_view

    found = client.revisions(limit)
    return Listing(found, revisions_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get idle
  fairway get idle --limit 500 -o json
"""
)
@_limit_option(100, 100_000)
@_list_options
def idle(client: Client, *, output: Format, limit: int) -> Listing:
    """List the actions of idle rules, including those of dry runs, newest first."""
    from fairway.cli.output.policy import idle_view

    found = client.idle_steps(limit)
    return Listing(found, idle_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get interventions
  fairway get interventions --cluster hpc --limit 500
"""
)
@_cluster_option
@_limit_option(100, 100_000)
@_list_options
def interventions(client: Client, *, output: Format, cluster: str | None, limit: int) -> Listing:
    """List interventions: where Fairway acted on an engine to keep a promise, newest first."""
    from fairway.cli.output.policy import interventions_view

    found = client.interventions(cluster, limit)
    return Listing(found, interventions_view(found, datetime.now(UTC)))


@get.command(
    epilog="""\b
Examples:
  fairway get jobs                               newest first, an array on one line
  fairway get jobs --mine --state open           your jobs that are running or waiting
  fairway get jobs --team nlp --since 2h --all   everything a team submitted in the last two hours
  fairway get jobs --mine --search eval --state failed --window last-week
  fairway get jobs --array 8f3k --tasks          each task of an array
  fairway get jobs --service --state running     services, with the replicas that run
  fairway get jobs --state failed -o json
"""
)
@click.option("--mine", is_flag=True, help="Only your jobs.")
@click.option("--user", metavar="LOGIN", help="Only jobs of this user.")
@click.option("--team", metavar="NAME", help="Only jobs of this team.", shell_complete=completion.teams)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", "ended", *(s.value for s in JobState), *_STATE_ALIASES]),
    help="Only jobs in this state (repeatable). `open` is every unfinished state, `ended` every other.",
)
@click.option("--pool", metavar="NAME", help="Only jobs in this pool.", shell_complete=completion.pools)
@click.option("--project", metavar="NAME", help="Only jobs of this project.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only jobs with this label, of those in the fleet file's `cost.labels` (repeatable).",
)
@click.option(
    "--node", metavar="NAME", help="Only jobs that are running on this node.", shell_complete=completion.nodes
)
@click.option(
    "--cluster", metavar="NAME", help="Only jobs on this cluster.", shell_complete=completion.clusters
)
@click.option("--name", metavar="NAME", help="Only jobs with this name.")
@click.option("--search", metavar="TEXT", help="Only jobs with this text in their name or user.")
@click.option("--array", metavar="JOB", help="Only tasks of this array.", shell_complete=completion.jobs)
@click.option(
    "--native/--ours", default=None, help="Only jobs made with sbatch or kubectl, or only Fairway's own."
)
@click.option(
    "--kind",
    metavar="KIND",
    help="Only workloads of this kind on Kubernetes, such as Deployment or JobSet.",
)
@click.option(
    "--service/--no-service", default=None, help="Only services, such as Deployments, or none of them."
)
@click.option("--since", type=_AGE, metavar="AGE", help="Submitted within this time: 30m, 2h, 7d.")
@click.option("--before", type=_AGE, metavar="AGE", help="Submitted longer ago than this.")
@click.option(
    "--window",
    metavar="WINDOW",
    help="Submitted on these days: today, yesterday, last-week, 2026-10, 2026-10-01..2026-10-15, …",
    shell_complete=completion.windows,
)
@click.option("--tasks", is_flag=True, help="Show each task of an array on its own line.")
@_limit_option(50, 100_000)
@click.option("--all", "all_", is_flag=True, help="Show all jobs, without a limit.")
@_show_options
def jobs(
    *,
    mine: bool,
    states: tuple[str, ...],
    since: int | None,
    before: int | None,
    tasks: bool,
    limit: int,
    all_: bool,
    context: str | None,
    url: str | None,
    output: Format,
    watch: bool,
    every: float,
    **named: Any,
) -> None:
    """List jobs on all clusters, newest first, including those made with sbatch or kubectl."""
    if mine and named["user"]:
        raise click.UsageError("give --mine or --user, not both")
    if named["window"] and (since is not None or before is not None):
        raise click.UsageError("give --window or --since and --before, not both")
    filtered = mine or bool(states) or since is not None or before is not None
    filtered = filtered or any(value not in (None, ()) for value in named.values())

    def fetch(client: Reader) -> Listing:
        from fairway.cli.output.jobs import jobs_view, with_unfollowed

        now = datetime.now(UTC)
        filters: Filters = {**named, "states": [_STATE_ALIASES.get(s, s) for s in states]}  # type: ignore[typeddict-item]
        if mine:
            filters["user"] = client.whoami().user
        if since is not None:
            filters["since"] = now - timedelta(seconds=since)
        if before is not None:
            filters["until"] = now - timedelta(seconds=before)
        if output in DATA_FORMATS:
            return Listing(list(client.jobs(most=None if all_ else limit, **filters)))
        clusters = [c for c in client.clusters() if named["cluster"] in (None, c.name)]
        found, groups, more = _job_lines(client, filters, None if all_ else limit, each=tasks)
        view = jobs_view(groups, now, wide=output is Format.WIDE, filtered=filtered, more=more)
        return Listing(found, with_unfollowed(view, clusters, now))

    with connect_reader(context, url) as client:
        _show(lambda: fetch(client), output=output, watch=watch, every=every)


def _job_lines(
    client: Reader, filters: Filters, max_lines: int | None, *, each: bool
) -> tuple[list[Job], list[JobGroup], bool]:
    """Return the newest jobs as lines, and whether there are more.

    Tasks of an array share a line, so more jobs are read than lines shown, up to a limit. The server
    counts the tasks of an array that was not read to its end.
    """
    from fairway.cli.output.jobs import JobGroup, group_jobs

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
