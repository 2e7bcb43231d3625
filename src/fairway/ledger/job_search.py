"""Finds jobs by what somebody typed: the beginning of a name, of a user or of an id.

Each of the three is answered by an index of its own, newest first; the answers are merged. Nothing is kept
for it beyond what lists need anyway: a search costs writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import text

from fairway.ledger import job_pages
from fairway.ledger.connection import Connections
from fairway.ledger.job_records import JobFilter, JobRow
from fairway.model.job import JobId, JobState, job_number

LEAST_OF_ID: Final = 3
"""Letters of an id that are looked for: fewer are the beginning of too many."""
_LONGEST_WORD: Final = 6
"""Letters of an id with which a billion jobs can be told apart."""

_ARRAYS = text("""
    SELECT array_first, state, count(*) AS tasks FROM job
    WHERE array_first = ANY(CAST(:arrays AS bigint[])) GROUP BY array_first, state
""")
_HELD = text("""
    SELECT job, sum(devices * extract(epoch FROM COALESCE(ended_at, now()) - started_at)) AS seconds
    FROM attempt WHERE job = ANY(CAST(:jobs AS bigint[])) GROUP BY job
""")


class JobLists:
    """The part of `Ledger` that lists jobs for people."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def job_lines(
        self,
        which: JobFilter,
        *,
        search: str = "",
        before: JobId | None = None,
        after: JobId | None = None,
        limit: int = 100,
    ) -> tuple[JobRow, ...]:
        """At most `limit` (≤ 2000) jobs, newest first: the newest before a job, or the oldest after one.

        With `search`, those of which the name, the user or the id begins so.
        """
        return await page(self._connections, which, search, before=before, after=after, limit=limit)

    async def array_counts(self, arrays: Sequence[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
        """How many tasks of each array, named by its first, are in which state."""
        found: dict[JobId, dict[JobState, int]] = {}
        if arrays:
            async with self._connections.single() as connection:
                for row in await connection.execute(_ARRAYS, {"arrays": list(arrays)}):
                    found.setdefault(JobId(row.array_first), {})[JobState(row.state)] = row.tasks
        return found

    async def held_seconds(self, jobs: Sequence[JobId]) -> Mapping[JobId, int]:
        """For how many device-seconds each job held something so far, over all its attempts."""
        if not jobs:
            return {}
        async with self._connections.single() as connection:
            rows = (await connection.execute(_HELD, {"jobs": list(jobs)})).all()
        return {JobId(row.job): max(0, int(row.seconds)) for row in rows}


async def page(
    connections: Connections,
    which: JobFilter,
    search: str,
    *,
    before: JobId | None,
    after: JobId | None,
    limit: int,
) -> tuple[JobRow, ...]:
    """Every way of finding gives its own page; the whole page is the nearest of all they found."""
    if not search:
        return await job_pages.page(connections, which, before=before, after=after, limit=limit)
    found: dict[JobId, JobRow] = {}
    for part, low, high in _ways(which, search):
        ceiling = JobId(high if before is None else min(high, before))
        rows = await job_pages.page(connections, part, before=ceiling, after=after, low=low, limit=limit)
        found |= {row.id: row for row in rows}
    ordered = [found[number] for number in sorted(found, reverse=True)]
    return tuple(ordered[:limit] if after is None else ordered[-limit:])


def _ways(which: JobFilter, search: str) -> Iterator[tuple[JobFilter, int, int]]:
    """What to look for, from which id on and below which."""
    spellings = tuple(dict.fromkeys((search, search.lower())))
    yield replace(which, name_begins=spellings), 0, job_pages.BEYOND
    yield replace(which, user_begins=search), 0, job_pages.BEYOND
    for low, high in id_ranges(search):
        # Who writes a whole id means that very task, not what stands for its array.
        yield replace(which, once_an_array=which.once_an_array and high - low > 1), low, high


def id_ranges(beginning: str) -> list[tuple[int, int]]:
    """From which id to below which their words begin so; a whole word is its own beginning."""
    number = job_number(beginning.rjust(4, "0"))
    if number is None or len(beginning) < LEAST_OF_ID:
        return []
    lengths = range(max(4, len(beginning)), max(_LONGEST_WORD, len(beginning)) + 1)
    many = [32 ** (length - len(beginning)) for length in lengths if length == 4 or beginning[0] != "0"]
    return [(number * each, (number + 1) * each) for each in many]
