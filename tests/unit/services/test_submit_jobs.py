"""Taking jobs in on a real ledger: where they go, how often the ledger is asked, and what a dry run says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, StoredAttempt
from fairway.model.errors import PermanentError, Refused
from fairway.model.fleet import Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.job import Attempt, EngineId, GpuRequest, JobSpec, JobState
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.model.price import CostRules
from fairway.model.team import Grant, Supply
from fairway.policy.placement import NoPoolFits, NotAllowed
from fairway.services.engine_cache import EngineCache
from fairway.services.job_logs import JobLogReader
from fairway.services.jobs import Submitter
from fairway.services.wakeup import Wakeup
from tests.unit.control.job_toy import (
    ADA,
    FLEET,
    HPC,
    POOL,
    Field,
    ToyRuns,
    applied,
    give_fleet,
    leave,
    submit,
)
from tests.unit.control.loops.test_dispatch import Bench as Dispatching

CLOUD = ClusterName("cloud")
DEAR = PoolName("cloud-a100")

TWO = replace(
    FLEET,
    clusters=(*FLEET.clusters, Cluster(CLOUD, VirtualConnection())),
    pools=(
        *FLEET.pools,
        replace(FLEET.pools[0], name=DEAR, cluster=CLOUD, price=Decimal(3), place=VirtualPlace(nodes=2)),
    ),
    teams=(replace(FLEET.teams[0], grants=(Grant(Supply(POOL)), Grant(Supply(DEAR)))),),
)


class Fleets:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    async def current(self) -> Fleet:
        return self.fleet

    async def applied(self, cluster: str | None = None) -> Fleet | None:
        return None


class Bench:
    def __init__(self, ledger: Ledger, fleet: Fleet = TWO) -> None:
        self.ledger = ledger
        self.now = 0.0
        self.fields = {HPC: Field(), CLOUD: Field()}
        self.held = EngineCache(self.build)
        self.fleets = Fleets(fleet)
        self.wakeup = Wakeup()
        self.submitter = Submitter(ledger, self.fleets, self.held, wakeup=self.wakeup, clock=lambda: self.now)

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> ToyRuns:
        return self.fields[cluster.name].build()

    async def observe(self, cluster: ClusterName, pool: PoolName, nodes: int, in_use: int = 0) -> None:
        seen = tuple(
            Node(NodeName(f"n{i}"), Health.READY, "", (Devices(pool, "gpu", None, 8, in_use),))
            for i in range(nodes)
        )
        lease = await self.ledger.leases.take("observe", cluster, "test", 30)
        assert lease is not None
        async with self.ledger.writing(lease) as tx:
            await tx.observations.write(Observation(cluster, "1", seen))
        await self.ledger.leases.release(lease)


@pytest.fixture
async def bench(ledger: Ledger) -> Bench:
    await give_fleet(ledger)
    made = Bench(ledger)
    await made.observe(HPC, POOL, 4)
    await made.observe(CLOUD, DEAR, 2)
    return made


def spec(gpus: int = 8, **more: object) -> JobSpec:
    return replace(JobSpec("train", GpuRequest(gpus), ("true",)), **more)  # type: ignore[arg-type]


async def test_a_batch_fills_the_cheap_pool_then_the_other_then_the_shorter_queue(bench: Bench) -> None:
    """What an earlier job of the batch will take is not counted on again."""
    made = await bench.submitter.submit([spec() for _ in range(8)], ADA, by="ada")
    # 32 and 16 GPUs; both queues are as long as their pools are large then, and the cheaper one is taken
    assert [m.placement.supply.pool for m in made[:7]] == [POOL] * 4 + [DEAR] * 2 + [POOL]
    assert made[0].placement.why == (
        "hpc-a100 has 32 GPUs free; cloud-a100 has 16 GPUs free. Both can start it, and hpc-a100 is cheaper "
        "(1.00 vs 3.00 per GPU-hour)"
    )
    rows = await bench.ledger.jobs.rows([m.ids[0] for m in made])
    assert [r.pool for r in sorted(rows, key=lambda r: r.id)] == [m.placement.supply.pool for m in made]


async def test_only_the_clusters_that_got_jobs_are_woken(bench: Bench) -> None:
    hpc, cloud = (asyncio.ensure_future(bench.wakeup.pause_for(name)(600)) for name in (HPC, CLOUD))
    await bench.submitter.submit([spec()], ADA, by="ada")
    async with asyncio.timeout(60):
        await hpc
    assert not cloud.done()
    await bench.submitter.submit([spec() for _ in range(8)], ADA, by="ada")
    async with asyncio.timeout(60):
        await cloud


async def test_a_cluster_that_was_left_gets_no_job(bench: Bench) -> None:
    await applied(bench.ledger)
    await leave(bench.ledger)
    (made,) = await bench.submitter.submit([spec()], ADA, by="ada")
    assert made.placement.supply.pool == DEAR
    with pytest.raises(NoPoolFits) as refused:
        await bench.submitter.submit([spec(pool=POOL)], ADA, by="ada")
    assert "is on cluster hpc, which Fairway no longer manages" in refused.value.message
    assert "fairway apply -f fleet.yaml" in refused.value.hint
    assert not (await bench.submitter.dry_run(spec(pool=POOL), ADA)).could_run


async def test_what_waits_in_the_ledger_counts_when_it_is_read_again(bench: Bench) -> None:
    await bench.submitter.submit([spec() for _ in range(4)], ADA, by="ada")
    bench.now = 3.0
    (made,) = await bench.submitter.submit([spec()], ADA, by="ada")
    assert made.placement.supply.pool == DEAR


async def test_ten_thousand_jobs_ask_the_ledger_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    clusters, jobs = bench.ledger.clusters, bench.ledger.jobs
    for store, name in ((clusters, "pools"), (jobs, "counts"), (clusters, "nodes"), (clusters, "all")):
        real = getattr(store, name)

        def noted(*a: object, _real: object = real, _name: str = name, **k: object) -> object:
            asked.append(_name)
            return _real(*a, **k)  # type: ignore[operator]

        monkeypatch.setattr(store, name, noted)
    made = await bench.submitter.submit([spec(1, name=f"j{i}") for i in range(2000)], ADA, by="ada")
    assert len(made) == 2000
    assert sorted(asked) == ["all", "counts", "nodes", "pools"]
    assert sum(f.built for f in bench.fields.values()) <= 2


async def test_project_and_labels_for_cost_are_kept(bench: Bench) -> None:
    bench.fleets.fleet = replace(TWO, cost=CostRules(labels=("experiment", "model")))
    labels = {"experiment": "e1", "note": "x"}
    (made,) = await bench.submitter.submit([spec(project="llm", labels=labels)], ADA, by="ada")
    (row,) = await bench.ledger.jobs.rows(made.ids)
    assert (row.project, row.labels) == ("llm", {"experiment": "e1"})


async def test_an_array_is_a_job_a_task(bench: Bench) -> None:
    (made,) = await bench.submitter.submit([spec(1, array=(0, 2, 4))], ADA, by="ada")
    assert len(made.ids) == 3


async def test_the_same_key_gives_the_same_jobs_wherever_they_would_go_by_now(bench: Bench) -> None:
    jobs = [spec() for _ in range(4)]
    first = await bench.submitter.submit(jobs, ADA, by="ada", key="k")
    bench.now = 3.0
    again = await bench.submitter.submit(jobs, ADA, by="ada", key="k")
    assert [m.ids for m in again] == [m.ids for m in first]


async def test_nothing_is_kept_of_a_batch_with_a_bad_job(bench: Bench) -> None:
    with pytest.raises(NoPoolFits):
        await bench.submitter.submit([spec(), spec(9)], ADA, by="ada")
    with pytest.raises(NotAllowed):
        await bench.submitter.submit([spec(team="product")], ADA, by="ada")
    assert await bench.ledger.jobs.counts() == ()


async def test_a_pool_whose_engine_would_never_run_it_is_passed_over(bench: Bench) -> None:
    bench.fields[HPC].refused["odd"] = Refused("NoRacks", "knows no racks", "leave it out")
    (job,) = await bench.submitter.submit([spec(1, name="odd")], ADA, by="ada")
    assert job.placement.supply.pool == DEAR
    tried = await bench.submitter.dry_run(spec(1, name="odd"), ADA)
    assert tried.could_run
    assert [str(o.supply) for o in tried.options] == ["cloud-a100"]
    assert tried.preview.startswith("run odd-fw")
    bench.fields[CLOUD].refused["odd"] = Refused("NoRacks", "knows no racks either", "leave it out")
    never = await bench.submitter.dry_run(spec(1, name="odd"), ADA)
    assert (never.could_run, never.placement, never.preview) == (False, None, "")
    assert "hpc-a100 would refuse it: knows no racks;" in never.why
    assert never.hint == "leave it out"


async def test_before_a_fleet_there_is_nowhere_to_go(ledger: Ledger) -> None:
    bench = Bench(ledger, Fleet("", "", (), ()))
    with pytest.raises(PermanentError) as refused:
        await bench.submitter.submit([spec()], ADA, by="ada")
    assert refused.value.code == "NoFleet"


async def test_held_jobs_are_kept_held(bench: Bench) -> None:
    (made,) = await bench.submitter.submit([spec()], ADA, by="ada", hold=True)
    (row,) = await bench.ledger.jobs.rows(made.ids)
    assert row.state in {JobState.HELD, JobState.QUEUED}
    assert row.desired_state == "hold"


# what they print


async def test_each_attempt_is_read_from_its_own_engine_job(bench: Bench) -> None:
    (number,) = await submit(bench.ledger)
    await Dispatching(bench.ledger, bench.fields[HPC]).run()
    detail = await bench.ledger.jobs.one(number)
    assert detail is not None
    (current,) = bench.fields[HPC].jobs
    reader = JobLogReader(bench.ledger, bench.fleets, bench.held)
    none = await reader.read(detail, None, 0, 1000)
    assert (none.data, none.ended) == (b"", False)
    run = Attempt(detail.row.submitted_at, (), 1)
    earlier = EngineId("older")
    told = replace(
        detail,
        attempts=(
            StoredAttempt(1, earlier, run),
            StoredAttempt(2, earlier, run),
            StoredAttempt(3, current, run),
        ),
    )
    assert [await _words(reader, told, n) for n in (1, 2, 3, None)] == [
        ["1", "0", "older", "1"],
        ["1", "0", "older", "2"],
        ["1", "2", current, "1"],
        ["1", "2", current, "1"],
    ]
    with pytest.raises(PermanentError, match="no attempt 4"):
        await reader.read(told, 4, 0, 10)


async def test_a_native_job_says_where_to_look(bench: Bench) -> None:
    (number,) = await submit(bench.ledger)
    detail = await bench.ledger.jobs.one(number)
    assert detail is not None
    with pytest.raises(PermanentError) as refused:
        await JobLogReader(bench.ledger, bench.fleets, bench.held).read(
            replace(detail, spec=None), None, 0, 10
        )
    assert refused.value.code == "NoLog"


async def test_the_log_of_a_replica_is_its_pods(bench: Bench) -> None:
    (number,) = await submit(bench.ledger)
    await Dispatching(bench.ledger, bench.fields[HPC]).run()
    detail = await bench.ledger.jobs.one(number)
    assert detail is not None
    (current,) = bench.fields[HPC].jobs
    pods = [Attempt(detail.row.submitted_at, (), 1, replica=name) for name in ("web-0", "web-1", "web-0")]
    told = replace(
        detail, attempts=tuple(StoredAttempt(n, current, pod) for n, pod in enumerate(pods, start=1))
    )
    reader = JobLogReader(bench.ledger, bench.fleets, bench.held)
    assert [(await _words(reader, told, n))[-1] for n in (2, 3, None)] == ["web-1", "web-0", "web-0"]
    with pytest.raises(PermanentError, match="created anew"):
        await reader.read(told, 1, 0, 10)


async def _words(reader: JobLogReader, detail: JobDetail, attempt: int | None) -> list[str]:
    part = await reader.read(detail, attempt, 0, 1000)
    name, before, engine, number = part.data.decode().split()
    return [name.rpartition("-")[2], before, engine, number]
