"""Take the totals of units that jobs report, such as steps, for the cost of a unit."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, TooManyUnits
from fairway.model.access import JobPermission
from fairway.model.job import format_job_id
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.job_references import find_jobs
from fairway.services.rights import Person, require_permission
from fairway.wire import jobs as wire


async def report_counts(
    ledger: Ledger, fleets: Fleets, who: Person, job: str, totals: Mapping[str, int], now: int | None = None
) -> wire.Counts:
    """Store how much a job has done since it began, by unit; what is new counts for today.

    Raises RequestError if the person may not change the job. `now`: None for the present.
    """
    (row,) = await find_jobs(ledger, [job])
    require_permission(who, JobPermission.CHANGE, [row])
    calendar = calendar_of(await fleets.in_force())
    day = calendar.day_of(int(time.time()) if now is None else now)
    try:
        reported = await ledger.units.report(row.id, totals, day)
    except TooManyUnits as error:
        raise RequestError.wrap(ErrorKind.CONFLICT, error) from error
    return wire.Counts(
        job=format_job_id(row.id),
        counts=dict(reported.totals),
        added={u: reported.added.get(u, 0) for u in totals},
    )
