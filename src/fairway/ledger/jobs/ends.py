"""Add notices of jobs that ended, for teams and users who chose to get them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import text

from fairway.ledger.leases import FencedWriter
from fairway.ledger.notices import NoticeWriter
from fairway.ledger.sql_values import AnyRow
from fairway.model.job import JobId, JobState, format_job_id
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.text import span

NEWS: Final = timedelta(days=1)
"""An end that becomes known later than this is not reported: the first read of a cluster finds old jobs."""
MAX_SINGLE: Final = 20
"""Ends of one user's jobs that are written at once and reported one by one; more become one notice."""
_MAX_NAMED: Final = 50

_ENDED = text("""
    SELECT job.id, job.name, job.state, job.reason, job.exit_code, job.started_at, job.ended_at, job.cluster,
        job_class.user_name, job_class.team
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.id = ANY(CAST(:ids AS bigint[])) AND job.ended_at > now() - CAST(:news AS interval)
        AND (job_class.team = ANY(CAST(:teams AS text[]))
            OR job_class.user_name = ANY(CAST(:users AS text[])))
    ORDER BY job.id
""")


@dataclass(frozen=True, slots=True)
class JobEndAudience:
    """Who gets notices of ended jobs: whole teams, and users of their own jobs."""

    teams: frozenset[TeamName] = frozenset()
    users: frozenset[UserName] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.teams or self.users)


NOBODY: Final = JobEndAudience()


class JobEndWriter(FencedWriter):
    """Writes notices of jobs that ended, in the transaction that records their ends."""

    async def notify(self, jobs: Sequence[JobId], audience: JobEndAudience) -> None:
        """Add notices of these jobs for the audience; without one, or without jobs, nothing is read."""
        if not jobs or not audience:
            return
        values = {
            "ids": list(jobs),
            "news": NEWS,
            "teams": list(audience.teams),
            "users": list(audience.users),
        }
        rows = list(await self._connection.execute(_ENDED, values))
        owners: dict[tuple[str, str], list[AnyRow]] = {}
        for row in rows:
            owners.setdefault((row.team, row.user_name), []).append(row)
        notices: list[Notice] = []
        for owned in owners.values():
            notices += [_summary(owned)] if len(owned) > MAX_SINGLE else map(_notice, owned)
        await NoticeWriter(self._connection, self._lease).add(notices)


def _notice(row: AnyRow) -> Notice:
    job = JobId(row.id)
    word = format_job_id(job)
    after = (
        "" if row.started_at is None else f" after {span((row.ended_at - row.started_at).total_seconds())}"
    )
    code = f", exit code {row.exit_code}" if row.exit_code else ""
    reason = f"\n{row.reason}" if row.reason else ""
    text_ = (
        f"Job {row.name} ({word}) of {row.user_name or 'unknown'} on {row.cluster}: "
        f"{row.state}{after}{code}.{reason}\n  fairway describe job {word}"
    )
    return Notice(
        NoticeKind.JOB_END,
        f"job-end/{row.id}/{row.ended_at.isoformat()}",
        f"job {row.name} ({word}): {row.state}",
        text_,
        *_owner(row),
        job,
    )


def _summary(rows: Sequence[AnyRow]) -> Notice:
    """Return one notice of many ends: those that did not succeed are named."""
    first, last = rows[0], rows[-1]
    states = ", ".join(f"{n} {state}" for state, n in Counter(row.state for row in rows).items())
    bad = [f"{row.name} ({format_job_id(row.id)}): {row.state}" for row in rows if row.state != JobState.DONE]
    more = [f"and {len(bad) - _MAX_NAMED} more"] if len(bad) > _MAX_NAMED else []
    named = "\n".join(["", *bad[:_MAX_NAMED], *more]) if bad else ""
    who = first.user_name or "unknown"
    return Notice(
        NoticeKind.JOB_END,
        f"job-ends/{first.id}-{last.id}/{len(rows)}/{max(row.ended_at for row in rows).isoformat()}",
        f"{len(rows)} jobs of {who} ended: {states}",
        f"{len(rows)} jobs of {who} on {first.cluster} ended: {states}.{named}",
        *_owner(first),
    )


def _owner(row: AnyRow) -> tuple[TeamName | None, UserName | None]:
    return (
        TeamName(row.team) if row.team else None,
        UserName(row.user_name) if row.user_name else None,
    )
