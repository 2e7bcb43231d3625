"""A real Slurm of the lab without a policy, its jobs by Fairway's engine and by Slurm's own tools."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from fairway.engines.port import SubmitResult
from fairway.engines.slurm import SlurmEngine
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.model.job import (
    ENDED_JOBS,
    EngineId,
    EngineName,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Order,
    SeenJob,
    engine_name,
)
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from lab import Instance
from lab.slurm.fleet import POOLS
from tests.waiting import Deadline

FLEET = (
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  lab:
    engine: slurm
    url: {url}
    tools: {tools}
    credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }}
    logs: {logs}
    logs_seen_at: {logs_seen_at}
    checkpoints: /srv/logs
"""
    + POOLS
    + """\
teams:
  lab: {{ share: 1, guarantee: {{ gpu: 16 }}, members: [alice, bob, carol] }}
"""
)
GPU = Supply(PoolName("gpu"))


def fleet_of(instance: Instance) -> Fleet:
    return parse_fleet(FLEET.format(**instance.facts()), "fleet.yaml")


@dataclass
class Watch:
    """Follows a mirror as a server would: the latest of each job, and where to go on."""

    engine: SlurmEngine
    fleet: Fleet
    mark: str | None = None
    jobs: dict[str, SeenJob] = field(default_factory=dict)
    when: dict[tuple[str, JobState], float] = field(default_factory=dict)

    async def look(self) -> None:
        batch = await self.engine.changes(self.mark, self.fleet)
        self.mark = batch.mark
        for job in batch.jobs:
            self.jobs[job.engine_id] = merged(self.jobs.get(job.engine_id), job)
            self.when.setdefault((job.engine_id, job.state), time.time())

    async def until(
        self, true: Callable[[SeenJob], object], ids: Sequence[str], within: float = 30.0
    ) -> list[SeenJob]:
        """Look until it is true of each of these jobs."""
        deadline = Deadline(within)
        while True:
            await self.look()
            if all(number in self.jobs and true(self.jobs[number]) for number in ids):
                return [self.jobs[number] for number in ids]
            left = [self.jobs.get(i) for i in ids if i not in self.jobs or not true(self.jobs[i])]
            assert not deadline.passed, f"not within {within:g} s: {left[:3]}"


def merged(before: SeenJob | None, now: SeenJob) -> SeenJob:
    """As the ledger keeps it: attempts that the engine only counts stay as they were."""
    if before is None or not now.earlier_attempts:
        return now
    kept = before.attempts[: now.earlier_attempts]
    return replace(now, attempts=(*kept, *now.attempts), earlier_attempts=now.earlier_attempts - len(kept))


def over(job: SeenJob) -> bool:
    """Ended, and all is told: how an earlier attempt ended may only be in the accounting, a moment later."""
    told = not job.earlier_attempts and all(a.ended_at is not None for a in job.attempts)
    return job.state in ENDED_JOBS and told


_next = iter(range(random.SystemRandom().randrange(10**6, 10**9), 2**40))


def order(
    *command: str,
    user: str = "alice",
    gpus: int = 1,
    nodes: int = 1,
    supply: Supply = GPU,
    hold: bool = False,
    **spec: object,
) -> Order:
    """One that is new each time."""
    number = JobId(next(_next))
    told = JobSpec("test", GpuRequest(gpus), command=command, nodes=nodes, **spec)  # type: ignore[arg-type]
    return Order(
        job=number,
        submission=1,
        engine_name=engine_name("test", number, 1, "test"),
        spec=told,
        user=UserName(user),
        team=TeamName("lab"),
        priority=PriorityName("normal"),
        supply=supply,
        hold=hold,
    )


async def send(engine: SlurmEngine, fleet: Fleet, *orders: Order) -> list[str]:
    """All of them, and their numbers in the same order."""
    sent: list[SubmitResult] = [one async for one in engine.submit(orders, fleet)]
    numbers: dict[EngineName, EngineId] = {}
    for one in sent:
        assert one.engine_id is not None, one.refusal
        numbers[one.order.engine_name] = one.engine_id
    return [numbers[one.engine_name] for one in orders]


def sbatch(instance: Instance, user: str, *words: str) -> str:
    """A job as somebody sends it who does not know Fairway."""
    said = instance.run("sbatch", "--parsable", "--output=/dev/null", *words, user=user)
    return said.stdout.strip()


@dataclass(frozen=True, slots=True)
class Truth:
    """One record of sacct, read by the test's own means."""

    id: str
    state: str
    start: datetime | None
    end: datetime | None
    exit: str
    nodes: str
    gpus: int
    submit: datetime


def sacct(instance: Instance, ids: Sequence[str] = (), since: str = "now-3hours") -> dict[str, list[Truth]]:
    """Every attempt of every job, by JSON instead of columns: not what the engine reads."""
    asked = [f"--jobs={','.join(ids)}"] if ids else [f"--starttime={since}", "--allusers"]
    told = json.loads(instance.run("sacct", "-D", "--json", *asked, timeout=120).stdout)
    jobs: dict[str, list[Truth]] = {}
    for job in told["jobs"]:
        array, task = job["array"]["job_id"], job["array"]["task_id"]
        number = f"{array}_{task['number']}" if array and task["set"] else str(job["job_id"])
        times = job["time"]
        gpus = [t["count"] for t in job["tres"]["allocated"] if t["type"] == "gres" and t["name"] == "gpu"]
        code = job["exit_code"]
        jobs.setdefault(number, []).append(
            Truth(
                number,
                # a job sent back waits: the flag beside it tells how the attempt ended
                "REQUEUED" if "REQUEUED" in job["state"]["current"] else job["state"]["current"][0],
                _time(times["start"]),
                _time(times["end"]),
                f"{code['return_code'].get('number', 0)}:{code['signal']['id'].get('number', 0)}",
                job["nodes"],
                max(gpus, default=0),
                datetime.fromtimestamp(times["submission"], UTC),
            )
        )
    for some in jobs.values():
        some.sort(key=lambda truth: truth.submit)
    return jobs


def _time(seconds: int) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


async def in_thread(instance: Instance, *command: str) -> str:
    return (await asyncio.to_thread(instance.run, *command)).stdout.strip()
