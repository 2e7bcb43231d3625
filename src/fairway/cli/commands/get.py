"""The command group `fairway get`: list the resources of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.budgets import budgets_view
from fairway.cli.output.fleet import clusters_view, nodes_view, pools_view
from fairway.cli.output.format import Format, Shown, output_option, show
from fairway.cli.output.jobs import Group, grouped, jobs_view
from fairway.cli.output.policy import drift_view, nudges_view, teams_view
from fairway.cli.shared.params import Age
from fairway.cli.shared.watch import watch as keep_showing
from fairway.client.client import Client
from fairway.client.requests_jobs import Filters
from fairway.model.job import JobState
from fairway.model.observation import Health
from fairway.wire.jobs import Job

Function = TypeVar("Function", bound=Callable[..., Any])
Ask = Callable[[Client], Shown]

_MOST_READ: Final = 2000
"""The most jobs to read to fill a screen: an array of ten thousand tasks is one line of it."""


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
    """Show jobs, clusters, pools, nodes, teams, budgets, drift or nudges."""


@get.command(
    epilog="""\b
Examples:
  fairway get clusters             is each one reachable, how full is it
  fairway get clusters -o wide     with slices, pools and reasons
  fairway get clusters -o json     for programs
"""
)
@_show_options
def clusters(*, context: str | None, url: str | None, output: Format, watch: bool, every: float) -> None:
    """Show the fleet's clusters.

    One that cannot be reached is shown with the reason, since when, and its last known state.
    """

    def ask(client: Client) -> Shown:
        found = client.clusters()
        return Shown(found, clusters_view(found, datetime.now(UTC), wide=output is Format.WIDE))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


@get.command(
    epilog="""\b
Examples:
  fairway get pools
  fairway get pools --cluster hpc
  fairway get pools -o json | jq '.[] | {name, free: .gpus.free}'
"""
)
@click.option("--cluster", metavar="NAME", help="Only pools of this cluster.")
@_show_options
def pools(
    *, cluster: str | None, context: str | None, url: str | None, output: Format, watch: bool, every: float
) -> None:
    """Show the fleet's pools: GPUs in use, free and unhealthy, by pool and kind of slice."""

    def ask(client: Client) -> Shown:
        found = client.pools(cluster)
        return Shown(found, pools_view(found, wide=output is Format.WIDE))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


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
@_show_options
def nodes(
    *,
    cluster: str | None,
    pool: str | None,
    health: str | None,
    context: str | None,
    url: str | None,
    output: Format,
    watch: bool,
    every: float,
) -> None:
    """Show nodes: health, the engine's reason, GPUs by pool."""

    def ask(client: Client) -> Shown:
        found = list(client.nodes(cluster, pool, Health(health) if health else None))
        filtered = any((cluster, pool, health))
        view = nodes_view(found, datetime.now(UTC), wide=output is Format.WIDE, filtered=filtered)
        return Shown(found, view)

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


@get.command(
    epilog="""\b
Examples:
  fairway get budgets            what is spent, how fast, what is held for it
  fairway get budgets -o wide    with what happens when one is spent, and what last happened
  fairway get budgets -o json | jq '.[] | select(.hold)'
"""
)
@_show_options
def budgets(*, context: str | None, url: str | None, output: Format, watch: bool, every: float) -> None:
    """Show budgets: what is spent of each, at what rate, when it runs out, and whom it holds.

    Members and leads see those of their own teams.
    """

    def ask(client: Client) -> Shown:
        found = client.budgets()
        return Shown(found.budgets, budgets_view(found, wide=output is Format.WIDE))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


@get.command(
    epilog="""\b
Examples:
  fairway get teams              who may have what, as last applied
  fairway get teams -o wide      with limits, priorities and members
"""
)
@_show_options
def teams(*, context: str | None, url: str | None, output: Format, watch: bool, every: float) -> None:
    """Show teams: share, guarantee and borrowing by pool, as last applied."""

    def ask(client: Client) -> Shown:
        found = client.teams()
        return Shown(found, teams_view(found, wide=output is Format.WIDE))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


@get.command(
    epilog="""\b
Examples:
  fairway get drift                    what somebody changed since the last apply
  fairway get drift --cluster hpc
  fairway get drift -o json | jq length
"""
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@_show_options
def drift(
    *, cluster: str | None, context: str | None, url: str | None, output: Format, watch: bool, every: float
) -> None:
    """Show what differs from what was last applied: object, field, both values, who did it.

    `fairway apply` with the same fleet file heals it.
    """

    def ask(client: Client) -> Shown:
        found = client.drift(cluster)
        return Shown(found, drift_view(found, datetime.now(UTC)))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


@get.command(
    epilog="""\b
Examples:
  fairway get nudges                   the newest, with the promise each one kept
  fairway get nudges --cluster hpc --most 500
"""
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many to show."
)
@_show_options
def nudges(
    *,
    cluster: str | None,
    most: int,
    context: str | None,
    url: str | None,
    output: Format,
    watch: bool,
    every: float,
) -> None:
    """Show where Fairway gave an engine a push so that a promise is kept."""

    def ask(client: Client) -> Shown:
        found = client.nudges(cluster, most)
        return Shown(found, nudges_view(found, datetime.now(UTC)))

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


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
@click.option("--cluster", metavar="NAME", help="Only jobs of this cluster.")
@click.option("--name", metavar="NAME", help="Only jobs called so.")
@click.option("--array", metavar="ID", help="Only tasks of this array, by its first task.")
@click.option("--native/--ours", default=None, help="Only jobs made with the engine's own tools, or without.")
@click.option("--since", type=Age(), metavar="AGE", help="Submitted within this time: 30m, 2h, 7d.")
@click.option("--before", type=Age(), metavar="AGE", help="Submitted longer ago than this.")
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

    def ask(client: Client) -> Shown:
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
            return Shown(found, jobs_view([], now, wide=False, filtered=filtered, more=False))
        found, groups, more = _job_lines(client, filters, None if all_ else most, each=tasks)
        view = jobs_view(groups, now, wide=output is Format.WIDE, filtered=filtered, more=more)
        return Shown(found, view)

    _run(ask, context=context, url=url, output=output, watch=watch, every=every)


def _job_lines(
    client: Client, filters: Filters, most: int | None, *, each: bool
) -> tuple[list[Job], list[Group], bool]:
    """Return the newest jobs as lines, and whether there are more.

    Tasks of an array share a line, so more jobs are read than lines shown, up to a limit. The server
    counts the tasks of an array that was not read to its end.
    """
    if each:
        found = list(client.jobs(most=most and most + 1, **filters))
        return found[:most], [Group(job) for job in found[:most]], most is not None and len(found) > most
    reading = client.jobs(**filters) if most is None else client.jobs(most=_MOST_READ, **filters)
    found, lines, more = [], set(), False
    for job in reading:
        lines.add(job.array or job.id)
        if most is not None and len(lines) > most:
            more = True
            break
        found.append(job)
    more = more or (most is not None and len(found) >= _MOST_READ)
    # Only a filter that cuts through arrays makes what was read of one less than all of it.
    whole = {}
    if more and found and found[-1].array is not None and not filters.get("states"):
        whole[found[-1].array] = client.task_counts(found[-1].array)
    return found, grouped(found, whole), more


def _run(
    ask: Ask, *, context: str | None, url: str | None, output: Format, watch: bool, every: float
) -> None:
    with connect(context, url) as client:
        if watch:
            keep_showing(lambda: ask(client), output, every)
        else:
            show(ask(client), output)
