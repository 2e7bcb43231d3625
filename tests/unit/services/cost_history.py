"""A fleet with prices, and weeks of usage of it, written as the meter leaves them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from types import MappingProxyType
from typing import Any

from fairway.cost.calendar import Calendar
from fairway.ledger import Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName
from fairway.model.price import Commitment, CostRules, Pricing, Sharing
from fairway.model.team import Grant, Supply, Team
from tests.unit.ledger.usage_samples import Book, Class, Row, moment

A100 = GpuType("A100-80GB", 80)
HPC, CLOUD = ClusterName("hpc"), ClusterName("cloud")
OCTOBER = date(2026, 10, 1)
NOW = int(datetime(2026, 11, 5, 12, 30, 17, tzinfo=UTC).timestamp())


def _team(name: str, parent: str | None, guarantee: int, *members: str) -> Team:
    return Team(
        TeamName(name),
        TeamName(parent) if parent else None,
        grants=(Grant(Supply(PoolName("a100")), guarantee),),
        members=tuple(UserName(m) for m in members),
    )


FLEET = Fleet(
    "acme",
    "EUR",
    (
        Cluster(
            HPC,
            VirtualConnection(),
            overhead=MappingProxyType({"power": Decimal(900), "people": Decimal(301)}),
        ),
        Cluster(CLOUD, VirtualConnection()),
    ),
    (
        Pool(PoolName("a100"), HPC, A100, Capacity.OWNED, Decimal("1.37"), VirtualPlace(2, 8)),
        Pool(
            PoolName("mig"),
            HPC,
            A100,
            Capacity.OWNED,
            Decimal("1.37"),
            VirtualPlace(1, 2, MappingProxyType({SliceName("1g.10gb"): 7})),
            slices=(SliceName("1g.10gb"),),
        ),
        Pool(
            PoolName("spot"),
            CLOUD,
            A100,
            Capacity.SPOT,
            Decimal("0.55"),
            VirtualPlace(1, 4),
            pricing=Pricing(commitments=(Commitment(6, Decimal("0.31"), OCTOBER, date(2027, 1, 1)),)),
        ),
    ),
    teams=(
        _team("research", None, 12, "lead"),
        _team("nlp", "research", 6, "alice", "bob"),
        _team("vision", "research", 3, "carol"),
        _team("product", None, 4, "dan"),
    ),
)
CLASSES = (
    Class("hpc", "alice", "nlp", "a100", project="llm", experiment="e1"),
    Class("hpc", "bob", "nlp", "a100", priority="low", project="llm", experiment="e2"),
    Class("hpc", "carol", "vision", "a100", project="eyes", experiment="e1"),
    Class("hpc", "dan", "product", "a100"),
    Class("hpc", "carol", "vision", "mig", "1g.10gb", project="eyes"),
    Class("hpc", "dan", "product", "mig", "1g.10gb"),
    Class("cloud", "alice", "nlp", "spot", project="llm", experiment="e1"),
    Class("cloud", "eve", "", "spot"),
)
SIZES = {"a100": (16, 16), "mig": (14, 2), "spot": (4, 4)}
"""Devices and GPUs of each pool."""


def with_rules(idle: Sharing, overhead: Sharing, timezone: str = "UTC") -> Fleet:
    return replace(FLEET, cost=CostRules(timezone, idle, overhead))


def calendar(timezone: str = "UTC") -> Calendar:
    from zoneinfo import ZoneInfo

    return Calendar(ZoneInfo(timezone))


class CostBook(Book):
    """Writes capacity too."""

    def capacity(self, pool: str, cluster: str, slice_: str, span: Span, down: int = 0) -> None:
        devices, gpus = SIZES[pool]
        for time in ("hour", "day"):
            spans = self.local.hours(span) if time == "hour" else self.local.days(span)
            with self.db.cursor() as cursor, cursor.copy(f"COPY capacity_{time} FROM STDIN") as copy:
                for each in spans:
                    long = each.end - each.start
                    at = moment(each.start) if time == "hour" else self.local.day_of(each.start)
                    sums = (devices * long, 0, down * long, 0, gpus * long)
                    copy.write_row((at, cluster, pool, slice_, *sums))


def rows(book: CostBook, first: date, days: int, seed: int = 1) -> Iterator[Row]:
    """What people held: never more than there is."""
    dice = random.Random(seed)
    for n in range(days):
        day = first + timedelta(days=n)
        span = Span(book.local.day_start(day), book.local.day_start(day + timedelta(days=1)))
        for hour in dice.sample(list(book.local.hours(span)), 4):
            for i, of in enumerate(CLASSES):
                if dice.random() < 0.7:
                    devices = dice.randrange(1, 1 + SIZES[of.pool][0] // 4)
                    seconds = dice.randrange(1, hour.end - hour.start + 1)
                    yield Row(of, hour.start, seconds, devices, job=i + 1, name=f"job-{i}")


async def fill(ledger: Ledger, book: CostBook, first: date, days: int, seed: int = 1) -> list[Row]:
    """So many days of usage and capacity from a day on."""
    made = list(rows(book, first, days, seed))
    await book.add(ledger, made)
    end = first + timedelta(days=days)
    span = Span(book.local.day_start(first), book.local.day_start(end))
    with book.db.transaction():
        book.capacity("a100", "hpc", "", span, down=1)
        book.capacity("mig", "hpc", "1g.10gb", span)
        book.capacity("spot", "cloud", "", span)
    return made


def near(one: Decimal | int, other: Decimal | int) -> bool:
    """Whether sums of figures of six digits are the same."""
    return abs(Decimal(one) - Decimal(other)) < Decimal("0.0005")


def in_cents(report: Mapping[str, Any]) -> Decimal:
    """What a report of the API sums to for people: its columns, each rounded once."""
    columns = (Decimal(report["total"][name]) for name in ("usage", "idle", "overhead"))
    return sum((column.quantize(Decimal("0.01"), ROUND_HALF_EVEN) for column in columns), Decimal(0))
