"""Define a change of a waiting job: its pool, GPUs, nodes, time limit or priority. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from fairway.model.errors import Refused
from fairway.model.job import EngineId, JobSpec, Order
from fairway.model.names import PoolName, PriorityName
from fairway.model.text import duration_text

SUBMIT_AGAIN: Final = "submit it again with the change, and cancel this one:  fairway submit --again JOB"
"""The hint of a refusal to change a job in place."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """What to change in a waiting job; a field that is None stays as it is."""

    pool: PoolName | None = None
    gpus: int | None = None
    """GPUs or slices on each node."""
    nodes: int | None = None
    time_seconds: int | None = None
    priority: PriorityName | None = None

    def apply_to(self, spec: JobSpec) -> JobSpec:
        """Return the spec with this change."""
        return replace(
            spec,
            pool=spec.pool if self.pool is None else self.pool,
            gpus=spec.gpus if self.gpus is None else replace(spec.gpus, count=self.gpus),
            nodes=spec.nodes if self.nodes is None else self.nodes,
            time_seconds=spec.time_seconds if self.time_seconds is None else self.time_seconds,
            priority=spec.priority if self.priority is None else self.priority,
        )


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """A change to make in a waiting engine job."""

    engine_id: EngineId
    before: Order
    after: Order


def job_started(job: object) -> Refused:
    """Return the refusal to change a job that no longer waits."""
    return Refused("JobStarted", f"{job} has started, and only waiting jobs can be changed", SUBMIT_AGAIN)


def changed_fields(before: Order, after: Order) -> tuple[tuple[str, str, str], ...]:
    """Return the name and both values, as texts, of what differs between two orders of one job."""

    def values(order: Order) -> dict[str, str]:
        spec = order.spec
        return {
            "pool": str(order.supply),
            "GPUs per node" if max(before.spec.nodes, after.spec.nodes) > 1 else "GPUs": str(spec.gpus.count),
            "nodes": str(spec.nodes),
            "time limit": "none" if spec.time_seconds is None else duration_text(spec.time_seconds),
            "priority": order.priority,
        }

    new = values(after)
    return tuple((name, old, new[name]) for name, old in values(before).items() if old != new[name])


def text_of_changes(changes: Iterable[tuple[str, str, str]]) -> str:
    """Return changed fields in a few words: `pool a → b, GPUs 8 → 4`."""
    return ", ".join(f"{name} {old} → {new}" for name, old, new in changes)
