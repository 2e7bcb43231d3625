"""Random jobs on real Kueue: what the mirror tells is what an independent watch of their pods saw."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairway.model.job import OPEN_JOBS, Ending, EngineId, JobState, Order, SeenJob
from lab.kubernetes import kwok
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.policy.policy_lab import governed
from tests.kinds.pods import PodRecorder, pod_times

pytestmark = [pytest.mark.kubernetes]

KINDS = (
    *("ok", "fail", "cancel", "gang") * 3,
    *("time-out", "cancel-waiting", "low", "low", "normal-over-low"),
)


@dataclass
class Story:
    """One job, and what shall become of it."""

    kind: str
    order: Order
    states: tuple[JobState, ...]
    id: EngineId = field(default_factory=lambda: EngineId(""))
    differences: list[str] = field(default_factory=list)


def tell(stage: Stage, kind: str, dice: random.Random) -> Story:
    seconds = {kwok.RUN_FOR_ENV: f"{dice.randint(0, 6)}s"}
    long = {kwok.RUN_FOR_ENV: "600s"}
    gpus = dice.choice((1, 2, 4, 8))
    match kind:
        case "fail":
            code = str(dice.randint(1, 200))
            order = stage.order("x", pool="gpu", gpus=gpus, env={**seconds, kwok.EXIT_ENV: code})
            return Story(kind, order, (JobState.FAILED,))
        case "cancel":
            return Story(kind, stage.order("x", pool="gpu", gpus=gpus, env=long), (JobState.CANCELLED,))
        case "cancel-waiting":
            order = stage.order("x", pool="spot", gpus=8, nodes=2, env=long)  # never more than eight
            return Story(kind, order, (JobState.CANCELLED,))
        case "time-out":
            limit = dice.randint(1, 5)
            order = stage.order("x", pool="gpu", gpus=gpus, env=long, time_seconds=limit)
            return Story(kind, order, (JobState.TIMED_OUT,))
        case "low" | "normal-over-low":
            # Eight GPUs are there for all of them: what is low goes whenever one that is not comes.
            priority, length = (
                ("low", dice.randint(3, 5)) if kind == "low" else ("normal", dice.randint(0, 1))
            )
            run_for = {kwok.RUN_FOR_ENV: f"{length}s"}
            order = stage.order("x", pool="spot", gpus=8, env=run_for, priority=priority)
            return Story(kind, order, (JobState.DONE,))
        case "gang":
            order = stage.order("x", pool="gpu", gpus=8, nodes=dice.randint(2, 3), env=seconds)
            return Story(kind, order, (JobState.DONE,))
        case _:
            return Story(kind, stage.order("x", pool="gpu", gpus=gpus, env=seconds), (JobState.DONE,))


def compare(story: Story, seen: SeenJob, pods: list[dict[str, Any]]) -> list[str]:
    """Every difference, in words."""
    found = []
    if seen.state not in story.states:
        found.append(f"state {seen.state}")
    nodes = story.order.spec.nodes
    if len(pods) != len(seen.attempts) * nodes:
        found.append(f"{len(seen.attempts)} attempts, {len(pods)} pods")
        return found
    for number, attempt in enumerate(seen.attempts):
        mine = [pod_times(p) for p in pods[number * nodes : (number + 1) * nodes]]
        start = min(s for s, _ in mine)
        end = max((e for _, e in mine if e is not None), default=None)
        if attempt.started_at != start:
            found.append(f"attempt {number + 1} started {attempt.started_at} not {start}")
        if attempt.ended_at != end:
            found.append(f"attempt {number + 1} ended {attempt.ended_at} not {end} ({attempt.ending})")
        if attempt.devices != story.order.spec.devices:
            found.append(f"attempt {number + 1} held {attempt.devices}")
        hosts = {p["spec"]["nodeName"] for p in pods[number * nodes : (number + 1) * nodes]}
        if set(attempt.nodes) != hosts:
            found.append(f"attempt {number + 1} on {attempt.nodes} not {hosts}")
        if number < len(seen.attempts) - 1 and attempt.ending is not Ending.PREEMPTED:
            found.append(f"attempt {number + 1} ended by {attempt.ending}")
    code = story.order.spec.env.get(kwok.EXIT_ENV)
    if code is not None and seen.exit_code != int(code):
        found.append(f"exit code {seen.exit_code} not {code}")
    if seen.attempts and seen.state is not JobState.CANCELLED and seen.ended_at != seen.attempts[-1].ended_at:
        found.append(f"ended {seen.ended_at}, its last attempt {seen.attempts[-1].ended_at}")
    return found


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    own = Stage.of(governed("kubernetes").instance)
    own.clear()
    await own.apply()
    own.follow()
    yield own
    await own.leave()
    own.clear()


@pytest.mark.timeout(240)
async def test_forty_random_jobs_are_told_to_the_second(stage: Stage) -> None:
    await play(stage, 40, 200)


@pytest.mark.nightly("500 random jobs; CI runs 40")
@pytest.mark.timeout(1500)
async def test_five_hundred_random_jobs_are_told_to_the_second(stage: Stage) -> None:
    await play(stage, 500, 1400)


async def play(stage: Stage, count: int, seconds: float) -> str:
    dice = random.Random(count)
    recorder = PodRecorder(stage.instance, "ml")
    recording = asyncio.create_task(recorder.follow())
    await recorder.listed.wait()
    stories: list[Story] = []
    waits: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(seconds):
            for start in range(0, count, 20):
                some = [tell(stage, dice.choice(KINDS), dice) for _ in range(min(20, count - start))]
                for story, engine_id in zip(some, await stage.send(*(s.order for s in some)), strict=True):
                    story.id = engine_id
                    if story.kind.startswith("cancel"):
                        waits.append(asyncio.create_task(cancel(stage, story, dice.uniform(0, 3))))
                stories += some
            await asyncio.gather(*waits)
            for story in stories:
                await stage.until_over(story.id, seconds)
    except TimeoutError:
        late = [(s.kind, s.id, stage.seen.get(s.id)) for s in stories]
        late = [(kind, id_, job) for kind, id_, job in late if job is None or job.state in OPEN_JOBS]
        pytest.fail(f"not over: {late}; the mirror failed by {Counter(stage.failures)}")
    await asyncio.sleep(1)
    recording.cancel()
    with suppress(asyncio.CancelledError):
        await recording
    for story in stories:
        story.differences = compare(story, stage.seen[story.id], recorder.of(story.id))
    differing = [s for s in stories if s.differences]
    attempts = sum(len(stage.seen[s.id].attempts) for s in stories)
    faults = [(s.kind, s.id, s.differences) for s in differing]
    assert not differing, f"{faults}; the mirror failed by {Counter(stage.failures)}"
    return f"{attempts} attempts of {Counter(s.kind for s in stories)}"


async def cancel(stage: Stage, story: Story, after: float) -> None:
    # A JobSet that is deleted before Kueue has made a Workload of it leaves nothing that could be told: not
    # tested here, and a fault. It stays open in the ledger until the mirror lists the cluster anew.
    state = JobState.RUNNING if story.kind == "cancel" else JobState.WAITING
    await stage.until_state(story.id, state, within=600)
    await asyncio.sleep(after)
    assert not await stage.engine.cancel([story.id])
