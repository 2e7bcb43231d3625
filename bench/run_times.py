"""How long jobs run, predicted when they are submitted and while they run, on public traces.

Each trace is played in the order of its events; a method knows the jobs that have ended. Gradient boosting is
compared where scikit-learn is installed, in an environment of its own (`uv pip install scikit-learn`).
Philly has teams but no users, openb neither, and only MIT's trace has users and limits.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from bench.figure import Figure
from bench.run_time_methods import (
    PARTS,
    Boosting,
    Fairway,
    LastTwo,
    Method,
    Quantiles,
    Question,
    TimeLimit,
)
from fairway.files.traces.read import read_trace
from fairway.model.names import TeamName, UserName
from fairway.model.trace import TraceJob
from fairway.simulate.run_times import FinishedRun, JobTraits, RunTimes

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where the published traces are; see the README of each."""
MIT = SHARED / "mit-supercloud" / "slurm-log-queueing-clean.csv.zst"
PHILLY = SHARED / "philly" / "philly.csv.zst"
OPENB = SHARED / "openb" / "openb_pod_list_default.csv"
SMALL = 12_000
FIRST_PART = 10
"""The first tenth of the jobs is learnt only."""
ELAPSED = (60.0, 172_800.0)
"""A running job is asked about once, at a moment between these whatever its run time, evenly by logarithm."""
DAY = 86_400.0
_SUBMITTED, _RUNNING, _ENDED = "at submission", "while running", "ended"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method predicted, and what came of it."""

    quantiles: Quantiles
    seconds: float


@dataclass(slots=True)
class Played:
    """The answers of a method on a trace."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: {_SUBMITTED: [], _RUNNING: []})
    busy: float = 0.0
    """Seconds spent learning and predicting."""


def mit_gpu() -> list[TraceJob]:
    return list(read_trace(MIT))


def mit_cpu() -> list[TraceJob]:
    """Return the jobs without GPUs, on which the constants were chosen."""
    with_gpus = {(job.at, job.user, job.seconds, job.started) for job in mit_gpu()}
    every = read_trace(MIT, keep_cpu_jobs=True)
    return [job for job in every if (job.at, job.user, job.seconds, job.started) not in with_gpus]


TRACES: Mapping[str, Callable[[], list[TraceJob]]] = {
    "mit-supercloud, GPU jobs": mit_gpu,
    "philly": lambda: list(read_trace(PHILLY)),
    "openb": lambda: list(read_trace(OPENB)),
    "mit-supercloud, CPU jobs (chosen on)": mit_cpu,
}


def play(jobs: Sequence[TraceJob], methods: Mapping[str, Method], seed: int = 1) -> dict[str, Played]:
    """Ask every method about every job at its submission and once later, in the order of events."""
    chance = random.Random(seed)
    events: list[tuple[float, int, int, str, float]] = []
    for number, job in enumerate(jobs):
        start = job.at if job.started is None else job.started
        events.append((start + job.seconds, 0, number, _ENDED, 0.0))
        events.append((job.at, 1, number, _SUBMITTED, 0.0))
        elapsed = math.exp(chance.uniform(*map(math.log, ELAPSED)))
        if elapsed < job.seconds:
            events.append((start + elapsed, 2, number, _RUNNING, elapsed))
    found = {name: Played() for name in methods}
    ended = 0
    for at, _, number, kind, elapsed in sorted(events):
        job = jobs[number]
        traits = JobTraits(job.user, job.team, job.name, job.devices, job.limit_seconds)
        ended += kind == _ENDED
        question = Question(number, traits, at % DAY / 3600, elapsed)
        for name, method in methods.items():
            began = time.perf_counter()
            if kind == _ENDED:
                method.learn(number, traits, job.seconds)
            else:
                quantiles = method.predict(question)
                if ended * FIRST_PART >= len(jobs):
                    found[name].answers[kind].append(Answer(quantiles, job.seconds))
            found[name].busy += time.perf_counter() - began
    for name, method in methods.items():
        began = time.perf_counter()
        method.finish()
        found[name].busy += time.perf_counter() - began
    return found


