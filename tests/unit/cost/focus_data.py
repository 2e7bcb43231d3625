"""Days of charges for FOCUS files, as large as one likes: every kind of pool, charge and share there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from zoneinfo import ZoneInfo

from fairway.cost.calendar import Calendar
from fairway.cost.charges import charges
from fairway.cost.focus.export import DayCharges, ExportContext
from fairway.cost.rates import rate_spans
from fairway.files import parse_fleet
from fairway.model.charge import CapacitySum, Label, Span, UsageSum
from fairway.model.fleet import Fleet, Pool, VirtualPlace
from fairway.model.names import SliceName
from fairway.model.price import PricePoint, Sharing
from fairway.model.team import Supply

LABELS = (Label.TEAM, Label.USER, Label.PRIORITY)
FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: EUR
cost: { timezone: Europe/Berlin, idle: by-usage, overhead: by-guarantee }
clusters:
  hpc: { engine: virtual, overhead: { power: 4000, people: 9000.01 } }
  cloud: { engine: virtual }
pools:
  hpc-a100:
    cluster: hpc
    gpu: A100-80GB
    capacity: owned
    price: { before: 1.90, 2026-03-16: 1.75 }
    virtual: { nodes: 8 }
  hpc-mig:
    cluster: hpc
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    discount: 12%
    virtual: { nodes: 1, slices_per_gpu: { 1g.10gb: 7 } }
  hpc-mixed:
    cluster: hpc
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1.90
    slice_prices: { 3g.40gb: 1.10 }
    virtual: { nodes: 1, slices_per_gpu: { 1g.10gb: 4, 3g.40gb: 1 } }
  cloud-h100:
    cluster: cloud
    gpu: H100-80GB
    capacity: reserved
    price: 4.10
    discount: 7.5%
    commitments: [{ gpus: 40, price: 2.10, from: 2026-01-01, until: 2027-01-01 }]
    virtual: { nodes: 4 }
  cloud-spot:
    cluster: cloud
    gpu: H100-80GB
    capacity: spot
    price: 1.45
    virtual: { nodes: 4 }
teams:
  research:
    guarantee: { hpc-a100: 32, cloud-h100: 16 }
    borrow: { hpc-mig/1g.10gb: unlimited }
    members: [alice]
  product: { guarantee: { hpc-a100: 32 }, members: [bob] }
"""


def fleet(
    idle: Sharing = Sharing.BY_USAGE, overhead: Sharing = Sharing.BY_GUARANTEE, zone: str = "Europe/Berlin"
) -> Fleet:
    read = parse_fleet(FLEET, "focus")
    return replace(read, cost=replace(read.cost, idle=idle, overhead=overhead, timezone=zone))


@dataclass(frozen=True)
class Days:
    """Each day is drawn anew from its own number: goes round as often as anybody likes, always the same."""

    fleet: Fleet
    first: date
    count: int
    users: int = 3
    priorities: tuple[str, ...] = ("normal", "low")
    seed: int = 1

    @property
    def calendar(self) -> Calendar:
        return Calendar(ZoneInfo(self.fleet.cost.timezone))

    @property
    def book(self) -> ExportContext:
        return ExportContext(self.fleet, self.calendar, LABELS)

    def __iter__(self) -> Iterator[DayCharges]:
        for i in range(self.count):
            day = self.first + timedelta(days=i)
            yield self.day(day, Random(f"{self.seed} {day}"))

    def day(self, day: date, random: Random) -> DayCharges:
        calendar = self.calendar
        span = calendar.day_span(day)
        hours = calendar.hours(span)
        capacity = [
            row for pool in self.fleet.pools for hour in hours for row in self._there(pool, hour, random)
        ]
        points = {
            pool.name: [
                PricePoint(
                    datetime.fromtimestamp(hour.start + 600, UTC), Decimal(random.randint(50, 300)) / 100
                )
                for hour in hours[::6]
            ]
            for pool in self.fleet.pools
            if pool.name == "cloud-spot"
        }
        rates = rate_spans(self.fleet, calendar, span, capacity, points)
        usage = [
            row
            for pool in self.fleet.pools
            for i, rate in enumerate(rates[pool.name])
            for row in self._used(pool, i, rate.span, capacity, random, len(rates[pool.name]))
        ]
        by = (*LABELS, Label.DAY)
        made = charges(self.fleet, calendar, span, capacity, rates, usage, by, itemised=True)
        named = [c if c.labels is None else replace(c, labels=c.labels[: len(LABELS)]) for c in made]
        return DayCharges(span, self.fleet, named)

    def _there(self, pool: Pool, hour: Span, random: Random) -> Iterator[CapacitySum]:
        seconds = hour.end - hour.start
        place = pool.place
        assert isinstance(place, VirtualPlace)
        gpus = place.nodes * place.gpus_per_node
        cut = [(name, n) for name, n in place.slices_per_gpu.items()]
        counts: list[tuple[SliceName | None, int]] = [*cut] or [(None, 1)]
        for i, (slice_, each) in enumerate(sorted(counts, key=str)):
            total = gpus * each * seconds
            down = random.randint(0, total // 20)
            yield CapacitySum(
                hour.start,
                pool.cluster,
                Supply(pool.name, slice_),
                total,
                random.randint(0, total // 30),
                down,
                random.randint(0, total // 40),
                gpus * seconds if i == 0 else 0,
            )

    def _used(
        self, pool: Pool, index: int, span: Span, capacity: list[CapacitySum], random: Random, spans: int
    ) -> Iterator[UsageSum]:
        day = self.calendar.day_of(span.start).isoformat()
        there: dict[Supply, int] = {}
        for row in capacity:
            if row.supply.pool == pool.name and span.start <= row.start < span.end:
                there[row.supply] = there.get(row.supply, 0) + row.total
        for supply, total in there.items():
            who = [
                (team, f"{team}-{n}", priority)
                for team in ("research", "product", "")
                for n in range(self.users)
                for priority in self.priorities
            ]
            # Within a day of many spans only some of them hold anything in each.
            some = who if spans == 1 else random.sample(who, max(1, len(who) // 4))
            each = total * 9 // (10 * len(some))
            for labels in some:
                if held := random.randint(0, each):
                    yield UsageSum(index, supply, (*labels, day), held)
