"""The pure pieces of the pages of jobs: the end of a log, a life drawn, what a job cost, an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from fairway.cost.calendar import Calendar
from fairway.cost.job_cost import JobCost, JobPrices, estimate_cost, priced_days
from fairway.ledger.records.jobs import JobSort, JobSortKey
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.job import Ending, JobId, JobState
from fairway.model.names import PoolName, SliceName
from fairway.model.price import Commitment, PricePoint, PriceStep, Pricing
from fairway.model.usage import HeldDevices
from fairway.web.pages.jobs.log_page import SHOWN_BYTES, last_part, printable
from fairway.web.pages.jobs.query import JobQuery
from fairway.web.pages.jobs.timeline import draw_timeline, time_ticks, waiting_times
from fairway.wire import jobs as wire
from tests.unit.web.conftest import FLEET

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
BERLIN = Calendar(ZoneInfo("Europe/Berlin"))


class Log:
    """Reads bytes as an engine's log is read, and counts how often."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.calls = 0

    async def read(self, offset: int, limit: int) -> wire.LogPart:
        self.calls += 1
        piece = self.data[offset : offset + limit]
        end = offset + len(piece)
        return wire.LogPart(
            attempt=1,
            text=piece.decode("utf-8", "replace"),
            offset=offset,
            next_offset=end,
            ended=end >= len(self.data),
        )


