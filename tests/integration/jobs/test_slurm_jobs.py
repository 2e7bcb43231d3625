"""Jobs on real Slurm, both versions: sent, acted on, read, and mirrored through every kind of outage."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairway.engines.port import LogPart, Unreachable
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.jobs import mirror
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, SlurmConnection
from fairway.model.job import (
    Ending,
    EngineId,
    EngineName,
    JobState,
    Order,
    SeenJob,
    format_job_id,
)
from fairway.model.names import PoolName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from lab import Instance, find
from lab.slurm import configure
from tests.contract.driver import absent
from tests.integration.jobs.slurm_jobs import Watch, fleet_of, in_thread, order, over, sacct, sbatch, send
from tests.integration.jobs.slurm_mix import Mix, differences
from tests.scenarios.conftest import instance_of
from tests.tier import sized
from tests.waiting import eventually

pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.timeout(300)]

SHORT_MEMORY = "MinJobAge=2"
"""slurmctld forgets what ended at once: what Fairway missed only the accounting tells."""


@pytest.fixture(scope="module", params=["slurm-24", "slurm-26"])
def slurm(request: pytest.FixtureRequest) -> Iterator[Instance]:
    name = instance_of(request.param)
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up slurm --name {name}")
    _own_account(instance)
    _preempting(instance)
    yield instance
    instance.run("scancel", "--state=pending", "--account=lab", check=False)
    instance.run("scancel", "--account=lab", check=False)


def _own_account(instance: Instance) -> None:
    """Give people the account of the lab again: tests of policies may have taken it."""
    people = "alice,bob,carol"
    instance.run("sacctmgr", "-i", "add", "user", people, "account=lab", check=False)
    instance.run("sacctmgr", "-i", "modify", "user", people, "set", "DefaultAccount=lab", check=False)


def _preempting(instance: Instance) -> None:
    """A QOS of the lab's own that takes places back: no policy of Fairway's is needed to see jobs."""
    if "taker" not in instance.run("sacctmgr", "-nP", "show", "qos", "format=name").stdout.split():
        instance.run("sacctmgr", "-i", "add", "qos", "taker", "Priority=100", "Preempt=normal")
        instance.run("sacctmgr", "-i", "modify", "account", "lab", "set", "qos+=taker")


@pytest.fixture
def fleet(slurm: Instance) -> Fleet:
    return fleet_of(slurm)


@pytest.fixture
async def engine(fleet: Fleet) -> AsyncIterator[SlurmEngine]:
    made = SlurmEngine(fleet.clusters[0], fleet.pools)
    yield made
    await made.close()


@pytest.fixture
async def watch(engine: SlurmEngine, fleet: Fleet) -> Watch:
    watch = Watch(engine, fleet)
    await watch.look()
    return watch


def came_back(job: SeenJob, attempts: int) -> bool:
    """So many attempts, and how all but the last ended is known."""
    return len(job.attempts) == attempts and all(a.ended_at for a in job.attempts[:-1])


def running(job: SeenJob) -> bool:
    return job.state is JobState.RUNNING


async def test_a_job_runs_as_the_person_and_ends_as_it_should(
    engine: SlurmEngine, fleet: Fleet, watch: Watch
) -> None:
    told = 'echo "$FAIRWAY_JOB_ID $FAIRWAY_TEAM $FAIRWAY_ATTEMPT $(id -un) $HOME $PWD [$ODD]"; exit 7'
    ours = order("bash", "-c", told, env={"ODD": "a'b\"$(id)\n;c"}, time_seconds=90)
    (number,) = await send(engine, fleet, ours)

    (job,) = await watch.until(over, [number])

    assert (job.state, job.exit_code, job.team, job.user) == (JobState.FAILED, 7, "lab", "alice")
    assert (job.name, job.supply, job.gpus, job.nodes) == (ours.engine_name, ours.supply, 1, 1)
    assert job.time_seconds == 120  # whole minutes
    (attempt,) = job.attempts
    assert attempt.ending is Ending.FAILED
    assert attempt.devices == 1
    assert job.ended_at == attempt.ended_at
    part = await engine.read_log(ours, EngineId(number), 1, 0, 10_000)
    lines = part.data.decode()
    assert lines == f"{format_job_id(ours.job)} lab 1 alice /home/alice /home/alice [a'b\"$(id)\n;c]\n"
    assert part.ended
    again = await engine.read_log(ours, EngineId(number), 1, 5, 4)
    assert again.data == part.data[5:9]
    assert not again.ended


async def test_scripts_setup_and_checkpoints(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    text = '#!/usr/bin/env -S bash -u\n# \'END\' "\nEND\necho "in $0 $SET"\nls -d "$FAIRWAY_CHECKPOINT_DIR"\n'
    script = order(
        script=text.replace("\nEND\n", "\ntrue <<'X'\nEND\nX\n"), setup="export SET=up", workdir="/tmp"
    )
    broken = order("true", setup="echo 'never closed")
    numbers = await send(engine, fleet, script, broken)

    done, failed = await watch.until(over, numbers)

    part = await engine.read_log(script, EngineId(numbers[0]), 1, 0, 10_000)
    assert part.data.decode() == f"in /dev/fd/9 up\n/srv/logs/alice/{format_job_id(script.job)}\n"
    assert done.state is JobState.DONE
    assert failed.state is JobState.FAILED
    assert b"unexpected EOF" in (await engine.read_log(broken, EngineId(numbers[1]), 1, 0, 10_000)).data


async def test_nobody_takes_over_anothers_checkpoints(fleet: Fleet, watch: Watch, slurm: Instance) -> None:
    """bob makes folders that alice's and carol's next jobs would use, open to all, before they do."""
    kept = Path("/srv/kept")
    slurm.run("install", "-d", "-m", "1777", str(kept))
    cluster = fleet.clusters[0]
    engine = SlurmEngine(
        replace(cluster, folders=replace(cluster.folders, checkpoints=str(kept))), fleet.pools
    )
    shows = ("bash", "-c", "stat -c %a:%U $FAIRWAY_CHECKPOINT_DIR; cat $FAIRWAY_CHECKPOINT_DIR/*")
    free, taken = order(*shows), order("echo", "ran", user="carol")
    for folder in (kept / "lab" / format_job_id(free.job), kept / "carol" / format_job_id(taken.job)):
        slurm.run("bash", "-c", f"umask 0; mkdir -p {folder}; echo PAYLOAD > {folder}/ckpt", user="bob")
    try:
        numbers = await send(engine, fleet, free, taken)
        done, failed = await watch.until(over, numbers)
        logs = [
            (await engine.read_log(one, EngineId(number), 1, 0, 10_000)).data.decode()
            for one, number in zip((free, taken), numbers, strict=True)
        ]
    finally:
        slurm.run("rm", "-rf", str(kept))
        await engine.close()
    assert logs[0].startswith("700:alice\n") and "PAYLOAD" not in logs[0]
    assert done.state is not JobState.RUNNING
    assert (failed.state, logs[1]) == (
        JobState.FAILED,
        "fairway: /srv/kept/carol is not your own: an admin must remove it\n",
    )


async def test_nothing_is_printed_where_another_reads(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    """bob makes the folder of carol's logs, and the file of her next job, before she does."""
    secret = order("echo", "CONFIDENTIAL", user="carol")
    folder = "/srv/logs/carol"
    slurm.run("rm", "-rf", folder)
    files = f"{folder}/{secret.engine_name}.1.out {folder}/{secret.engine_name}.slurm"
    slurm.run("bash", "-c", f"umask 0; mkdir {folder}; touch {files}", user="bob")
    try:
        (number,) = await send(engine, fleet, secret)
        (failed,) = await watch.until(over, [number])
        stolen = slurm.run("bash", "-c", f"cat {folder}/*", user="bob").stdout
        with pytest.raises(Refused) as refused:
            await engine.read_log(secret, EngineId(number), 1, 0, 10_000)
    finally:
        slurm.run("rm", "-rf", folder)
    assert failed.state is JobState.FAILED
    assert "CONFIDENTIAL" not in stolen
    assert refused.value.code == "LogUnsafe"
    again = order("echo", "CONFIDENTIAL", user="carol")
    (number,) = await send(engine, fleet, again)
    await watch.until(over, [number])
    assert (await engine.read_log(again, EngineId(number), 1, 0, 99)).data == b"CONFIDENTIAL\n"


