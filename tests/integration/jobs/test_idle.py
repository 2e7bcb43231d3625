"""Idle rules on real engines: warn, lower, requeue from a checkpoint and cancel, as the rule is written.

Windows of GPU use are written into the ledger, in the time after the jobs began, and the loop's clock is
there too: reading them from Prometheus is tested elsewhere. Everything else is real: the ledger, the loops
that send and mirror jobs, the engine, and its jobs, Fairway's own and native ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.dispatch import DispatchJobs
from fairway.control.loops.idle import ApplyIdleRules
from fairway.control.loops.mirror import MirrorJobs
from fairway.control.metrics import JobMetrics
from fairway.engines.kubernetes.jobs.demote import RESUMES as RESUMES_ANNOTATION
from fairway.engines.port import Unreachable
from fairway.engines.slurm.jobs.demote import RESUMES as RESUMES_COMMENT
from fairway.ledger import JobDetail, Lease, Ledger
from fairway.ledger.jobs.attempts import SAME_START
from fairway.ledger.records.jobs import JobFilter, NewJob
from fairway.model.apply import ApplyState
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleOutcome, IdleRule, IdleRules, IdleStep
from fairway.model.job import GpuRequest, JobId, JobSpec, JobState, Placement, Tolerates
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from fairway.server import build_engine
from fairway.services.fleets import Fleets, LastApplied
from lab import Instance
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError
from lab.slurm import configure
from tests.integration.jobs import kubernetes_jobs, slurm_jobs
from tests.integration.policy.policy_lab import governed
from tests.waiting import Deadline

pytestmark = pytest.mark.timeout(300)

LAB: Final = ClusterName("lab")
RESUMABLE = (
    "f=$FAIRWAY_CHECKPOINT_DIR/step; "
    "if [ -e $f ]; then echo resumed from $(cat $f); else echo 41 > $f; echo fresh; fi; sleep 600"
)
LADDER = IdleRule(
    "notebooks",
    Decimal("0.01"),
    600,
    tuple(IdleStep(action, 300 * bool(n)) for n, action in enumerate(IdleAction)),
    dry_run=False,
)


class Target(ABC):
    """A real cluster of the lab."""

    team: str
    pool: str
    """Where jobs really run."""
    image: str | None = None

    def __init__(self, instance: Instance, fleet: Fleet) -> None:
        self.instance, self.fleet = instance, fleet

    @abstractmethod
    def native(self, name: str, *, resumes: bool = False, user: str = "alice") -> None:
        """A job that runs on, made past Fairway."""

    @abstractmethod
    def priority(self, engine_id: str) -> int:
        """The lower, the earlier it gives way."""

    @abstractmethod
    def record(self, engine_id: str) -> Any:
        """Everything of a job that somebody could change."""

    @abstractmethod
    def clear(self) -> None: ...


class SlurmTarget(Target):
    team, pool = "lab", "gpu"

    def native(self, name: str, *, resumes: bool = False, user: str = "alice") -> None:
        said = [f"--comment={RESUMES_COMMENT}"] if resumes else []
        words = ("--gres=gpu:a100:1", f"--job-name={name}", *said, "--wrap", "sleep 600")
        slurm_jobs.sbatch(self.instance, user, *words)

    def priority(self, engine_id: str) -> int:
        said = self.instance.run("squeue", "--noheader", "--format=%y", f"--jobs={engine_id}").stdout
        return -int(said.strip())

    def record(self, engine_id: str) -> Any:
        told = json.loads(self.instance.run("scontrol", "--json", "show", "job", engine_id).stdout)["jobs"][0]
        words = ("job_state", "nice", "admin_comment", "comment", "restart_cnt", "start_time", "qos")
        return {word: told[word] for word in words}

    def clear(self) -> None:
        self.instance.run("scancel", "--account=lab", check=False)


class KubernetesTarget(Target):
    team, pool, image = "ml", "real", kubernetes_jobs.IMAGE

    @property
    def api(self) -> Api:
        return Api.from_kubeconfig(Path(self.instance.facts()["kubeconfig"]))

    def native(self, name: str, *, resumes: bool = False, user: str = "alice") -> None:
        job = kubernetes_jobs.native(name, annotations={RESUMES_ANNOTATION: "true"} if resumes else {})
        (container,) = job["spec"]["template"]["spec"]["containers"]
        container["env"] = [{"name": kwok.RUN_FOR_ENV, "value": "600s"}]
        own = Api.from_kubeconfig(Path(self.instance.env()[f"{user.upper()}_KUBECONFIG"]))
        kubernetes_jobs.create(own, self.team, job)

    def priority(self, engine_id: str) -> int:
        return int(self._workload(engine_id)["spec"]["priority"])

    def record(self, engine_id: str) -> Any:
        namespace, name = engine_id.split("/")[:2]
        job = self.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
        return job["metadata"]["labels"], job["spec"], self._workload(engine_id)["spec"]

    def _workload(self, engine_id: str) -> Mapping[str, Any]:
        namespace, name = engine_id.split("/")[:2]
        path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads"
        found = self.api.get(path)["items"]
        one: Mapping[str, Any] = next(w for w in found if w["metadata"]["ownerReferences"][0]["name"] == name)
        return one

    def clear(self) -> None:
        path = f"/apis/batch/v1/namespaces/{self.team}/jobs"
        with suppress(ApiError):
            for job in self.api.get(path)["items"]:
                self.api.delete(f"{path}/{job['metadata']['name']}?propagationPolicy=Background")


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Target]:
    instance = governed(name).instance
    if name == "kubernetes":
        stage = kubernetes_jobs.Stage.of(instance, str(folder))
        asyncio.run(stage.apply())
        yield KubernetesTarget(instance, stage.fleet)
        asyncio.run(governed("kubernetes").clear())
        return
    # Where the small job runs that requeues another on 24.11: the advised slurm.conf has it.
    configure(instance, ["PartitionName=gpu-lent Nodes=gpu[001-004] State=UP"])
    yield SlurmTarget(instance, slurm_jobs.fleet_of(instance))
    configure(instance, [])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("slurm-24", marks=[pytest.mark.slurm, pytest.mark.lab]),
        pytest.param("slurm-26", marks=[pytest.mark.slurm, pytest.mark.lab]),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ],
)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("checkpoints")
    folder.chmod(0o1777)
    with opened(request.param, folder) as found:
        yield found


class Line:
    """The loops of one server, step by step, on a clock that is ahead of the engine's."""

    def __init__(self, ledger: Ledger, db: psycopg.Connection[Any], target: Target) -> None:
        self.ledger, self.db, self.target = ledger, db, target
        self.began = (int(time.time()) // WINDOW_SECONDS + 2) * WINDOW_SECONDS
        """After every job of the test has started, by the engine's clock."""
        self.read_to = self.began
        applied, metrics = self._applied(target.fleet), JobMetrics(CollectorRegistry())
        self.dispatch = DispatchJobs(LAB, self.build, ledger, applied, metrics)
        self.mirror = MirrorJobs(LAB, self.build, ledger, applied, metrics)
        self.idle = self.governed_by(LADDER)
        self.leases: dict[str, Lease] = {}

    def build(self) -> Any:
        (cluster,) = self.target.fleet.clusters
        return build_engine(cluster, self.target.fleet.pools)

    def _applied(self, fleet: Fleet) -> LastApplied:
        return LastApplied(LAB, self.ledger, Fleets(self.ledger, lambda _: fleet))

    def governed_by(self, rule: IdleRule) -> ApplyIdleRules:
        """The loop under a fleet with this rule."""
        applied = self._applied(replace(self.target.fleet, idle=IdleRules((rule,))))
        return ApplyIdleRules(LAB, self.build, self.ledger, applied, clock=lambda: self.read_to + 60.0)

    async def start(self) -> None:
        number = await self.ledger.applies.queue("fleet", "fleet", {LAB: "f"}, force=False, by="test")
        for loop in ("apply", "dispatch", "mirror", "idle"):
            lease = await self.ledger.leases.take(loop, LAB, "test", 600)
            assert lease is not None
            self.leases[loop] = lease
        async with self.ledger.writing(self.leases["apply"]) as tx:
            await tx.applies.start(number, [])
            await tx.applies.finish(number, ApplyState.DONE, [], error=None, applied=True)

    async def stop(self) -> None:
        for loop in (self.dispatch, self.mirror, self.idle):
            await loop.close()

    async def submit(self, *command: str, tolerates: frozenset[Tolerates]) -> JobId:
        spec = JobSpec("finetune", GpuRequest(1), command, image=self.target.image, tolerates=tolerates)
        place = Placement(LAB, Supply(PoolName(self.target.pool)), "the test's")
        new = NewJob(spec, UserName("alice"), TeamName(self.target.team), PriorityName("normal"), place)
        ((number,),) = await self.ledger.jobs.submit([new], by="test")
        return number

    async def native(self, name: str, **more: Any) -> JobId:
        await asyncio.to_thread(lambda: self.target.native(name, **more))
        deadline = Deadline(45)
        while True:
            rows = await self.ledger.jobs.page(JobFilter(cluster=LAB, name=name, states=(JobState.RUNNING,)))
            if rows:
                return rows[0].id
            assert not deadline.passed, f"{name} was not seen running"
            await self.mirror(self.leases["mirror"])

    async def until(self, job: JobId, true: Callable[[JobDetail], object], within: float = 90) -> JobDetail:
        deadline = Deadline(within)
        while True:
            found = await self.ledger.jobs.one(job)
            assert found is not None
            if true(found):
                return found
            assert not deadline.passed, f"not within {within:g} s: {found.row}, {found.attempts}"
            with suppress(Unreachable):  # a policy that was just applied may not be in force yet
                await self.dispatch(self.leases["dispatch"])
            await self.mirror(self.leases["mirror"])

    async def running(self, job: JobId) -> JobDetail:
        return await self.until(job, lambda found: found.row.state is JobState.RUNNING)

    async def pass_idle(self, seconds: int, *jobs: JobId, busy: float = 0.0) -> None:
        """So much time passes in which these jobs do nothing, and the rules decide after each window."""
        for _ in range(seconds // WINDOW_SECONDS):
            for job in jobs:
                self.db.execute(
                    "INSERT INTO job_window VALUES (%s, to_timestamp(%s), 'lab', 300, %s, 1, 1)",
                    (job, self.read_to, 300 * busy),
                )
            self.read_to += WINDOW_SECONDS
            self.db.execute(
                "INSERT INTO telemetry_mark VALUES ('lab', to_timestamp(%s), 15)"
                " ON CONFLICT (cluster) DO UPDATE SET read_to = excluded.read_to",
                (self.read_to,),
            )
            await self.decide()

    async def decide(self) -> None:
        """As the loop does: again while the engine still works on it."""
        deadline = Deadline(60)
        while True:
            with suppress(Exception):
                await self.idle(self.leases["idle"])
                return
            assert not deadline.passed

    async def steps(self, job: JobId) -> list[tuple[IdleAction, IdleOutcome | None]]:
        return [(s.action, s.outcome) for s in (await self.ledger.idle.steps([job])).get(job, ())]

    def notices(self) -> list[str]:
        return [row[0] for row in self.db.execute("SELECT subject FROM notice ORDER BY id")]

    async def log(self, job: JobId, attempt: int) -> str:
        order = await self.ledger.dispatch.order_of(job)
        detail = await self.ledger.jobs.one(job)
        assert order is not None
        assert detail is not None
        assert detail.row.engine_id is not None
        engine = self.build()
        try:
            part = await engine.read_log(order.order(), detail.row.engine_id, attempt, 0, 4096)
        finally:
            await engine.close()
        text: str = part.data.decode()
        return text


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def line(ledger: Ledger, db: psycopg.Connection[Any], target: Target) -> AsyncIterator[Line]:
    made = Line(ledger, db, target)
    await made.start()
    yield made
    await made.stop()
    await asyncio.to_thread(target.clear)


DONE: Final = IdleOutcome.DONE


async def test_warned_lowered_requeued_from_a_checkpoint_and_cancelled(line: Line) -> None:
    ours = await line.submit("bash", "-c", RESUMABLE, tolerates=frozenset({Tolerates.PREEMPTION}))
    native = await line.native("forgotten")
    first = await line.running(ours)
    ids = [str(row.engine_id) for row in await line.ledger.jobs.rows([ours, native])]
    before = [await asyncio.to_thread(line.target.priority, id_) for id_ in ids]

    await line.pass_idle(600, ours, native)
    assert await line.steps(ours) == await line.steps(native) == [(IdleAction.WARN, DONE)]
    assert len(line.notices()) == 2

    await line.pass_idle(300, ours, native)
    assert await line.steps(ours) == [(IdleAction.WARN, DONE), (IdleAction.LOWER, DONE)]
    lowered = [await asyncio.to_thread(line.target.priority, id_) for id_ in ids]
    assert all(now < was for now, was in zip(lowered, before, strict=True)), (before, lowered)

    await line.pass_idle(300, ours, native)
    assert (await line.steps(ours))[-1] == (IdleAction.REQUEUE, DONE)
    assert (await line.steps(native))[-1] == (IdleAction.REQUEUE, IdleOutcome.SKIPPED)
    again = await line.until(
        ours, lambda found: found.row.state is JobState.RUNNING and found.row.attempts == 2
    )
    assert again.row.engine_id == first.row.engine_id

    await line.pass_idle(300, native)
    assert (await line.steps(native))[-1] == (IdleAction.CANCEL, DONE)
    gone = await line.until(native, lambda found: found.row.state is JobState.CANCELLED)
    assert gone.events[-1].by == "idle rule notebooks"
    assert len(await line.steps(ours)) == 3  # it runs anew, and nothing is known of it yet

    deadline = Deadline(30)
    while "resumed from 41" not in (text := await line.log(ours, 2)):
        assert not deadline.passed, text
        await asyncio.sleep(0.2)


@pytest.mark.nightly(
    "25 s an engine; CI requeues a job of Fairway's, and what marks a native one is a unit test"
)
async def test_a_native_job_that_says_so_is_requeued(line: Line) -> None:
    line.idle = line.governed_by(replace(LADDER, steps=(IdleStep(IdleAction.REQUEUE, 0),)))
    job = await line.native("resumes", resumes=True)
    # Two starts that are this close would be taken for one; an idle job has run for much longer.
    await line.until(
        job, lambda found: datetime.now(UTC) > found.attempts[-1].attempt.started_at + 2 * SAME_START
    )
    await line.pass_idle(600, job)
    assert await line.steps(job) == [(IdleAction.REQUEUE, DONE)]
    await line.until(job, lambda found: found.row.state is JobState.RUNNING and found.row.attempts == 2)


async def test_exempt_kept_and_busy_jobs_and_a_dry_run_change_nothing(line: Line) -> None:
    exempt = replace(LADDER, except_users=(UserName("carol"),), except_jobs=("serve-*",))
    line.idle = line.governed_by(exempt)
    jobs = {
        "carols": await line.native("carols", user="carol"),
        "serve-llm": await line.native("serve-llm"),
        "kept": await line.native("kept"),
        "busy": await line.native("busy"),
    }
    until = datetime.fromtimestamp(line.began + 86_400, UTC)
    await line.ledger.idle.keep([jobs["kept"]], until, "alice", "")
    ids = [str(row.engine_id) for row in await line.ledger.jobs.rows(list(jobs.values()))]
    before = [await asyncio.to_thread(line.target.record, id_) for id_ in ids]
    idle = [job for name, job in jobs.items() if name != "busy"]
    for _ in range(6):
        line.db.execute(
            "INSERT INTO job_window VALUES (%s, to_timestamp(%s), 'lab', 300, 150, 1, 0)",
            (jobs["busy"], line.read_to),
        )
        await line.pass_idle(300, *idle)
    assert [await line.steps(job) for job in jobs.values()] == [[], [], [], []]

    await line.idle.close()
    line.idle = line.governed_by(replace(LADDER, dry_run=True))
    await line.pass_idle(1800, jobs["carols"], jobs["serve-llm"])
    for name in ("carols", "serve-llm"):
        assert await line.steps(jobs[name]) == [(action, IdleOutcome.DRY_RUN) for action in IdleAction]
    assert [await asyncio.to_thread(line.target.record, id_) for id_ in ids] == before
    assert line.notices() == []
