"""Many random jobs on a real Slurm with everything that befalls them, and what sacct tells of each after."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from fairway.engines.slurm import SlurmEngine
from fairway.model.fleet import Fleet
from fairway.model.job import ENDED_JOBS, Ending, JobState, SeenJob
from lab import Instance
from tests.integration.jobs.slurm_jobs import Truth, Watch, order, over, sacct, sbatch, send
from tests.waiting import Deadline

ENDINGS = {
    "COMPLETED": Ending.DONE,
    "FAILED": Ending.FAILED,
    "CANCELLED": Ending.CANCELLED,
    "TIMEOUT": Ending.TIMED_OUT,
    "PREEMPTED": Ending.PREEMPTED,
    "NODE_FAIL": Ending.NODE_LOST,
    "REQUEUED": Ending.REQUEUED,
}
STATES = {
    Ending.DONE: JobState.DONE,
    Ending.FAILED: JobState.FAILED,
    Ending.CANCELLED: JobState.CANCELLED,
    Ending.TIMED_OUT: JobState.TIMED_OUT,
}
WAVE = 40


@dataclass
class Mix:
    """What is sent and what is done to it."""

    slurm: Instance
    engine: SlurmEngine
    fleet: Fleet
    dice: random.Random
    ids: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    takers: int = 0
    sent_all: bool = False

    async def run(self, count: int, watch: Watch, within: float) -> None:
        """All of them to their end, watched all the while."""
        looking = asyncio.create_task(self._look(watch, within))
        troubling = asyncio.create_task(self._trouble(watch))
        try:
            while len(self.ids) < count:
                await self._wave(min(WAVE, count - len(self.ids)))
                open_ = sum(
                    1 for i in self.ids if i not in watch.jobs or watch.jobs[i].state not in ENDED_JOBS
                )
                await asyncio.sleep(0.5 if open_ < 3 * WAVE else 3)
            self.sent_all = True
            await looking
        finally:
            for task in (looking, troubling):
                task.cancel()
            await asyncio.gather(looking, troubling, return_exceptions=True)

    async def _look(self, watch: Watch, within: float) -> None:
        deadline = Deadline(within)
        while True:
            await watch.look()
            left = [i for i in self.ids if i not in watch.jobs or not over(watch.jobs[i])]
            if self.sent_all and not left:
                return
            assert not deadline.passed, [watch.jobs.get(i) for i in left[:3]]

    async def _wave(self, count: int) -> None:
        orders = []
        for _ in range(count):
            kind = self.dice.choices(("ok", "fail", "long", "late", "array"), (10, 5, 6, 1, 1))[0]
            self.done[kind] += 1
            gpus = self.dice.choice((1, 1, 2, 4))
            seconds = f"{self.dice.uniform(0, 3):.1f}"
            if kind == "array":
                tasks = self.dice.randrange(2, 5)
                words = [f"--array=0-{tasks - 1}", f"--gres=gpu:a100:{gpus}", f"--wrap=sleep {seconds}"]
                number = await asyncio.to_thread(sbatch, self.slurm, "bob", *words)
                self.ids += [f"{number}_{task}" for task in range(tasks)]
            elif kind == "ok":
                orders.append(order("sleep", seconds, gpus=gpus))
            elif kind == "fail":
                code = self.dice.randrange(1, 200)
                orders.append(order("bash", "-c", f"sleep {seconds}; exit {code}", gpus=gpus))
            elif kind == "long":  # until something befalls it
                orders.append(order("sleep", "25", gpus=gpus, user="carol"))
            else:
                orders.append(order("sleep", "300", gpus=1, time_seconds=60))
        self.ids += await send(self.engine, self.fleet, *orders)

    async def _trouble(self, watch: Watch) -> None:
        """Cancelled, sent back, preempted, their node lost: by Slurm's own means."""
        for turn in range(10_000):
            await asyncio.sleep(self.dice.uniform(0.3, 1.0))
            runs = [j for j in watch.jobs.values() if j.engine_id in self.ids and j.state is JobState.RUNNING]
            waits = [
                j for j in watch.jobs.values() if j.engine_id in self.ids and j.state is JobState.WAITING
            ]
            if turn % 25 == 24:
                await self._say(
                    "node", "scontrol", "update", f"nodename={(n := self._node())}", "state=down", "reason=x"
                )
                await asyncio.sleep(2)
                await self._say("", "scontrol", "update", f"nodename={n}", "state=resume")
            elif turn % 12 == 11:
                words = ("--qos=taker", "--nodes=1", "--gres=gpu:a100:8", "--wrap=sleep 2")
                self.takers += 1
                await asyncio.to_thread(sbatch, self.slurm, "bob", *words)
            elif turn % 3 == 0 and runs:
                await self._say("requeue", "scontrol", "requeue", self.dice.choice(runs).engine_id)
            elif turn % 3 == 1 and runs:
                await self.engine.cancel([self.dice.choice(runs).engine_id])
                self.done["cancel running"] += 1
            elif waits:
                await self.engine.cancel([self.dice.choice(waits).engine_id])
                self.done["cancel waiting"] += 1

    def _node(self) -> str:
        return f"gpu{self.dice.randrange(1, 5):03}"

    async def _say(self, what: str, *command: str) -> None:
        if what:
            self.done[what] += 1
        await asyncio.to_thread(self.slurm.run, *command, check=False)  # it may be over meanwhile


def differences(slurm: Instance, jobs: dict[str, SeenJob], ids: list[str]) -> list[str]:
    """Everything in which the mirror and sacct do not agree."""
    found: list[str] = []
    for at in range(0, len(ids), 200):
        truths = sacct(slurm, ids[at : at + 200])
        for number in ids[at : at + 200]:
            found += _compare(jobs[number], truths.get(number, []))
    return found


def _compare(job: SeenJob, truths: list[Truth]) -> list[str]:
    said: list[str] = []

    def same(what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            said.append(f"{job.engine_id} {what}: {ours} but sacct {theirs}")

    never_ran = job.state in {JobState.CANCELLED, JobState.LOST} and not job.attempts
    if not truths and job.array_id is not None and never_ran:
        # Cancelled while its array waited as one: the accounting never hears of such a task, and slurmctld
        # forgets it after two seconds here. Whoever did not look in between only knows that it is gone.
        return []
    if not truths:
        return [f"{job.engine_id}: sacct does not know it"]
    ran = [truth for truth in truths if truth.nodes not in ("", "None assigned") and truth.start]
    same("attempts", len(job.attempts), len(ran))
    for n, (attempt, truth) in enumerate(zip(job.attempts, ran, strict=False), 1):
        same(f"attempt {n} start", attempt.started_at, truth.start)
        same(f"attempt {n} end", attempt.ended_at, truth.end)
        same(f"attempt {n} GPUs", attempt.devices, truth.gpus)
        same(f"attempt {n} ending", attempt.ending, ENDINGS.get(truth.state, truth.state))
        same(f"attempt {n} nodes", list(attempt.nodes), truth.nodes.split(","))
        if truth.state in ("COMPLETED", "FAILED"):
            same(f"attempt {n} exit", f"{attempt.exit_code or 0}:{attempt.signal or 0}", truth.exit)
    last = truths[-1]
    ending = ENDINGS.get(last.state)
    same("state", job.state, STATES.get(ending, last.state) if ending else last.state)
    same("end", job.ended_at, last.end)
    same("submission", job.submitted_at, truths[0].submit)
    return said