async def test_no_job_is_sent_as_a_user_of_the_system(engine: SlurmEngine, fleet: Fleet) -> None:
    orders = [replace(order("id"), user=UserName(user)) for user in ("root", "slurm", "fairway", "64030")]
    refused = {r.order.user: r.refusal async for r in engine.submit(orders, fleet)}
    assert {user: r.code if r else None for user, r in refused.items()} == {
        o.user: "SystemUser" for o in orders
    }


async def test_a_gang_prints_from_every_node_and_slices_are_slices(
    engine: SlurmEngine, fleet: Fleet, watch: Watch
) -> None:
    gang = order("bash", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES", nodes=2, gpus=8)
    sliced = order("true", supply=Supply(PoolName("mig"), SliceName("3g.40gb")))
    numbers = await send(engine, fleet, gang, sliced)

    whole, part = await watch.until(over, numbers, within=60)

    assert whole.state is JobState.DONE
    assert (whole.nodes, whole.gpus, whole.attempts[0].devices) == (2, 8, 16)
    printed = (await engine.read_log(gang, EngineId(numbers[0]), 1, 0, 10_000)).data.decode()
    assert sorted(line.split()[0] for line in printed.splitlines()) == sorted(whole.attempts[0].nodes)
    assert (part.supply, part.gpus) == (Supply(PoolName("mig"), SliceName("3g.40gb")), 1)


async def test_hold_release_cancel_and_the_time_limit(
    engine: SlurmEngine, fleet: Fleet, watch: Watch
) -> None:
    held, long, late = order("true", hold=True), order("sleep", "300"), order("sleep", "300", time_seconds=60)
    numbers = [EngineId(n) for n in await send(engine, fleet, held, long, late)]
    await watch.until(lambda job: job.state is JobState.HELD, numbers[:1])
    await watch.until(running, numbers[1:])

    assert not await engine.hold(numbers)  # what runs goes on
    assert not await engine.release(numbers[:1])
    assert not await engine.cancel(numbers[1:2])

    done, cancelled = await watch.until(over, numbers[:2])
    assert done.state is JobState.DONE
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.attempts[0].ending is Ending.CANCELLED
    assert not await engine.cancel([*numbers[:2], EngineId("99999999")])  # over or gone: no refusal
    assert not await engine.hold(numbers[:2])
    (timed_out,) = await watch.until(over, numbers[2:], within=120)
    assert timed_out.state is JobState.TIMED_OUT
    assert timed_out.exit_code is None


async def test_found_by_name_whether_open_or_over(engine: SlurmEngine, fleet: Fleet, watch: Watch) -> None:
    ours = [order("true"), order("true", hold=True)]
    numbers = await send(engine, fleet, *ours)
    await watch.until(over, numbers[:1])

    found = await engine.find([*(o.engine_name for o in ours), EngineName("nobody-fwtest-0000-1")])

    assert found == {o.engine_name: n for o, n in zip(ours, numbers, strict=True)}
    await engine.cancel([EngineId(numbers[1])])


async def test_refusals_are_reasons(engine: SlurmEngine, fleet: Fleet) -> None:
    wrong = {
        "NotInTeam": replace(order("true"), team=TeamName("nobody")),
        "CannotFit": order("true", gpus=99),
        "PriorityRefused": replace(order("true"), priority=fleet.priorities[0].name),
        "TextUnsendable": order("a\0b"),
    }
    sent = {one.order.job: one async for one in engine.submit(list(wrong.values()), fleet)}
    for code, one in wrong.items():
        refusal = sent[one.job].refusal
        assert refusal is not None
        assert refusal.code == code, refusal.message
        assert refusal.hint
    unknown = order("true", user="nobody-here")
    (sent_unknown,) = [one async for one in engine.submit([unknown], fleet)]
    assert sent_unknown.engine_id is None


async def test_only_the_cluster_s_key_sends_as_people(fleet: Fleet, tmp_path: Path, slurm: Instance) -> None:
    (tmp_path / "token").write_text(slurm.of_kind.secrets(slurm)["token"])
    connection = fleet.clusters[0].connection
    assert isinstance(connection, SlurmConnection)
    alone = replace(connection, jwt_key_file=None, token_file=str(tmp_path / "token"))
    engine = SlurmEngine(replace(fleet.clusters[0], connection=alone), fleet.pools)
    with pytest.raises(Refused) as refused:
        _ = [one async for one in engine.submit([order("true")], fleet)]
    assert refused.value.code == "CannotActForUsers"
    await engine.close()


async def test_native_jobs_are_seen_within_two_seconds(slurm: Instance, watch: Watch) -> None:
    await watch.look()
    name = "odd\x1fname\nwith\x1f=lines"
    began = time.time()
    number = await asyncio.to_thread(
        sbatch, slurm, "alice", f"--job-name={name}", "--gres=gpu:a100:2", "--wrap", "sleep 4"
    )
    (job,) = await watch.until(running, [number])
    assert job.team == "lab"
    assert job.user == "alice"
    assert job.name == name
    assert job.attempts[0].devices == 2
    started = job.attempts[0].started_at.timestamp()
    assert watch.when[number, JobState.RUNNING] - max(started, began) < 3.0  # started_at is in whole seconds
    (job,) = await watch.until(over, [number])
    assert job.state is JobState.DONE


async def test_native_arrays_are_seen_task_by_task(slurm: Instance, watch: Watch) -> None:
    number = await asyncio.to_thread(
        sbatch, slurm, "bob", "--array=0-2%2", "--gpus-per-node=a100:1", "--wrap", "exit $SLURM_ARRAY_TASK_ID"
    )
    jobs = await watch.until(over, [f"{number}_{task}" for task in range(3)], within=60)
    assert [job.exit_code for job in jobs] == [0, 1, 2]
    assert [(job.array_id, job.array_index) for job in jobs] == [(number, task) for task in range(3)]


async def test_what_comes_back_has_every_attempt(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    """Requeued by hand, then preempted, then lost with its node."""
    ours = order("bash", "-c", "echo attempt $FAIRWAY_ATTEMPT; sleep 300", gpus=8)
    (number,) = await send(engine, fleet, ours)
    (job,) = await watch.until(running, [number])
    first = job.submitted_at
    assert (await printed(engine, ours, number, 1)).data  # it may be ended before its first word

    await in_thread(slurm, "scontrol", "requeue", number)
    (job,) = await watch.until(lambda j: running(j) and came_back(j, 2), [number], within=60)
    assert job.attempts[0].ending is Ending.REQUEUED
    assert (await printed(engine, ours, number, 2)).data

    takers = [
        await asyncio.to_thread(
            sbatch, slurm, "bob", "--qos=taker", "--nodes=4", "--gres=gpu:8", "--wrap", "sleep 8"
        )
    ]
    (job,) = await watch.until(lambda j: running(j) and came_back(j, 3), [number], within=90)
    await watch.until(over, takers, within=60)
    assert job.attempts[1].ending is Ending.PREEMPTED
    assert (await printed(engine, ours, number, 3)).data

    node = job.attempts[2].nodes[0]
    await in_thread(slurm, "scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        (job,) = await watch.until(lambda j: running(j) and came_back(j, 4), [number], within=90)
    finally:
        slurm.run(
            "scontrol", "update", f"nodename={node}", "state=resume", check=False
        )  # may be back already
    assert job.attempts[2].ending is Ending.NODE_LOST
    assert job.submitted_at == first
    for attempt in range(1, 5):
        part = await printed(engine, ours, number, attempt)
        assert part.data == f"attempt {attempt}\n".encode()
        assert part.ended == (attempt < 4)
    await engine.cancel([EngineId(number)])
    (job,) = await watch.until(over, [number])
    _equal(job, slurm)


async def printed(engine: SlurmEngine, ours: Order, number: str, attempt: int) -> LogPart:
    """What an attempt printed, as soon as there is something: a job runs before its first word is out."""
    deadline = time.monotonic() + 20
    while True:
        part = await engine.read_log(ours, EngineId(number), attempt, 0, 1000)
        if part.data or time.monotonic() > deadline:
            return part
        await asyncio.sleep(0.2)


def _equal(job: SeenJob, slurm: Instance) -> None:
    """To the second what sacct tells."""
    truth = [t for t in sacct(slurm, [job.engine_id])[job.engine_id] if t.nodes not in ("", "None assigned")]
    assert [(a.started_at, a.ended_at, a.devices) for a in job.attempts] == [
        (t.start, t.end, t.gpus) for t in truth
    ]


async def test_slurmctld_away_loses_nothing(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    numbers = await send(engine, fleet, order("sleep", "6"), order("true"))
    await watch.until(running, numbers[:1])
    await asyncio.to_thread(slurm.end, "slurmctld", patience=30)
    try:
        with pytest.raises(Unreachable):
            await watch.look()
        with pytest.raises(Unreachable):
            _ = [one async for one in engine.submit([order("true")], fleet)]
        with pytest.raises(Unreachable):
            await engine.find([EngineName("x")])
        await asyncio.sleep(6)
    finally:
        await asyncio.to_thread(slurm.of_kind.start, slurm, "slurmctld")
    for job in await watch.until(over, numbers, within=60):
        assert job.state is JobState.DONE
        _equal(job, slurm)


async def test_the_accounting_away_is_made_up_for(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    (number,) = await send(engine, fleet, order("sleep", "300"))
    await watch.until(running, [number])
    await asyncio.to_thread(slurm.end, "slurmdbd", patience=20)
    try:
        await in_thread(slurm, "scontrol", "requeue", number)
        (job,) = await watch.until(
            lambda j: running(j) and bool(j.earlier_attempts or len(j.attempts) > 1), [number], within=60
        )
    finally:
        await asyncio.to_thread(slurm.of_kind.start, slurm, "slurmdbd")
    (job,) = await watch.until(
        lambda j: len(j.attempts) == 2 and j.attempts[0].ended_at, [number], within=120
    )
    assert job.attempts[0].ending is Ending.REQUEUED
    await engine.cancel([EngineId(number)])
    (job,) = await watch.until(over, [number])
    await eventually(lambda: sacct(slurm, [number])[number][-1].end, what="the accounting knows the end")
    _equal(job, slurm)


async def test_fairway_away_while_jobs_run_end_and_are_forgotten(fleet: Fleet, slurm: Instance) -> None:
    await asyncio.to_thread(configure, slurm, [SHORT_MEMORY])
    try:
        engine = SlurmEngine(fleet.clusters[0], fleet.pools)
        watch = Watch(engine, fleet)
        numbers = await send(engine, fleet, order("sleep", "3"), order("false"), order("sleep", "300"))
        await watch.until(running, numbers[2:])
        mark = watch.mark
        numbers += await send(engine, fleet, order("true"))  # came and went unseen
        await engine.close()
        await in_thread(slurm, "scontrol", "requeue", numbers[2])
        await eventually(lambda: "RUNNING" in _states(slurm, numbers[2]), within=60, what="it runs again")
        await in_thread(slurm, "scancel", numbers[2])

        def forgotten() -> bool:
            left = slurm.run("squeue", "-h", "-t", "all", "-o", "%i").stdout.split()
            return not set(left) & set(numbers)

        await eventually(forgotten, within=120, what="slurmctld forgot them")
        later = SlurmEngine(fleet.clusters[0], fleet.pools)
        away = Watch(later, fleet, mark)
        began = time.monotonic()
        await away.look()
        assert time.monotonic() - began < 30
        for number in numbers:
            _equal(away.jobs[number], slurm)
        assert len(away.jobs[numbers[2]].attempts) == 2
        looked_up = await later.look_up([EngineId(n) for n in [*numbers, "99999999"]], fleet)
        assert looked_up == {n: away.jobs[n] for n in numbers}
        await later.close()
    finally:
        await asyncio.to_thread(configure, slurm, [])


def _states(slurm: Instance, number: str) -> str:
    return slurm.run("squeue", "-h", "-t", "all", "-j", number, "-o", "%T", check=False).stdout


async def test_logs_are_read_from_nothing_but_plain_files_of_the_user(
    engine: SlurmEngine, fleet: Fleet, watch: Watch, slurm: Instance
) -> None:
    ours = order("true")
    (number,) = await send(engine, fleet, ours)
    await watch.until(over, [number])
    base = Path(slurm.facts()["logs_seen_at"])
    log = base / "alice" / f"{ours.engine_name}.1.out"
    secret = base / "secret"
    secret.write_text("secret")
    for make in (log.symlink_to, log.hardlink_to):
        log.unlink(missing_ok=True)
        make(secret)
        with pytest.raises(Refused, match="is not read") as refused:
            await engine.read_log(ours, EngineId(number), 1, 0, 100)
        assert refused.value.code == "LogUnsafe"
    log.unlink()
    bare = replace(fleet.clusters[0], folders=replace(fleet.clusters[0].folders, logs=None))
    other = SlurmEngine(bare, fleet.pools)
    with pytest.raises(Refused) as without:
        await other.read_log(ours, EngineId(number), 1, 0, 100)
    assert without.value.code == "LogsNotShared"
    await other.close()


@pytest.mark.parametrize("count", [sized(ci=60, nightly=1200)])
@pytest.mark.timeout(1200)
async def test_the_mirror_equals_the_accounting_to_the_second(
    engine: SlurmEngine,
    fleet: Fleet,
    watch: Watch,
    slurm: Instance,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tasks that slurmctld forgot before anybody looked, and that the accounting never hears of, are given up
    # after this long; ten minutes are for accounting that is away, which here it is not.
    monkeypatch.setattr(mirror, "LOST_SECONDS", 60.0)
    mix = Mix(slurm, engine, fleet, random.Random(count))
    await mix.run(count, watch, within=1000)
    await asyncio.to_thread(slurm.run, "scancel", "--account=lab", check=False)
    said: list[str] = []

    def equal() -> bool:  # the accounting is written a moment later
        said[:] = differences(slurm, watch.jobs, mix.ids)
        return not said

    ended = Counter(a.ending for i in mix.ids for a in watch.jobs[i].attempts)
    told = f"{len(mix.ids)} jobs, {dict(mix.done)}, {mix.takers} takers; attempts ended {dict(ended)}"
    sys.stdout.write(told + "\n")
    try:
        await eventually(equal, within=30, what="the mirror equals sacct", pause=3)
    except AssertionError:
        raise AssertionError(f"{len(said)} differences: " + "; ".join(said[:20])) from None
