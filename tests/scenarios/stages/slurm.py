"""The hand on a real Slurm of the lab: sbatch, squeue, scancel and scontrol as the people who use them."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.render import render_slurm
from fairway.files import parse_fleet
from fairway.services.plans import plan_cluster
from lab import find
from lab.processes import PROC, Process
from lab.slurm import configure
from lab.slurm.config import JOB_SUBMIT
from lab.slurm.site import Site, expanded
from tests.contract.driver import absent
from tests.plans import apply_plan
from tests.scenarios.hand import Denied, JobSeen, Order, State
from tests.slurm_conf import conf_lines, slurm_lines
from tests.waiting import eventually

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.model.fleet import Fleet
    from fairway.policy.objects import Translation
    from lab.instance import Instance

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: scenarios
currency: USD
clusters:
  lab:
    engine: slurm
    url: {url}
    credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }}
    existing_workloads: refuse # the promises are about everybody's GPU work
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: {{ {gpu}, gres: a100 }}
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    slurm: {{ partition: {mig} }}
  spot:
    cluster: lab
    gpu: A100-80GB
    capacity: spot
    price: 0.60
    slurm: {{ partition: {spot}, gres: a100 }}
"""
PARTITIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "": {"gpu": ["gpu"], "mig": ["mig"], "spot": ["spot"]},
    "institute": {"gpu": ["batch", "debug"], "mig": ["slices"], "spot": ["preempt"]},
    "company": {"gpu": ["train", "scavenge"], "mig": ["mig"], "spot": ["cheap"]},
}
"""The partitions of each pool, by the lab's site; the empty name is the lab's own configuration."""
WAYS = ("--gres=gpu:N", "--gres=gpu:a100:N", "--gpus=N", "--gpus-per-node=N", "--gpus-per-task=N")
SAMPLE_SECONDS = 0.1
MAX_SAMPLES = 2000
NODES_A_RACK = 2
SITE_WEIGH_SECONDS = 30.0
LONG_MINUTES = 30
COLUMNS = {"JobID": 12, "StateCompact": 4, "RestartCnt": 6, "tres-alloc": 160, "Reason": 70, "NodeList": 80}
TAKES_WORK = {"idle", "mixed", "allocated", "completing"}
DONE, WAITING, RUNNING, ENDING = "CD", {"PD", "RQ", "RS", "RH", "SE", "S", "CF"}, "R", {"CG", "SO", "SI"}


