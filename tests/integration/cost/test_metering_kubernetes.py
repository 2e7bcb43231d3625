"""A mixed load on real Kueue: GPU-seconds of each team are the times of their pods, to the second.

A gang holds all its devices from its first pod's start to its last one's end: Kueue counts it whole.
What its pods' own times sum to is less by how much earlier some of them ended: told, and never more.
Small in every run; FAIRWAY_METER_JOBS chooses another size.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from fairway.cost.calendar import Calendar
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.model.job import EngineId, JobState, Order
from fairway.model.names import SliceName
from lab import find
from lab.kubernetes import kwok
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.contract.driver import absent
from tests.integration.cost.test_metering_slurm import Used, metered
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.jobs.metered_stage import metered_stage
from tests.kinds.pods import PodRecorder, pod_times
from tests.metered import read
from tests.scenarios.conftest import instance_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.lab]

TEAMS = {"ml": "alice", "counted": "bob"}
SLICES = ("1g.10gb", "3g.40gb")
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: metered
currency: USD
clusters: {{ lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model} }} }}
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model}-MIG }} }}
teams:
  ml:
    guarantee: {{ gpu: 8, mig/1g.10gb: 2, mig/3g.40gb: 1 }}
    members: [alice]
  counted:
    guarantee: {{ gpu: 8, mig/1g.10gb: 2, mig/3g.40gb: 1 }}
    members: [bob]
"""


@dataclass
class Story:
    """One job, and whether somebody ends it."""

    kind: str
    order: Order
    id: EngineId = field(default_factory=lambda: EngineId(""))


def tell(stage: Stage, dice: random.Random) -> Story:
    team = dice.choice(tuple(TEAMS))
    kind = dice.choice(("ok", "ok", "fail", "cancel", "gang", "slice", "slice", "low", "time-out"))
    env = {kwok.RUN_FOR_ENV: f"{dice.randint(0, 6)}s"}
    more: dict[str, Any] = {"team": team, "user": TEAMS[team], "pool": "gpu", "gpus": dice.choice((1, 2, 4))}
    if kind == "fail":
        env[kwok.EXIT_ENV] = "7"
    elif kind == "gang":
        more |= {"gpus": 4, "nodes": 2}
    elif kind == "low":
        more |= {"priority": "low"}
    elif kind == "slice":
        more |= {"pool": "mig", "gpus": 1}
    elif kind in ("cancel", "time-out"):
        env = {kwok.RUN_FOR_ENV: "600s"}
        more |= {"time_seconds": dice.randint(2, 5)} if kind == "time-out" else {}
    order = stage.order("x", env=env, **more)
    if kind == "slice":
        slice_ = SliceName(dice.choice(SLICES))
        spec = replace(order.spec, gpus=replace(order.spec.gpus, slice=slice_))
        order = replace(order, spec=spec, supply=replace(order.supply, slice=slice_))
    return Story(kind, order)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    instance = find(instance_of("kubernetes"))
    if instance is None or instance.state == "down":
        absent("kubernetes", "make lab-up")
    text = FLEET.format(kubeconfig=instance.facts()["fairway_kubeconfig"], model=kwok.MODEL)
    fleet = parse_fleet(text, "metered.yaml")
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    own = Stage(instance, engine, fleet, LabKubernetes(instance))
    own.clear()
    await own.apply()
    await asyncio.sleep(0.7)
    own.follow()
    yield own
    await own.leave()
    own.clear()


def by_pods(stories: list[Story], pods: dict[str, PodRecorder]) -> tuple[Used, Used]:
    """Device-seconds by team: of each run of a job as a whole, and of its pods each by itself."""
    whole: Used = Counter()
    each: Used = Counter()
    for story in stories:
        spec, supply = story.order.spec, story.order.supply
        key = (story.order.team, supply.slice or "gpu")
        created = pods[story.order.team].created_of(story.id)
        assert len(created) % spec.nodes == 0, story
        for first in range(0, len(created), spec.nodes):
            # One that was preempted at once has pods that never started.
            started = [pod for pod in created[first : first + spec.nodes] if pod["status"].get("startTime")]
            if not started:
                continue
            run = [pod_times(pod) for pod in started]
            ends = [end for _, end in run if end is not None]
            assert len(ends) == len(run), story
            start = min(begin for begin, _ in run)
            whole[key] += spec.devices * _seconds(start, max(ends))
            each[key] += sum(
                spec.gpus.count * _seconds(begin, end) for (begin, _), end in zip(run, ends, strict=True)
            )
    return +whole, +each


def _seconds(start: datetime, end: datetime) -> int:
    return max(0, int((end - start).total_seconds()))


@pytest.mark.timeout(900)
async def test_gpu_seconds_of_teams_equal_the_pods(stage: Stage, ledger: Ledger, database_url: str) -> None:
    count = int(os.environ.get("FAIRWAY_METER_JOBS", "24"))
    dice = random.Random(count)
    async with metered_stage(stage, ledger, *TEAMS) as (loops, recorders):
        stories: list[Story] = []
        ending: list[asyncio.Task[None]] = []
        for _ in range(0, count, 12):
            some = [tell(stage, dice) for _ in range(12)]
            for story, engine_id in zip(some, await stage.send(*(s.order for s in some)), strict=True):
                story.id = engine_id
                if story.kind == "cancel":
                    ending.append(asyncio.create_task(_end(stage, story, dice.uniform(0, 4))))
            stories += some
        await asyncio.gather(*ending)
        for story in stories:
            await stage.until_over(story.id, 600)
        said: list[str] = []
        used: Used = Counter()
        each: Used = Counter()
        deadline = time.monotonic() + 60
        while True:
            await asyncio.sleep(1)
            assert not loops.done(), loops.exception()
            try:
                theirs, each = by_pods(stories, recorders)
            except AssertionError:
                assert time.monotonic() < deadline
                continue
            with psycopg.connect(database_url, autocommit=True) as db:
                books = read(db, 0)
                tables = {table: metered(db, table) for table in ("usage", "usage_hour", "usage_day")}
            used = tables["usage"]
            said = [
                f"{table} {key}: {ours[key]}, pods {theirs[key]}"
                for table, ours in tables.items()
                for key in sorted({*ours, *theirs})
                if ours[key] != theirs[key]
            ]
            said += books.faults(Calendar(UTC))
            if not said:
                break
            assert time.monotonic() < deadline, said
    assert {team for team, _ in used} == set(TEAMS)
    kinds = {what for _, what in used}
    assert "gpu" in kinds
    assert kinds & set(SLICES), "some slices were held"
    skew = {key: used[key] - each[key] for key in used if used[key] != each[key]}
    assert all(more > 0 and what == "gpu" for (_, what), more in skew.items()), skew
    logging.getLogger(__name__).info(
        "%s jobs %s; %s; gangs held %s more than their pods' own times",
        len(stories),
        dict(Counter(s.kind for s in stories)),
        dict(used),
        skew,
    )


async def _end(stage: Stage, story: Story, after: float) -> None:
    await stage.until_state(story.id, JobState.RUNNING, within=600)
    await asyncio.sleep(after)
    assert not await stage.engine.cancel([story.id])
