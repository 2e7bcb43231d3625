"""Complete values on the command line: jobs, teams, pools, clusters, nodes, contexts, windows, revisions.

A shell waits for each answer: it is one request with a short timeout. If that fails, there are no values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from fairway.client.records import Record

TIMEOUT_SECONDS: Final = 1.0
_MAX_JOBS: Final = 200
_MAX_NODES: Final = 500

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a job of any state by its id or its name."""
    return _jobs(ctx, incomplete, [])


def open_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an unfinished job by its id or its name."""
    return _jobs(ctx, incomplete, [("state", "open")])


def _jobs(ctx: click.Context, incomplete: str, params: list[tuple[str, str]]) -> list[CompletionItem]:
    found = _read(ctx, "/v1/jobs", [*params, ("limit", str(_MAX_JOBS))])
    ids = [(job.id, f"{job.name}, {job.state}, {job.user}") for job in found]
    names = {job.name: f"{job.id}, {job.state}" for job in reversed(found)}
    return _matching([*ids, *(names.items() if incomplete else ())], incomplete)


def _names(path: str, params: Sequence[tuple[str, str]], about: Callable[[Record], str]) -> Complete:
    """Return a function that completes the names at a path of the API; `about` describes each."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = _read(ctx, path, params)
        return _matching([(item.name, about(item)) for item in found], incomplete)

    return complete


clusters: Final = _names("/v1/clusters", [], lambda cluster: str(cluster.engine))
pools: Final = _names("/v1/pools", [], lambda pool: f"{pool.gpu} on {pool.cluster}")
teams: Final = _names("/v1/teams", [], lambda team: f"in {team.parent}" if team.parent else "")
nodes: Final = _names(
    "/v1/nodes", [("limit", str(_MAX_NODES))], lambda node: f"{node.health} on {node.cluster}"
)


def revisions(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a revision of the fleet file."""
    found = _read(ctx, "/v1/revisions", [("limit", "50")])
    items = [(str(r.revision), f"by {r.created_by}, {r['created_at']}") for r in found]
    return _matching(items, incomplete)


def contexts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a context of this user."""
    from fairway.client.contexts import config_file, read_contexts
    from fairway.model.errors import FairwayError

    try:
        found = read_contexts(config_file())
    except FairwayError:
        return []
    return _matching([(c.name, c.url) for c in found.entries], incomplete)


def windows(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a time window."""
    from fairway.cost.calendar import WINDOW_WORDS

    return _matching([(word, "") for word in ("7d", "30d", "90d", *WINDOW_WORDS)], incomplete)


def _read(ctx: click.Context, path: str, params: Sequence[tuple[str, str]]) -> Sequence[Any]:
    """Read one page of a list. Returns nothing if it fails."""
    from fairway.client.contexts import chosen_target
    from fairway.client.reader import Reader
    from fairway.model.errors import FairwayError

    try:
        target = chosen_target(ctx.params.get("context"), ctx.params.get("url"))
        with Reader(target, timeout_seconds=TIMEOUT_SECONDS) as reader:
            return reader.first_page(path, params)
    except FairwayError:
        return []


def _matching(items: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return values that begin with what is typed, each with its description."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(value, help=about) for value, about in items if value.startswith(incomplete)]
