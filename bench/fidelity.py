"""A mixed load of four teams on a real engine, beside the same jobs in the simulator; and expected starts.

`--size JOBS` (small: 200), on the first instance of the lab that is up among FAIRWAY_BENCH_ON (slurm-24).
Jobs are submitted through a server of its own, so that interventions run as they do for users. First, fewer
other jobs are submitted, to another server: how long the engine takes to start a job is the time with which a
replay of them has the same mean wait. Afterwards the mixed jobs are replayed with it: submitted when
they were, running as long as they ran. While jobs wait, `fairway why` is asked for their expected starts, and
on Slurm `squeue --start` for the same jobs at the same moments. FAIRWAY_BENCH_BORROW=N lets each team borrow
at most N GPUs, to compare two policies; FAIRWAY_BENCH_SEED=N draws other jobs. `--size again` replays the
jobs of the last run of the instance, which need not be up.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from math import ceil
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

from bench.figure import Figure
from bench.lab_server import USER, apply_by, apply_policy, cancel_all, gpu_nodes, lab_fleet, server
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.files.fleet.load import parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.access import Role
from fairway.model.errors import FairwayError, TemporaryError
from fairway.model.fleet import Fleet, VirtualPlace
from fairway.model.names import PriorityName, TeamName
from fairway.model.team import Fairness, Grant, Supply, Team
from fairway.model.trace import TraceJob
from fairway.simulate.replay import ReplayOptions, RunMetrics, measure, replay
from fairway.wire import jobs as job_wire
from lab import Instance, find
from lab.kubernetes import kwok

LOAD: Final = 1.15
"""What jobs ask for over what the cluster has, while they arrive: a queue builds up."""
ASK_SECONDS: Final = 10.0
ASKED_AT_ONCE: Final = 10
KEPT: Final = Path("build")
FORECAST_SECONDS: Final = "5"
SHARES: Final = {"red": (4, 1), "green": (8, 1), "blue": (0, 2), "grey": (0, 1)}
"""Guarantee of each team, as a divisor of all GPUs, and its share."""
LAB_REQUEUE_SECONDS: Final = 11.0
"""The lab's `cred_expire`, and a second: how long a preempted job waits on Slurm."""
KNOWN_JOBS: Final = 200
"""Jobs that have ended before the first question counts: forecasts need a history."""
FIRST_LEAST: Final = 50
FIRST_PART: Final = 0.15
"""Jobs of the calibration, beside those that are compared."""
MAX_START_SECONDS: Final = 8.0
AGAIN: Final = "again"
SEED: Final = int(os.environ.get("FAIRWAY_BENCH_SEED", "41"))
SUBMIT_SECONDS: Final = 60.0
"""How long a submission is tried again while the server is busy."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A job of the load."""

    after: float
    """Seconds since the first."""
    seconds: int
    gpus: int
    nodes: int
    team: TeamName
    priority: PriorityName

    @property
    def limit_seconds(self) -> int:
        """Return twice the run time in whole minutes, as Slurm counts."""
        return 60 * ceil(2 * self.seconds / 60)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was said of a waiting job's start at one moment."""

    at: float
    job: str
    earliest: float | None
    expected: float | None
    latest: float | None
    engine: float | None
    """What `squeue --start` said."""


@dataclass(slots=True)
class Run:
    """What became of the load on the engine."""

    place: VirtualPlace
    """The size of the pool."""
    start_seconds: float
    """How long the engine takes to start a job on free GPUs."""
    jobs: list[job_wire.JobDetail] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


def load(jobs: int, gpus: int, seed: int) -> list[Planned]:
    """Return jobs of 10 to 180 seconds on 1 to 16 GPUs; the same for the same numbers."""
    dice = random.Random(seed)
    shapes = [_shape(dice) for _ in range(jobs)]
    work = sum(nodes * per_node * seconds for nodes, per_node, seconds in shapes)
    rate = LOAD * gpus / (work / jobs)
    after, found = 0.0, []
    teams, priorities = (
        [TeamName(name) for name in SHARES],
        [PriorityName(p) for p in ("normal", "low", "urgent")],
    )
    for nodes, per_node, seconds in shapes:
        team = dice.choices(teams, (35, 25, 25, 15))[0]
        priority = dice.choices(priorities, (88, 8, 4))[0]
        found.append(Planned(after, seconds, per_node, nodes, team, priority))
        after += dice.expovariate(rate)
    return found


def _shape(dice: random.Random) -> tuple[int, int, int]:
    nodes = dice.choices((1, 2), (94, 6))[0]
    gpus = 8 if nodes > 1 else dice.choices((1, 2, 4, 8), (50, 20, 20, 10))[0]
    return nodes, gpus, round(min(180.0, max(10.0, dice.lognormvariate(3.5, 0.7))))


