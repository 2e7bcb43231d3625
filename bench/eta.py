"""Forecast starts against what then happens, and against a guess from time limits, as `squeue --start` does.

Two public traces run through the simulator on a cluster that is at times too small. At random moments the
present is taken as a snapshot, and the starts of waiting jobs are forecast from what has ended by then, and
calibrated by earlier forecasts, as the server does.
The guess plays one future in which every job runs to its limit. Philly has no limits: each job gets one that
its user could have chosen, one of a few round times above its run time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from statistics import fmean, median

from bench.figure import Figure
from fairway.files.traces.read import read_trace
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import JobId
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.model.trace import TraceJob
from fairway.simulate.calibration import Calibration, PastForecast, calibrate
from fairway.simulate.cluster import ClusterTerms, JobRequest, Simulator
from fairway.simulate.cluster.jobs import SimEnding
from fairway.simulate.restore import snapshot_of
from fairway.simulate.run_times import FinishedRun, JobTraits, RunTimeDistribution, RunTimes
from fairway.simulate.snapshot import WaitingJob
from fairway.simulate.starts import StartForecast, forecast_starts, traits_of

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where the published traces are; see the README of each."""
MIT = SHARED / "mit-supercloud" / "slurm-log-queueing-clean.csv.zst"
PHILLY = SHARED / "philly" / "philly.csv.zst"
LAB, POOL = ClusterName("lab"), PoolName("gpu")
SUPPLY = Supply(POOL)
PER_NODE = 8
LIMITS = (3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 2 * 86_400.0, 7 * 86_400.0, 60 * 86_400.0)
LOADS = {"mit-supercloud": 0.9, "philly": 0.75}
"""The mean demand of a trace beside the GPUs of the cluster: so that jobs wait for hours."""
FEWEST = 10
"""Waiting jobs that make a moment worth asking about."""
ASKED = 40
"""Jobs of one moment that are forecast."""
DAY = 86_400.0
TARGET = 0.75
"""The error beside that of the guess: at least 25 % less."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A forecast of one job, and the guess from limits, in seconds after the moment."""

    job: int
    at: float
    forecast: StartForecast
    raw: StartForecast
    """Before calibration."""
    guess: float | None


@dataclass(slots=True)
class Watch:
    """Remembers first starts, and learns from jobs that ended by themselves or at their limits."""

    requests: dict[int, JobRequest] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    known: RunTimes = field(default_factory=RunTimes)

    def started(self, number: int, at: float) -> None:
        self.first.setdefault(number, at)
        self.since[number] = at

    def stopped(self, number: int, at: float, ending: SimEnding) -> None:
        if ending in (SimEnding.DONE, SimEnding.FAILED, SimEnding.TIMEOUT):
            traits = traits_of(self.requests[number])
            timed_out = ending is SimEnding.TIMEOUT
            self.known.learn(FinishedRun(traits, at - self.since[number], timed_out))


@dataclass(frozen=True, slots=True)
class Certain:
    """A run time that is taken for certain."""

    seconds: float
    samples: int = 0
    source: str = ""

    def quantile(self, part: float) -> float:
        return self.seconds


class ToTheLimit:
    """Every job runs to its limit, as a backfill scheduler assumes."""

    def predict(self, traits: JobTraits, elapsed: float = 0.0) -> RunTimeDistribution:
        return Certain(max(traits.limit_seconds or LIMITS[-1], elapsed + 1.0))


def philly(jobs: int) -> list[TraceJob]:
    chance = random.Random(1)

    def limit(seconds: float) -> float:
        chosen = seconds * chance.uniform(1.0, 6.0)
        return next((one for one in LIMITS if one >= chosen), LIMITS[-1])

    return [replace(job, limit_seconds=limit(job.seconds)) for job in read_trace(PHILLY).first(jobs)]


def mit(jobs: int) -> list[TraceJob]:
    return list(read_trace(MIT).first(jobs))


TRACES: Mapping[str, Callable[[int], list[TraceJob]]] = {"philly": philly, "mit-supercloud": mit}


