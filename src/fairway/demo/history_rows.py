"""Convert a simulated run to ledger rows: jobs with their attempts, and the capacity of pools. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from fairway.control.loops.meter import hours_of
from fairway.cost.calendar import Calendar
from fairway.cost.slicing import gpus_behind
from fairway.demo.history_run import Outage, PastRun, Ran
from fairway.engines.virtual import SimState, Simulator
from fairway.engines.virtual.simulator.jobs import SimAttempt, SimEnding
from fairway.ledger.jobs.rows import JobClass
from fairway.ledger.seed import Past, PastAttempt, PastJob
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import Ending, GpuRequest, JobSpec, JobState, Tolerates
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import CapacitySpan, NodeDevices, NodeGroup, StoredCapacity, shelves

_STATES: Final = {
    SimState.DONE: JobState.DONE,
    SimState.FAILED: JobState.FAILED,
    SimState.CANCELLED: JobState.CANCELLED,
    SimState.TIMEOUT: JobState.TIMED_OUT,
}
_ENDINGS: Final = {
    SimEnding.DONE: (Ending.DONE, ""),
    SimEnding.FAILED: (Ending.FAILED, ""),
    SimEnding.CANCELLED: (Ending.CANCELLED, ""),
    SimEnding.TIMEOUT: (Ending.TIMED_OUT, "its time limit was reached"),
    SimEnding.RECLAIMED: (Ending.PREEMPTED, "what was lent went back to a team entitled to it"),
    SimEnding.OUTRANKED: (Ending.PREEMPTED, "a job that goes first took its place"),
    SimEnding.NODE_LOST: (Ending.NODE_LOST, "a node it ran on died"),
    SimEnding.EVICTED: (Ending.REQUEUED, "a changed policy was applied with the word to evict"),
}
_EXITS: Final = frozenset((SimEnding.DONE, SimEnding.FAILED))


def past_of(fleet: Fleet, run: PastRun, calendar: Calendar) -> Past:
    """Convert a run to everything the ledger stores of it."""
    closed = list(_capacity(fleet, run))
    now = [(pool_cluster, StoredCapacity(shelf, run.end)) for pool_cluster, shelf in _whole(fleet)]
    return Past(list(_jobs(fleet, run.jobs)), closed, now, hours_of(calendar, run.start, run.end), run.end)


# jobs


def _jobs(fleet: Fleet, ran: Sequence[Ran]) -> Iterator[PastJob]:
    default = next(p.name for p in fleet.priorities if p.default)
    first = 0
    for number, job in enumerate(ran, 1):
        asked = job.asked
        array = asked.tasks > 1 and not asked.native
        if job.task == 0 or number == 1 or ran[number - 2].asked.number != asked.number:
            first = number
        ours = not asked.native and (first == number or not array)
        kind = JobClass(
            job.cluster,
            asked.user,
            asked.team,
            asked.supply.pool,
            asked.supply.slice or "",
            asked.priority or default,
            asked.native,
        )
        attempts = tuple(_attempt(attempt, asked.exit_code) for attempt in job.attempts)
        yield PastJob(
            kind=kind,
            name=asked.name,
            state=_STATES[job.state],
            gpus=asked.gpus,
            nodes=asked.nodes,
            submitted=asked.at,
            ended=job.ended,
            engine_id=f"past-{number}",
            attempts=attempts,
            exit_code=attempts[-1].exit_code if attempts else None,
            time_seconds=asked.limit_seconds,
            reason=attempts[-1].reason if attempts else "",
            spec=_spec(job) if ours else None,
            placement_reason=f"{asked.supply} was asked for" if ours else "",
            array_first=first if array else None,
            array_index=job.task if array else None,
        )


def _attempt(attempt: SimAttempt, exit_code: int) -> PastAttempt:
    if attempt.ended is None or attempt.ending is None:
        raise ValueError("of a past everything is over")
    ending, words = _ENDINGS[attempt.ending]
    exits = exit_code if attempt.ending in _EXITS else None
    return PastAttempt(attempt.started, attempt.ended, ending, attempt.nodes, exits, words)


def _spec(job: Ran) -> JobSpec:
    asked = job.asked
    return JobSpec(
        name=asked.name,
        gpus=GpuRequest(asked.gpus, slice=asked.supply.slice),
        command=asked.kind.command,
        team=asked.team,
        priority=asked.priority,
        pool=asked.supply.pool,
        nodes=asked.nodes,
        time_seconds=asked.limit_seconds,
        array=tuple(range(asked.tasks)) if asked.tasks > 1 else (),
        tolerates=frozenset((Tolerates.SPOT,)) if asked.spot else frozenset(),
        env=MappingProxyType({}),
    )


# capacity


def _capacity(fleet: Fleet, run: PastRun) -> Iterator[tuple[str, CapacitySpan]]:
    """Generate the capacity of each pool for each interval between changes of its outages."""
    going_on = _going_on(run)
    for pool in fleet.pools:
        mine = [outage for outage in run.outages if outage.pool == pool.name]
        edges = {run.start, run.end, *(o.start for o in mine), *(o.end for o in mine)}
        edges |= {held.until for o in mine for held in going_on.get(o, ()) if held.until < o.end}
        for begins, ends in pairwise(sorted(edges)):
            there = [o for o in mine if o.start <= begins < o.end]
            health = {o.node: o.health for o in there}
            in_use: Counter[tuple[NodeName, SliceName | None]] = Counter()
            for outage in there:
                for held in going_on.get(outage, ()):
                    if held.until > begins:
                        in_use[outage.node, held.slice] += held.devices
            for shelf in _shelves(pool, health, in_use):
                yield pool.cluster, CapacitySpan(shelf, begins, ends)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Devices of a drained node that a job still holds."""

    slice: SliceName | None
    devices: int
    until: int


def _going_on(run: PastRun) -> Mapping[Outage, list[_Kept]]:
    """Return the allocations that continue on drained nodes, by outage."""
    drained: dict[NodeName, list[Outage]] = {}
    for outage in run.outages:
        if outage.health is Health.DRAINED:
            drained.setdefault(outage.node, []).append(outage)
    found: dict[Outage, list[_Kept]] = {}
    for job in run.jobs:
        for attempt in job.attempts:
            for node in attempt.nodes:
                for outage in drained.get(node, ()):
                    until = int(attempt.ended or 0)
                    if attempt.started < outage.start < until:
                        kept = _Kept(job.asked.supply.slice, job.asked.gpus, until)
                        found.setdefault(outage, []).append(kept)
    return found


def _whole(fleet: Fleet) -> Iterator[tuple[str, CapacitySample]]:
    for pool in fleet.pools:
        for shelf in _shelves(pool, {}, Counter()):
            yield pool.cluster, shelf


def _shelves(
    pool: Pool,
    health: Mapping[NodeName, Health],
    in_use: Counter[tuple[NodeName, SliceName | None]],
) -> tuple[CapacitySample, ...]:
    alike = [
        NodeGroup(
            health.get(node.name, Health.READY),
            tuple(
                NodeDevices(Supply(pool.name, d.slice), d.total, in_use[node.name, d.slice])
                for d in node.seen().devices
            ),
        )
        for node in Simulator([pool]).nodes().values()
    ]
    return shelves((pool,), alike, {}, _behind)


def _behind(pool: Pool, slices: Mapping[SliceName, int]) -> int:
    return gpus_behind(pool.gpu, slices)
