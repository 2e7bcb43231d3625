"""Define the filters of a list of jobs, and their query parameters."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, TypedDict


class Filters(TypedDict, total=False):
    """The filters of a list of jobs. A filter that is left out or None does not apply."""

    cluster: str | None
    team: str | None
    user: str | None
    states: Iterable[str]
    """States by name; `open` and `ended` are groups of states."""
    pool: str | None
    name: str | None
    node: str | None
    """The node on which they run now."""
    array: str | None
    """Any task of the array."""
    native: bool | None
    kind: str | None
    """A kind of workload on Kubernetes, such as `Deployment`, in any case; empty: jobs alone."""
    service: bool | None
    """Whether they run until somebody ends them."""
    since: datetime | None
    """Submitted then or later."""
    until: datetime | None
    """Submitted before."""
    window: str | None
    """Submitted on these days, such as `7d`, `2026-10` or `last-week`, instead of `since` and `until`."""
    project: str | None
    labels: Iterable[str]
    """Labels that the fleet keeps for cost, as `experiment=e12`."""
    search: str | None
    """A part of the name or of the user, or the start of the id."""


_TEXTS: Final = (
    "cluster",
    "team",
    "user",
    "pool",
    "name",
    "node",
    "array",
    "kind",
    "window",
    "project",
    "search",
)


def job_params(filters: Filters, limit: int) -> list[tuple[str, str]]:
    """Return the query parameters of a list of jobs, `limit` on a page."""
    since, until = filters.get("since"), filters.get("until")
    params: list[tuple[str, object]] = [
        *((key, filters.get(key)) for key in _TEXTS),
        *(("state", str(state)) for state in filters.get("states", ())),
        *(("label", label) for label in filters.get("labels", ())),
        *((key, _flag(filters.get(key))) for key in ("native", "service")),
        ("since", _zulu(since) if since else None),
        ("until", _zulu(until) if until else None),
        ("limit", limit),
    ]
    return [(key, str(value)) for key, value in params if value is not None]


def _flag(value: object) -> str | None:
    return None if value is None else str(value).lower()


def _zulu(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
