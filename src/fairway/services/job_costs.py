"""Compute what jobs cost so far, as far as a person may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fairway.cost.calendar import calendar_of
from fairway.cost.job_cost import JobCost, JobPrices, priced_days
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.model.fleet import Fleet
from fairway.model.job import JobId
from fairway.model.names import PoolName
from fairway.model.usage import HeldDevices
from fairway.services.rights import Person


async def job_costs(
    ledger: Ledger, fleet: Fleet, person: Person, rows: Sequence[JobRow], now: datetime
) -> Mapping[JobId, JobCost]:
    """Compute the cost so far of a page of jobs, with two queries.

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
    prices = JobPrices(fleet, calendar, days, await ledger.prices.points_within(days))
    costs: dict[JobId, JobCost] = {}
    for row in shown:
        if row.pool is None or row.id not in held:
            continue
        cost = prices.cost(row.pool, row.slice, held[row.id])
        if cost is not None:
            costs[row.id] = cost
    return costs


def sees_cost(person: Person, row: JobRow) -> bool:
    """Return whether somebody may see what a job costs: the same as in the cost reports."""
    return person.visible_teams is None or row.team in person.visible_teams
