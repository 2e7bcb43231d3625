"""Daily amounts of payers for the forecast benchmark: the demo's simulated history, and published traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl

from fairway.demo.fleet_text import fleet_text
from fairway.demo.history_jobs import generate_jobs
from fairway.demo.history_run import generate_outages, run
from fairway.demo.jobs import DAY, HOUR, virtual_place
from fairway.files import parse_fleet
from fairway.model.fleet import Pool
from fairway.model.team import Supply, TeamTree

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where the published traces are; see the README of each."""
TOTAL = "(all)"
PHILLY_FIRST = date(2017, 9, 21)
PHILLY_DAYS = 79
"""Before, long jobs that had begun earlier are missing; after 8 December the trace ends job by job."""


@dataclass(frozen=True, slots=True)
class PayerDays:
    """The amounts of one payer, one a day, from the day `first` on."""

    payer: str
    first: date
    amounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """Something that costs a payer `per_second` from `start` to `end`, in seconds since 1970."""

    payers: tuple[str, ...]
    start: float
    end: float
    per_second: float


def demo_days(seed: int, until: date, days: int) -> list[PayerDays]:
    """Simulate the demo's history and price what each team used, its subteams included, at list prices."""
    end = _at(until)
    start = end - days * DAY
    fleet = parse_fleet(fleet_text(until - timedelta(days=days // 2)), "fleet.yaml")
    jobs = generate_jobs(fleet, start, end, seed)
    result = run(fleet, jobs, generate_outages(fleet, start, end, seed), start, end)
    tree = TeamTree(fleet.teams)
    payers = {
        team.name: (TOTAL, *(above.name for above in fleet.teams if team in tree.subtree(above)))
        for team in fleet.teams
    }
    prices = {s: _per_second(pool, s, until) for pool in fleet.pools for s in pool.supplies}
    held = (
        Holding(
            payers[job.planned.team],
            attempt.started,
            end if attempt.ended is None else attempt.ended,
            job.planned.gpus * job.planned.nodes * prices[job.planned.supply],
        )
        for job in result.jobs
        for attempt in job.attempts
    )
    return by_day(held, until - timedelta(days=days), days)


def philly_days() -> list[PayerDays]:
    """Read GPU-hours of Philly's virtual clusters: jobs start when submitted, as the trace has no waits."""
    rows = pl.read_csv(SHARED / "philly" / "philly.csv.zst", try_parse_dates=True).drop_nulls()
    columns = rows.select(pl.col("timestamp").dt.epoch("s"), "duration", "gpu_time", "cluster")
    held = (
        Holding((TOTAL, cluster), start, start + seconds, gpu_seconds / seconds / HOUR)
        for start, seconds, gpu_seconds, cluster in columns.iter_rows()
    )
    return by_day(held, PHILLY_FIRST, PHILLY_DAYS)


def helios_days() -> list[PayerDays]:
    """Read GPU-hours of the 16 virtual clusters of Helios' Earth in May 2020."""
    sums: dict[str, list[float]] = {}
    for path in sorted((SHARED / "helios" / "earth_vc_minute").glob("*.csv.zst")):
        rows = pl.read_csv(path, try_parse_dates=True)
        minutes = rows.group_by(pl.col("time").dt.date()).agg(pl.col("running_gpu_num").sum())
        sums[path.name.partition(".")[0]] = [gpus / 60 for _, gpus in minutes.sort("time").iter_rows()]
    sums[TOTAL] = [sum(day) for day in zip(*sums.values(), strict=True)]
    return [PayerDays(payer, date(2020, 5, 1), tuple(days)) for payer, days in sums.items()]


def by_day(held: Iterable[Holding], first: date, days: int) -> list[PayerDays]:
    """Sum what is held by payer and UTC day."""
    start = _at(first)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * days)
    for one in held:
        day = max(0, int((one.start - start) // DAY))
        while day < days and (began := start + day * DAY) < one.end:
            amount = one.per_second * max(0.0, min(one.end, began + DAY) - max(one.start, began))
            for payer in one.payers:
                sums[payer][day] += amount
            day += 1
    return [PayerDays(payer, first, tuple(amounts)) for payer, amounts in sorted(sums.items())]


def _per_second(pool: Pool, supply: Supply, day: date) -> float:
    """Return the price of a GPU, or of a slice as an equal part of the GPU it is cut from."""
    slices = virtual_place(pool).slices_per_gpu
    return float(pool.list_price(day)) / HOUR / (sum(slices.values()) if supply.slice is not None else 1)


def _at(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
