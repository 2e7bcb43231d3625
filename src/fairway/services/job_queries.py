"""Read jobs: find, list, explain, count, and their logs, as far as the caller may see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from fairway.engines.port import LogPart, Unreachable
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.access import Deed
from fairway.model.errors import PermanentError
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.job import ENDED_JOBS, JobId, JobState, format_job_id, parse_job_id
from fairway.model.text import first_few
from fairway.services.budget_holds import teams_held_by_budgets
from fairway.services.convert import jobs as convert
from fairway.services.convert.budgets import explained
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.rights import Person, not_yours
from fairway.views.why import why_of
from fairway.wire import jobs as wire

_ARRAY_PAGE: Final = 2000
_NAMED: Final = 10


class ReadsLogs(Protocol):
    """Reads what a job's attempt printed. Raises Unreachable, or PermanentError where nothing can be read."""

    async def read(
        self, detail: JobDetail, attempt: int | None, offset: int, limit: int, node: int = 0
    ) -> LogPart: ...


async def list_jobs(
    ledger: Ledger, fleets: Fleets, which: JobFilter, *, before: JobId | None = None, limit: int
) -> list[wire.Job]:
    """List jobs of all clusters, Fairway's and native ones, the newest first."""
    return await explain_jobs(ledger, fleets, await ledger.jobs.page(which, before=before, limit=limit))


async def explain_jobs(ledger: Ledger, fleets: Fleets, rows: Sequence[JobRow]) -> list[wire.Job]:
    """Give each job that waits for a spent budget that budget as its reason."""
    fleet, held = await teams_held_by_budgets(ledger, fleets)
    return [explained(convert.job(row), fleet, held) for row in rows]


async def count_jobs(ledger: Ledger, cluster: str | None = None) -> wire.JobCounts:
    """Count open jobs by cluster, team, pool and state, with the devices they hold or ask for."""
    return wire.JobCounts(counts=[convert.count(c) for c in await ledger.jobs.counts(cluster)])


async def find_job(ledger: Ledger, word: str) -> JobDetail:
    """The job of this id; raises RequestError."""
    number = parse_job_id(word)
    found = await ledger.jobs.one(number) if number else None
    if found is None:
        raise no_such_job([word])
    return found


async def job_explained(ledger: Ledger, fleets: Fleets, found: JobDetail, person: Person) -> wire.JobDetail:
    """One job with all that this person may know of it, and the budget it may wait for."""
    readable = person.may(Deed.READ, found.row)
    fleet, held = await teams_held_by_budgets(ledger, fleets)
    return explained(convert.job_detail(found, readable=readable), fleet, held)


async def why_job(ledger: Ledger, fleet: Fleet, job: wire.JobDetail, found: JobDetail) -> wire.Why:
    """Why it waits. `job` is what the caller may know of `found`, with or without what it comes after."""
    before: list[wire.Job] = []
    away = ""
    if found.row.state is JobState.QUEUED:
        after = [a.job for a in found.spec.after] if found.spec and job.spec else []
        before = [convert.job(row) for row in await ledger.jobs.rows(after)]
        clusters = {c.cluster: c for c in await ledger.clusters.all()}
        seen = clusters.get(found.row.cluster)
        away = "" if seen is None or seen.reachable else seen.message
    # The virtual engine's sentences are Fairway's own.
    plain = any(c.name == found.row.cluster and c.engine is EngineKind.VIRTUAL for c in fleet.clusters)
    return why_of(job, before, away, datetime.now(UTC), plain=plain)


async def dependencies_of(ledger: Ledger, job: wire.JobDetail) -> list[tuple[wire.After, wire.Job | None]]:
    """Read the jobs that this one waits for, if the caller may read how it was asked for."""
    if job.spec is None or not job.spec.after:
        return []
    numbers = [n for a in job.spec.after if (n := parse_job_id(a.job)) is not None]
    there = {j.id: j for j in map(convert.job, await ledger.jobs.rows(numbers))}
    return [(a, there.get(a.job.lower())) for a in job.spec.after]


async def count_tasks_of(ledger: Ledger, row: JobRow) -> wire.TaskCounts:
    """How many tasks of a job's array are in which state. A single job is one task."""
    states = Counter([row.state])
    if row.array is not None:
        states = Counter([task.state async for task in tasks_of(ledger, row.array)])
    return wire.TaskCounts(tasks=states.total(), counts=dict(states))


async def read_log_part(
    reader: ReadsLogs, who: Person, found: JobDetail, attempt: int | None, node: int, offset: int, limit: int
) -> wire.LogPart:
    """Read a piece of what an attempt (None: the last) printed; refuse what is not theirs to read."""
    if not who.may(Deed.READ, found.row):
        raise not_yours(who, Deed.READ, [found.row])
    number = _attempt(found, attempt)
    if number is None:
        over = found.row.state in ENDED_JOBS
        return wire.LogPart(attempt=0, text="", offset=offset, next_offset=offset, ended=over)
    try:
        part = await reader.read(found, number, offset, limit, node)
    except Unreachable as error:
        raise RequestError.wrap(ErrorKind.ENGINE_FAILED, error) from error
    except PermanentError as error:
        raise RequestError.wrap(ErrorKind.NOT_FOUND, error) from error
    return convert.log_part(part, number, offset)


async def tasks_of(ledger: Ledger, array: JobId, states: tuple[JobState, ...] = ()) -> AsyncIterator[JobRow]:
    """Every task of an array: ten thousand at most, of a native one as many as its engine takes."""
    which, before = JobFilter(array=array, states=states), None
    while page := await ledger.jobs.page(which, before=before, limit=_ARRAY_PAGE):
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
        word = format_job_id(found.row.id)
        raise RequestError(
            ErrorKind.NOT_FOUND,
            "NoSuchAttempt",
            f"{word} has no attempt {asked}; it has {len(numbers)}",
            f"fairway describe job {word}  lists them",
        )
    return asked


def no_such_job(words: Sequence[str], what_for: str = "") -> RequestError:
    """The refusal, with the ids it is about."""
    return RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchJob",
        f"there is no job {first_few(words, _NAMED)} {what_for}".rstrip(),
        "fairway get jobs  lists them; an id looks like 8f3k",
    )
