"""Jobs on a virtual cluster: made once, mirrored without a gap, printed as they go."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from fairway.engines.virtual import VirtualEngine
from fairway.engines.virtual.jobs.script import interpret
from fairway.explain.reasons import REASONS
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.job import (
    Ending,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Order,
    SeenJob,
    Tolerates,
    engine_name,
)
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from fairway.services.plans import plan_cluster
from fairway.simulate.cluster import JobRequest, reasons
from fairway.simulate.cluster.jobs import Wait
from tests.plans import apply_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

START = 1_790_000_000.0
FLEET = parse_fleet(
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: lab
currency: USD
clusters: { lab: { engine: virtual } }
pools:
  gpu: { cluster: lab, gpu: A100-80GB, capacity: owned, price: 1.90, virtual: { nodes: 2, gpus_per_node: 8 } }
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    virtual: { nodes: 1, gpus_per_node: 1, slices_per_gpu: { 1g.10gb: 4 } }
  spot: { cluster: lab, gpu: L40S, capacity: spot, price: 0.60, virtual: { nodes: 1, gpus_per_node: 4 } }
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 8, mig/1g.10gb: 4, spot: 4 }, members: [alice, bob] }
  product: { guarantee: { gpu: 8 }, members: [carol] }
""",
    "lab.yaml",
)


class Stage:
    """A cluster under FLEET, its clock in our hand."""

    def __init__(self, speed: float = 1.0) -> None:
        self.now = START
        self.engine = VirtualEngine(FLEET.clusters[0], FLEET.pools, speed=speed, clock=lambda: self.now)
        self.mark: str | None = None
        self.seen: dict[EngineId, SeenJob] = {}

    async def govern(self) -> Stage:
        plan = await plan_cluster(self.engine, FLEET, FLEET.clusters[0].name)
        assert (await apply_plan(self.engine, plan, force=False)).refusal is None
        return self

    async def send(self, *orders: Order) -> list[EngineId]:
        sent = [sent async for sent in self.engine.submit(orders, FLEET)]
        for each in sent:
            if each.refusal is not None:
                raise each.refusal
        return [each.engine_id for each in sent if each.engine_id is not None]

    async def look(self) -> Mapping[EngineId, SeenJob]:
        batch = await self.engine.changes(self.mark, FLEET)
        self.mark = batch.mark
        new = {job.engine_id: job for job in batch.jobs}
        self.seen |= new
        return new


@pytest.fixture
async def stage() -> Stage:
    return await Stage().govern()


def order(number: int = 1, *command: str, user: str = "alice", hold: bool = False, **spec: object) -> Order:
    given: dict[str, object] = {"gpus": GpuRequest(1), "command": command or ("sleep", "30"), **spec}
    supply = given.pop("supply", Supply(PoolName("gpu")))
    team = given.pop("team", "research")
    before = given.pop("attempts_before", 0)
    submission = given.pop("submission", 1)
    assert isinstance(supply, Supply)
    assert isinstance(before, int)
    assert isinstance(submission, int)
    return Order(
        JobId(number),
        submission,
        engine_name("abcd", JobId(number), submission, "train"),
        JobSpec("train", **given),  # type: ignore[arg-type]
        UserName(user),
        TeamName(str(team)),
        PriorityName("normal"),
        supply,
        attempts_before=before,
        hold=hold,
    )


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


async def test_a_job_from_order_to_end(stage: Stage) -> None:
    stage.now += 5
    (job,) = await stage.send(order(gpus=GpuRequest(4), nodes=2))
    await stage.look()
    seen = stage.seen[job]
    assert (seen.state, seen.user, seen.team, seen.gpus, seen.nodes) == (
        JobState.RUNNING,
        "alice",
        "research",
        4,
        2,
    )
    assert seen.name == order().engine_name
    assert (seen.submitted_at, seen.attempts[0].started_at) == (at(5), at(5))
    assert (len(seen.attempts[0].nodes), seen.attempts[0].devices) == (2, 8)

    stage.now += 100  # nobody looked when it ended: the time is the cluster's own
    await stage.look()
    seen = stage.seen[job]
    assert (seen.state, seen.ended_at, seen.exit_code) == (JobState.DONE, at(35), 0)
    (attempt,) = seen.attempts
    assert (attempt.ended_at, attempt.ending, attempt.exit_code) == (at(35), Ending.DONE, 0)
    assert await stage.engine.look_up([job, EngineId("v-1"), EngineId("x")], FLEET) == {job: seen}


