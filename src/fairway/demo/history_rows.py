"""Convert a simulated run to ledger rows: jobs with their attempts, and the capacity of pools. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from fairway.control.loops.meter import hours_of
from fairway.cost.calendar import Calendar
from fairway.cost.rates import gpus_behind
from fairway.demo.history_jobs import HistoricJob
from fairway.demo.history_run import FinishedJob, Outage, SimulatedRun
from fairway.engines.virtual import Simulator
from fairway.engines.virtual.jobs import mirror
from fairway.engines.virtual.simulator.jobs import SimAttempt
from fairway.ledger.jobs.submit import JobClass
from fairway.ledger.seed import GeneratedHistory, PastAttempt, PastJob
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import GpuRequest, JobSpec, Tolerates
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import CapacitySpan, NodeDevices, NodeGroup, StoredCapacity, capacity_samples


def ledger_rows(fleet: Fleet, run: SimulatedRun, calendar: Calendar) -> GeneratedHistory:
    """Convert a run to everything the ledger stores of it."""
    closed = list(_capacity(fleet, run))
    now = [
        (pool.cluster, StoredCapacity(sample, run.end))
        for pool in fleet.pools
        for sample in _samples(pool, {}, Counter())
    ]
    return GeneratedHistory(list(_jobs(fleet, run.jobs)), closed, now, hours_of(calendar, run.start, run.end))


# jobs


def _jobs(fleet: Fleet, jobs: Sequence[FinishedJob]) -> Iterator[PastJob]:
    default = next(p.name for p in fleet.priorities if p.default)
    first = 0
    for number, job in enumerate(jobs, 1):
        planned = job.planned
        array = planned.tasks > 1 and not planned.native
        if job.task == 0 or number == 1 or jobs[number - 2].planned.number != planned.number:
            first = number
        has_spec = not planned.native and (first == number or not array)
        kind = JobClass(
            job.cluster,
            planned.user,
            planned.team,
            planned.supply.pool,
            planned.supply.slice or "",
            planned.priority or default,
            planned.native,
        )
        attempts = tuple(_attempt(attempt, planned.exit_code) for attempt in job.attempts)
        yield PastJob(
            kind=kind,
            name=planned.name,
            state=mirror.STATES[job.state],
            gpus=planned.gpus,
            nodes=planned.nodes,
            submitted=planned.at,
            ended=job.ended,
            engine_id=f"past-{number}",
            attempts=attempts,
            exit_code=attempts[-1].exit_code if attempts else None,
            time_seconds=planned.limit_seconds,
            reason=attempts[-1].reason if attempts else "",
            spec=_spec(planned) if has_spec else None,
            placement_reason=f"{planned.supply} was asked for" if has_spec else "",
            array_first=first if array else None,
            array_index=job.task if array else None,
        )


def _attempt(attempt: SimAttempt, exit_code: int) -> PastAttempt:
    if attempt.ended is None or attempt.ending is None:
        raise ValueError("of a past everything is over")
    return PastAttempt(
        attempt.started,
        attempt.ended,
        mirror.ENDINGS[attempt.ending],
        attempt.nodes,
        exit_code if attempt.ending in mirror.EXITS else None,
        mirror.REASONS.get(attempt.ending, ""),
    )


def _spec(planned: HistoricJob) -> JobSpec:
    return JobSpec(
        name=planned.name,
        gpus=GpuRequest(planned.gpus, slice=planned.supply.slice),
        command=planned.kind.command,
        team=planned.team,
        priority=planned.priority,
        pool=planned.supply.pool,
        nodes=planned.nodes,
        time_seconds=planned.limit_seconds,
        array=tuple(range(planned.tasks)) if planned.tasks > 1 else (),
        tolerates=frozenset((Tolerates.SPOT,)) if planned.spot else frozenset(),
        env=MappingProxyType({}),
    )


# capacity


def _capacity(fleet: Fleet, run: SimulatedRun) -> Iterator[tuple[str, CapacitySpan]]:
    """Generate the capacity of each pool for each interval between changes of its outages."""
    allocations = _allocations_on_drained(run)
    for pool in fleet.pools:
        pool_outages = [outage for outage in run.outages if outage.pool == pool.name]
        edges = {run.start, run.end, *(o.start for o in pool_outages), *(o.end for o in pool_outages)}
        edges |= {a.until for o in pool_outages for a in allocations.get(o, ()) if a.until < o.end}
        for begins, ends in pairwise(sorted(edges)):
            current = [o for o in pool_outages if o.start <= begins < o.end]
            health = {o.node: o.health for o in current}
            in_use: Counter[tuple[NodeName, SliceName | None]] = Counter()
            for outage in current:
                for allocation in allocations.get(outage, ()):
                    if allocation.until > begins:
                        in_use[outage.node, allocation.slice] += allocation.devices
            for sample in _samples(pool, health, in_use):
                yield pool.cluster, CapacitySpan(sample, begins, ends)


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Devices of a drained node that a job still holds."""

    slice: SliceName | None
    devices: int
    until: int


def _allocations_on_drained(run: SimulatedRun) -> Mapping[Outage, list[_Allocation]]:
    """Return the allocations that continue on drained nodes, by outage."""
    drained: dict[NodeName, list[Outage]] = {}
    for outage in run.outages:
        if outage.health is Health.DRAINED:
            drained.setdefault(outage.node, []).append(outage)
    found: dict[Outage, list[_Allocation]] = {}
    for job in run.jobs:
        for attempt in job.attempts:
            for node in attempt.nodes:
                for outage in drained.get(node, ()):
                    until = int(attempt.ended or 0)
                    if attempt.started < outage.start < until:
                        allocation = _Allocation(job.planned.supply.slice, job.planned.gpus, until)
                        found.setdefault(outage, []).append(allocation)
    return found


def _samples(
    pool: Pool,
    health: Mapping[NodeName, Health],
    in_use: Counter[tuple[NodeName, SliceName | None]],
) -> tuple[CapacitySample, ...]:
    nodes = [
        NodeGroup(
            health.get(node.name, Health.READY),
            tuple(
                NodeDevices(Supply(pool.name, d.slice), d.total, in_use[node.name, d.slice])
                for d in node.observed().devices
            ),
        )
        for node in Simulator([pool]).nodes().values()
    ]
    return capacity_samples((pool,), nodes, {}, lambda pool, slices: gpus_behind(pool.gpu, slices))
