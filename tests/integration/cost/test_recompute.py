"""The day of a cluster, recomputed from the raw rows: reports and budgets differ by less than a cent.

The same comparison as `python -m bench recompute`, on every engine. On Slurm and Kueue, jobs that Fairway
did not send are part of the day.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.recompute_server import CENT, Comparison, lab_day
from fairway.model.job import JobState
from tests.contract.job_line import job_line
from tests.integration.cost.test_budgets import ENGINES, Money

pytestmark = pytest.mark.timeout(540)


@pytest.fixture
async def opened(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Money]:
    async with job_line(request.param, database_url) as line:
        money = Money(line, database_url)
        yield money
        await asyncio.to_thread(money.end_all)


@pytest.mark.parametrize("opened", ENGINES, indirect=True)
async def test_a_day_of_a_cluster_equals_its_raw_rows(opened: Money) -> None:
    found = await asyncio.to_thread(_day, opened)
    assert found.figures["today, report cost"] > 10
    assert found.figures["budgets"] == 1
    assert max(found.largest.values()) < CENT, found.where


def _day(money: Money) -> Comparison:
    line = money.line
    money.apply({"research": {"amount": 10**9, "at_limit": "warn"}})
    kept = money.submit()
    line.until(kept, JobState.RUNNING, within=90)
    ended = money.mirrored(money.native()) if line.engine != "virtual" else money.submit()
    line.until(ended, JobState.RUNNING, within=90)
    money.apply({"research": {"amount": 10**8, "at_limit": "warn"}})
    client = line.client("admin")
    client.cancel([line.job(ended).id])
    line.until(ended, JobState.CANCELLED, within=90)
    return lab_day(client, money.database_url)