async def test_one_job_a_name(stage: Stage) -> None:
    first = await stage.send(order(1), order(2))
    again = await stage.send(order(2), order(1), order(1, submission=2))
    assert again[:2] == first[::-1]
    assert again[2] not in first
    assert await stage.engine.find([order(1).engine_name, order(9).engine_name]) == {
        order(1).engine_name: first[0]
    }
    stage.now += 60
    assert (await stage.send(order(1)))[0] == first[0]  # ended, and still known
    await stage.look()
    assert len(stage.seen) == 3


@pytest.mark.parametrize(
    ("command", "limit", "state", "ending", "code", "lasted"),
    [
        (("bash", "-c", "sleep 7; exit 3"), None, JobState.FAILED, Ending.FAILED, 3, 7),
        (("sleep", "50"), 20, JobState.TIMED_OUT, Ending.TIMED_OUT, None, 20),
        (("python", "train.py"), None, JobState.DONE, Ending.DONE, 0, 60),
    ],
)
async def test_endings(
    stage: Stage,
    command: tuple[str, ...],
    limit: int | None,
    state: JobState,
    ending: Ending,
    code: int | None,
    lasted: int,
) -> None:
    (job,) = await stage.send(order(1, *command, time_seconds=limit))
    stage.now += 200
    await stage.look()
    seen = stage.seen[job]
    assert (seen.state, seen.attempts[0].ending, seen.exit_code) == (state, ending, code)
    assert seen.ended_at == at(lasted)


async def test_cancel_hold_release(stage: Stage) -> None:
    held, runs = await stage.send(order(1, hold=True), order(2))
    await stage.look()
    assert (stage.seen[held].state, stage.seen[held].attempts) == (JobState.HELD, ())
    assert await stage.engine.release([held]) == {}
    await stage.look()
    assert stage.seen[held].state is JobState.RUNNING
    assert await stage.engine.hold([runs]) == {}  # what runs goes on
    stage.now += 3
    assert await stage.engine.cancel([runs, EngineId("vnever-7")]) == {}
    assert await stage.engine.cancel([runs]) == {}
    await stage.look()
    assert (stage.seen[runs].state, stage.seen[runs].ended_at) == (JobState.CANCELLED, at(3))
    assert stage.seen[runs].attempts[0].ending is Ending.CANCELLED


async def test_preemption_and_node_loss_are_attempts(stage: Stage) -> None:
    lent, more = await stage.send(
        order(1, "sleep", "500", gpus=GpuRequest(8)), order(2, "sleep", "500", gpus=GpuRequest(8))
    )
    stage.now += 10
    (taker,) = await stage.send(order(3, "sleep", "20", gpus=GpuRequest(8), team="product", user="carol"))
    await stage.look()
    taken = next(stage.seen[job] for job in (lent, more) if stage.seen[job].state is JobState.WAITING)
    (attempt,) = taken.attempts
    assert (attempt.ending, attempt.ended_at) == (Ending.PREEMPTED, at(10))
    assert attempt.by == taker and attempt.reason.endswith("{job}")
    assert taken.reason  # why it waits
    stage.now += 21
    await stage.look()
    taken = stage.seen[taken.engine_id]
    assert (taken.state, len(taken.attempts)) == (JobState.RUNNING, 2)

    node = taken.attempts[1].nodes[0]
    stage.engine.simulator.lose(NodeName(node))
    await stage.look()
    taken = stage.seen[taken.engine_id]
    assert taken.attempts[1].ending is Ending.NODE_LOST
    stage.engine.simulator.recover(NodeName(node))
    await stage.look()
    assert len(stage.seen[taken.engine_id].attempts) == 3


