"""Format the conditions of clusters, for terminal and page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fairway.model.condition import Condition, ConditionType
from fairway.model.job import JobState
from fairway.model.text import clean, span

if TYPE_CHECKING:
    from fairway.wire import fleet as wire
    from fairway.wire.jobs import Why

NO_DRIFT: Final = "no drift: every cluster matches the applied policy"
_OPEN: Final = (JobState.QUEUED, JobState.WAITING, JobState.HELD, JobState.RUNNING)
_WHY_TYPES: Final = (
    ConditionType.JOBS_NOT_FOLLOWED,
    ConditionType.QUEUES_DOWN,
    ConditionType.ACCOUNTING_DETACHED,
)


def condition_text(cluster: str, condition: wire.Condition, now: datetime) -> str:
    """Format what is wrong with a cluster, and since when, in one sentence."""
    why = f"{condition.code}: {clean(condition.message)}"
    ago = span((now - condition.since).total_seconds())
    match condition.type:
        case ConditionType.DRIFT_NOT_CHECKED:
            when = f"{condition.since:%Y-%m-%d %H:%M}Z ({ago} ago)"
            return f"{cluster} has not been checked for drift since {when}: {why}"
        case ConditionType.JOBS_NOT_FOLLOWED:
            return f"jobs of {cluster} have not been observed for {ago}: {why}"
        case _:
            return f"{cluster}: {clean(condition.message)} ({condition.code}, for {ago})"


def unchecked_text(clusters: Iterable[wire.Cluster], now: datetime) -> list[str]:
    """Return a line for each cluster that could not be compared with what was applied to it."""
    return [
        condition_text(c.name, condition, now)
        for c in clusters
        for condition in c.conditions
        if condition.type is ConditionType.DRIFT_NOT_CHECKED
    ]


def no_drift_text(clusters: Sequence[wire.Cluster], now: datetime) -> str:
    """Return what to say if no difference is known. Never "no drift" of a cluster that nobody looked at."""
    unchecked = unchecked_text(clusters, now)
    if not unchecked:
        return NO_DRIFT
    others = len(clusters) > len(unchecked)
    rest = "no drift on the other clusters" if others else "drift is unknown"
    return "\n".join([*unchecked, rest])


def with_conditions(why: Why, conditions: Iterable[Condition]) -> Why:
    """Add to the reasons of an open job what keeps its cluster from being read, or from starting any job."""
    from fairway.wire.jobs import WhyReason  # noqa: PLC0415 - for the server; the CLI starts without pydantic

    if why.state not in _OPEN:
        return why
    added = [
        WhyReason(
            code=c.code,
            text=f"Jobs of {why.cluster} are not observed: {clean(c.message)}"
            if c.type is ConditionType.JOBS_NOT_FOLLOWED
            else clean(c.message),
            hint=clean(c.hint),
            engine="",
        )
        for c in conditions
        if c.type in _WHY_TYPES
    ]
    return why.model_copy(update={"reasons": [*added, *why.reasons]}) if added else why
