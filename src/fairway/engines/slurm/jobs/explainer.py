"""Ask slurmctld why a job waits, and whether any node could hold one that is about to be submitted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from fairway.engines.port import Unreachable
from fairway.engines.slurm.jobs import explain
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.jobs.explain import (
    LimitedPartition,
    LimitedPartitionsReply,
    NodeRequest,
    SizedNode,
    SizedNodesReply,
    WaitingJob,
    WaitingJobReply,
)
from fairway.engines.slurm.nodes.devices import devices_per_gpu
from fairway.engines.slurm.policy.partitions import sites
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.explain.findings import WaitFacts
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, Fleet
from fairway.model.job import EngineId, Order

SIZES_SECONDS: Final = 60.0
"""How long the sizes of nodes and the limits of partitions are cached for submissions."""
_Sizes = tuple[tuple[LimitedPartition, ...], tuple[SizedNode, ...]]


class SlurmExplainer:
    """Explains jobs of one cluster."""

    def __init__(
        self,
        rest: SlurmRest,
        commands: SlurmCommands,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rest = rest
        self._commands = commands
        self._cluster = cluster
        self._clock = clock
        self._sizes: tuple[float, _Sizes] | None = None

    async def explain(self, engine_id: EngineId) -> WaitFacts | None:
        """Return why a job waits. Returns None if slurmctld does not have it."""
        jobs = (await self._rest.get_typed(f"job/{engine_id}", WaitingJobReply)).jobs
        if not jobs:
            return None
        (partitions, nodes), ahead = await asyncio.gather(self._read_sizes(), self._ahead(jobs[0]))
        facts = explain.explain(jobs[0], partitions, nodes, datetime.now(UTC))
        return replace(facts, ahead=ahead, ahead_count=len(ahead))

    async def never_fits(self, order: Order, fleet: Fleet) -> Refused | None:
        """Return why no node of the order's partition can ever hold it. Returns None if one can."""
        site = next((s for s in sites(fleet, self._cluster.name, {}) if s.supply == order.supply), None)
        if site is None:
            return None
        try:
            partitions, nodes = await self._cached_sizes()
        except Unreachable:
            return None  # it is kept, and sent when the cluster answers
        spec = order.spec
        request = NodeRequest(
            gpus=-(-spec.gpus.count // devices_per_gpu(order.supply.slice)),
            gpu_type=site.gres,
            cpus=spec.cpus or 1,
            memory_mb=(spec.memory_gb or 0) * 1024,
            nodes=spec.nodes,
            minutes=-(-(spec.time_seconds or 0) // 60),
        )
        there = [n for n in nodes if site.partition in n.partitions]
        found = explain.never_fits(request, [p for p in partitions if p.name == site.partition], there)
        if found is None:
            return None
        if found.code == "TimeAbovePartition":
            return Refused("TimeTooLong", found.text, "request less time:  scontrol show partition")
        return Refused(
            "CannotFit",
            found.text,
            "request less per node:  sinfo -o '%P %D %G %c %m'  shows what the nodes have",
        )

    async def _ahead(self, job: WaitingJob) -> tuple[str, ...]:
        where = ("--noheader", "--states=PENDING", "--local", f"--partition={job.partition}")
        try:
            output = await self._commands.run("squeue", (*where, f"--format={explain.AHEAD_FORMAT}"))
        except FairwayError:
            return ()  # without the tool, the rest of the answer still holds
        return explain.jobs_ahead(output.decode(errors="replace"), job)

    async def _cached_sizes(self) -> _Sizes:
        if self._sizes is None or self._clock() > self._sizes[0] + SIZES_SECONDS:
            self._sizes = (self._clock(), await self._read_sizes())
        return self._sizes[1]

    async def _read_sizes(self) -> _Sizes:
        partitions, nodes = await asyncio.gather(
            self._rest.get_typed("partitions", LimitedPartitionsReply),
            self._rest.get_typed("nodes", SizedNodesReply),
        )
        return partitions.partitions, nodes.nodes
