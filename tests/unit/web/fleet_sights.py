"""What pages of the fleet and its pools are tested on: nodes as an engine shows them, jobs as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from fairway.engines.port import Unreachable
from fairway.explain.engine_reasons import slurm_code
from fairway.ledger import Ledger
from fairway.model.fleet import EngineKind
from fairway.model.job import Attempt, EngineId, JobState, SeenJob
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, TeamName, UserName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.model.team import Supply

HPC = ClusterName("hpc")
A100 = PoolName("hpc-a100")


def node(name: str, in_use: int = 0, health: Health = Health.READY, reason: str = "", total: int = 8) -> Node:
    """A node with A100s."""
    return Node(NodeName(name), health, reason, (Devices(A100, "gpu:a100", None, total, in_use),))


def mig_node(name: str, small: int, large: int) -> Node:
    """A node with slices, so many of each in use."""
    pool = PoolName("hpc-mig")
    return Node(
        NodeName(name),
        Health.READY,
        "",
        (
            Devices(pool, "gpu:1g.10gb", SliceName("1g.10gb"), 7, small),
            Devices(pool, "gpu:3g.40gb", SliceName("3g.40gb"), 2, large),
        ),
    )


async def observe(ledger: Ledger, *nodes: Node) -> None:
    """As the observe loop does."""
    lease = await ledger.leases.take("observe", HPC, "test", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.observations.write(Observation(HPC, "24.11.5", nodes), engine=EngineKind.SLURM)
    await ledger.leases.release(lease)


async def lose(ledger: Ledger) -> None:
    """The cluster cannot be reached any more."""
    lease = await ledger.leases.take("observe", HPC, "test", 60)
    assert lease is not None
    error = Unreachable("Unreachable", "nobody answers at hpc:6820", "look whether slurmrestd runs")
    async with ledger.writing(lease) as tx:
        await tx.observations.write_failure(HPC, error, engine=EngineKind.SLURM)
    await ledger.leases.release(lease)


def runs(
    number: int, devices: int, *nodes: str, team: str | None = "research", slice_: str | None = None
) -> SeenJob:
    """A job that runs for an hour."""
    began = datetime.now(UTC) - timedelta(hours=1)
    attempt = Attempt(began, tuple(NodeName(n) for n in nodes), devices)
    return _seen(number, devices, JobState.RUNNING, "", team, slice_, (attempt,))


def waits(number: int, devices: int, reason: str, team: str | None = "product") -> SeenJob:
    """A job that waits for three hours; `reason` is Slurm's."""
    return _seen(number, devices, JobState.WAITING, reason, team, None, ())


def _seen(
    number: int,
    devices: int,
    state: JobState,
    reason: str,
    team: str | None,
    slice_: str | None,
    attempts: Sequence[Attempt],
) -> SeenJob:
    pool = A100 if slice_ is None else PoolName("hpc-mig")
    return SeenJob(
        EngineId(str(number)),
        f"train-{number}",
        UserName("ada"),
        None if team is None else TeamName(team),
        state,
        datetime.now(UTC) - timedelta(hours=3),
        supply=Supply(pool, SliceName(slice_) if slice_ else None),
        gpus=devices,
        reason=reason,
        reason_code=slurm_code(reason),
        attempts=tuple(attempts),
    )


async def mirror(ledger: Ledger, *jobs: SeenJob) -> None:
    """As the mirror loop does."""
    lease = await ledger.leases.take("mirror", HPC, "test", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.mirror.write_jobs(jobs)
    await ledger.leases.release(lease)
