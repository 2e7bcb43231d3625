"""Make up what the GPUs of the demo's history did, and which GPU each job held. Pure, and seeded."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final
from zlib import crc32

from fairway.demo.gpu_shapes import IDLE_WATTS, device_memory_mib, draw_shape, watts_limit
from fairway.demo.history_run import FinishedJob, SimulatedRun
from fairway.demo.jobs import HOUR, virtual_place
from fairway.ledger.telemetry.seed import (
    ExporterOutage,
    PastEvent,
    PastGpu,
    PastIdleStep,
    PastNode,
    PastUse,
    PastUses,
)
from fairway.model.fleet import Fleet, Pool
from fairway.model.gpu_health import xid_code
from fairway.model.idle import IdleRule
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.text import span
from fairway.simulate.cluster import SimState

_STEPS_SECONDS: Final = 7 * 86_400
"""Idle rules have been in the fleet file for so long."""
_WEEK: Final = 7 * 86_400
_FIRST_INSTANCE: Final = 7
"""Instances of a cut GPU are numbered by the driver from some number on."""


def past_uses(fleet: Fleet, run: SimulatedRun, seed: int) -> PastUses:
    """Make up what every job of a run did; its id is its position, the first is 1."""
    pools = {pool.name: pool for pool in fleet.pools}
    random = Random(seed)  # noqa: S311 - nothing secret
    devices = _Devices(pools.values())
    holdings = sorted(
        (attempt.started, attempt.ended or attempt.started, number, attempt.number, attempt.nodes)
        for number, job in enumerate(run.jobs, 1)
        for attempt in job.attempts
    )
    failures: dict[tuple[NodeName, str], list[tuple[float, int, int]]] = {}
    held: dict[int, dict[tuple[str, str, str], float]] = {}
    for started, ended, number, attempt_number, nodes in holdings:
        job = run.jobs[number - 1]
        planned = job.planned
        failed = job.state is SimState.FAILED and attempt_number == len(job.attempts) and len(nodes) == 1
        of_job = held.setdefault(number, {})
        for node in nodes:
            for gpu, instance in devices.take(node, planned.supply, planned.gpus, started, ended):
                key = (str(node), gpu, instance)
                of_job[key] = of_job.get(key, 0.0) + ended - started
                if failed and planned.supply.pool == fleet.pools[0].name and ended - started > 60:
                    failures.setdefault((node, gpu), []).append((ended, number, attempt_number))
    uses: list[PastUse] = []
    gpus: list[PastGpu] = []
    steps: list[PastIdleStep] = []
    for number, of_job in sorted(held.items()):
        seconds = sum(of_job.values())
        if seconds >= 1:
            job = run.jobs[number - 1]
            use, of_gpus = _use(random, number, job, pools[job.planned.supply.pool], of_job, seconds)
            uses.append(use)
            gpus += of_gpus
            if use.works_until < job.ended and job.ended > run.end - _STEPS_SECONDS:
                steps += _idle_steps(fleet.idle.rules, use, job)
    length = run.end - run.start
    # An exporter was silent for some hours: that time is not measured, and nobody calls it idle.
    silent = run.start + length // 3
    outage = ExporterOutage(fleet.clusters[0].name, silent, silent + min(5 * HOUR, length // 20))
    return PastUses(
        uses,
        gpus,
        list(_nodes(fleet, run)),
        (outage,),
        run.end,
        tuple(_failing_gpu(fleet.pools[0], failures)),
        tuple(steps),
    )


def gpu_uuid(node: str, gpu: str) -> str:
    """Return the UUID of a GPU of the demo."""
    return f"GPU-{crc32(f'{node}/{gpu}'.encode()):08x}"


def _failing_gpu(
    pool: Pool, failures: Mapping[tuple[NodeName, str], Sequence[tuple[float, int, int]]]
) -> Iterator[PastEvent]:
    """Return the events of one GPU that fails about every week: each ended a job seconds later."""
    by_week = {
        device: {int(ended // _WEEK): (ended, job, attempt) for ended, job, attempt in sorted(ends)}
        for device, ends in failures.items()
    }
    if not by_week:
        return
    (node, gpu), weeks = max(by_week.items(), key=lambda item: (len(item[1]), item[0]))
    for n, (ended, job, attempt) in enumerate(weeks.values()):
        codes = (xid_code(79), xid_code(45)) if n % 3 != 1 else (xid_code(48),)
        for seconds, code in zip((4, 3), codes, strict=False):
            yield PastEvent(
                pool.cluster,
                node,
                gpu,
                code,
                ended - seconds,
                gpu_uuid(node, gpu),
                "1320921047735",
                pool.gpu.name,
                job,
                attempt,
            )


def _idle_steps(rules: Sequence[IdleRule], use: PastUse, job: FinishedJob) -> Iterator[PastIdleStep]:
    """Return what the fleet's first idle rule would have done to a job that nobody worked on any more."""
    if not rules:
        return
    rule = rules[0]
    at = use.works_until + rule.for_seconds
    for step in rule.steps:
        at += step.after_seconds
        if at >= job.ended:
            return
        idle = span(int(at - use.works_until))
        evidence = f"its GPU was busy for less than {float(rule.below) * 100:g} % of the last {idle}"
        yield PastIdleStep(use.job, job.cluster, rule.name, step.action, at, use.works_until, evidence)