@pytest.mark.parametrize("size", [0, 10, SHOWN_BYTES - 1, SHOWN_BYTES + 1, 2**20 - 1, 2**20, 2**20 + 1])
@pytest.mark.parametrize("more", [0, 5_000_000])
async def test_the_end_of_a_log_is_found_and_little_is_read(size: int, more: int) -> None:
    line = b"step 123456: loss 0.123456789\n"
    data = (line * ((size + more) // len(line) + 1))[: size + more]
    log = Log(data)
    part = await last_part(log.read)
    assert part.next_offset == len(data)
    assert data.decode().endswith(part.text)
    assert len(part.text) >= min(len(data), SHOWN_BYTES // 2 - len(line))
    assert len(part.text) <= SHOWN_BYTES
    assert data[part.offset :].decode() == part.text
    assert log.calls < 20


def test_a_log_is_shown_as_a_terminal_would_leave_it() -> None:
    assert printable("a\x1b[31mred\x1b[0m\r\nb") == "ared\nb"
    assert printable("10 %\r50 %\r100 %\ndone\r\n") == "100 %\ndone\n"
    assert printable("\x1b]0;title\x07x\x00\x9by\u202e\tz") == "xy\tz"
    assert printable("<b>\n") == "<b>\n"  # the template escapes


def job(state: JobState, *attempts: wire.Attempt, submitted: float = 10, **more: object) -> wire.JobDetail:
    """Submitted so many hours ago."""
    values: dict[str, object] = {
        "id": "8f3k",
        "name": "train",
        "cluster": "hpc",
        "user": "ada",
        "team": "research",
        "priority": None,
        "pool": "hpc-a100",
        "slice": None,
        "gpus": 4,
        "nodes": 1,
        "devices": 4,
        "state": state,
        "desired_state": "run",
        "code": "",
        "reason": "",
        "native": True,
        "engine_id": "7",
        "array": None,
        "array_index": None,
        "attempt_count": len(attempts),
        "submitted_at": NOW - timedelta(hours=submitted),
        "started_at": attempts[-1].started_at if attempts else None,
        "ended_at": attempts[-1].ended_at if attempts else None,
        "exit_code": None,
        "time_seconds": None,
        "spec": None,
        "spec_note": "",
        "placement_reason": "",
        "engine_name": None,
        "submission": 0,
        "attempts": list(attempts),
        "events": [],
    }
    return wire.JobDetail(**(values | more))


def run(number: int, start: float, end: float | None, ending: Ending | None = None) -> wire.Attempt:
    """In hours ago."""
    return wire.Attempt(
        number=number,
        engine_id="7",
        started_at=NOW - timedelta(hours=start),
        ended_at=None if end is None else NOW - timedelta(hours=end),
        ending=ending,
        nodes=["n1"],
        devices=number * 2,
        exit_code=None,
        signal=None,
        reason="",
    )


def test_a_life_is_drawn_to_scale() -> None:
    lived = job(
        JobState.RUNNING,
        run(1, 8, 6, Ending.PREEMPTED),
        run(2, 5, 4, Ending.FAILED),
        run(3, 2, None),
    )
    drawn = draw_timeline(lived, NOW)
    assert drawn is not None
    assert [(s.kind, s.start, round(s.width, 3)) for s in drawn.segments] == [
        ("waits", 0, 20),
        ("taken", 20, 20),
        ("waits", 40, 10),
        ("wrong", 50, 10),
        ("back-off", 60, 20),
        ("runs", 80, 20),
    ]
    assert drawn.max_devices == 6
    assert [(h.start, h.width, h.top, h.height) for h in drawn.held] == [
        (20, 20, 32, 16),
        (50, 10, 16, 32),
        (80, 20, 0, 48),
    ]
    assert [w.total_seconds() / 3600 for w in waiting_times(lived)] == [2, 1, 2]
    assert "attempt 1 preempted after 2 h" in drawn.description


def test_what_never_was_is_not_drawn_and_what_waits_is() -> None:
    assert draw_timeline(job(JobState.REFUSED, ended_at=NOW - timedelta(hours=10)), NOW) is None
    waits = draw_timeline(job(JobState.WAITING), NOW)
    assert waits is not None
    assert [(s.kind, s.width) for s in waits.segments] == [("waits", 100)]
    many = draw_timeline(
        job(JobState.DONE, *(run(n, 9 - n / 100, 9 - n / 100, Ending.DONE) for n in range(1, 300))), NOW
    )
    assert many is not None
    assert (many.left_out, len(many.held)) == (99, 200)
    assert all(0 <= s.start <= 100 and s.width > 0 for s in many.segments)


def held(start: float, end: float | None, devices: int = 4) -> HeldDevices:
    now = int(NOW.timestamp())
    ended = now if end is None else now - int(end * 3600)
    return HeldDevices(devices, now - int(start * 3600), ended, running=end is None)


def job_cost(
    pool: Pool, held: Sequence[HeldDevices], slice_: str | None = None, *points: PricePoint
) -> JobCost:
    fleet: Fleet = replace(FLEET, pools=(pool,))
    prices = JobPrices(fleet, BERLIN, {pool.name: priced_days(BERLIN, held)}, {pool.name: points})
    found = prices.cost(pool.name, SliceName(slice_) if slice_ else None, held)
    assert found is not None
    assert prices.cost(PoolName("gone"), None, held) is None
    return found


def cost(
    pool: Pool, held: Sequence[HeldDevices], slice_: str | None = None, *points: PricePoint
) -> tuple[Decimal, bool]:
    found = job_cost(pool, held, slice_, *points)
    return found.amount, found.about


def test_a_job_costs_what_it_held_at_the_price_of_that_time() -> None:
    pool = next(p for p in FLEET.pools if p.name == PoolName("hpc-a100"))
    assert cost(pool, []) == (Decimal("0.00"), False)
    assert cost(pool, [held(3, 2), held(1, None, 8)]) == (Decimal("22.80"), False)  # 12 GPU-hours at 1.90
    # Midnight in Berlin is 13 hours ago: from then on another price holds.
    dearer = replace(pool, pricing=Pricing(steps=(PriceStep(date(2026, 11, 15), Decimal(3)),)))
    assert cost(dearer, [held(15, 11, 1)]) == (Decimal("9.80"), False)
    spot = PricePoint(NOW - timedelta(hours=100), Decimal("0.50"))
    market = replace(pool, capacity=Capacity.SPOT)
    assert cost(market, [held(2, 0, 1)], None, spot) == (Decimal("1.00"), False)
    committed = replace(
        pool, pricing=Pricing(commitments=(Commitment(4, Decimal(1), date(2026, 1, 1), date(2027, 1, 1)),))
    )
    assert cost(committed, [held(1, 0, 1)]) == (Decimal("1.90"), True)


def test_a_running_job_costs_so_much_per_hour() -> None:
    pool = next(p for p in FLEET.pools if p.name == PoolName("hpc-a100"))
    running = job_cost(pool, [held(3, 2), held(1, None, 8)])
    assert running.per_hour == Decimal("15.20")  # 8 GPUs at 1.90
    assert job_cost(pool, [held(0, None, 2)]).per_hour == Decimal("3.80"), "it has just started"
    assert job_cost(pool, [held(3, 2)]).per_hour is None
    rise = PricePoint(NOW - timedelta(minutes=90), Decimal(3)), PricePoint(NOW, Decimal(5))
    assert job_cost(
        replace(pool, capacity=Capacity.SPOT), [held(2, None, 1)], None, *rise
    ).per_hour == Decimal("5.00")


def test_the_days_of_a_page_are_priced_once() -> None:
    """Jobs of today and of last month do not have the month between them priced."""
    spans = priced_days(BERLIN, [held(700, 690), held(2, 1), held(5, None), held(30, 3), held(695, 694)])
    assert len(spans) == 2
    assert all(BERLIN.day_start(BERLIN.day_of(s.start)) == s.start for s in spans)
    pool = next(p for p in FLEET.pools if p.name == PoolName("hpc-a100"))
    assert cost(pool, [held(700, 690), held(2, 1)]) == (Decimal("83.60"), False)  # 44 GPU-hours


def test_a_slice_costs_its_part_and_a_line_says_about_the_same() -> None:
    pool = next(p for p in FLEET.pools if p.name == PoolName("hpc-mig"))
    pool = replace(pool, gpu=CATALOGUE["A100-80GB"])
    amount, is_about = cost(pool, [held(8, 0, 1)], "1g.10gb")
    assert is_about
    assert amount == estimate_cost(FLEET, pool, SliceName("1g.10gb"), 8 * 3600, NOW)
    assert Decimal(0) < amount < Decimal("1.90") * 8
    own = replace(pool, pricing=Pricing(slices={SliceName("1g.10gb"): Decimal("0.30")}))
    assert cost(own, [held(10, 0, 1)], "1g.10gb") == (Decimal("3.00"), False)
    assert estimate_cost(FLEET, own, SliceName("1g.10gb"), 36000, NOW) == Decimal("3.00")


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0, []),
        (4, ["12:00:01", "12:00:02", "12:00:03"]),
        (290, ["12:01", "12:02", "12:03", "12:04"]),
        (5 * 3600, ["13:00", "14:00", "15:00", "16:00"]),
        (4 * 86_400, ["11-16", "11-17", "11-18", "11-19"]),
    ],
)
def test_a_timeline_has_round_times_between_its_ends(seconds: int, labels: list[str]) -> None:
    ticks = time_ticks(NOW, NOW + timedelta(seconds=seconds))
    assert [t.label for t in ticks] == labels
    assert all(6 <= t.at <= 94 for t in ticks)
    assert time_ticks(NOW, NOW + timedelta(days=3000)) == ()


