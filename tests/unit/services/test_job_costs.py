"""The cost of jobs on slices: the part of a GPU that reports charge them, from the capacity of each hour."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from decimal import Decimal

from fairway.cost.job_cost import JobCost
from fairway.ledger import JobFilter, Ledger
from fairway.model.access import Role
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.job import Attempt, Ending, JobState
from fairway.model.names import NodeName, SliceName, UserName
from fairway.model.team import Supply
from fairway.services.job_costs import job_costs
from fairway.services.rights import Person
from tests.unit.ledger.job_samples import START, Desk, seen
from tests.unit.ledger.usage_samples import UTC_CALENDAR, moment
from tests.unit.services.cost_history import FLEET, CostBook

HOUR = 3600
NOW = UTC_CALENDAR.hour_start(int(START.timestamp()))
"""An hour has just begun: the time at which the least of the current hour is known."""
MIG = replace(next(p for p in FLEET.pools if p.name == "mig"), gpu=CATALOGUE["A100-80GB"], price=Decimal(7))
SEVENTHS = replace(FLEET, pools=tuple(MIG if p.name == MIG.name else p for p in FLEET.pools))
VIEWER = Person(UserName("vera"), Role.VIEWER, frozenset())


def there(url: str, hour: int, gpus: int) -> None:
    """Seven slices of that many GPUs, so many hours ago; 0: as last observed."""
    at, of = moment(NOW - hour * HOUR), ("hpc", "mig", "1g.10gb")
    with closing(CostBook(url)) as book:
        if hour:
            row = (at, *of, 7 * HOUR, 0, 0, 0, gpus * HOUR)
            book.db.execute("INSERT INTO capacity_hour VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", row)
        else:
            now = (*of, at, 7, 0, 0, 0, gpus)
            book.db.execute("INSERT INTO capacity_now VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", now)


async def cost(ledger: Ledger, since: int, until: int | None) -> JobCost:
    """What a job costs that held a slice from so many hours ago."""
    desk, ended = await Desk.of(ledger), None if until is None else moment(NOW - until * HOUR)
    ending = None if until is None else Ending.DONE
    held = Attempt(moment(NOW - since * HOUR), (NodeName("n1"),), 1, ended, ending)
    state = JobState.RUNNING if until is None else JobState.DONE
    supply = Supply(MIG.name, SliceName("1g.10gb"))
    await desk.see(seen("1", "small", state, held, supply=supply, gpus=1, submitted_at=held.started_at))
    (row,) = await ledger.jobs.page(JobFilter())
    return (await job_costs(ledger, SEVENTHS, VIEWER, [row], moment(NOW)))[row.id]


async def test_each_of_seven_slices_costs_a_seventh(ledger: Ledger, database_url: str) -> None:
    """A 1g.10gb is an eighth of the memory; seven of them are all that its GPU is cut into."""
    for hour in (5, 4):
        there(database_url, hour, 1)
    found = await cost(ledger, 5, 3)
    assert (found.amount, found.about, found.per_hour) == (Decimal("2.00"), False, None)


async def test_a_slice_costs_the_part_that_it_was_in_each_hour(ledger: Ledger, database_url: str) -> None:
    for hour, gpus in ((5, 1), (4, 1), (3, 2)):
        there(database_url, hour, gpus)
    found = await cost(ledger, 5, 2)
    assert (found.amount, found.about) == (Decimal("4.00"), False)


async def test_a_running_job_has_the_part_of_the_current_hour(ledger: Ledger, database_url: str) -> None:
    for hour, gpus in ((2, 1), (1, 1), (0, 2)):
        there(database_url, hour, gpus)
    found = await cost(ledger, 2, None)
    assert (found.amount, found.about, found.per_hour) == (Decimal("2.00"), False, Decimal("2.00"))


async def test_a_slice_is_its_memory_where_no_capacity_is_known(ledger: Ledger, database_url: str) -> None:
    there(database_url, 4, 1)
    found = await cost(ledger, 4, 2)
    assert (found.amount, found.about) == (Decimal("1.88"), True)  # 1.00 + 7.00 / 8
