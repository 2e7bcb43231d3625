"""Moves a real Slurm of the lab: sbatch, scontrol, and kill -9."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from fairway.engines.port import Observes
from fairway.engines.slurm import SlurmEngine
from fairway.model.fleet import Capacity, Cluster, Pool, SlurmConnection, SlurmPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from lab import Instance, find
from tests.contract.addresses import silent_port, unused_port
from tests.contract.driver import Driver, Kind, absent
from tests.waiting import eventually

_GPU = GpuType("A100-80GB", memory_gb=80)
_VERSIONS = {"slurm-24": "24.11", "slurm-26": "26.05"}


class SlurmDriver:
    def __init__(self, instance: Instance, scratch: Path) -> None:
        facts = instance.facts()
        self.instance = instance
        self.connection = SlurmConnection(
            facts["url"], user=facts["user"], jwt_key_file=facts["jwt_key_file"]
        )
        self.cluster = Cluster(ClusterName(instance.name), self.connection)
        self.whole = self.pool("whole", SlurmPlace("gpu", "a100"))
        self.sliced = self.pool("sliced", SlurmPlace("mig"), slices=("1g.10gb", "3g.40gb"))
        self._scratch = scratch

    def pool(self, name: str, place: SlurmPlace, slices: tuple[str, ...] = ()) -> Pool:
        return Pool(
            PoolName(name),
            self.cluster.name,
            _GPU,
            Capacity.OWNED,
            Decimal(1),
            place,
            slices=tuple(SliceName(profile) for profile in slices),
        )

    def engine(self, *pools: Pool) -> Observes:
        return SlurmEngine(self.cluster, pools)

    def reached_by(self, connection: SlurmConnection, *, timeout_seconds: float = 30) -> SlurmEngine:
        """An adapter that goes another way to the cluster, or astray."""
        return SlurmEngine(replace(self.cluster, connection=connection), (), timeout_seconds=timeout_seconds)

    def nobody_there(self) -> Observes:
        return self.reached_by(replace(self.connection, url=f"http://127.0.0.1:{unused_port()}"))

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[Observes]:
        async with silent_port() as port:
            yield self.reached_by(replace(self.connection, url=f"http://127.0.0.1:{port}"), timeout_seconds=2)

    def not_let_in(self) -> Observes:
        wrong = self._scratch / "jwt.key"
        wrong.write_bytes(b"not the key of this cluster at all")
        return self.reached_by(replace(self.connection, jwt_key_file=str(wrong)))

    async def counts(self) -> Mapping[Kind, int]:
        counted: dict[Kind, int] = {}
        for pool, partition in ((self.whole, "gpu"), (self.sliced, "mig")):
            lines = await self.run("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%G")
            for kind, count in re.findall(r"gpu:([\w.]+):(\d+)", lines):
                key = (pool.name, SliceName(kind) if kind in pool.slices else None)
                counted[key] = counted.get(key, 0) + int(count)
        return counted

    @asynccontextmanager
    async def held(
        self, pool: Pool, devices: int, slice_: SliceName | None = None
    ) -> AsyncIterator[NodeName]:
        assert isinstance(pool.place, SlurmPlace)
        partition, gres = pool.place.partition, slice_ or pool.place.gres
        await self._until(lambda: self._idle(partition), "a node is idle")
        node = self._idle(partition).split()[-1]  # other people's jobs start at the other end
        job = await self.run(
            "sbatch",
            "--parsable",
            "--account=lab",
            f"--partition={partition}",
            f"--nodelist={node}",
            f"--gres=gpu:{gres}:{devices}",
            "--time=5",
            "--output=/dev/null",
            "--wrap=sleep 300",
            user="alice",
        )
        try:
            await self._until(lambda: self._state(job) == "RUNNING", f"job {job} runs")
            yield NodeName(node)
        finally:
            await self.run("scancel", job)
            await self._until(
                lambda: self._state(job) in ("", "CANCELLED", "COMPLETED"), f"job {job} is gone"
            )

    @asynccontextmanager
    async def drained(self, node: NodeName, reason: str) -> AsyncIterator[None]:
        await self.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        try:
            yield
        finally:
            await self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    @asynccontextmanager
    async def lost(self, node: NodeName) -> AsyncIterator[None]:
        await asyncio.to_thread(self.instance.kill, node)
        try:
            yield
        finally:
            await asyncio.to_thread(self.instance.restart, node)
            await self._until(lambda: node in self._idle("gpu").split(), f"{node} is back", seconds=60)

    async def run(self, *command: str, user: str | None = None) -> str:
        done = await asyncio.to_thread(self.instance.run, *command, user=user)
        return done.stdout.strip()

    def _idle(self, partition: str) -> str:
        show = (
            "sinfo",
            "--noheader",
            "--Node",
            f"--partition={partition}",
            "--states=idle",
            "--format=%t %N",
        )
        lines = self.instance.run(*show).stdout.splitlines()
        return "\n".join(line.split()[1] for line in lines if line.split()[0] == "idle")

    def _state(self, job: str) -> str:
        return self.instance.run(
            "squeue", "--noheader", f"--jobs={job}", "--format=%T", check=False
        ).stdout.strip()

    async def _until(self, true: Callable[[], object], what: str, *, seconds: float = 45) -> None:
        await eventually(true, seconds, f"{self.instance.name}: {what}")


@asynccontextmanager
async def open_driver(name: str) -> AsyncIterator[Driver]:
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up slurm --name {name} --version {_VERSIONS[name]}")
    with TemporaryDirectory() as scratch:
        yield SlurmDriver(instance, Path(scratch))