async def test_what_waits_carries_the_code_of_its_reason(stage: Stage) -> None:
    _, _, third = await stage.send(*(order(n, gpus=GpuRequest(8)) for n in (1, 2, 3)))
    (held,) = await stage.send(order(4, hold=True))
    await stage.look()
    waits = stage.seen[third]
    assert (waits.state, waits.reason_code) == (JobState.WAITING, "TeamAtCeiling")
    assert (
        waits.reason == "Team research already uses 16 of the 16 GPUs it may use in gpu, and the job needs 8"
    )
    assert (stage.seen[held].reason_code, stage.seen[held].reason) == (
        "Held",
        "On hold by its owner or an operator",
    )
    assert {job.reason_code for job in stage.seen.values() if job.state is JobState.RUNNING} == {""}
    await stage.engine.cancel([third])
    await stage.look()
    assert stage.seen[third].reason_code == ""


@pytest.mark.parametrize("code", sorted(REASONS))
async def test_the_code_does_not_depend_on_the_sentence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(reasons, "wait_reason", lambda *_: Wait(code, "Resources, said in other words"))
    (held,) = await stage.send(order(1, hold=True))
    await stage.look()
    assert (stage.seen[held].reason_code, stage.seen[held].reason) == (code, "Resources, said in other words")


async def test_native_jobs_are_mirrored(stage: Stage) -> None:
    request = JobRequest(UserName("bob"), PoolName("mig"), slice=SliceName("1g.10gb"), seconds=5, name="nb")
    job = stage.engine.submit_natively(request)
    await stage.look()
    seen = stage.seen[job]
    assert (seen.name, seen.user, seen.team, seen.supply) == (
        "nb",
        "bob",
        "research",
        Supply(PoolName("mig"), SliceName("1g.10gb")),
    )


async def test_what_may_never_run_is_refused(stage: Stage) -> None:
    with pytest.raises(Refused, match="no team"):
        await stage.send(order(team="nobody"))
    spot = Supply(PoolName("spot"))
    with pytest.raises(Refused, match="spot"):
        stage.engine.preview(order(supply=spot), FLEET)
    bold = order(supply=spot, tolerates=frozenset({Tolerates.SPOT}))
    assert "spot" in stage.engine.preview(bold, FLEET)
    assert "sleep" not in stage.engine.preview(bold, FLEET)
    assert await stage.send(bold)


async def test_the_mirror_tells_everything_once(stage: Stage) -> None:
    jobs = await stage.send(*(order(n, "sleep", str(n)) for n in range(1, 9)))
    first = await stage.engine.changes(None, FLEET)
    assert first.snapshot
    assert [job.engine_id for job in first.jobs] == jobs
    started = asyncio.get_running_loop().time()
    nothing = await stage.engine.changes(first.mark, FLEET)
    assert (nothing.jobs, nothing.snapshot, nothing.mark) == ((), False, first.mark)
    assert 0.9 < asyncio.get_running_loop().time() - started < 3
    stage.now += 4.5
    ended = await stage.engine.changes(first.mark, FLEET)
    assert [job.engine_id for job in ended.jobs] == jobs[:4]
    assert not ended.snapshot

    other = await Stage().govern()  # another life: nothing of the mark is known there
    other.now += 5
    new = VirtualEngine(FLEET.clusters[0], FLEET.pools, clock=lambda: START + 5)
    again = await new.changes(first.mark, FLEET)
    assert (again.snapshot, again.jobs) == (True, ())
    assert await new.look_up(jobs, FLEET) == {}


async def test_a_change_wakes_the_mirror(stage: Stage) -> None:
    await stage.look()
    looking = asyncio.create_task(stage.engine.changes(stage.mark, FLEET))
    await asyncio.sleep(0.2)
    (job,) = await stage.send(order())
    batch = await asyncio.wait_for(looking, 0.5)
    assert [seen.engine_id for seen in batch.jobs] == [job]


