"""What the GPUs of the demo's past did fits what was held, and has something to find."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from sqlalchemy import text

from fairway.demo.gpu_shapes import WASTER
from fairway.demo.history_rows import ledger_rows
from fairway.demo.history_run import SimulatedRun
from fairway.demo.history_use import past_uses
from fairway.demo.jobs import DAY
from fairway.ledger import Ledger
from fairway.ledger.seed import backfill, backfill_uses
from fairway.model.charge import Label
from fairway.model.gpu_use import HeldKind, MetricCode
from fairway.services.charges import Costs
from fairway.services.reports import CostReports, ReportQuery
from fairway.simulate.cluster import SimState
from tests.unit.demo.test_history import END, FLEET, UTC_CALENDAR, played


@pytest.fixture(scope="module")
def past() -> SimulatedRun:
    return played(END - 3 * DAY, END)


def test_the_same_seed_is_the_same_use(past: SimulatedRun) -> None:
    assert past_uses(FLEET, past, 20) == past_uses(FLEET, past, 20)


def test_every_device_exists_and_shares_are_the_whole(past: SimulatedRun) -> None:
    uses = past_uses(FLEET, past, 20)
    places = {pool.name: pool.place for pool in FLEET.pools}
    shares: dict[int, float] = defaultdict(float)
    used: dict[int, float] = defaultdict(float)
    for gpu in uses.gpus:
        job = past.jobs[gpu.job - 1]
        place = places[job.planned.supply.pool]
        assert 0 <= int(gpu.gpu) < place.gpus_per_node  # type: ignore[union-attr]
        assert bool(gpu.instance) == (job.planned.supply.slice is not None)
        assert any(gpu.node in attempt.nodes for attempt in job.attempts)
        shares[gpu.job] += gpu.share
        used[gpu.job] += gpu.share if gpu.pace else 0
    for use in uses.jobs:
        assert shares[use.job] == pytest.approx(1)
        assert used[use.job] == pytest.approx(use.used)
    single = [job for n, job in enumerate(past.jobs, 1) if len(job.attempts) == 1 and n in shares]
    assert len(uses.gpus) >= sum(job.planned.gpus * job.planned.nodes for job in single)


async def test_what_was_measured_was_held(ledger: Ledger, past: SimulatedRun) -> None:
    rows = ledger_rows(FLEET, past, UTC_CALENDAR)
    await backfill(ledger, rows)
    uses = past_uses(FLEET, past, 20)
    await backfill_uses(ledger, uses, rows.hours)
    async with ledger._connections.single() as connection:

        async def one(statement: str) -> float:
            return float((await connection.execute(text(statement))).scalar_one())

        beyond = """
            SELECT max(job_use.engine_seconds - held.seconds) FROM job_use JOIN (
                SELECT job, hour, sum(seconds * devices) AS seconds FROM usage GROUP BY job, hour
            ) AS held USING (job, hour)
        """
        assert await one(beyond) <= 0
        assert await one("SELECT max(engine + idle - engine_seconds) FROM job_use") <= 1e-6
        for code in (*MetricCode, "idle"):
            if code == MetricCode.POWER:
                continue
            sums = [await one(f"SELECT sum({code}) FROM {t}") for t in ("use_hour", "use_day", "gpu_use")]
            assert sums == pytest.approx([await one(f"SELECT sum({code}) FROM job_use")] * 3), code
        (outage,) = uses.outages
        silent = f"""
            SELECT count(*) FROM job_use JOIN job ON job.id = job_use.job
            WHERE job.cluster = '{outage.cluster}' AND hour >= to_timestamp({outage.start})
                AND hour < to_timestamp({outage.end})
        """
        assert await one(silent) == 0
        assert await one("SELECT max(busy - measured) FROM node_use") <= 0
    newest = await ledger.gpu_events.listed(datetime.fromtimestamp(past.start, UTC))
    assert [event.code for event in newest] == [e.code for e in sorted(uses.events, key=lambda e: -e.at)]
    marks = {c.name: await ledger.gpu_use.mark(c.name) for c in FLEET.clusters}
    assert all(mark is not None and END - 300 < mark.read_to <= END for mark in marks.values())


async def test_reports_have_something_to_find(ledger: Ledger, past: SimulatedRun) -> None:
    rows = ledger_rows(FLEET, past, UTC_CALENDAR)
    await backfill(ledger, rows)
    await backfill_uses(ledger, past_uses(FLEET, past, 20), rows.hours)
    reports = CostReports(Costs(ledger))
    days = f"{datetime.fromtimestamp(past.start, UTC):%Y-%m-%d}..{datetime.fromtimestamp(END, UTC):%Y-%m-%d}"
    by_name = (await reports.efficiency(FLEET, ReportQuery(days, (Label.NAME,)), END)).table
    assert 0.4 < (by_name.total.use.ratio(MetricCode.ENGINE) or 0) < 0.85
    assert all(by_name.total.hours[kind] > 0 for kind in HeldKind)
    found = {row.labels[0]: row for row in by_name.rows}
    assert set(found) >= {"train-*", "notebook-*", "eval-*"}
    notebook = found["notebook-*"]
    assert notebook.hours[HeldKind.IDLE] > notebook.held_hours / 4, "left open"
    assert (found["train-*"].use.ratio(MetricCode.ENGINE) or 0) > 0.5
    by_user = (await reports.efficiency(FLEET, ReportQuery(days, (Label.USER,)), END)).table
    rows_of = {row.labels[0]: row for row in by_user.rows}
    assert rows_of[WASTER].hours[HeldKind.IDLE] > 0
    # Totals are rounded once for each kind, whatever the rows are.
    most = Decimal("0.000001") * len(HeldKind)
    assert abs(by_user.total.held_hours - by_name.total.held_hours) <= most
    assert by_user.total.kwh > 0


def test_one_gpu_fails_about_every_week() -> None:
    past = played(END - 21 * DAY, END)
    events = past_uses(FLEET, past, 20).events
    assert len({(event.node, event.gpu, event.serial) for event in events}) == 1
    assert len({int(event.at // (7 * DAY)) for event in events}) >= 3
    assert {event.code for event in events} >= {"xid-79", "xid-45", "xid-48"}
    for event in events:
        job = past.jobs[event.job - 1]
        assert job.state is SimState.FAILED
        attempt = job.attempts[event.attempt - 1]
        assert event.node in attempt.nodes
        assert 0 < (attempt.ended or 0) - event.at < 5, "seconds before the job ended"


def test_the_idle_rule_would_have_acted_on_notebooks(past: SimulatedRun) -> None:
    steps = past_uses(FLEET, past, 20).idle_steps
    (rule,) = FLEET.idle.rules
    assert rule.dry_run
    assert {step.action for step in steps} == {step.action for step in rule.steps}
    for step in steps:
        job = past.jobs[step.job - 1]
        assert job.planned.kind.name == "notebook"
        assert step.idle_since + rule.for_seconds <= step.at < job.ended
