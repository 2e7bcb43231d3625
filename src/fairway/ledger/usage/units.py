"""Store the units of work that jobs report, such as steps, and sum them by day and job class.

A report adds the difference to the job's highest total so far, to the class that the job has then. What an
earlier report added stays where it was when the job changes its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.cost.unit_cost import added_units
from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import TooManyUnits, UsageTooFine
from fairway.ledger.records.costs import ReportedUnits, UnitSum, UsageFilter
from fairway.ledger.sql_values import arrays
from fairway.ledger.usage.spans import NARROW, SETTINGS, UsageCondition, column_of
from fairway.ledger.usage.totals import MAX_SUMS, SECONDS
from fairway.model.charge import Dimension, Label
from fairway.model.cost_unit import MAX_NEW_UNITS, MAX_UNITS, UNIT_DAYS
from fairway.model.job import JobId

_MAX_LISTED: Final = 20

# Two transactions at once may add a few more than allowed, of these and of a job's first units.
_ADD_NAMES = text("""
    INSERT INTO unit_name (unit)
    SELECT unit FROM unnest(CAST(:units AS text[])) WITH ORDINALITY AS wanted (unit, place)
    WHERE NOT EXISTS (SELECT FROM unit_name AS known WHERE known.unit = wanted.unit)
    ORDER BY place LIMIT greatest(0, :most - (
        SELECT count(*) FROM unit_name WHERE added_at > now() - make_interval(days => :days)
    ))
    ON CONFLICT DO NOTHING
""")

_UNKNOWN_NAMES = text("""
    SELECT unit FROM unnest(CAST(:units AS text[])) AS unit
    WHERE unit NOT IN (SELECT unit FROM unit_name) ORDER BY unit
""")

_NAMES = text("SELECT unit FROM unit_name ORDER BY unit LIMIT :limit")

_FIRST_TOTALS = text("""
    INSERT INTO unit_total (job, unit, total, reported_at)
    SELECT :job, unit, 0, now() FROM unnest(CAST(:units AS text[])) AS unit ORDER BY unit
    ON CONFLICT DO NOTHING
""")

_LOCK_TOTALS = text("SELECT unit, total FROM unit_total WHERE job = :job ORDER BY unit FOR UPDATE")

_TOTALS = text("SELECT unit, total FROM unit_total WHERE job = :job ORDER BY unit")

_RAISE_TOTALS = text("""
    UPDATE unit_total SET total = total + more.added, reported_at = now()
    FROM unnest(CAST(:units AS text[]), CAST(:added AS bigint[])) AS more (unit, added)
    WHERE unit_total.job = :job AND unit_total.unit = more.unit
""")

# In the order of units, which all transactions keep: jobs of one class have the same rows.
_ADD_TO_DAY = text("""
    INSERT INTO unit_day (unit, day, class, units)
    SELECT more.unit, :day, job.class, more.added
    FROM unnest(CAST(:units AS text[]), CAST(:added AS bigint[])) AS more (unit, added)
    JOIN job ON job.id = :job
    ORDER BY more.unit
    ON CONFLICT (unit, day, class) DO UPDATE SET units = unit_day.units + excluded.units
""")

# First by class, lest the planner join while there are still many rows. If days are separate, there is one
# sum of each class and day already.
_BY_CLASS: Final = """
    (
        SELECT class, sum(units) AS units FROM unit_day
        WHERE unit = :unit AND day BETWEEN :first AND :last {narrow}
        GROUP BY class OFFSET 0
    ) AS summed
"""

_BY_DAY: Final = """
    (
        SELECT class, day, units FROM unit_day WHERE unit = :unit AND day BETWEEN :first AND :last {narrow}
    ) AS summed
"""

_SUMS: Final = """
    SELECT {labels} sum(units) AS units FROM {summed} JOIN job_class ON job_class.id = class
    WHERE {of_class}
    {groups} LIMIT :limit
