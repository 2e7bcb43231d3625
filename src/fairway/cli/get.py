"""`fairway get`: what the fleet has and how it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output import Format, Shown, output_option, show
from fairway.cli.policy_views import drift_view, nudges_view, teams_view
from fairway.cli.views import clusters_view, nodes_view, pools_view
from fairway.cli.watch import watch as keep_showing
from fairway.client.client import Client
from fairway.model.observation import Health

Function = TypeVar("Function", bound=Callable[..., Any])
Ask = Callable[[Client], Shown]


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
  fairway get pools --watch
  fairway get nodes --health down -o json
  fairway get drift
"""
)
def get() -> None:
    """Show clusters, pools, nodes, teams, drift or nudges."""


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


def _run(
    ask: Ask, *, context: str | None, url: str | None, output: Format, watch: bool, every: float
) -> None:
    with connect(context, url) as client:
        if watch:
            keep_showing(lambda: ask(client), output, every)
        else:
            show(ask(client), output)