async def test_what_the_journal_forgot_is_shown_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairway.engines.virtual.engine.HISTORY_SIZE", 10)
    small = await Stage().govern()
    await small.look()
    for number in range(1, 40):
        await small.send(order(number, "true"))
        small.now += 1
    batch = await small.engine.changes(small.mark, FLEET)
    assert batch.snapshot
    assert len(batch.jobs) == 10
    assert await small.engine.find([order(1).engine_name]) == {}
    with pytest.raises(Refused, match="no longer has job"):
        await small.engine.read_log(order(1), EngineId(f"v{small.engine._instance.id}-1"), 1, 0, 100)


async def test_a_fast_cluster_is_never_ahead_of_the_clock() -> None:
    stage = await Stage(speed=60).govern()
    (job,) = await stage.send(order(1, "sleep", "90"))
    stage.now += 1
    await stage.look()
    assert stage.seen[job].state is JobState.RUNNING
    stage.now += 1
    await stage.look()
    assert stage.seen[job].ended_at == at(1.5)


async def test_logs_grow_and_end(stage: Stage) -> None:
    asked = order(1, "bash", "-c", 'echo "attempt $FAIRWAY_ATTEMPT"; sleep 10; echo after; sleep 5')
    (job,) = await stage.send(asked)

    async def read(offset: int, limit: int = 1000) -> tuple[bytes, int, bool]:
        part = await stage.engine.read_log(asked, job, 1, offset, limit)
        return part.data, part.next_offset, part.ended

    assert await read(0) == (b"attempt 1\n", 10, False)
    assert await read(10) == (b"", 10, False)
    stage.now += 11
    assert await read(10) == (b"after\n", 16, False)
    assert await read(0, 3) == (b"att", 3, False)
    stage.now += 11
    assert await read(0, 3) == (b"att", 3, False)
    assert await read(10) == (b"after\n", 16, True)
    assert (await stage.engine.read_log(asked, job, 2, 0, 10)).ended
    assert (await stage.engine.read_log(asked, job, 1, 0, 10, node=1)).data == b""


async def test_a_log_says_how_it_was_ended(stage: Stage) -> None:
    asked = order(1, "python", "train.py", time_seconds=6, attempts_before=2)
    (job,) = await stage.send(asked)
    waiting = order(2, "true", hold=True)
    (held,) = await stage.send(waiting)
    assert await stage.engine.read_log(waiting, held, 1, 0, 10) == await stage.engine.read_log(
        waiting, held, 1, 0, 10
    )
    assert not (await stage.engine.read_log(waiting, held, 1, 0, 10)).ended
    stage.now += 8
    part = await stage.engine.read_log(asked, job, 1, 0, 10_000)
    lines = part.data.decode().splitlines()
    assert lines[0] == "python train.py: started, attempt 3"
    assert lines[-2].startswith("python train.py: step 10/100")
    assert lines[-1].endswith("DUE TO TIME LIMIT AT 2026-09-21T14:13:26Z ***")
    assert part.ended


@pytest.mark.parametrize(
    ("script", "seconds", "code", "printed"),
    [
        ("sleep 2m", 120, 0, ""),
        (
            "#!/bin/bash\n#SBATCH --gpus 8\necho one # aside\nsleep 2 && echo two || exit 4",
            2,
            0,
            "one\ntwo\n",
        ),
        ("false\necho yes", 0.2, 0, "yes\n"),
        ("false && echo no\ntrue || echo no\nfalse", 0.2, 1, ""),
        ("true &&\n  echo on the next line", 0.2, 0, "on the next line\n"),
        ("echo first; exit 7\necho later", 0.2, 7, "first\n"),
        ("echo \"$FAIRWAY_ATTEMPT of ${USER}, $NOBODY; '$OWN'\"", 0.2, 0, "1 of alice, ; '5'\n"),
        ("sleep $OWN; exit $OWN", 5, 5, ""),
        ("module load cuda\nset -e; cd /tmp; source venv/bin/activate\n/bin/sleep 4", 4, 0, ""),
        ("bash -c 'echo in; exit 3'\necho out", 0.2, 0, "in\nout\n"),
        ("sh -lc 'sleep 1' && sleep 1 1", 3, 0, ""),
        ("sleep soon", 0.2, 1, "sleep: invalid time interval 'soon'\n"),
        ("", 0.2, 0, ""),
    ],
)
def test_what_scripts_do(script: str, seconds: float, code: int, printed: str) -> None:
    done = interpret(order(1, command=(), script=script, env={"OWN": "5"}))
    assert (done.seconds, done.exit_code, done.printed(1e9)) == (seconds, code, printed)


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2; do echo $i; done",
        "if [ $FAIRWAY_ATTEMPT -lt 2 ]; then\n  exit 7\nfi",
        'echo "open',
        "x=$(date)",
        'echo "$(date)"',
        "echo gone > file",
        "echo one | tee file",
        "sleep 1 &",
        "cat <<END\nexit 4\nEND",
        "srun hostname",
        "echo ;" * 20_000,
    ],
)
def test_what_is_not_understood_takes_its_time(script: str) -> None:
    plain = interpret(order(1, command=(), script=script))
    assert (plain.seconds, plain.exit_code) == (60, 0)
    told = interpret(order(1, command=(), script=script, env={"VIRTUAL_SECONDS": "2.5", "VIRTUAL_EXIT": "3"}))
    assert (told.seconds, told.exit_code) == (2.5, 3)
    assert told.lines[-1].text.endswith("error: exit status 3")