"""


class UnitStore(LedgerStore):
    """Adds what jobs report, and sums it."""

    async def report(self, job: JobId, totals: Mapping[str, int], day: date) -> ReportedUnits:
        """Store totals of a job's units, and add to the day what is more than before.

        Raises TooManyUnits, and then nothing is stored.
        """
        async with self._connections.transaction() as connection:
            stored = await _locked_totals(connection, job)
            if new := sorted(totals.keys() - stored.keys()):
                _require_few(stored, new)
                await _require_names(connection, new)
                await connection.execute(_FIRST_TOTALS, {"job": job, "units": new})
                stored = await _locked_totals(connection, job)
            added = added_units(stored, totals)
            if added:
                more = arrays(sorted(added.items()), "units", "added") | {"job": job}
                await connection.execute(_RAISE_TOTALS, more)
                await connection.execute(_ADD_TO_DAY, more | {"day": day})
        return ReportedUnits({unit: stored[unit] + added.get(unit, 0) for unit in stored}, added)

    async def of_job(self, job: JobId) -> dict[str, int]:
        """Return the highest total that a job reported of each unit."""
        return {row.unit: row.total for row in await self._fetch(_TOTALS, {"job": job})}

    async def names(self) -> tuple[str, ...]:
        """Return the units that jobs reported so far, at most some of them."""
        return tuple(row.unit for row in await self._fetch(_NAMES, {"limit": _MAX_LISTED}))

    async def sums(
        self, unit: str, days: tuple[date, date], by: Sequence[Dimension], which: UsageFilter
    ) -> tuple[UnitSum, ...]:
        """Return the units reported from the first to the last of two days, by the given labels.

        `by` has no label that needs names of jobs or outcomes. Raises UsageTooFine.
        """
        condition = UsageCondition.of(which, None)
        columns = ["day" if label is Label.DAY else column_of(label) for label in by]
        narrow = NARROW.format(of_class=condition.of_class) if condition.narrow else ""
        query = _SUMS.format(
            summed=(_BY_DAY if Label.DAY in by else _BY_CLASS).format(narrow=narrow),
            labels="".join(f"{column}, " for column in columns),
            of_class=condition.of_class,
            groups=f"GROUP BY {', '.join(map(str, range(1, len(columns) + 1)))}" if columns else "",
        )
        first, last = days
        values = condition.values | {"unit": unit, "first": first, "last": last, "limit": MAX_SUMS}
        async with self._connections.transaction(seconds=SECONDS) as connection:
            for setting in (*SETTINGS, f"SET LOCAL statement_timeout = {round(SECONDS * 1000)}"):
                await connection.execute(text(setting))
            rows = (await connection.execute(text(query), values)).all()
        if len(rows) >= MAX_SUMS:
            raise UsageTooFine(
                "UsageTooFine",
                f"the result would have more than {MAX_SUMS:,} lines",
                "use a shorter window or fewer groups, or select a team or pool",
            )
        return tuple(UnitSum(tuple(map(str, labels)), int(units)) for *labels, units in rows if units)


async def _locked_totals(connection: AsyncConnection, job: JobId) -> dict[str, int]:
    """Return the totals of a job, whose other reports wait until this transaction ends."""
    return {row.unit: row.total for row in await connection.execute(_LOCK_TOTALS, {"job": job})}


def _require_few(stored: Mapping[str, int], new: Sequence[str]) -> None:
    """Raise TooManyUnits if a job would have too many units with the new ones."""
    if len(stored) + len(new) > MAX_UNITS:
        raise TooManyUnits(
            "TooManyUnits",
            f"a job counts at most {MAX_UNITS} units, and this one would count {len(stored) + len(new)}"
            f" ({', '.join(sorted([*stored, *new]))})",
            f"report only units that the job counts already: {', '.join(sorted(stored))}"
            if stored
            else "report fewer units",
        )


async def _require_names(connection: AsyncConnection, units: Sequence[str]) -> None:
    """Add new names of units. Raises TooManyUnits if there were too many new ones lately."""
    values = {"units": units, "most": MAX_NEW_UNITS, "days": UNIT_DAYS}
    await connection.execute(_ADD_NAMES, values)
    unknown = [row.unit for row in await connection.execute(_UNKNOWN_NAMES, {"units": units})]
    if unknown:
        rows = await connection.execute(_NAMES, {"limit": _MAX_LISTED})
        known = ", ".join(row.unit for row in rows)
        raise TooManyUnits(
            "TooManyUnitNames",
            f"{', '.join(unknown)}: jobs of this fleet began to count {MAX_NEW_UNITS} other units in the "
            f"last {UNIT_DAYS} days",
            f"count a unit that is known already, such as {known}",
        )
