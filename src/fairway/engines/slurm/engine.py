"""The Slurm engine: the engine protocols, implemented with slurmrestd, squeue and sacct."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

from fairway.engines.port import (
    CordonOutcome,
    ImportedPolicy,
    LogPart,
    MirrorBatch,
    RequeueRequest,
    SubmitResult,
)
from fairway.engines.slurm.jobs import demote
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.jobs.explainer import SlurmExplainer
from fairway.engines.slurm.jobs.gpu_indices import GpuIndexReader
from fairway.engines.slurm.jobs.logs import SlurmLogReader
from fairway.engines.slurm.jobs.mirror import SlurmMirror
from fairway.engines.slurm.jobs.submit import SlurmRunner
from fairway.engines.slurm.nodes import cordon
from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.nodes.observe import to_node
from fairway.engines.slurm.policy import activity, advice, attached, import_, read, render, restore, taken
from fairway.engines.slurm.policy.installed import InstalledScript
from fairway.engines.slurm.policy.intervene import SlurmIntervener
from fairway.engines.slurm.policy.translate import PolicyContext, wanted_objects
from fairway.engines.slurm.policy.write import SlurmPolicyWriter
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.engines.slurm.rest.wire import WireNode
from fairway.explain.findings import WaitFacts
from fairway.model.condition import Condition, ConditionType, error_condition
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, Fleet, Pool, SlurmConnection
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.job_change import WaitingChange
from fairway.model.names import NodeName
from fairway.model.observation import Observation
from fairway.policy.leave import Leaving
from fairway.policy.objects import (
    Activity,
    Advice,
    Change,
    FoundPolicy,
    Intervention,
    Notice,
    ObjectKey,
    Record,
    SavedObject,
    Translation,
)
from fairway.policy.recent_use import TakenAway

USE_SECONDS: Final = 15
"""Who used what a plan takes away is worth no longer wait."""
POLICY_SECONDS: Final = 120
"""Reading the accounting of a large site takes slurmdbd several seconds, and it may be busy."""


class SlurmEngine:
    """One Slurm cluster and the pools of the fleet that are on it."""

    diagnosed: tuple[ConditionType, ...] = (ConditionType.ACCOUNTING_DETACHED,)
    unique_names: bool = False
    """Slurm accepts any number of jobs of one name."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...], *, timeout_seconds: float = 30) -> None:
        if not isinstance(cluster.connection, SlurmConnection):
            raise TypeError(f"cluster {cluster.name} is not a Slurm cluster")
        self._cluster = cluster
        self._connection = cluster.connection
        self._pools = PoolMatcher(pools)
        self._timeout_seconds = timeout_seconds
        self._rest = SlurmRest(cluster.connection, timeout_seconds=timeout_seconds)
        self._writer = SlurmPolicyWriter(self._rest)
        self._installed = InstalledScript(self._rest)
        self._detached = 0
        commands = SlurmCommands(cluster.connection, self._rest.tokens, timeout_seconds=timeout_seconds)
        self._intervener = SlurmIntervener(self._rest, lowered=partial(demote.lowered_jobs, commands))
        indices = GpuIndexReader(self._rest, needed=cluster.telemetry is not None)
        self._mirror = SlurmMirror(commands, self._pools, indices, self._read_nodes)
        self._runner = SlurmRunner(self._rest, cluster)
        self._explainer = SlurmExplainer(self._rest, commands, cluster)
        self._reader = SlurmLogReader(self._rest, commands, cluster.folders)

    async def observe(self) -> Observation:
        """Observe with one request, whatever the size; a second one if a pool's partition has no node."""
        async with self._rest.time_limit(self._timeout_seconds):
            reply = await self._rest.nodes()
            await self._check_partitions({name for node in reply.nodes for name in node.partitions})
        nodes = sorted((to_node(wire, self._pools) for wire in reply.nodes), key=lambda node: node.name)
        return Observation(self._cluster.name, f"slurm {reply.meta.slurm.release}", tuple(nodes))

    async def find_policy(self) -> FoundPolicy:
        """Return every QOS, account, association and user, ours or not."""
        async with self._rest.time_limit(POLICY_SECONDS):
            return await read.find_policy(self._rest)

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Translate `fleet` to objects, notices of what Slurm cannot quite do, and lines of slurm.conf."""
        if found.settings.get(read.ACCOUNTING) == read.NO_ACCOUNTING:
            return Translation((), (_no_accounting(self._cluster.name),))
        context = PolicyContext.of(fleet, self._cluster.name, found.settings)
        lines = advice.advice(context, found.settings)
        return Translation(
            wanted_objects(context, found.objects), tuple(advice.notices(context, lines)), lines
        )

    async def inspect(self, fleet: Fleet, found: FoundPolicy) -> tuple[Advice, ...]:
        """Compare the installed job_submit.lua with the one that `fleet` needs."""
        digests = await asyncio.to_thread(
            render.script_digests, fleet, self._cluster.name, dict(found.settings)
        )
        async with self._rest.time_limit(self._timeout_seconds):
            return await self._installed.advice(self._cluster.name, digests)

    async def taken_away(
        self, fleet: Fleet, found: FoundPolicy, changes: Sequence[Change]
    ) -> tuple[TakenAway, ...]:
        """Return what accounts and users lose, with who used it as slurmdbd has summed it up."""
        context = PolicyContext.of(fleet, self._cluster.name, found.settings)
        losses = taken.find_losses(context, self._connection, found.objects, changes)
        accounts = {loss.account for loss in losses if not loss.unknown}
        if not accounts:
            return taken.taken_away(losses, {})
        now = datetime.now(ZoneInfo(fleet.cost.timezone))
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        try:
            async with self._rest.time_limit(USE_SECONDS):
                cluster = await self._writer.cluster()
                use = await taken.read_use(
                    self._rest, cluster, accounts, int(midnight.timestamp()), int(now.timestamp())
                )
        except FairwayError as error:
            return taken.taken_away(losses, {}, unknown=error.message)
        return taken.taken_away(losses, use)

    async def confirm(self, changes: Sequence[Change]) -> None:
        """Raise Unreachable unless slurmctld has these changes, which slurmdbd stored."""
        async with self._rest.time_limit(POLICY_SECONDS):
            await attached.confirm(self._rest, changes)

    async def diagnose(self) -> tuple[Condition, ...]:
        """Return whether slurmdbd can reach slurmctld, from the second time in a row that it cannot."""
        async with self._rest.time_limit(self._timeout_seconds):
            known = await attached.control_host(self._rest)
        self._detached = self._detached + 1 if known == "" else 0
        error = attached.detached()
        condition = error_condition(ConditionType.ACCOUNTING_DETACHED, error)
        return (condition,) if self._detached > 1 else ()

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Count jobs under accounts, associations and QOS."""
        async with self._rest.time_limit(POLICY_SECONDS):
            return await activity.count_jobs(self._rest, keys)

    def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage; each request has its own time limit."""
        return self._writer.write(changes)

    async def read_records(self, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Record]:
        """Return whole records of the accounting, with the associations inside these accounts."""
        async with self._rest.time_limit(POLICY_SECONDS):
            return await restore.read_records(self._rest, await self._writer.cluster(), keys)

    def leaving(
        self, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
    ) -> Leaving:
        """Return what leaving means: records to write back, and lines of slurm.conf to remove."""
        return restore.leaving(self._cluster.name, found, saved, now)

    def guards(self, found: FoundPolicy) -> tuple[Change, ...]:
        """Return the changes that open the gate and lift holds of teams."""
        return restore.guards(found)

    async def requeue_waiting(self, keys: Collection[ObjectKey]) -> None:
        """Give waiting jobs under these QOS the default QOS of their association."""
        async with self._rest.time_limit(POLICY_SECONDS):
            await restore.requeue_waiting(self._rest, await self._writer.cluster(), keys)

    async def intervene(self, fleet: Fleet) -> tuple[Intervention, ...]:
        """Requeue a team's lower-priority job where its urgent one waits at a limit."""
        # Only names and limits are needed here, not the cluster's own settings.
        context = PolicyContext.of(fleet, self._cluster.name, {})
        async with self._rest.time_limit(self._timeout_seconds):
            return await self._intervener.intervene(context)

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> ImportedPolicy:
        """Convert a hand-made policy to a fleet. Pure; nodes are not needed for it."""
        return import_.import_policy(fleet, self._cluster.name, found)

    def preview(self, order: Order, fleet: Fleet) -> str:
        """Return the script with the `sbatch` options it would be submitted with."""
        return self._runner.preview(order, fleet)

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Submit each order as its own user, eight at a time."""
        return self._runner.submit(orders, fleet)

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        """Find jobs in slurmctld, and in the accounting of the last week."""
        return await self._mirror.find(names)

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._runner.cancel(ids)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._runner.hold(ids)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._runner.release(ids)

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Raise Refused for what Slurm does not let change in a pending job. Pure."""
        self._runner.check_change(before, after, fleet)

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Update pending jobs, as `scontrol update` does."""
        return await self._runner.change(changes, fleet)

    async def lower(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Give running jobs a nice value behind all others: Slurm does not change a running job's QOS."""
        async with self._rest.time_limit(self._timeout_seconds):
            return await demote.lower(self._rest, ids, fleet)

    async def requeue(self, jobs: Sequence[RequeueRequest], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Requeue running jobs that can resume, as `scontrol requeue` does."""
        context = PolicyContext.of(fleet, self._cluster.name, {})
        async with self._rest.time_limit(self._timeout_seconds):
            return await demote.requeue(self._rest, jobs, context.helper_partition, time.time)

    async def read_log(
        self,
        order: Order,
        engine_id: EngineId,
        attempt: int,
        offset: int,
        limit: int,
        node: int = 0,
        replica: str = "",
    ) -> LogPart:
        """Read a log from the shared folder.

        All nodes of a gang print into one file, so `node` is ignored. No job has replicas.
        """
        return await self._reader.read(order, engine_id, attempt, offset, limit)

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Poll `squeue`, at most once a second, and add what the accounting has."""
        return await self._mirror.changes(mark, fleet)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Look up jobs in the accounting."""
        return await self._mirror.look_up(ids, fleet)

    async def explain(self, engine_id: EngineId, fleet: Fleet) -> WaitFacts | None:
        """Read the job, its partitions and their nodes: three requests, and one `squeue` for who is ahead."""
        async with self._rest.time_limit(self._timeout_seconds):
            return await self._explainer.explain(engine_id)

    async def never_fits(self, order: Order, fleet: Fleet) -> Refused | None:
        """Compare with the nodes of the order's partition, read at most once a minute."""
        async with self._rest.time_limit(self._timeout_seconds):
            return await self._explainer.never_fits(order, fleet)

    async def cordon(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, CordonOutcome]:
        """Drain nodes, one request for all that are known and one for each that is drained."""
        async with self._rest.time_limit(POLICY_SECONDS):
            return await cordon.cordon(self._rest, nodes)

    async def uncordon(self, nodes: Collection[NodeName]) -> Mapping[NodeName, CordonOutcome]:
        """Resume nodes whose reason is Fairway's."""
        async with self._rest.time_limit(POLICY_SECONDS):
            return await cordon.uncordon(self._rest, nodes)

    async def close(self) -> None:
        await self._rest.close()

    async def _read_nodes(self) -> Sequence[WireNode]:
        async with self._rest.time_limit(self._timeout_seconds):
            return (await self._rest.nodes()).nodes

    async def _check_partitions(self, with_nodes: Iterable[str]) -> None:
        """Raise Refused if a pool's partition does not exist; one without nodes is fine."""
        without_nodes = self._pools.partitions.keys() - with_nodes
        if not without_nodes:
            return
        existing = {partition.name for partition in (await self._rest.partitions()).partitions}
        if missing := sorted(without_nodes - existing):
            pool = self._pools.partitions[missing[0]]
            raise Refused(
                "PartitionMissing",
                f"pool {pool} names partition {missing[0]}, but cluster {self._cluster.name} has only "
                f"{', '.join(sorted(existing)) or 'none'}",
                f"correct  pools.{pool}.slurm.partition  in the fleet file, or create it:  "
                f"scontrol create partition PartitionName={missing[0]} Nodes=...",
            )


def _no_accounting(cluster: str) -> Notice:
    return Notice(
        "NoAccounting",
        f"cluster {cluster} has no accounting ({read.ACCOUNTING}={read.NO_ACCOUNTING}): Slurm has neither "
        "accounts nor QOS there, so no policy is written, and its jobs run as before",
        "set up slurmdbd first:  man slurm.conf, AccountingStorageType=accounting_storage/slurmdbd",
        promise="guarantee",
    )
