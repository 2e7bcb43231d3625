"""Jobs on real Kueue: real pods on real nodes where output matters, KWOK's where many or slow ones do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairway.model.errors import Refused
from fairway.model.job import Ending, EngineId, EngineName, JobState
from lab.kubernetes import kwok
from lab.kubernetes.api import ApiError
from tests.integration.jobs.kubernetes_jobs import Stage, create, member, native
from tests.integration.policy.policy_lab import governed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]

SAVES = (
    "trap 'echo saved; exit 0' TERM; echo attempt $FAIRWAY_ATTEMPT; for i in $(seq 120); do sleep 0.5; done"
)


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    """The next module finds the cluster as this one did."""
    yield
    asyncio.run(governed("kubernetes").clear())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    own = Stage.of(governed("kubernetes").instance, str(folder))
    await own.apply()
    own.follow()
    yield own
    await own.leave()
    own.clear()


# real pods


async def test_output_is_read_while_it_runs_and_after(stage: Stage) -> None:
    order = stage.order("python3", "-uc", "import time\nfor i in range(4): print('line', i); time.sleep(1)")
    (job,) = await stage.send(order)
    await stage.until_state(job, JobState.RUNNING)
    data, offset, pieces, ended = b"", 0, 0, False
    deadline = time.monotonic() + 30
    while not ended and time.monotonic() < deadline:
        part = await stage.log(order, job, offset=offset, limit=10)
        pieces += bool(part.data)
        data, offset, ended = data + part.data, part.next_offset, part.ended
        await asyncio.sleep(0.2)
    assert data == b"line 0\nline 1\nline 2\nline 3\n"
    assert pieces >= 3
    done = await stage.until_over(job)
    assert (done.state, done.exit_code) == (JobState.DONE, 0)
    (attempt,) = done.attempts
    assert attempt.ended_at is not None
    assert timedelta(seconds=3) <= attempt.ended_at - attempt.started_at <= timedelta(seconds=8)
    assert attempt.nodes[0].startswith("real-")


async def test_the_environment_and_the_script(stage: Stage) -> None:
    script = "#!/usr/bin/env python3\nimport os\nprint('$$ $(HOME)')\n" + (
        "env = {k: v for k, v in os.environ.items() if k.startswith('FAIRWAY')}\n"
        "print(env, os.getcwd(), os.environ['A'])"
    )
    order = stage.order(script=script, setup="export A=$((40 + 2))", workdir="/usr", nodes=2, name="Big Job")
    (job,) = await stage.send(order)
    done = await stage.until_over(job)
    assert done.state is JobState.DONE, done
    for node in (0, 1):
        text = (await stage.log(order, job, node=node)).data.decode()
        assert text.startswith("$$ $(HOME)\n")
        assert f"'FAIRWAY_NODE_INDEX': '{node}'" in text
        assert "'FAIRWAY_CHECKPOINT_DIR': '/checkpoints'" in text
        assert "FAIRWAY_SCRIPT" not in text
        assert text.endswith("/usr 42\n")


async def test_a_command_that_fails_ends_the_job_with_its_code(stage: Stage) -> None:
    failed, killed = await stage.send(
        stage.order("sh", "-c", "exit 3"), stage.order("sh", "-c", "kill -9 $$")
    )
    job = await stage.until_over(failed)
    assert (job.state, job.exit_code, len(job.attempts)) == (JobState.FAILED, 3, 1)
    assert job.reason == "exit code 3"
    job = await stage.until_over(killed)
    assert (job.state, job.exit_code, job.attempts[0].signal) == (JobState.FAILED, 137, 9)


async def test_cancelled_while_it_runs_and_while_it_waits(stage: Stage) -> None:
    running, waiting = await stage.send(stage.order("sleep", "60"), stage.order("true", nodes=3, gpus=8))
    await stage.until_state(running, JobState.RUNNING)
    await stage.until(waiting, lambda job: job.reason)
    before = time.time()
    assert not await stage.engine.cancel([running, waiting, EngineId("ml/never-was")])
    for engine_id in (running, waiting):
        job = await stage.until_over(engine_id)
        assert job.state is JobState.CANCELLED
        assert job.ended_at is not None
        assert -1.5 <= job.ended_at.timestamp() - before <= 6
    assert stage.seen[running].attempts[0].ending is Ending.CANCELLED
    assert not stage.seen[waiting].attempts
    assert not await stage.engine.cancel([running, waiting]), "again: nothing to do"


async def test_held_before_it_starts_and_made_held(stage: Stage) -> None:
    waiting = stage.order("true", nodes=3, gpus=8)
    made_held = stage.order("true", hold=True)
    first, second = await stage.send(waiting, made_held)
    await stage.until_state(second, JobState.HELD)
    await stage.until(first, lambda job: job.reason)
    assert not await stage.engine.hold([first])
    await stage.until_state(first, JobState.HELD)
    await asyncio.sleep(1)
    assert stage.seen[second].state is JobState.HELD
    assert not await stage.engine.release([first, second])
    await stage.until_state(first, JobState.WAITING)
    assert (await stage.until_over(second)).state is JobState.DONE
    other = Stage.of(stage.instance)
    anew = await other.engine.look_up([first], stage.fleet)
    await other.engine.close()
    assert anew[first].earlier_attempts == 0, "a hold while it waits is no attempt, whoever looks"


async def test_what_runs_is_not_touched_by_a_hold(stage: Stage) -> None:
    (job,) = await stage.send(stage.order("sleep", "3"))
    await stage.until_state(job, JobState.RUNNING)
    assert not await stage.engine.hold([job])
    done = await stage.until_over(job)
    assert (done.state, len(done.attempts)) == (JobState.DONE, 1)


async def test_the_time_limit(stage: Stage) -> None:
    (job,) = await stage.send(stage.order("sleep", "60", time_seconds=10))  # time enough for a pod to begin
    over = await stage.until_over(job)
    assert over.state is JobState.TIMED_OUT
    assert over.time_seconds == 10
    (attempt,) = over.attempts
    assert attempt.ending is Ending.TIMED_OUT
    assert attempt.ended_at is not None
    assert attempt.ended_at - attempt.started_at <= timedelta(seconds=14)


async def test_preempted_and_back_as_the_next_attempt(stage: Stage) -> None:
    nodes = stage.instance.options["real_nodes"]
    orders = [stage.order("sh", "-c", SAVES, gpus=8, priority="low") for _ in range(nodes)]
    lows = await stage.send(*orders)
    for low in lows:
        await stage.until_state(low, JobState.RUNNING)
    await asyncio.sleep(1.5)
    (taker,) = await stage.send(stage.order("sleep", "2", gpus=8))
    await stage.until_over(taker)
    (victim,) = [low for low in lows if stage.seen[low].attempts[0].ended_at]
    job = await stage.until(victim, lambda job: len(job.attempts) == 2)
    assert job.attempts[0].ending is Ending.PREEMPTED
    assert "accommodate" in job.attempts[0].reason
    assert job.earlier_attempts == 0
    order = orders[lows.index(victim)]
    printed = b""
    for _ in range(50):
        printed = printed or (await stage.log(order, victim, attempt=2)).data
        await asyncio.sleep(0 if printed else 0.3)
    assert printed == b"attempt 2\n"
    with pytest.raises(Refused) as gone:
        await stage.log(order, victim, attempt=1)
    assert gone.value.code == "LogGone"


# what is sent


async def test_the_same_order_makes_one_job(stage: Stage) -> None:
    orders = [stage.order("true", pool="gpu") for _ in range(40)]
    once = await stage.send(*orders)
    assert len(set(once)) == 40
    assert await stage.send(*orders) == once
    names = [order.engine_name for order in orders]
    assert await stage.engine.find([*names, EngineName("no-fwt3st-0001-1")]) == dict(
        zip(names, once, strict=True)
    )


async def test_another_ones_job_of_that_name_is_left_alone(stage: Stage) -> None:
    order = stage.order("true", pool="gpu")
    create(member(stage, "alice"), "ml", native(order.engine_name))
    (sent,) = await stage.submit(order)
    assert sent.refusal is not None
    assert sent.refusal.code == "NameTaken"


async def test_refusals_say_why(stage: Stage) -> None:
    ok = stage.order("true", pool="gpu")
    too_much = stage.order("true", pool="gpu", gpus=5, team="counted", user="bob")
    nowhere = stage.order("true", pool="gpu", team="nobody")
    sent = {s.order.job: s for s in await stage.submit(ok, too_much, nowhere)}
    assert sent[ok.job].engine_id
    by_cluster, by_fairway = sent[too_much.job].refusal, sent[nowhere.job].refusal
    assert by_cluster is not None
    assert by_fairway is not None
    assert (by_cluster.code, by_fairway.code) == ("Forbidden", "NoGrant")
    assert by_cluster.message == "over the team's limit of GPUs a user"


async def test_a_users_jobs_stand_in_the_users_queue(stage: Stage) -> None:
    orders = [
        stage.order("true", pool="gpu", team="counted", user="bob"),
        stage.order("true", pool="gpu", team="counted", user="dave", priority="low"),
        stage.order("true", pool="gpu"),
    ]
    jobs = await stage.send(*orders)
    queues = [stage.job(job)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for job in jobs]
    assert queues == ["main.bob", "low.dave", "main"]
    for job, order in zip(jobs, orders, strict=True):
        over = await stage.until_over(job)
        assert (over.state, over.user) == (JobState.DONE, order.user)


async def test_pools_are_kept_apart_and_gangs_together(stage: Stage) -> None:
    gang, spot, low = await stage.send(
        stage.order("true", pool="gpu", nodes=2, gpus=8, together=True),
        stage.order("true", pool="spot"),
        stage.order("true", pool="real", priority="low"),
    )
    over = await stage.until_over(gang)
    assert (over.attempts[0].devices, len(over.attempts[0].nodes)) == (16, 2)
    for job, pool, start in ((spot, "spot", "spot-"), (low, "real", "real-")):
        over = await stage.until_over(job)
        assert over.supply is not None
        assert over.supply.pool == pool
        assert over.attempts[0].nodes[0].startswith(start)


# native jobs


async def test_a_members_own_job_is_seen_within_two_seconds(stage: Stage) -> None:
    forged = native(f"mine-{time.time_ns()}", 2, annotations={"fairway.dev/user": "bob"})
    began = time.monotonic()
    job = create(member(stage, "alice"), "ml", forged)
    seen = await stage.until(job, bool)
    assert time.monotonic() - began < 2
    assert (seen.team, seen.user, seen.gpus) == ("ml", "alice", 2), "whose it is cannot be forged"
    over = await stage.until_over(job)
    assert (over.state, len(over.attempts)) == (JobState.DONE, 1)
    assert over.supply is not None
    assert over.supply.pool == "gpu"
    assert not await stage.engine.cancel([job])


async def test_whose_a_job_is_stays_so(stage: Stage) -> None:
    alice = member(stage, "alice")
    job = native(f"whose-{time.time_ns()}")
    create(alice, "ml", job)
    path = f"/apis/batch/v1/namespaces/ml/jobs/{job['metadata']['name']}"
    for patch in ({"annotations": {"fairway.dev/user": "bob"}}, {"labels": {"fairway.dev/job": "0001"}}):
        with pytest.raises(ApiError) as refused:
            alice.merge(path, {"metadata": patch})
        assert refused.value.status == 403
    with pytest.raises(ApiError):
        create(alice, "ml", native("like-fairways", labels={"fairway.dev/job": "0001"}))


async def test_one_name_used_twice_is_two_jobs(stage: Stage) -> None:
    alice, job = member(stage, "alice"), native(f"again-{time.time_ns()}")
    first = create(alice, "ml", job)
    await stage.until_over(first)
    alice.delete(f"/apis/batch/v1/namespaces/ml/jobs/{job['metadata']['name']}?propagationPolicy=Background")
    second = create(alice, "ml", job)
    assert first != second
    await stage.until_over(second)
    assert stage.seen[first].state is JobState.DONE


# when things break


async def test_the_api_server_restarts_and_nothing_is_missed(stage: Stage) -> None:
    jobs = await stage.send(
        *(stage.order("x", pool="gpu", env={kwok.RUN_FOR_ENV: f"{n}s"}) for n in (1, 4, 8, 12))
    )
    await asyncio.sleep(2)
    await asyncio.to_thread(stage.instance.restart, "kube-apiserver")
    for job, seconds in zip(jobs, (1, 4, 8, 12), strict=True):
        over = await stage.until_over(job, 90)
        assert over.state is JobState.DONE
        (attempt,) = over.attempts
        assert attempt.ended_at is not None
        assert attempt.ended_at - attempt.started_at >= timedelta(seconds=seconds - 1)


async def test_what_ended_while_nobody_looked(stage: Stage) -> None:
    ends, fails, runs_long = await stage.send(
        stage.order("sleep", "8"),
        stage.order("sh", "-c", "sleep 7; exit 5"),
        stage.order("sleep", "60", time_seconds=11),  # from the Job's start: its pod takes seconds to begin
    )
    for job in (ends, fails, runs_long):
        await stage.until_state(job, JobState.RUNNING)
    before = {job: stage.seen[job].attempts[0] for job in (ends, fails, runs_long)}
    await stage.leave()
    await asyncio.sleep(17)
    back = datetime.now(UTC)
    stage.come_back()
    for job, state in ((ends, JobState.DONE), (fails, JobState.FAILED), (runs_long, JobState.TIMED_OUT)):
        over = await stage.until_over(job)
        assert over.state is state
        (attempt,) = over.attempts
        assert over.earlier_attempts == 0
        assert attempt.ended_at is not None
        if attempt.nodes:
            assert abs(attempt.started_at - before[job].started_at) <= timedelta(seconds=1)
        else:  # its pod is gone: the Job that is left began before it (the ledger keeps what was seen)
            assert job == runs_long
            assert attempt.started_at <= before[job].started_at <= attempt.ended_at
        assert attempt.ended_at <= back - timedelta(seconds=2), "its own time, not ours"
    assert await stage.engine.look_up([ends, EngineId("ml/never-was")], stage.fleet) == {
        ends: stage.seen[ends]
    }


@pytest.mark.nightly("waits for Kubernetes to give up a node; in CI the scenario `tolerance` loses one")
async def test_a_lost_node_brings_the_job_back_elsewhere(stage: Stage) -> None:
    (job,) = await stage.send(stage.order("x", pool="gpu", env={kwok.RUN_FOR_ENV: "600s"}))
    node = (await stage.until_state(job, JobState.RUNNING)).attempts[0].nodes[0]
    kwok.set_ready(stage.cluster.api, node, False)
    try:
        deadline = time.monotonic() + 150
        while len(stage.seen[job].attempts) < 2 and time.monotonic() < deadline:
            await stage.engine.intervene(stage.fleet)
            await asyncio.sleep(1)
        first, second = stage.seen[job].attempts
        assert first.ending is Ending.NODE_LOST
        assert second.nodes != first.nodes
    finally:
        kwok.set_ready(stage.cluster.api, node, True)
