"""Choose which of a team's own running jobs to preempt for its waiting urgent one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job that holds GPUs."""

    id: int
    rank: int
    started: int
    """Seconds since 1970."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By node."""

    @property
    def total(self) -> int:
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """An urgent job that does not start."""

    id: int
    rank: int
    account: str
    user: str
    partition: str
    gpus: int
    nodes: int = 1
    resource: str = "gpu"
    """The GRES that `gpus` counts: `shard` or `mps` where jobs share GPUs."""

    @property
    def per_node(self) -> int:
        return -(-self.gpus // self.nodes)


def select_victims(waiting: WaitingJob, running: Iterable[RunningJob]) -> tuple[RunningJob, ...]:
    """Choose the fewest jobs to preempt so that `waiting` can start. Empty if that is not possible.

    As many GPUs as it requests are freed on as many nodes as it requests, because a team at its limit gains
    nothing from GPUs that are free. Fewest GPUs first; among equals the lowest rank, then the youngest, which
    loses the least work.
    """
    lower = [job for job in running if job.rank < waiting.rank]
    by_node: dict[str, list[RunningJob]] = {}
    for job in lower:
        for node in job.gpus:
            by_node.setdefault(node, []).append(job)
    candidates = [
        jobs_of_node
        for node, jobs in by_node.items()
        if (jobs_of_node := _on_node(node, waiting.per_node, jobs)) is not None
    ]
    victims: dict[int, RunningJob] = {}
    freed = 0
    for jobs_of_node in sorted(candidates, key=_harm):
        if freed == waiting.nodes:
            break
        victims |= {job.id: job for job in jobs_of_node}
        freed = sum(
            1
            for node in by_node
            if sum(job.gpus.get(node, 0) for job in victims.values()) >= waiting.per_node
        )
    return tuple(victims.values()) if freed >= waiting.nodes else ()


def _on_node(node: str, gpus: int, jobs: Sequence[RunningJob]) -> tuple[RunningJob, ...] | None:
    """Choose the jobs that free so many GPUs of one node with the least harm. Returns None if none do."""
    enough = [job for job in jobs if job.gpus[node] >= gpus]
    if enough:
        return (min(enough, key=lambda job: _harm((job,))),)
    victims: list[RunningJob] = []
    for job in sorted(jobs, key=lambda job: (job.rank, -job.started, -job.id)):
        victims.append(job)
        if sum(victim.gpus[node] for victim in victims) >= gpus:
            return tuple(victims)
    return None


def _harm(jobs: Sequence[RunningJob]) -> tuple[int, int, int, int]:
    return (
        sum(job.total for job in jobs),
        max(job.rank for job in jobs),
        -min(job.started for job in jobs),
        -min(job.id for job in jobs),
    )
