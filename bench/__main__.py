"""python -m bench NAME|all [--size small|…] [--json]: run a benchmark, its bare counterpart beside it."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.figure import Figure

BENCHMARKS = {
    "eta": "forecast starts of waiting jobs on public traces, against a guess from their time limits",
    "apply": "applying many teams to a real engine, against the same writes made bare",
    "fidelity": "a mixed load on a real engine and its expected starts, against the same jobs simulated",
    "focus": "a month as a FOCUS file, against writing the same cells as CSV",
    "forecast": "month-end forecasts of the demo and of traces, against the rate of the last seven days",
    "ingest": "usage rows by the meter, against bare COPY of them into the same table",
    "jobs": "lists of jobs of any filter in a ledger that holds very many, against a page by primary key",
    "load": "two hundred clients on a server that sheds load, against the same server without bounds",
    "live": "many open pages over a busy demo, against the same demo that nobody looks at",
    "mirror_slurm": "how soon a change of a job on Slurm is known, against a bare squeue",
    "mirror_kubernetes": "changes of jobs on Kueue through the mirror, against a bare watch of them",
    "mirror_workloads": "changes of services and gangs through the mirror, against a bare watch of pods",
    "pages": "pages over a ledger of very many jobs, against the same questions in plain SQL",
    "plan": "planning a fleet on ten clusters, against writing its objects as JSON",
    "observe": "observing a cluster through Fairway, against the bare call to its engine",
    "recompute": "every figure of money of a demo or a lab, against the ledger's raw rows priced naively",
    "remedies": "what `why` suggests, carried out on a real engine, against jobs that are left as they are",
    "report": "a month of usage by team and the top users of one, against the same SQL on the raw rows",
    "simulate": "replays of many jobs under a fleet's rules, against a bare queue",
    "run_times": "run times of jobs of public traces, against the average of the user's last two",
    "submit": "jobs through Fairway until the engine has them, against the same jobs sent bare",
    "telemetry": "one window of GPU metrics of many GPUs, against sums by job in bare PromQL",
    "soak": "a server at its full rate for the minutes given, against its own memory earlier on",
    "startup": "CPU of `get pools`, `get jobs`, `why` and `--help`, against importing click, rich and httpx2",
    "why": "why jobs of a long queue wait and when they start, and a snapshot, against plain reads",
    "virtual": "jobs through the virtual engine under a policy, against a bare queue",
}
KEPT = Path("build/bench.jsonl")


def show(figure: Figure, only_json: bool) -> None:
    """People read the first lines, programs the last one."""
    if not only_json:
        verdict = "met" if figure.met else "MISSED"
        most = "" if figure.most is None else f" and {figure.most:.4g} {figure.unit}"
        print(
            f"{figure.name} [{figure.size}]: {figure.figure:.4g} {figure.unit},"
            f" bare {figure.bare:.4g} {figure.unit} = {figure.ratio:.2f} ×"
            f" (target {figure.target} ×{most}: {verdict})"
        )
        for key, value in figure.details.items():
            print(f"  {key}: {value}")
        print(f"  limited by: {figure.limits}")
    print(figure.line(), flush=True)


def keep(figure: Figure) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as f:
        f.write(figure.line() + "\n")


async def run_one(name: str, size: str, only_json: bool) -> list[Figure]:
    run: Callable[[str], Awaitable[list[Figure]]] = importlib.import_module(f"bench.{name}").run
    figures = await run(size)
    for figure in figures:
        keep(figure)
        show(figure, only_json)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "name", choices=[*BENCHMARKS, "all"], help="; ".join(f"{n}: {d}" for n, d in BENCHMARKS.items())
    )
    parser.add_argument(
        "--size", default="small", help="small (default) or the size the benchmark names, e.g. 1000"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON lines only")
    args = parser.parse_args()
    names = list(BENCHMARKS) if args.name == "all" else [args.name]
    missed = [f for name in names for f in asyncio.run(run_one(name, args.size, args.json)) if not f.met]
    for f in missed:
        print(
            f"missed: {f.name} [{f.size}] {f.ratio:.2f} × instead of {f.target} ×: {f.limits}",
            file=sys.stderr,
        )
    return 0  # a figure is a report, not a test: a missed one is said plainly


if __name__ == "__main__":
    sys.exit(main())