def four_teams(fleet: Fleet, gpus: int, borrow: int | None = None) -> Fleet:
    """Return the fleet of the lab with four teams that share its pool of so many GPUs."""
    supply = Supply(fleet.pools[0].name)
    priorities = tuple(PriorityName(p) for p in ("urgent", "normal", "low"))
    teams = tuple(
        Team(
            TeamName(name),
            None,
            share,
            (Grant(supply, guarantee, None if borrow is None else guarantee + borrow),),
            priorities=priorities,
            members=(USER,),
        )
        for name, (part, share) in SHARES.items()
        for guarantee in (gpus // part if part else 0,)
    )
    chosen = {USER: teams[0].name}
    return replace(fleet, teams=teams, chosen_teams=chosen, fairness=Fairness(half_life_seconds=3600))


def play(instance: Instance, fleet: Fleet, planned: Sequence[Planned]) -> Run:
    """Submit the load to a server, and ask for starts. Return what became of it."""
    with server(fleet) as (url, token), Client(Target(url, token)) as client:
        apply_by(client, fleet)
        nodes = list(client.nodes(pool=fleet.pools[0].name))
        place = VirtualPlace(len(nodes), max(d.total for node in nodes for d in node.devices))
        first = load(max(FIRST_LEAST, int(FIRST_PART * len(planned))), place.nodes * place.gpus_per_node, 17)
        run = Run(place, start_seconds(client, fleet, first, place, requeue_seconds(instance)))
    # A server that has not seen the jobs of the calibration, or it would expect such bursts to come again.
    with (
        server(fleet, FAIRWAY_STARTS_SECONDS=FORECAST_SECONDS) as (url, token),
        Client(Target(url, token)) as client,
    ):
        apply_by(client, fleet)
        # Who may change nothing, so that the server does not look for remedies as well.
        viewer = client.create_token("viewer", Role.VIEWER, 86_400).secret
        over = threading.Event()
        asking = threading.Thread(target=keep_asking, args=(url, viewer, instance, run, over))
        asking.start()
        try:
            run.jobs = run_all(client, fleet, planned)
        finally:
            over.set()
            asking.join()
    return run


def run_all(client: Client, fleet: Fleet, planned: Sequence[Planned]) -> list[job_wire.JobDetail]:
    """Submit jobs when they are due, wait until all have ended, and return what became of them."""
    ids: list[str] = []
    begin = time.time()
    for number, job in enumerate(planned):
        time.sleep(max(0.0, begin + job.after - time.time()))
        ids.append(submit(client, fleet, job, f"mixed-{number}"))
        if number % 100 == 0:
            print(f"{number} of {len(planned)} jobs submitted", file=sys.stderr, flush=True)
    wait_for_all(client)
    return [client.job(id_) for id_ in ids]


def submit(client: Client, fleet: Fleet, job: Planned, key: str) -> str:
    """Submit a job once, however busy the server is, and return its id."""
    deadline = time.time() + SUBMIT_SECONDS
    while True:
        try:
            return client.submit(spec_of(job, fleet), as_user=USER, key=key)[0].id
        except TemporaryError as error:
            if time.time() > deadline:
                raise
            print(f"submitting again: {error.message}", file=sys.stderr, flush=True)
            time.sleep(1.0)


def wait_for_all(client: Client) -> None:
    """Return when all jobs have ended, or after half an hour."""
    deadline = time.time() + 1800
    while time.time() < deadline:
        time.sleep(2)
        with suppress(TemporaryError):
            if all(row.state == "ended" for row in client.job_counts()):
                return


def start_seconds(
    client: Client, fleet: Fleet, planned: Sequence[Planned], place: VirtualPlace, requeue: float
) -> float:
    """Let some jobs run; return the time to start a job with which a replay of them waits as long."""
    trace = trace_of(run_all(client, fleet, planned), planned)
    came = fmean(job.started - job.at for job in trace if job.started is not None)
    low, high = 0.0, MAX_START_SECONDS
    for _ in range(8):
        middle = (low + high) / 2
        options = ReplayOptions(start_seconds=middle, requeue_seconds=requeue)
        waited = measure(replay(fleet, trace, {fleet.pools[0].name: place}, options=options)).total.mean_wait
        low, high = (middle, high) if waited < came else (low, middle)
    return low


def keep_asking(url: str, token: str, instance: Instance, run: Run, over: threading.Event) -> None:
    """Ask for expected starts at even distances, beside whoever submits jobs."""
    dice = random.Random(7)
    with Client(Target(url, token)) as client:
        while not over.wait(ASK_SECONDS):
            run.asked += ask(client, instance, dice)


def spec_of(job: Planned, fleet: Fleet) -> job_wire.JobSpec:
    return job_wire.JobSpec(
        name="mixed",
        gpus=job_wire.GpuRequest(count=job.gpus),
        nodes=job.nodes,
        command=["sleep", str(job.seconds)],
        team=job.team,
        priority=job.priority,
        pool=fleet.pools[0].name,
        time_seconds=job.limit_seconds,
        image="x:1",
        env={kwok.RUN_FOR_ENV: f"{job.seconds}s"},
    )


def ask(client: Client, instance: Instance, dice: random.Random) -> list[Asked]:
    """Ask for the expected starts of some waiting jobs, and the engine for the same."""
    waiting = [job for job in client.jobs(states=["waiting"], most=1000) if job.engine_id]
    some = dice.sample(waiting, min(ASKED_AT_ONCE, len(waiting)))
    engine = engine_starts(instance, [str(job.engine_id) for job in some])
    found = []
    for job in some:
        with suppress(FairwayError):
            expected = client.why(job.id).expected
            if expected is not None and not expected.unknown:
                found.append(
                    Asked(
                        time.time(),
                        job.id,
                        _seconds(expected.earliest),
                        _seconds(expected.expected),
                        _seconds(expected.latest),
                        engine.get(str(job.engine_id)),
                    )
                )
    return found


def engine_starts(instance: Instance, engine_ids: Sequence[str]) -> dict[str, float]:
    """Return what `squeue --start` says of jobs, where it says anything."""
    if instance.kind != "slurm" or not engine_ids:
        return {}
    command = ("squeue", "--start", "-h", f"--jobs={','.join(engine_ids)}", "--format=%i %S")
    found = {}
    for line in instance.run(*command, check=False).stdout.splitlines():
        with suppress(ValueError):
            id_, start = line.split()
            found[id_] = datetime.fromisoformat(start).astimezone().timestamp()
    return found


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def trace_of(jobs: Sequence[job_wire.JobDetail], planned: Sequence[Planned]) -> list[TraceJob]:
    """Return the jobs as they were submitted, each running as long as its last attempt did."""
    found = []
    for job, plan in zip(jobs, planned, strict=True):
        if not job.attempts or job.attempts[-1].ended_at is None:
            continue
        last = job.attempts[-1]
        assert last.ended_at is not None
        found.append(
            TraceJob(
                job.submitted_at.timestamp(),
                (last.ended_at - last.started_at).total_seconds(),
                plan.gpus,
                plan.nodes,
                USER,
                plan.team,
                limit_seconds=plan.limit_seconds,
                priority=plan.priority,
                started=job.attempts[0].started_at.timestamp(),
            )
        )
    return sorted(found, key=lambda job: job.at)


@dataclass(frozen=True, slots=True)
class Shown:
    """The figures that are compared."""

    mean_wait: float
    p95_wait: float
    utilisation: float
    hours: dict[str, float]


def real(run: Run, begin: float, end: float, gpus: int) -> Shown:
    """Return the figures of the engine, within the time in which jobs were submitted."""
    waits, hours = [], dict.fromkeys(SHARES, 0.0)
    for job in run.jobs:
        if job.attempts:
            waits.append((job.attempts[0].started_at - job.submitted_at).total_seconds())
        for attempt in job.attempts:
            stop = end if attempt.ended_at is None else attempt.ended_at.timestamp()
            inside = min(end, stop) - max(begin, attempt.started_at.timestamp())
            if inside > 0 and job.team is not None:
                hours[job.team] += attempt.devices * inside / 3600
    return Shown(
        fmean(waits), quantiles(waits, n=20)[-1], sum(hours.values()) * 3600 / (gpus * (end - begin)), hours
    )


def simulated(metrics: RunMetrics) -> Shown:
    total = metrics.total
    return Shown(
        total.mean_wait,
        total.p95_wait,
        metrics.utilisation,
        {name: t.gpu_hours for name, t in metrics.teams.items()},
    )


def eta_details(run: Run) -> dict[str, object]:
    """Compare what was expected with what came."""
    starts = {job.id: job.attempts[0].started_at.timestamp() for job in run.jobs if job.attempts}
    ends = sorted(job.ended_at.timestamp() for job in run.jobs if job.ended_at is not None)
    known_from = ends[KNOWN_JOBS] if len(ends) > KNOWN_JOBS else 0.0
    errors, ours, engine, inside, early, ranges = [], [], [], 0, 0, 0
    for said in run.asked:
        start = starts.get(said.job)
        if start is None or start <= said.at or said.at < known_from:
            continue
        if said.earliest is not None and said.latest is not None:
            ranges += 1
            inside += said.earliest - 1 <= start <= said.latest + 1
            early += start < said.earliest - 1
        if said.expected is not None:
            errors.append(abs(said.expected - start))
            if said.engine is not None:
                ours.append(errors[-1])
                engine.append(abs(said.engine - start))
    if not ranges:
        return {"expected starts": "none was asked for"}
    beside = "; the engine says nothing"
    if ours:
        beside = f", squeue --start {median(engine):.1f} s ({len(ours)} pairs, ours {median(ours):.1f} s)"
    return {
        "asked": f"{len(run.asked)} times, {len({said.job for said in run.asked})} jobs, {ranges} ranges",
        "start in the 80 % range": f"{100 * inside / ranges:.0f} %, before it {100 * early / ranges:.0f} %",
        "median error": f"{median(errors):.1f} s{beside}",
    }


async def run(size: str) -> list[Figure]:
    names = os.environ.get("FAIRWAY_BENCH_ON", "slurm-24").split(",")
    limit = os.environ.get("FAIRWAY_BENCH_BORROW")
    borrow = None if limit is None else int(limit)
    if size == AGAIN:
        return [again(names[0])]
    instance = next((found for name in names if (found := find(name)) and found.state == "up"), None)
    if instance is None:
        print(f"fidelity: none of {', '.join(names)} is up, left out (make lab-up)")
        return []
    count = 200 if size == "small" else int(size)
    nodes = gpu_nodes(instance)
    fleet = four_teams(lab_fleet(instance), nodes * 8, borrow)
    await apply_policy(instance, fleet)
    try:
        planned = load(count, nodes * 8, SEED)
        done = await asyncio.to_thread(play, instance, fleet, planned)
    finally:
        await cancel_all(instance)
        await apply_policy(instance, replace(fleet, teams=()))
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"fidelity-{instance.name}.json").write_text(
        json.dumps(
            {
                "size": size,
                "seed": SEED,
                "requeue_seconds": requeue_seconds(instance),
                "fleet": compose_fleet(fleet),
                "place": [done.place.nodes, done.place.gpus_per_node],
                "start_seconds": done.start_seconds,
                "jobs": [job.model_dump(mode="json") for job in done.jobs],
                "asked": [asdict(asked) for asked in done.asked],
            }
        )
    )
    return [figure(instance.name, size, fleet, done, planned, requeue_seconds(instance))]


