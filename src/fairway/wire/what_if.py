"""Define the JSON of a what-if study: jobs replayed under changed fleet files, and what became of them.

Waits are seconds from the submission to the first start. With several seeds, figures are means over them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fairway.wire.fleet import Moment, Wire

Part = Annotated[float, Field(examples=[0.83], description="from 0 to 1")]


class Estimate(Wire):
    """A figure, and how far chance moves it."""

    mean: float
    margin: float | None = Field(
        description="half the width of the 95 % confidence interval over the seeds; null: a single seed"
    )


class Waits(Wire):
    """Waits and slowdown of some jobs."""

    jobs: int
    never_started: Estimate = Field(description="jobs; they count with the time until the replay ended")
    mean_wait: Estimate
    median_wait: Estimate
    p95_wait: Estimate
    slowdown: Estimate = Field(
        description="mean of (wait + run) / run, where a run counts as at least 10 seconds"
    )


class SizeFigures(Wire):
    """Figures of jobs of one size."""

    size: str = Field(description="GPUs or slices of the job", examples=["2-8"])
    waits: Waits


class TeamFigures(Wire):
    """Figures of one team's own jobs. What only a replay tells is null for what really happened."""

    team: str
    waits: Waits
    gpu_hours: Estimate
    used_part: Part = Field(description="of the GPU-hours of all teams")
    share_part: Part | None = Field(description="what shares alone give it if every team wants everything")
    service: Estimate | None = Field(
        description="GPUs that it held over those that its share gives it, while something waited"
    )
    preemptions: Estimate | None
    lost_gpu_hours: Estimate | None
    cost: Estimate | None = Field(description="the list price of its GPU-hours")


class PoolFigures(Wire):
    """How the GPUs of one pool were used."""

    pool: str
    nodes: int
    gpus_per_node: int
    utilisation: Part
    fragmentation: Part
    limited: Part


class LeftOutJobs(Wire):
    """Jobs that were not replayed, all for one reason."""

    code: str
    message: str
    jobs: int
    gpu_hours: float


class ScenarioFigures(Wire):
    """What became of the jobs under one fleet file, or what really happened."""

    name: str
    kind: Literal["observed", "current", "changed"]
    settings: list[str] = Field(description="what a sweep changed in the file", examples=[["half_life=1d"]])
    waits: Waits
    mean_wait_change: Estimate | None = Field(
        description="against the current file, seed by seed; -0.25: a quarter less; null: nothing to compare"
    )
    p95_wait_change: Estimate | None
    sizes: list[SizeFigures]
    teams: list[TeamFigures]
    pools: list[PoolFigures]
    utilisation: Estimate
    fragmentation: Estimate | None = Field(
        description="part of the GPUs that was free although a job waited that no limit held back"
    )
    limited: Estimate | None = Field(
        description="part that was free although jobs waited, all at limits of their teams or users"
    )
    gpu_hours: Estimate
    preemptions: Estimate
    node_losses: Estimate | None
    lost_gpu_hours: Estimate | None = Field(description="of attempts that were preempted or lost their node")
    fairness: Estimate | None = Field(description="Jain's index of the teams' service; 1 is even")
    cost: Estimate | None = Field(description="the list price of all capacity")
    left_out: list[LeftOutJobs]


class WhatIf(Wire):
    """A study: every scenario has the same jobs."""

    source: str = Field(description="where the jobs come from", examples=["the last 14 days"])
    fleet: str
    currency: str
    begin: Moment
    end: Moment
    jobs: int = Field(description="submitted in this time")
    seeds: int
    scenarios: list[ScenarioFigures] = Field(
        description="what really happened first, if it is known, then the current file"
    )
    notes: list[str]
