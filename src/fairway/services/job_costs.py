"""Compute what jobs cost so far, as far as a person may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fairway.cost.calendar import calendar_of
from fairway.cost.job_cost import JobCost, JobPrices, priced_days
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.model.charge import CapacitySum
from fairway.model.fleet import Fleet
from fairway.model.job import JobId
from fairway.model.names import PoolName
from fairway.model.usage import HeldDevices
from fairway.services.rights import Person


async def job_costs(
    ledger: Ledger, fleet: Fleet, person: Person, rows: Sequence[JobRow], now: datetime
) -> Mapping[JobId, JobCost]:
    """Compute the cost so far of a page of jobs, with two queries, and one per run of days with slices.

    Jobs are left out that never ran, whose pool is not in the fleet, or whose cost the person may not see.
    """
    pools = {pool.name for pool in fleet.pools}
    shown = [row for row in rows if row.attempts and row.pool in pools and sees_cost(person, row)]
    if not shown:
        return {}
    held = await ledger.jobs.held([row.id for row in shown], now)
    by_pool: dict[PoolName, list[HeldDevices]] = {}
    for row in shown:
        if row.pool is not None:
            by_pool.setdefault(row.pool, []).extend(held.get(row.id, ()))
    calendar = calendar_of(fleet)
    days = {pool: priced_days(calendar, of_pool) for pool, of_pool in by_pool.items() if of_pool}
    points = await ledger.prices.points_within(days)
    capacity = await _capacity_of_slices(ledger, fleet, shown, held, now)
    prices = JobPrices(fleet, calendar, days, points, capacity)
    costs: dict[JobId, JobCost] = {}
    for row in shown:
        if row.pool is None or row.id not in held:
            continue
        cost = prices.cost(row.pool, row.slice, held[row.id])
        if cost is not None:
            costs[row.id] = cost
    return costs


async def _capacity_of_slices(
    ledger: Ledger,
    fleet: Fleet,
    rows: Sequence[JobRow],
    held: Mapping[JobId, Sequence[HeldDevices]],
    now: datetime,
) -> list[CapacitySum]:
    """Return the capacity by hour on the days in which jobs held slices without a price of their own."""
    pools = {pool.name: pool for pool in fleet.pools}
    sliced = [
        row
        for row in rows
        if row.pool is not None and row.slice is not None and row.slice not in pools[row.pool].pricing.slices
    ]
    calendar = calendar_of(fleet)
    clusters = {pools[row.pool].cluster for row in sliced if row.pool is not None}
    # The second that begins now: there is no other one of this hour when it has just begun.
    until = int(now.timestamp()) + 1
    found: list[CapacitySum] = []
    for days in priced_days(calendar, [h for row in sliced for h in held.get(row.id, ())]):
        found += await ledger.capacity.sums(
            days, local=calendar, by_day=False, clusters=clusters, live_until=until
        )
    return found


def sees_cost(person: Person, row: JobRow) -> bool:
    """Return whether somebody may see what a job costs: the same as in the cost reports."""
    return person.visible_teams is None or row.team in person.visible_teams