def again(name: str) -> Figure:
    """Replay the jobs of the last run of an instance."""
    kept = json.loads((KEPT / f"fidelity-{name}.json").read_text())
    place = VirtualPlace(*kept["place"])
    gpus = place.nodes * place.gpus_per_node
    done = Run(
        place,
        kept["start_seconds"],
        [job_wire.JobDetail.model_validate(job) for job in kept["jobs"]],
        [Asked(**asked) for asked in kept["asked"]],
    )
    fleet = parse_fleet(kept["fleet"], "fleet.yaml", stored=True)
    planned = load(len(done.jobs), gpus, kept["seed"])
    return figure(name, kept["size"], fleet, done, planned, kept["requeue_seconds"])


def figure(
    name: str, size: str, fleet: Fleet, done: Run, planned: Sequence[Planned], requeue: float
) -> Figure:
    """Compare what became of the jobs with their replay."""
    place, trace = done.place, trace_of(done.jobs, planned)
    begin, end = trace[0].at, trace[-1].at
    options = ReplayOptions(start_seconds=done.start_seconds, requeue_seconds=requeue)
    model = simulated(measure(replay(fleet, trace, {fleet.pools[0].name: place}, options=options)))
    came = real(done, begin, end, place.nodes * place.gpus_per_node)
    parts = {
        team: f"{came.hours[team]:.3f} real, {model.hours.get(team, 0.0):.3f} simulated" for team in SHARES
    }
    return Figure(
        f"mean wait of {len(trace)} jobs on {name}",
        size,
        max(model.mean_wait, came.mean_wait),
        min(model.mean_wait, came.mean_wait),
        "s",
        1.05,
        "the order in which the engine takes up jobs, and when its scheduler runs",
        {
            "mean wait": f"{came.mean_wait:.1f} s real, {model.mean_wait:.1f} s simulated",
            "p95 wait": f"{came.p95_wait:.1f} s real, {model.p95_wait:.1f} s simulated",
            "to start a job, by other jobs": f"{done.start_seconds:.2f} s",
            "cluster": f"{place.nodes} nodes with {place.gpus_per_node} GPUs, {end - begin:.0f} s",
            "utilisation": f"{came.utilisation:.1%} real, {model.utilisation:.1%} simulated",
            **{f"GPU-hours of {team}": text for team, text in parts.items()},
            "attempts": f"{sum(len(job.attempts) for job in done.jobs)} real",
            **eta_details(done),
        },
    )


def requeue_seconds(instance: Instance) -> float:
    """Return how long a preempted job waits on an engine of the lab."""
    return LAB_REQUEUE_SECONDS if instance.kind == "slurm" else 0.0