def requests(trace: Sequence[TraceJob]) -> Iterator[tuple[float, JobRequest]]:
    for job in trace:
        team = TeamName(job.team or "all")
        gpus, nodes = job.gpus, job.nodes
        if gpus > PER_NODE:
            gpus, nodes = PER_NODE, -(-gpus * nodes // PER_NODE)
        yield (
            job.at,
            JobRequest(
                job.user or UserName(f"{team}-jobs"),
                POOL,
                gpus,
                nodes,
                team=team,
                seconds=max(1.0, job.seconds),
                limit_seconds=job.limit_seconds,
                name=job.name,
            ),
        )


def cluster_for(trace: Sequence[TraceJob], load: float) -> tuple[Pool, ClusterTerms]:
    used = sum(job.seconds * job.devices for job in trace)
    span = trace[-1].at - trace[0].at
    nodes = max(1, round(used / span / load / PER_NODE))
    pool = Pool(
        POOL,
        LAB,
        GpuType("A100-80GB", 80),
        Capacity.OWNED,
        Decimal(1),
        VirtualPlace(nodes, PER_NODE),
    )
    users: dict[TeamName, set[UserName]] = {}
    for _, request in requests(trace):
        if request.team is not None:
            users.setdefault(request.team, set()).add(request.user)
    teams = (Team(t, grants=(Grant(SUPPLY),), members=tuple(sorted(m))) for t, m in sorted(users.items()))
    return pool, ClusterTerms(tuple(teams))


def ask(
    simulator: Simulator,
    pool: Pool,
    watch: Watch,
    recent: Sequence[WaitingJob],
    known: Calibration,
    seed: int,
) -> list[Answer]:
    """Forecast some of the jobs that wait now."""
    now = simulator.now
    plain = snapshot_of(simulator, LAB, [pool])
    snapshot = replace(plain, arrivals=tuple(recent), arrival_seconds=DAY)
    chance = random.Random(seed)
    ids = [job.job for job in snapshot.waiting]
    asked = frozenset(chance.sample(ids, min(ASKED, len(ids))))
    found = forecast_starts(snapshot, watch.known, asked=asked, seed=seed, max_events=24 * 3000)
    guesses = forecast_starts(
        plain, ToTheLimit(), asked=asked, futures=1, horizon=400 * DAY, max_events=200_000
    )
    return [
        Answer(int(job), now, known.apply(found[job], now), found[job], guesses[job].expected)
        for job in sorted(asked)
    ]


def calibration(answers: Sequence[Answer], watch: Watch, now: float) -> Calibration:
    """Compute the calibration by the answers whose range has passed."""
    past = []
    for answer in answers:
        raw = answer.raw
        if raw.earliest is not None and raw.latest is not None and raw.latest <= now:
            started = watch.first.get(answer.job, now)
            past.append(PastForecast(answer.at, raw.earliest, raw.latest, started))
    return calibrate(past)


def measure(
    trace: Sequence[TraceJob], load: float, moments: int, seed: int = 1
) -> tuple[list[Answer], Watch, float]:
    """Run a trace and ask at moments; the first fifth is learnt only."""
    pool, terms = cluster_for(trace, load)
    watch = Watch()
    simulator = Simulator([pool], terms, trace[0].at, history_size=0, observer=watch)
    chance = random.Random(seed)
    first, last = trace[len(trace) // 5].at, trace[-1].at
    due = sorted(chance.uniform(first, last) for _ in range(8 * moments))
    answers: list[Answer] = []
    asked, busy, number = 0, 0.0, 0
    recent: list[WaitingJob] = []
    for at, request in requests(trace):
        while due and due[0] <= at:
            simulator.advance(due.pop(0))
            if asked < moments and simulator.waiting() >= FEWEST:
                recent = [job for job in recent if job.submitted > simulator.now - DAY]
                began = time.perf_counter()
                known = calibration(answers, watch, simulator.now)
                answers += ask(simulator, pool, watch, recent, known, seed + asked)
                busy += time.perf_counter() - began
                asked += 1
        simulator.advance(at)
        with suppress(Refused):
            simulator.check(request)
            number += 1
            watch.requests[number] = request
            recent.append(WaitingJob(JobId(number), replace(request, seconds=float("inf")), at))
            assert simulator.submit(request) == number
    while (following := simulator.next_at()) is not None:
        simulator.advance(following)
    return answers, watch, busy / max(1, asked)


def figures(answers: Sequence[Answer], watch: Watch) -> dict[str, float]:
    """Sum up errors in seconds, and how often the range has the true start."""
    ours: list[float] = []
    bare: list[float] = []
    waits: list[float] = []
    within = below = above = raw_within = 0
    known = [a for a in answers if a.forecast.expected is not None and a.guess is not None]
    for answer in known:
        true = watch.first[answer.job]
        found = answer.forecast
        ours.append(abs((found.expected or 0.0) - true))
        bare.append(abs((answer.guess or 0.0) - true))
        waits.append(true - answer.at)
        late = found.latest is not None and true > found.latest + 1.0
        early = found.earliest is not None and true < found.earliest - 1.0
        above += late
        below += early
        within += not late and not early
        raw = answer.raw
        raw_late = raw.latest is not None and true > raw.latest + 1.0
        raw_within += not raw_late and not (raw.earliest is not None and true < raw.earliest - 1.0)
    count = max(1, len(known))
    return {
        "asked": len(answers),
        "forecast": len(known),
        "median wait": median(waits),
        "median error": median(ours),
        "median error of limits": median(bare),
        "mean error": fmean(ours),
        "mean error of limits": fmean(bare),
        "within the 80 % range": within / count,
        "before calibration": raw_within / count,
        "earlier": below / count,
        "later": above / count,
    }


async def run(size: str) -> list[Figure]:
    """`small`: 4,000 jobs and 15 moments of each trace; a number: so many moments of 12,000 jobs."""
    jobs, moments = (4000, 15) if size == "small" else (12_000, int(size))
    found: list[Figure] = []
    for name, read in TRACES.items():
        trace = read(jobs)
        answers, watch, seconds = measure(trace, LOADS[name], moments)
        values = figures(answers, watch)
        details = {key: round(value, 3) for key, value in values.items()}
        found.append(
            Figure(
                f"eta: {name}",
                size,
                values["median error"],
                values["median error of limits"],
                "s",
                TARGET,
                "what is known of run times, and which jobs arrive meanwhile",
                details={**details, "seconds of a forecast": round(seconds, 2), "jobs": len(trace)},
            )
        )
    return found