def test_a_column_sorts_the_other_way_when_it_is_chosen_again() -> None:
    asked = JobQuery.of({"team": "a"})
    assert asked.order == JobSort(JobSortKey.SUBMITTED, descending=True)
    assert asked.sorted_by(JobSortKey.SUBMITTED) == "/jobs?team=a&sort=submitted"
    assert asked.sorted_by(JobSortKey.GPUS) == "/jobs?team=a&sort=-gpus"
    by_gpus = JobQuery.of({"team": "a", "sort": "-gpus", "offset": "50"})
    assert (by_gpus.order, by_gpus.offset) == (JobSort(JobSortKey.GPUS, descending=True), 50)
    assert by_gpus.sorted_by(JobSortKey.GPUS) == "/jobs?team=a&sort=gpus"
    assert by_gpus.sorted_by(JobSortKey.NAME) == "/jobs?team=a&sort=name"
    assert by_gpus.address(state="running") == "/jobs?state=running&team=a&sort=-gpus"
    assert by_gpus.export_address() == "/jobs/export.csv?team=a"
    for wrong in ("nonsense", "--gpus", "-submitted", "job.id"):
        assert JobQuery.of({"sort": wrong, "offset": "9"}) == JobQuery()
    assert JobQuery.of({"sort": "name", "offset": "99999"}).offset == 0


def test_an_address_holds_the_whole_question() -> None:
    asked = JobQuery.of({"q": " tr&ain\x00 ", "team": "a b", "state": "running", "before": "0010", "x": "y"})
    assert (asked.q, asked.team, asked.before) == ("tr&ain", "a b", JobId(32))
    assert asked.address() == "/jobs?q=tr%26ain&state=running&team=a+b"
    assert asked.address(team="") == "/jobs?q=tr%26ain&state=running"
    assert asked.older_than(JobId(31)) == "/jobs?q=tr%26ain&state=running&team=a+b&before=000z"
    assert [c.text for c in asked.chips] == ["search “tr&ain”", "running", "team a b"]
    assert asked.without("q").address() == "/jobs?state=running&team=a+b"
    both = JobQuery.of({"before": "0010", "after": "0001"})
    assert (both.before, both.after) == (None, JobId(1))
    assert len(JobQuery.of({"q": "x" * 5000}).q) == 200