def test_a_command_that_is_not_understood_decides_what_follows() -> None:
    script = '[ "$FAIRWAY_ATTEMPT" -ge 2 ] || exit 7'
    env = {"VIRTUAL_SECONDS": "1", "VIRTUAL_EXIT": "2,0"}
    results = [interpret(order(1, command=(), script=script, env=env), attempt) for attempt in (1, 2, 3)]
    assert [(result.seconds, result.exit_code) for result in results] == [(1, 7), (1, 0), (1, 0)]


def test_setup_comes_before_the_command() -> None:
    done = interpret(order(1, "sleep", "2", setup="module load cuda\nsleep 3; echo ready"))
    assert (done.seconds, done.exit_code, done.printed(2.9), done.printed(3)) == (5, 0, "", "ready\n")
    stopped = interpret(order(1, "sleep", "2", setup="exit 3"))
    assert (stopped.seconds, stopped.exit_code) == (0.2, 3)


def test_each_kind_of_command_prints_what_it_would() -> None:
    """A notebook does not print a training loss."""
    printed = {
        argv[0]: interpret(order(1, *argv)).printed(60)
        for argv in (("jupyter", "lab"), ("torchrun", "--nnodes=4", "pretrain.py"), ("make", "data"))
    }
    assert "Jupyter Server is running" in printed["jupyter"]
    assert "loss" not in printed["jupyter"]
    assert "torchrun pretrain.py: step 7/100  loss" in printed["torchrun"]
    assert "make data: step 7/100\n" in printed["make"]


def test_an_outcome_is_set_outside_the_environment() -> None:
    job = order(1, "python", "train.py")
    settings = {"VIRTUAL_SECONDS": "5", "VIRTUAL_EXIT": "3"}
    assert interpret(job, settings=settings).seconds == 5
    assert interpret(job, settings=settings).exit_code == 3
    own = order(1, "python", "train.py", env={"VIRTUAL_SECONDS": "7"})
    assert interpret(own, settings=settings).seconds == 7, "its own comes first"


async def test_why_is_answered_as_of_now_and_old_reasons_are_reported_again(stage: Stage) -> None:
    running, _, waits, last = await stage.send(
        *(order(n, "sleep", "500", gpus=GpuRequest(8), time_seconds=600) for n in (1, 2, 3, 4))
    )
    first = await stage.engine.changes(None, FLEET)
    facts = await stage.engine.explain(last, FLEET)
    assert facts is not None and (facts.code, facts.ahead, facts.ahead_count) == (
        "TeamAtCeiling",
        (waits,),
        1,
    )
    assert "already uses 16 of the 16 GPUs" in facts.findings[0].text
    assert await stage.engine.explain(running, FLEET) is None, "it runs"
    again = await stage.engine.changes(first.mark, FLEET)
    assert {job.engine_id for job in again.jobs} == {waits, last}, "reported with their reasons once more"
    assert (await stage.engine.changes(again.mark, FLEET)).jobs == (), "not before ten seconds have passed"
