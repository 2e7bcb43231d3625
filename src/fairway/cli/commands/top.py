"""The command `fairway top`: a live overview of the fleet."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from typing import Final

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, TableView, count, supports_colour, table_lines
from fairway.cli.output.jobs import JobGroup, group_jobs, with_unfollowed
from fairway.cli.output.top import headline, open_jobs, pools_in_use
from fairway.cli.shared.watch import watch_in_place
from fairway.client.client import Client
from fairway.model.job import JobState

_JOBS_WITHOUT_TERMINAL: Final = 30
_MIN_JOBS: Final = 5
_MAX_READ: Final = 500
_AROUND: Final = 9
"""Lines of the screen that show neither pools nor jobs."""


@click.command(
    epilog="""\b
Examples:
  fairway top                    refresh every two seconds, until Ctrl-C
  fairway top --cluster hpc      one cluster
  fairway top --once             print once, for pipes and scripts
"""
)
@click.option("--cluster", metavar="NAME", help="Only this cluster.", shell_complete=completion.clusters)
@click.option("--once", is_flag=True, help="Print once and exit (default without a terminal).")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@server_options
def top(*, cluster: str | None, once: bool, every: float, context: str | None, url: str | None) -> None:
    """Show pools and jobs live.

    For each pool: GPUs in use, how busy they were in the last five minutes, free GPUs, GPUs that jobs wait
    for, and the teams that use it. Then jobs, running ones first.
    """
    with connect(context, url) as client:
        fleet = client.whoami().fleet
        if once or not sys.stdout.isatty():
            click.echo("\n".join(_screen(client, fleet, cluster)))
        else:
            watch_in_place(lambda: _screen(client, fleet, cluster), every)


def _screen(client: Client, fleet: str | None, cluster: str | None) -> list[str]:
    pools = client.pools(cluster)
    counts = client.job_counts(cluster)
    clusters = [c for c in client.clusters() if cluster in (None, c.name)]
    now = datetime.now(UTC)
    pool_lines = _table(pools_in_use(pools, counts, client.use_now()))
    max_lines = _JOBS_WITHOUT_TERMINAL
    if sys.stdout.isatty():
        max_lines = max(_MIN_JOBS, shutil.get_terminal_size().lines - len(pool_lines) - _AROUND)
    running = _groups(client, cluster, JobState.RUNNING)
    waiting = _groups(client, cluster, JobState.WAITING, JobState.QUEUED, JobState.HELD)
    # Always show some waiting jobs: they are what people ask about.
    max_running = max(max_lines - len(waiting), max_lines * 2 // 3)
    shown = [*running[:max_running], *waiting][:max_lines]
    open_count = sum(c.jobs for c in counts)
    hidden = open_count - sum(sum(g.tasks.values()) if g.tasks else 1 for g in shown)
    more = [f"… {count(hidden, 'more job')};  fairway get jobs --state open --all"]
    return [
        headline(fleet, pools, counts, now),
        "",
        *pool_lines,
        "",
        *_table(with_unfollowed(open_jobs(shown, now), clusters, now)),
        *(more if hidden > 0 else []),
    ]


def _groups(client: Client, cluster: str | None, *states: JobState) -> list[JobGroup]:
    return group_jobs(list(client.jobs(most=_MAX_READ, cluster=cluster, states=states)), {})


def _table(view: TableView) -> list[str]:
    if not view.rows:
        return view.empty.splitlines()
    return [*table_lines(view, Format.TABLE, colour=supports_colour()), *view.notes]