def _use(
    random: Random,
    number: int,
    job: FinishedJob,
    pool: Pool,
    held: dict[tuple[str, str, str], float],
    seconds: float,
) -> tuple[PastUse, list[PastGpu]]:
    planned = job.planned
    shape = draw_shape(random, planned.kind.name, planned.user)
    held = dict(sorted(held.items(), key=lambda device: (-device[1], device[0])))
    used = shape.used_devices(len(held))
    # Of a large gang, one GPU is slower than the others: it shows side by side.
    slow = random.random() < 0.1 if planned.nodes > 1 else False
    paces = [0.8 if slow and i == 0 else 1.0 for i in range(used)]
    shares = [part / seconds for part in held.values()]
    used_share = sum(shares[:used])
    mean = sum(share * pace for share, pace in zip(shares, paces, strict=False)) / used_share
    gpus = [
        PastGpu(number, *key, share, paces[i] / mean if i < used else 0.0)
        for i, (key, share) in enumerate(zip(held, shares, strict=True))
    ]
    first, last = job.attempts[0].started, job.ended
    memory = device_memory_mib(pool, planned.supply)
    board_part = _board_part(pool, planned.supply.slice)
    return (
        PastUse(
            job=number,
            engine=shape.engine,
            sm=shape.sm,
            tensor=shape.tensor,
            dram=shape.dram,
            memory=shape.memory * memory * 0.9,
            memory_peak=shape.memory * memory,
            watts=shape.watts(watts_limit(pool)) * board_part,
            idle_watts=IDLE_WATTS * board_part,
            pcie=shape.pcie,
            nvlink=2e10 * shape.tensor if len(held) > 1 else 0.0,
            works_until=last if shape.works >= 1 else first + (last - first) * shape.works,
            used=used_share,
            measured=random.uniform(0.985, 1.0),
        ),
        gpus,
    )


class _Devices:
    """Finds free devices of nodes, in the order in which they are taken."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._free: dict[tuple[NodeName, Supply], list[int]] = {}
        self._taken: dict[tuple[NodeName, Supply], list[tuple[float, int]]] = {}

    def take(
        self, node: NodeName, supply: Supply, count: int, started: float, ended: float
    ) -> Sequence[tuple[str, str]]:
        """Take devices from `started` to `ended`. Returns the index of each GPU, and its instance if cut."""
        key = (node, supply)
        place = virtual_place(self._pools[supply.pool])
        per_gpu = 1 if supply.slice is None else place.slices_per_gpu[supply.slice]
        if key not in self._free:
            self._free[key], self._taken[key] = list(range(place.gpus_per_node * per_gpu)), []
        free, taken = self._free[key], self._taken[key]
        while taken and (taken[0][0] <= started or len(free) < count):
            heapq.heappush(free, heapq.heappop(taken)[1])
        indices = [heapq.heappop(free) for _ in range(min(count, len(free)))]
        for index in indices:
            heapq.heappush(taken, (ended, index))
        if supply.slice is None:
            return [(str(index), "") for index in indices]
        first = _FIRST_INSTANCE + sum(
            place.slices_per_gpu[name] for name in sorted(place.slices_per_gpu) if name < supply.slice
        )
        return [(str(index // per_gpu), str(first + index % per_gpu)) for index in indices]


def _board_part(pool: Pool, slice_: SliceName | None) -> float:
    """Return the part of a board's power that a device counts for, by its multiprocessors."""
    if slice_ is None:
        return 1.0
    counts = virtual_place(pool).slices_per_gpu
    compute = {p.name: p.compute_slices for name in counts if (p := pool.gpu.profile(name)) is not None}
    return compute[slice_] / sum(compute[name] * count for name, count in counts.items())


def _nodes(fleet: Fleet, run: SimulatedRun) -> Iterator[PastNode]:
    """Return the devices of every node, and when it was down."""
    for pool in fleet.pools:
        place = virtual_place(pool)
        devices = place.gpus_per_node * (sum(place.slices_per_gpu.values()) or 1)
        for number in range(1, place.nodes + 1):
            name = f"{pool.name}-{number:04}"
            down = tuple((o.start, o.end) for o in run.outages if o.node == name and o.health is Health.DOWN)
            yield PastNode(pool.cluster, name, devices, down)
