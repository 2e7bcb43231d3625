"""What is asked and done of jobs, by the API's routes and the pages alike: same rights, same refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, Protocol

from fairway.api import job_known as known
from fairway.api import job_wire as wire
from fairway.api.budget_known import explained
from fairway.api.budget_routes import held_now
from fairway.api.fleets import Fleets
from fairway.api.job_rights import Person, not_yours, require_all
from fairway.api.job_why import why_of
from fairway.api.problems import ApiError
from fairway.engines.port import LogPart, Unreachable
from fairway.ledger import Ledger
from fairway.ledger.job_records import JobDetail, JobFilter, JobRow, Wish
from fairway.model.access import Deed
from fairway.model.errors import PermanentError
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, JobState, job_number, job_word

_ARRAY_PAGE: Final = 2000
_NAMED: Final = 10


class ReadsLogs(Protocol):
    """Reads what a job's attempt printed. Raises Unreachable, or PermanentError where nothing can be read."""

    async def read(
        self, detail: JobDetail, attempt: int | None, offset: int, limit: int, node: int = 0
    ) -> LogPart: ...


async def find_job(ledger: Ledger, word: str) -> JobDetail:
    """The job of this id; raises ApiError."""
    number = job_number(word)
    found = await ledger.job(number) if number else None
    if found is None:
        raise no_such_job([word])
    return found


async def job_explained(ledger: Ledger, fleets: Fleets, found: JobDetail, person: Person) -> wire.JobDetail:
    """One job with all that this person may know of it, and the budget it may wait for."""
    readable = person.may(Deed.READ, found.row)
    return explained(known.job_detail(found, readable=readable), *await held_now(ledger, fleets))


async def why_job(ledger: Ledger, job: wire.JobDetail, found: JobDetail) -> wire.Why:
    """Why it waits. `job` is what the caller may know of `found`, with or without what it comes after."""
    before: list[wire.Job] = []
    away = ""
    if found.row.state is JobState.QUEUED:
        after = [a.job for a in found.spec.after] if found.spec and job.spec else []
        before = [known.job(row) for row in await ledger.job_rows(after)]
        clusters = {c.cluster: c for c in await ledger.clusters()}
        seen = clusters.get(found.row.cluster)
        away = "" if seen is None or seen.reachable else seen.message
    return why_of(job, found.row.reason, before, away, datetime.now(UTC))


async def count_tasks_of(ledger: Ledger, row: JobRow) -> wire.TaskCounts:
    """How many tasks of a job's array are in which state. A single job is one task."""
    states = Counter([row.state])
    if row.array is not None:
        states = Counter([task.state async for task in tasks_of(ledger, row.array)])
    return wire.TaskCounts(tasks=states.total(), counts=dict(states))


async def read_log_part(
    reader: ReadsLogs, who: Person, found: JobDetail, attempt: int | None, node: int, offset: int, limit: int
) -> wire.LogPart:
    """A piece of what an attempt (None: the last) printed; raises ApiError if it is not theirs to read."""
    if not who.may(Deed.READ, found.row):
        raise not_yours(who, Deed.READ, [found.row])
    number = _attempt(found, attempt)
    if number is None:
        over = found.row.state in ENDED_JOBS
        return wire.LogPart(attempt=0, text="", offset=offset, next_offset=offset, ended=over)
    try:
        part = await reader.read(found, number, offset, limit, node)
    except Unreachable as error:
        raise ApiError(HTTPStatus.BAD_GATEWAY, error.code, error.message, error.hint) from error
    except PermanentError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, error.code, error.message, error.hint) from error
    return known.log_part(part, number, offset)


async def change_jobs(
    ledger: Ledger, who: Person, words: Sequence[str], wish: Wish, *, by: str
) -> wire.Changed:
    """Have jobs cancelled, held or released: all of them, or none if one may not be."""
    numbers = {word: job_number(word) for word in words}
    rows = await ledger.job_rows([number for number in numbers.values() if number])
    there = {row.id for row in rows}
    if missing := [word for word, number in numbers.items() if number not in there]:
        raise no_such_job(missing)
    require_all(who, Deed.CHANGE, rows)
    every = list(dict.fromkeys([n for row in rows for n in await _meant(ledger, row)]))
    changed = set(await ledger.wish(every, wish, by=by))
    return wire.Changed(
        changed=[job_word(n) for n in every if n in changed],
        unchanged=[job_word(n) for n in every if n not in changed],
    )


async def _meant(ledger: Ledger, row: JobRow) -> list[JobId]:
    """The job itself, or of an array's first task all that are open; they are one person's."""
    if row.array != row.id:
        return [row.id]
    return sorted([task.id async for task in tasks_of(ledger, row.id, OPEN_JOBS)]) or [row.id]


async def tasks_of(ledger: Ledger, array: JobId, states: tuple[JobState, ...] = ()) -> AsyncIterator[JobRow]:
    """Every task of an array: ten thousand at most, of a native one as many as its engine takes."""
    which, before = JobFilter(array=array, states=states), None
    while page := await ledger.jobs(which, before=before, limit=_ARRAY_PAGE):
        for row in page:
            yield row
        if len(page) < _ARRAY_PAGE:
            return
        before = page[-1].id


def _attempt(found: JobDetail, asked: int | None) -> int | None:
    """Which attempt is meant; None: there was none yet."""
    numbers = [a.number for a in found.attempts]
    if asked is None:
        return numbers[-1] if numbers else None
    if asked not in numbers:
        word = job_word(found.row.id)
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            "NoSuchAttempt",
            f"{word} has no attempt {asked}; it has {len(numbers)}",
            f"fairway describe job {word}  lists them",
        )
    return asked


def no_such_job(words: Sequence[str], what_for: str = "") -> ApiError:
    """The refusal, with the ids it is about."""
    named = ", ".join(words[:_NAMED]) + (f" and {len(words) - _NAMED} more" if len(words) > _NAMED else "")
    return ApiError(
        HTTPStatus.NOT_FOUND,
        "NoSuchJob",
        f"there is no job {named} {what_for}".rstrip(),
        "fairway get jobs  lists them; an id looks like 8f3k",
    )
