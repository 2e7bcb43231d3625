"""Convert a simulated run to ledger rows: jobs with their attempts, and the capacity of pools. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from types import MappingProxyType

from fairway.control.loops.meter import hours_of
from fairway.cost.calendar import Calendar
from fairway.cost.rates import gpus_behind
from fairway.demo.history_jobs import HistoricJob
from fairway.demo.history_run import FinishedJob, Outage, SimulatedRun
from fairway.demo.jobs import DAY, HOUR
from fairway.engines.virtual.jobs import mirror
from fairway.ledger.jobs.submit import JobClass
from fairway.ledger.seed import GeneratedHistory, PastAttempt, PastIntervention, PastJob
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import GpuRequest, JobSpec, Tolerates
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Health, Node
from fairway.model.team import Supply
from fairway.model.text import count
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import CapacitySpan, NodeDevices, NodeGroup, StoredCapacity, capacity_samples
from fairway.simulate.cluster import Simulator
from fairway.simulate.cluster.jobs import SimAttempt, SimEnding


def ledger_rows(fleet: Fleet, run: SimulatedRun, calendar: Calendar) -> GeneratedHistory:
    """Convert a run to everything the ledger stores of it."""
    closed = list(_capacity(fleet, run))
    now = [
        (pool.cluster, StoredCapacity(sample, run.end))
        for pool in fleet.pools
        for sample in _samples(pool, _observed_nodes(pool), {}, Counter())
    ]
    return GeneratedHistory(
        list(_jobs(fleet, run.jobs)),
        closed,
        now,
        hours_of(calendar, run.start, run.end),
        sorted(_interventions(run), key=lambda one: one.at),
    )


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
            project=planned.project or "",
            labels=tuple(planned.labels(planned.name).items()),
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
            engine_id=_engine_id(number),
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
        raise ValueError("in a history every job has ended")
    # A sum of floats may be a hair below a full second, which the ledger would round up and others down.
    return PastAttempt(
        round(attempt.started, 3),
        round(attempt.ended, 3),
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
        project=planned.project,
        labels=planned.labels(planned.name),
        priority=planned.priority,
        pool=planned.supply.pool,
        nodes=planned.nodes,
        time_seconds=planned.limit_seconds,
        array=tuple(range(planned.tasks)) if planned.tasks > 1 else (),
        tolerates=frozenset((Tolerates.SPOT,)) if planned.spot else frozenset(),
        env=MappingProxyType({}),
    )


# interventions


def _interventions(run: SimulatedRun) -> Iterator[PastIntervention]:
    """Generate an intervention for each urgent job of the last week that displaced a job of its own team."""
    positions = {(job.cluster, job.number): number for number, job in enumerate(run.jobs, 1)}
    for number, job in enumerate(run.jobs, 1):
        for attempt in job.attempts:
            at = round(attempt.ended or 0, 3)
            if attempt.ending is SimEnding.OUTRANKED and attempt.by is not None and at > run.end - 7 * DAY:
                winner = positions.get((job.cluster, attempt.by))
                if winner is not None and _is_urgent_of_team(run.jobs[winner - 1], job):
                    yield _intervention(number, job, at, winner, run.jobs[winner - 1])


def _is_urgent_of_team(winner: FinishedJob, job: FinishedJob) -> bool:
    return winner.planned.priority == "urgent" and winner.planned.team == job.planned.team


def _intervention(
    number: int, job: FinishedJob, at: float, winner_number: int, winner: FinishedJob
) -> PastIntervention:
    urgent, engine_id = winner.planned, _engine_id(number)
    why = (
        f"urgent job {urgent.name} ({_engine_id(winner_number)}) of the same team, {urgent.team}, was waiting"
        f" for {count(urgent.gpus * urgent.nodes, 'GPU')} and the team was at its limit"
    )
    return PastIntervention(job.cluster, at, "priority", f"requeue {engine_id}", engine_id, why)


def _engine_id(number: int) -> str:
    return f"p{number}"


# capacity


def _capacity(fleet: Fleet, run: SimulatedRun) -> Iterator[tuple[str, CapacitySpan]]:
    """Generate the capacity of each pool for each interval between changes of its outages or fragments."""
    allocations = _allocations_on_drained(run)
    fragmented = _fragmented_devices(run)
    for pool in fleet.pools:
        pool_outages = [outage for outage in run.outages if outage.pool == pool.name]
        edges = {run.start, run.end, *(o.start for o in pool_outages), *(o.end for o in pool_outages)}
        edges |= {a.until for o in pool_outages for a in allocations.get(o, ()) if a.until < o.end}
        edges |= {
            e for hour, s in fragmented if s.pool == pool.name for e in (hour, min(hour + HOUR, run.end))
        }
        nodes = _observed_nodes(pool)
        for begins, ends in pairwise(sorted(edges)):
            current = [o for o in pool_outages if o.start <= begins < o.end]
            health = {o.node: o.health for o in current}
            in_use: Counter[tuple[NodeName, SliceName | None]] = Counter()
            for outage in current:
                for allocation in allocations.get(outage, ()):
                    if allocation.until > begins:
                        in_use[outage.node, allocation.slice] += allocation.devices
            hour = begins - begins % HOUR
            for sample in _samples(pool, nodes, health, in_use):
                found = replace(sample, fragmented=fragmented.get((hour, sample.supply), 0))
                yield pool.cluster, CapacitySpan(found, begins, ends)


def _fragmented_devices(run: SimulatedRun) -> Mapping[tuple[int, Supply], int]:
    """Return the devices that were fragmented in each hour: those of its start that stayed free."""
    changes: dict[tuple[NodeName, SliceName | None], list[tuple[float, int]]] = {}
    for job in run.jobs:
        for attempt in job.attempts:
            for node in attempt.nodes:
                of_node = changes.setdefault((node, job.planned.supply.slice), [])
                of_node += (
                    (attempt.started, -job.planned.gpus),
                    (attempt.ended or attempt.started, job.planned.gpus),
                )
    for of_node in changes.values():
        of_node.sort()
    broken = {
        (outage.node, hour)
        for outage in run.outages
        for hour in range(outage.start - outage.start % HOUR, outage.end, HOUR)
    }
    found: Counter[tuple[int, Supply]] = Counter()
    for fragment in run.fragments:
        if (fragment.node, fragment.at) not in broken:
            of_node = changes.get((fragment.node, fragment.supply.slice), [])
            free = least = fragment.devices
            for at, change in islice(of_node, bisect_right(of_node, (fragment.at, HOUR)), None):
                if at >= fragment.at + HOUR:
                    break
                free += change
                least = min(least, free)
            found[fragment.at, fragment.supply] += max(0, least)
    return {key: devices for key, devices in found.items() if devices}


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


def _observed_nodes(pool: Pool) -> list[Node]:
    return [node.observed() for node in Simulator([pool]).nodes().values()]


def _samples(
    pool: Pool,
    nodes: Sequence[Node],
    health: Mapping[NodeName, Health],
    in_use: Counter[tuple[NodeName, SliceName | None]],
) -> tuple[CapacitySample, ...]:
    groups = [
        NodeGroup(
            health.get(node.name, Health.READY),
            tuple(
                NodeDevices(Supply(pool.name, d.slice), d.total, in_use[node.name, d.slice])
                for d in node.devices
            ),
        )
        for node in nodes
    ]
    return capacity_samples((pool,), groups, {}, lambda pool, slices: gpus_behind(pool.gpu, slices))
