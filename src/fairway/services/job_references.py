"""Find the job that a caller means: by Fairway id, engine id or name.

A Fairway id always wins. An engine id may have its cluster in front: `hpc/1542`, `1542_4`, `team/train-0`. Of
several jobs that match, the only unfinished one is meant; otherwise the caller has to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, format_job_id, parse_job_id
from fairway.model.text import first_few
from fairway.services.errors import ErrorKind, RequestError, no_such_job

_MAX_LISTED: Final = 10
"""How many candidates a message lists before it only counts them."""
_MAX_NAMES: Final = 100
"""Names in one request: each is a query of its own."""
_MAX_LENGTH: Final = 300
"""Longer than any name or engine id."""


async def find_job(ledger: Ledger, word: str) -> JobDetail:
    """Read one job. Raises RequestError if there is none, or if several match."""
    (row,) = await find_jobs(ledger, [word])
    found = await ledger.jobs.one(row.id)
    if found is None:
        raise no_such_job([word])
    return found


async def find_jobs(ledger: Ledger, words: Sequence[str]) -> tuple[JobRow, ...]:
    """Read jobs, each once, in the order of `words`. Raises RequestError if one is missing or ambiguous."""
    found = await resolve(ledger, words)
    by_id: dict[JobId, JobRow] = {}
    for word in words:
        by_id.setdefault(found[word].id, found[word])
    return tuple(by_id.values())


async def resolve(ledger: Ledger, words: Sequence[str], what_for: str = "") -> Mapping[str, JobRow]:
    """Find the job that each word means. Raises RequestError if one is missing or ambiguous."""
    ids = {word: job_id for word in words if (job_id := parse_job_id(word)) is not None}
    rows = {row.id: row for row in await ledger.jobs.rows(list(ids.values()))} if ids else {}
    found = {word: rows[job_id] for word, job_id in ids.items() if job_id in rows}
    rest = [word for word in dict.fromkeys(words) if word not in found and _is_reference(word)]
    if rest:
        for word, matching in (await ledger.jobs.by_references(rest)).items():
            found[word] = _only(matching, word)
        names = [word for word in rest if word not in found]
        if len(names) > _MAX_NAMES:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                f"{len(names)} jobs are given by name; at most {_MAX_NAMES} are accepted in one request",
                "use their ids:  fairway get jobs -o json | jq -r '.[].id'",
            )
        for name in names:
            if (row := await _named(ledger, name)) is not None:
                found[name] = row
    if missing := [word for word in dict.fromkeys(words) if word not in found]:
        raise no_such_job(missing, what_for)
    return found


async def _named(ledger: Ledger, name: str) -> JobRow | None:
    """Return the job of a name; an array is one job. Returns None if no job has it."""
    for states in (OPEN_JOBS, ENDED_JOBS):
        which = JobFilter(name=name, states=states, once_an_array=True)
        if rows := await ledger.jobs.page(which, limit=_MAX_LISTED + 1):
            return _only(rows, name)
    return None


def _only(matching: Sequence[JobRow], word: str) -> JobRow:
    """Return the only unfinished job, or the only one. Raises RequestError if there are several."""
    unfinished = [row for row in matching if row.state in OPEN_JOBS]
    candidates = unfinished or list(matching)
    if len(candidates) == 1:
        return candidates[0]
    listed = first_few([f"{format_job_id(r.id)} ({r.state} on {r.cluster})" for r in candidates], _MAX_LISTED)
    raise RequestError(
        ErrorKind.CONFLICT,
        "AmbiguousJobName",
        f"{word} matches several jobs: {listed}",
        f"use the id of the one that you mean, such as  {format_job_id(candidates[0].id)}",
    )


def _is_reference(word: str) -> bool:
    return 0 < len(word) <= _MAX_LENGTH and word.isprintable()