def pinball(answers: Iterable[Answer]) -> float:
    """Return the mean pinball loss of the logarithm of the run time: 0.1 is about a tenth of the time."""
    return fmean(
        max(part * gap, (part - 1) * gap)
        for answer in answers
        for part, quantile in zip(PARTS, answer.quantiles, strict=True)
        for gap in (math.log(answer.seconds / quantile),)
    )


def error(answers: Iterable[Answer]) -> float:
    """Return the median relative error of the median, in per cent."""
    return 100 * median(abs(a.quantiles[1] - a.seconds) / a.seconds for a in answers)


def coverage(answers: Iterable[Answer]) -> float:
    """Return the part of the jobs within the 80 % range, in per cent."""
    return 100 * fmean(a.quantiles[0] <= a.seconds <= a.quantiles[-1] for a in answers)


def methods_for(jobs: int) -> dict[str, Method]:
    """Return the methods, with gradient boosting if it is there."""
    found: dict[str, Method] = {
        "fairway": Fairway(),
        "time limit": TimeLimit(),
        "last two jobs": LastTwo(),
    }
    try:
        found["gradient boosting"] = Boosting(max(100, jobs // FIRST_PART))
    except ImportError:
        print("no scikit-learn: gradient boosting is left out", file=sys.stderr)
    return found


def figures(name: str, jobs: Sequence[TraceJob]) -> list[Figure]:
    """Return a figure for each moment of asking."""
    played = play(jobs, methods_for(len(jobs)))
    found = []
    for moment in (_SUBMITTED, _RUNNING):
        losses = {method: pinball(result.answers[moment]) for method, result in played.items()}
        found.append(
            Figure(
                f"run times {moment}",
                name,
                losses["fairway"],
                losses["last two jobs"],
                "pinball loss of log time",
                1.0,
                "how alike the jobs of a user are; the traces have no job names",
                {
                    "answers": len(played["fairway"].answers[moment]),
                    **{
                        method: f"loss {losses[method]:.3f}, error of the median"
                        f" {error(result.answers[moment]):.0f} %, 80 % range has"
                        f" {coverage(result.answers[moment]):.0f} %,"
                        f" {1e6 * result.busy / len(jobs):.0f} µs a job"
                        for method, result in played.items()
                    },
                },
            )
        )
    return found


def speed(jobs: int = 12_000) -> Figure:
    """Time a prediction for each of many open jobs of 2,000 groups, half of them running."""
    chance = random.Random(2)
    traits = [
        JobTraits(
            UserName(f"user-{n % 400}"),
            TeamName(f"team-{n % 40}"),
            f"{'abcde'[n // 400 % 5]}-{n}",
            2 ** (n % 4),
            DAY,
        )
        for n in range(jobs)
    ]
    model = RunTimes()
    for one in traits:
        model.learn(FinishedRun(one, chance.lognormvariate(8, 2)))
    stored = {key: histogram.encode() for key, histogram in model.histograms()}
    began = time.perf_counter()
    loaded = RunTimes(stored)
    forecasts = [loaded.predict(one, 600.0 * (n % 2)) for n, one in enumerate(traits)]
    predicted = time.perf_counter()
    for forecast in forecasts:
        forecast.quantile(chance.random())
    drawn = time.perf_counter() - predicted
    learning = time.perf_counter()
    for one in traits[:1000]:
        model.learn(FinishedRun(one, 600.0))
    learnt = (time.perf_counter() - learning) / 1000
    return Figure(
        "run times of all open jobs",
        f"{jobs} jobs",
        predicted - began,
        drawn,
        "s",
        math.inf,
        "each distinct user, name, size and limit combines up to twelve histograms once",
        {
            "bare": "drawing one run time of each",
            "histograms": len(stored),
            "bytes a histogram": round(fmean(map(len, stored.values()))),
            "learning a job": f"{1e6 * learnt:.0f} µs",
        },
    )


async def run(size: str) -> list[Figure]:
    """small: the first 12,000 jobs of each trace. full: all jobs."""
    found = [speed()]
    if not MIT.is_file():
        print(f"no published traces in {SHARED}: only the speed is measured", file=sys.stderr)
        return found
    for name, read in TRACES.items():
        jobs = read()
        found += figures(name, jobs if size == "full" else jobs[:SMALL])
    return found
