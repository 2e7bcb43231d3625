"""The meter's step on a real ledger: usage by the hour, capacity as it was, after any absence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.meter import GRACE_SECONDS, MAX_GAP, MeterCluster
from fairway.control.metrics import UsageMetrics
from fairway.cost.calendar import Calendar
from fairway.explain.reasons import REASONS, WAITS_FOR_CAPACITY
from fairway.ledger import Ledger, PricePointRow
from fairway.ledger.errors import LedgerBusy
from fairway.ledger.jobs import label_values
from fairway.ledger.jobs.submit import JobClass, class_ids
from fairway.ledger.usage.metering import MeteringWriter
from fairway.model.condition import ConditionType
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import ClusterName, NodeName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.model.price import CostRules
from fairway.services.fleets import Fleets, LastApplied
from tests.metered import Hand, read, seconds
from tests.unit.control.job_toy import FLEET, HPC, POOL, give_fleet, take

ZONE = "Asia/Kolkata"
NOON = int(datetime(2026, 3, 4, 6, 30, tzinfo=UTC).timestamp())
"""In Kolkata."""
HOUR = 3600


class Bench:
    """A ledger and its meter, on a clock of its own."""

    def __init__(self, ledger: Ledger, db: psycopg.Connection[Any], fleet: Fleet) -> None:
        self.ledger, self.db, self.hand = ledger, db, Hand(db)
        self.now = float(NOON)
        self.registry = CollectorRegistry()
        applied = LastApplied(HPC, ledger, Fleets(ledger, lambda revision: fleet))
        self.meter = MeterCluster(
            HPC, ledger, applied, UsageMetrics(self.registry), batch=10, clock=lambda: self.now
        )

    async def step(self, at: float | None = None) -> None:
        self.now = self.now if at is None else at
        lease = await take(self.ledger, "meter")
        await self.meter(lease)
        await self.ledger.leases.release(lease)

    def agree(self, zone: str = ZONE) -> None:
        calendar = Calendar(ZoneInfo(zone))
        upto = calendar.hour_start(int(self.now) - GRACE_SECONDS)
        assert read(self.db, upto).faults(calendar) == []

    async def show(self, *nodes: tuple[str, Health, int, int]) -> None:
        lease = await take(self.ledger, "observe")
        seen = tuple(
            Node(NodeName(name), health, "", (Devices(POOL, "gpu:a100", None, total, in_use),))
            for name, health, total, in_use in nodes
        )
        async with self.ledger.writing(lease) as tx:
            await tx.observations.write(Observation(ClusterName(HPC), "1", seen))
        await self.ledger.leases.release(lease)

    def capacity(self) -> list[tuple[int, int, int, int, int, int, int]]:
        found = self.db.execute(
            "SELECT started_at, ended_at, total, drained, down, fragmented, gpus FROM capacity ORDER BY 1"
        )
        return [(seconds(a) - NOON, seconds(b) - NOON, *rest) for a, b, *rest in found]

    def sums(self, table: str = "capacity_hour", key: str = "hour") -> dict[Any, tuple[int, ...]]:
        found = self.db.execute(f"SELECT {key}, total, drained, down, fragmented, gpu_seconds FROM {table}")
        return {(seconds(at) - NOON if key == "hour" else at): tuple(rest) for at, *rest in found}


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def bench(ledger: Ledger, db: psycopg.Connection[Any]) -> Bench:
    await give_fleet(ledger)
    return Bench(ledger, db, replace(FLEET, cost=CostRules(timezone=ZONE)))


async def test_what_runs_is_metered_when_an_hour_of_the_zone_is_over(bench: Bench) -> None:
    job = bench.hand.job(bench.hand.class_())
    bench.hand.attempt(job, 1, NOON + 600, devices=4)
    await bench.step(NOON + HOUR - 1)
    assert bench.db.execute("SELECT count(*) FROM usage").fetchone() == (0,)
    await bench.step(NOON + HOUR + GRACE_SECONDS - 1)  # what ended before the hour may still be told
    assert bench.db.execute("SELECT count(*) FROM usage").fetchone() == (0,)
    await bench.step(NOON + HOUR + GRACE_SECONDS)
    bench.agree()
    assert bench.db.execute("SELECT seconds, devices FROM usage").fetchall() == [(3000, 4)]
    await bench.step()
    assert bench.db.execute("SELECT count(*) FROM usage").fetchone() == (1,)


async def test_an_absence_of_months_is_made_up_for_in_bounded_steps(bench: Bench) -> None:
    for number in range(35):
        job = bench.hand.job(bench.hand.class_(f"t{number % 3}"), "done" if number % 2 else "running")
        start = NOON - number * 3 * 86400
        bench.hand.attempt(job, 1, start, start + 5 * HOUR if number % 2 else None)
    await bench.step(NOON + 70 * 86400)
    bench.agree()
    name = "fairway_used_device_seconds_total"
    told = sum(
        bench.registry.get_sample_value(
            name, {"cluster": HPC, "pool": "gpu", "slice": "", "team": f"t{number}"}
        )
        or 0
        for number in range(3)
    )
    assert (told,) == bench.db.execute("SELECT sum(device_seconds) FROM usage_day").fetchone()


async def test_too_much_for_one_transaction_is_done_in_smaller_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    whole = MeteringWriter.meter

    async def slow(self: MeteringWriter, hours: Any, most: int) -> Any:
        asked.append(most)
        if most > 1:
            raise LedgerBusy("LedgerBusy", "too slow", "wait")
        return await whole(self, hours, most)

    monkeypatch.setattr(MeteringWriter, "meter", slow)
    for _ in range(5):
        bench.hand.attempt(bench.hand.job(bench.hand.class_(), "done"), 1, NOON - 100, NOON)
    await bench.step()
    bench.agree()
    assert asked[:2] == [10, 1]


async def test_capacity_is_written_by_spans_hours_and_days(bench: Bench) -> None:
    await bench.show(("a", Health.READY, 8, 8), ("b", Health.READY, 8, 0))
    await bench.step(NOON + 100)
    assert bench.capacity() == []
    await bench.show(("a", Health.READY, 8, 8), ("b", Health.DRAINED, 8, 0))
    await bench.step(NOON + 400)
    assert bench.capacity() == [(100, 400, 16, 0, 0, 0, 16)]
    await bench.step(NOON + 2 * HOUR + 5)
    assert bench.capacity()[1:] == [(400, 2 * HOUR, 16, 8, 0, 0, 16)]
    assert bench.sums() == {
        0: (16 * 3500, 8 * 3200, 0, 0, 16 * 3500),
        HOUR: (16 * HOUR, 8 * HOUR, 0, 0, 16 * HOUR),
    }
    (day,) = bench.sums("capacity_day", "day").values()
    assert day == (16 * 7100, 8 * 6800, 0, 0, 16 * 7100)
    gauge = {"cluster": HPC, "pool": POOL, "slice": "", "state": "drained"}
    assert bench.registry.get_sample_value("fairway_capacity_devices", gauge) == 8
    await bench.meter.close()
    assert bench.registry.get_sample_value("fairway_capacity_devices", gauge) is None


async def test_what_was_last_seen_holds_however_long_nobody_looked(bench: Bench) -> None:
    await bench.show(("a", Health.READY, 8, 0))
    await bench.step(NOON)
    await bench.show(("a", Health.DOWN, 8, 0))
    away = 100 * 86400
    await bench.step(NOON + away)
    spans = bench.capacity()
    assert (spans[0][0], spans[-1][1]) == (0, away)
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert sum(row[0] for row in bench.sums().values()) == 8 * away
    assert sum(row[0] for row in bench.sums("capacity_day", "day").values()) == 8 * away
    assert len(bench.sums()) == away // HOUR


async def test_free_devices_are_fragmented_while_something_larger_waits(bench: Bench) -> None:
    await bench.show(("a", Health.READY, 8, 6), ("b", Health.READY, 8, 4))
    class_ = bench.hand.class_(pool=POOL)
    job = bench.hand.job(class_, "waiting")
    bench.db.execute("UPDATE job SET gpus = 4, reason_code = 'NotEnoughFree' WHERE id = %s", (job,))
    await bench.step(NOON)
    await bench.step(NOON + 60)
    bench.db.execute("UPDATE job SET reason_code = 'TeamAtCeiling' WHERE id = %s", (job,))
    await bench.step(NOON + 120)
    assert bench.capacity() == [(0, 120, 16, 0, 0, 2, 16)]


REWORDED = (
    "Resources",
    "0/6 nodes are available: 6 Insufficient nvidia.com/gpu.",
    'topology "racks" allows to fit only 1 out of 2',
    "only 1 node of gpu with 8 free, the job needs 2; 9 devices are free in all",
    "AssocGrpGRES",
    "insufficient unused quota for nvidia.com/gpu",
    "kein Platz, sagt der Planer",
    "",
)
_SAYS = "UPDATE job SET gpus = 4, reason = %s, reason_code = %s WHERE id = %s"


async def test_who_waits_for_room_is_told_by_the_code_alone(bench: Bench) -> None:
    job = bench.hand.job(bench.hand.class_(pool=POOL), "waiting")
    for code in ("", *REASONS):
        for words in REWORDED:
            bench.db.execute(_SAYS, (words, code, job))
            found = await bench.ledger.capacity.waiting(HPC, WAITS_FOR_CAPACITY)
            assert list(found.values()) == ([4] if code in WAITS_FOR_CAPACITY else []), (code, words)


async def test_no_wording_of_an_engine_changes_what_is_fragmented(bench: Bench) -> None:
    await bench.show(("a", Health.READY, 8, 6), ("b", Health.READY, 8, 4))
    job = bench.hand.job(bench.hand.class_(pool=POOL), "waiting")
    for minute, words in enumerate(REWORDED):
        bench.db.execute(_SAYS, (words, "NotEnoughFree", job))
        await bench.step(NOON + 60 * minute)
    for minute, words in enumerate(REWORDED, len(REWORDED)):
        bench.db.execute(_SAYS, (words, "TeamAtCeiling", job))
        await bench.step(NOON + 60 * minute)
    await bench.show(("a", Health.READY, 8, 6))
    await bench.step(NOON + 60 * 2 * len(REWORDED))
    then, later = 60 * len(REWORDED), 60 * 2 * len(REWORDED)
    assert bench.capacity() == [(0, then, 16, 0, 0, 2, 16), (then, later, 16, 0, 0, 0, 16)]


async def test_a_pool_that_is_gone_is_closed(bench: Bench) -> None:
    await bench.show(("a", Health.READY, 8, 0))
    await bench.step(NOON)
    await bench.show()
    await bench.step(NOON + 50)
    await bench.step(NOON + 500)
    assert bench.capacity() == [(0, 50, 8, 0, 0, 0, 8)]
    assert bench.db.execute("SELECT count(*) FROM capacity_now").fetchone() == (0,)


async def test_what_waits_is_sampled_by_hour(bench: Bench) -> None:
    class_ = bench.hand.class_(pool=POOL)
    for state in ("waiting", "queued", "held", "running"):
        job = bench.hand.job(class_)
        bench.db.execute("UPDATE job SET state = %s, devices = 4 WHERE id = %s", (state, job))
    await bench.step(NOON - 30)
    assert bench.db.execute("SELECT count(*) FROM queue_hour").fetchone() == (0,)  # since when is unknown
    await bench.step(NOON + 30)
    await bench.step(NOON + 40)
    await bench.step(NOON + 40 + MAX_GAP + 1)  # away for too long: what waited meanwhile is unknown
    found = bench.db.execute(
        "SELECT hour, seconds, device_seconds FROM queue_hour WHERE device_seconds > 0 ORDER BY hour"
    ).fetchall()
    rows = [(seconds(hour) - NOON, length, sums) for hour, length, sums in found]
    assert rows == [(-HOUR, 30, 8 * 30), (0, 40, 8 * 40)]


async def conditions(bench: Bench) -> dict[ConditionType, str]:
    return {c.condition.type: c.condition.message for c in await bench.ledger.conditions.all()}


async def test_more_held_than_there_is_is_a_condition_until_it_is_over(bench: Bench) -> None:
    """Ghosts: attempts that ended on the cluster, and that nobody reported as ended."""
    metric = "fairway_usage_above_capacity_devices"
    labels = {"cluster": HPC, "pool": POOL, "slice": ""}
    await bench.show(("n1", Health.READY, 8, 8))
    await bench.step(NOON)
    real = bench.hand.job(bench.hand.class_(pool=POOL))
    bench.hand.attempt(real, 1, NOON, devices=8)
    ghost = bench.hand.job(bench.hand.class_("other", POOL))
    # A minute too long of all devices: what an observation that comes late explains.
    bench.hand.attempt(ghost, 1, NOON, NOON + 60, devices=8)
    await bench.step(NOON + HOUR + GRACE_SECONDS)
    assert await conditions(bench) == {}
    bench.hand.attempt(ghost, 2, NOON + HOUR, devices=2)
    await bench.step(NOON + 2 * HOUR + GRACE_SECONDS)
    assert await conditions(bench) == {
        ConditionType.USAGE_ABOVE_CAPACITY: "jobs held 10.0 GPUs of hpc-a100 on average from 07:30 to "
        "08:30Z, and it had 8.0"
    }
    assert bench.registry.get_sample_value(metric, labels) == 2
    bench.hand.attempt(ghost, 2, NOON + HOUR, NOON + 2 * HOUR, devices=2)
    await bench.step(NOON + 3 * HOUR + GRACE_SECONDS)
    assert await conditions(bench) == {}
    assert bench.registry.get_sample_value(metric, labels) is None


async def test_an_hour_whose_capacity_is_not_known_is_not_judged(bench: Bench) -> None:
    job = bench.hand.job(bench.hand.class_(pool=POOL))
    bench.hand.attempt(job, 1, NOON - 10 * HOUR, devices=8)
    await bench.step(NOON + 1800)  # nothing was observed so far
    await bench.show(("n1", Health.READY, 8, 8))
    await bench.step(NOON + 1801)
    await bench.step(NOON + HOUR + GRACE_SECONDS)
    assert await conditions(bench) == {}
    await bench.step(NOON + 2 * HOUR + GRACE_SECONDS)
    assert await conditions(bench) == {}


async def test_too_many_values_of_a_label_are_a_condition_of_a_day(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_values, "MAX_NEW_VALUES", 1)
    plain = JobClass(HPC, "ada", "research", POOL, "", "normal", native=True)
    async with bench.ledger._connections.transaction() as connection:
        await class_ids(connection, [replace(plain, labels=(("model", "m1"),))])
    await bench.step(NOON)
    assert await conditions(bench) == {}
    async with bench.ledger._connections.transaction() as connection:
        await class_ids(connection, [replace(plain, labels=(("model", f"m{n}"),)) for n in range(3)])
    await bench.step(NOON + 61)
    assert await conditions(bench) == {
        ConditionType.TOO_MANY_LABEL_VALUES: "jobs had more than 1,000 new values of the label model in 30 "
        "days: further ones count as (other) in reports"
    }
    bench.db.execute("UPDATE label_value SET added_at = added_at - interval '25 hours'")
    await bench.step(NOON + 122)
    assert await conditions(bench) == {}


async def test_a_price_feed_that_stops_is_a_condition_until_it_comes_back(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    metric, labels = "fairway_spot_price_overdue_seconds", {"cluster": HPC, "pool": POOL}
    await give_fleet(ledger)
    spot = replace(FLEET, pools=tuple(replace(p, capacity=Capacity.SPOT) for p in FLEET.pools))
    bench = Bench(ledger, db, spot)

    async def price(at: int) -> None:
        row = PricePointRow(POOL, datetime.fromtimestamp(at, UTC), Decimal("0.40"))
        await ledger.prices.add([row], by="feed")

    for number in range(4):
        await price(NOON - (8 - number) * 6 * HOUR)
    await bench.step(NOON)
    assert bench.registry.get_sample_value(metric, labels) is None  # four prices are no feed
    for number in range(5):
        await price(NOON - (4 - number) * 6 * HOUR)
    await bench.step(NOON + 18 * HOUR)
    assert await conditions(bench) == {}
    assert bench.registry.get_sample_value(metric, labels) == 0
    await bench.step(NOON + 18 * HOUR + 90)
    message = (
        "spot prices of hpc-a100 have stopped: the newest is from 2026-03-04 06:30Z, and one came "
        "about every 6 h"
    )
    assert await conditions(bench) == {ConditionType.PRICE_FEED_STOPPED: message}
    assert bench.registry.get_sample_value(metric, labels) == 90
    await bench.step(NOON + 30 * HOUR)
    assert await conditions(bench) == {ConditionType.PRICE_FEED_STOPPED: message}
    await price(NOON + 30 * HOUR)
    await bench.step(NOON + 30 * HOUR + 61)
    assert await conditions(bench) == {}
    await bench.meter.close()
    assert bench.registry.get_sample_value(metric, labels) is None


async def test_owned_pools_have_no_price_feed(bench: Bench) -> None:
    rows = [PricePointRow(POOL, datetime.fromtimestamp(NOON - n * 60, UTC), Decimal(1)) for n in range(9)]
    await bench.ledger.prices.add(rows, by="old")
    await bench.step(NOON + 30 * 86400)
    assert await conditions(bench) == {}