class SlurmHand:
    ways: Sequence[str] = WAYS
    stranger = "fairway"

    def __init__(self, instance: Instance) -> None:
        facts = instance.facts()
        self.instance = instance
        self.site = Site(instance.site) if instance.site else None
        self.name = f"slurm-{instance.site or instance.version}"
        self._partitions = PARTITIONS[instance.site]
        gpu, *others = self._partitions["gpu"]
        also = f", other_partitions: [{', '.join(others)}]" if others else ""
        names = {pool: partitions[0] for pool, partitions in self._partitions.items()}
        self.head = HEAD.format(**facts, **(names | {"gpu": f"partition: {gpu}{also}"}))
        self.script: Callable[[str], str] = lambda lua: lua
        """What becomes of the rendered script before it is installed; for planted faults."""
        self._mine: set[str] = set()
        self._floor = 0
        """Jobs up to this one are of scenarios before."""
        self._looks: deque[dict[str, JobSeen]] = deque(maxlen=MAX_SAMPLES)
        self._sampling = threading.Lock()
        self._lost: set[str] = set()
        self._weighed = 0.0

    # the policy

    def engine(self, fleet: Fleet) -> Governs:
        cluster = fleet.clusters[0]
        return SlurmEngine(cluster, fleet.pools_of(cluster.name))

    async def configure(self, fleet: Fleet, wanted: Translation) -> None:
        """Install what `fairway render slurm` writes."""
        found = await self.engine(fleet).find_policy()
        files = render_slurm(fleet, fleet.clusters[0].name, found=found.settings)
        await asyncio.to_thread(self._install, files)

    def _install(self, files: Mapping[str, str]) -> None:
        configure(
            self.instance,
            slurm_lines(files),
            self.script(files["job_submit.lua"]),
            conf_lines(files["slurmdbd.conf"]),
        )

    async def take_down(self) -> None:
        """Leave the cluster as the lab makes it, for whoever comes next: files first, they name our QOS."""
        await self.clear()
        script = self.site.text("job_submit.lua") if self.site else JOB_SUBMIT
        await asyncio.to_thread(configure, self.instance, [], script or JOB_SUBMIT)
        fleet = parse_fleet(self.head, f"{self.name}.yaml")
        engine = self.engine(fleet)
        try:
            plan = await plan_cluster(engine, fleet, fleet.clusters[0].name)
            applied = await apply_plan(engine, plan, force=True)
            assert applied.refusal is None, applied.refusal
        finally:
            await engine.close()

    async def weigh(self) -> None:
        """Slurm counts use every PriorityCalcPeriod, a minute at least, and when it is configured anew.

        That begins backfill's interval anew too, and on a site it is longer than a scenario's steps.
        """
        if self.site and self.now() - self._weighed < SITE_WEIGH_SECONDS:
            return
        self._weighed = self.now()
        await asyncio.to_thread(self.instance.run, "scontrol", "reconfigure")
        await asyncio.sleep(0.5)

    # users

    async def submit(self, order: Order) -> str:
        return await self._sbatch(order.user, *arguments(self._here(order)))

    def _here(self, order: Order) -> Order:
        """The order with the pool's partition on this cluster."""
        return replace(order, pool=self._partitions[order.pool][0])

    async def _sbatch(self, user: str, *words: str) -> str:
        said = await self._as(user, "sbatch", "--parsable", *words)
        job = said.splitlines()[-1].partition(";")[0]
        self._mine.add(job)
        return job

    async def _as(self, user: str, *command: str) -> str:
        """Run a tool as somebody; what it says on failure is a Denied."""
        done = await asyncio.to_thread(self.instance.run, *command, user=user, check=False)
        if done.returncode:
            words = [
                line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in _lines(done.stderr)
            ]
            raise Denied(" | ".join(words))
        return done.stdout.strip()

    async def cancel(self, job: str, user: str) -> str:
        done = await asyncio.to_thread(self.instance.run, "scancel", job, user=user, check=False)
        if "error" in done.stderr:  # scancel says so, but may end with 0
            raise Denied(" | ".join(_lines(done.stderr)))
        return done.stdout.strip()

    async def read(self, job: str, user: str) -> str:
        log = re.search(r"StdOut=(\S+)", self.instance.run("scontrol", "show", "job", job).stdout)
        seen, refusals = "", []
        for command in (
            ("squeue", "--noheader", "--states=all", f"--jobs={job}"),
            ("scontrol", "show", "job", job),
            ("sacct", "--noheader", "--allusers", "--parsable2", f"--jobs={job}"),
            ("cat", log[1] if log else ""),
        ):
            try:
                seen += await self._as(user, *command)
            except Denied as refusal:
                refusals.append(f"{command[0]}: {refusal}")
        if not seen:
            raise Denied("; ".join([*refusals, "sacct: nothing"]))
        return seen

    async def change(self, job: str, user: str) -> str:
        return await self._as(user, "scontrol", "update", f"JobId={job}", "TimeLimit=1")

    async def smuggle(self, order: Order) -> Mapping[str, str]:
        order = self._here(order)
        gpu = self._partitions["gpu"][0]
        plain = [
            "--output=/dev/null",
            f"--partition={order.pool}",
            f"--gres=gpu:{order.slice}:1",
            "--wrap=sleep 60",
        ]
        ways = {
            "naming a QOS": [*plain, "--qos=lent"],
            "as low": [*plain, "--qos=low"],
            "two partitions": [*plain, f"--partition={gpu},{order.pool}"],
            "the lent partition": [*plain, f"--partition={order.pool}-lent"],
            "--gpus": [*plain[:2], f"--gpus={order.slice}:1", plain[-1]],
        }
        came = {way: await self._tried(order.user, words) for way, words in ways.items()}
        moved = await self._sbatch(
            order.user,
            "--output=/dev/null",
            f"--partition={gpu}",
            "--gres=gpu:1",
            "--begin=now+600",
            "--wrap=sleep 60",
        )
        try:
            await self._as(
                order.user,
                "scontrol",
                "update",
                f"JobId={moved}",
                f"Partition={order.pool}",
                f"Gres=gpu:{order.slice}:1",
                "StartTime=now",
            )
            came["moved while it waits"] = moved
        except Denied as refusal:
            came["moved while it waits"] = f"refused: {refusal}"
        return came

    async def _tried(self, user: str, words: Sequence[str]) -> str:
        try:
            return await self._sbatch(user, *words)
        except Denied as refusal:
            return f"refused: {refusal}"

    # eyes

    async def look(self) -> Sequence[Mapping[str, JobSeen]]:
        await asyncio.to_thread(self._sample)
        looks = [self._looks.popleft() for _ in range(len(self._looks))]
        return [{job: seen for job, seen in look.items() if job in self._mine} for look in looks]

    def _sample(self) -> None:
        shape = ",".join(f"{name}:{width}" for name, width in COLUMNS.items())
        with self._sampling:  # so that samples are kept in the order in which they were taken
            said = self.instance.run(
                "squeue", "--noheader", "--all", "--states=all", f"--Format={shape}"
            ).stdout
            rows = (_fields(line) for line in said.splitlines())
            self._looks.append({job: job_seen(*rest) for job, *rest in rows if int(job) > self._floor})

    async def keep_sampling(self) -> None:
        """Look all the time, whatever else a scenario does meanwhile."""
        while True:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def words(self, job: str) -> str:
        said = await asyncio.to_thread(self.instance.run, "scontrol", "show", "job", job, check=False)
        shown = dict(re.findall(r"(JobState|Reason|QOS|Partition|Restarts)=(\S+)", said.stdout))
        log = self.instance.log("slurmctld")
        return " ".join(f"{k}={v}" for k, v in shown.items()) + last_line(log, f"JobId={job} ")

    # nodes

    def rack(self, node: str) -> str:
        return f"rack{1 + (int(node[-3:]) - 1) // NODES_A_RACK}"

    async def lose(self, node: str) -> None:
        self._lost.add(node)
        await asyncio.to_thread(self._lose, node)

    def _lose(self, node: str) -> None:
        said = self.instance.run("squeue", "--noheader", f"--nodelist={node}", "--Format=JobID:12").stdout
        self.instance.kill(node)
        for job in said.split():
            for process in _of_job(self.instance, job):
                process.send(9)

    async def restore(self, node: str) -> None:
        await asyncio.to_thread(self.instance.restart, node)
        await eventually(lambda: self._state(node) in TAKES_WORK, 60, f"{node} is back")
        self._lost.discard(node)

    def _state(self, node: str) -> str:
        said = self.instance.run(
            "sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T"
        ).stdout.split()
        return said[0] if said and "*" not in said[0] else ""

    async def clear(self) -> None:
        for node in tuple(self._lost):
            await self.restore(node)

        def idle() -> bool:
            left = self.instance.run("squeue", "--noheader", "--all", "--Format=JobID:12").stdout.split()
            if left:
                self.instance.run("scancel", *left, check=False)
            return not left

        await eventually(idle, 90, "every job is gone")
        await asyncio.to_thread(
            self.instance.run, "sacctmgr", "-i", "modify", "account", "root", "set", "RawUsage=0"
        )
        self._floor = max([self._floor, *map(int, self._mine)])
        self._mine.clear()
        self._looks.clear()

    def now(self) -> float:
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def arguments(order: Order) -> list[str]:
    """A job as people write it for sbatch."""
    minutes = LONG_MINUTES if order.limit_seconds is None else max(1, -(-order.limit_seconds // 60))
    kind = f"{order.slice}:" if order.slice else ""
    words = [
        f"--nodes={order.nodes}",
        f"--time={minutes}",
        f"--partition={order.pool}",
        f"--output={'%j.log' if order.log else '/dev/null'}",
        f"--wrap={'echo begun; ' if order.log else ''}sleep {order.seconds:g}",
        (order.way or f"--gres=gpu:{kind}N").replace("N", str(order.gpus)),
    ]
    if order.way == "--gpus-per-task=N":
        words.append(f"--ntasks={order.nodes}")
    if order.team:
        words.append(f"--account={order.team}")
    if order.priority:
        words.append(f"--qos={order.priority}")
    if order.together:
        words.append("--switches=1")
    if order.tolerates_loss:
        words.append("--comment=tolerates-loss")
    if order.last:
        words.append("--nice=150000")
    return words


def job_seen(state: str, restarts: str, tres: str, reason: str, nodes: str) -> JobSeen:
    """One line of squeue. A job that is ending still holds its devices; what comes after it is open."""
    count = int(restarts or 0)
    if state == RUNNING or state in ENDING:
        devices = re.search(r"gres/gpu=(\d+)", tres)
        held = int(devices[1]) if devices else 0
        if state in ENDING and (had := re.search(r"node=(\d+)", tres)):
            # Its nodes come free one by one; squeue names those it still has, and all the devices it had.
            held = held * len(expanded(nodes)) // max(1, int(had[1]))
        kind = State.RUNNING if state == RUNNING else State.WAITING
        reason = "" if kind is State.RUNNING else state
        return JobSeen(kind, count + 1, expanded(nodes), held, reason, ending=state in ENDING)
    if state in WAITING:
        return JobSeen(State.WAITING, count, reason=reason)
    return JobSeen(State.DONE if state == DONE else State.ENDED, count + 1, reason=f"{state} {reason}")


def last_line(log: Path, about: str) -> str:
    """The daemon's last word about something, of what it said lately."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 200_000))
        found = [line for line in file.read().decode(errors="replace").splitlines() if about in line]
    return f" [slurmctld: {found[-1].partition('] ')[2] or found[-1]}]" if found else ""


def _fields(line: str) -> list[str]:
    fields, at = [], 0
    for width in COLUMNS.values():
        fields.append(line[at : at + width].strip())
        at += width
    return fields


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_job(instance: Instance, job: str) -> list[Process]:
    """The job's stepds, then everything below them: one that outlives its job would still report its end."""
    mine = {process.pid: process for process in instance.processes()}
    stepds = [pid for pid in mine if f"slurmstepd: [{job}." in _title(pid)]
    parents = {pid: _parent(pid) for pid in mine}
    doomed = list(stepds)
    for pid in doomed:
        doomed += [child for child, parent in parents.items() if parent == pid and child not in doomed]
    return [mine[pid] for pid in doomed]


def _title(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


@asynccontextmanager
async def open_hand(name: str) -> AsyncIterator[SlurmHand]:
    """The hand on the lab's instance `name`."""
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up slurm --name {name} --spot-nodes 2")
    hand = SlurmHand(instance)
    await hand.clear()
    sampler = asyncio.create_task(hand.keep_sampling())
    try:
        yield hand
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
        await hand.take_down()
