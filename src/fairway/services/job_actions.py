"""Submit jobs and change them: who may, what is refused, and what the API and the pages return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairway.ledger import KeyReused, Ledger, Token
from fairway.ledger.records.jobs import DesiredState, JobRow
from fairway.model.access import Deed, Role
from fairway.model.errors import PermanentError
from fairway.model.job import OPEN_JOBS, JobId, JobSpec, JobState, format_job_id, parse_job_id
from fairway.policy.placement import NotAllowed
from fairway.services.convert import jobs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.job_queries import ReadsLogs, no_such_job, tasks_of
from fairway.services.rights import Person, require_all, submitting_user
from fairway.services.submit_jobs import Submitter
from fairway.wire import jobs as wire


@dataclass(frozen=True, slots=True)
class JobParts:
    """What jobs need beside the ledger; `server` builds it."""

    submitter: Submitter
    log_reader: ReadsLogs


async def submit_jobs(
    submitter: Submitter, ledger: Ledger, caller: Token, asked: wire.SubmitRequest
) -> wire.Submitted:
    """Store jobs, all or none. They go to an engine right after; this does not wait."""
    user = submitting_user(caller, asked.as_user)
    specs = await _specs(ledger, asked.jobs)
    try:
        kept = await submitter.submit(specs, user, by=caller.name, key=asked.key, hold=asked.hold)
    except PermanentError as error:
        raise _refusal(error) from error
    return wire.Submitted(
        jobs=[convert.submitted(s, k.ids, k.placement) for s, k in zip(specs, kept, strict=True)]
    )


async def dry_run_job(
    submitter: Submitter, ledger: Ledger, caller: Token, asked: wire.DryRunRequest
) -> wire.DryRun:
    """Say where a job would go, what would be sent there, and whether it could ever run."""
    user = submitting_user(caller, asked.as_user)
    (spec,) = await _specs(ledger, [asked.job])
    try:
        found = await submitter.dry_run(spec, user)
    except PermanentError as error:
        raise _refusal(error) from error
    return wire.DryRun(
        could_run=found.could_run,
        why=found.why,
        hint=found.hint,
        placement=convert.placement(found.placement) if found.placement else None,
        options=[convert.option(o) for o in found.options],
        preview=found.preview,
    )


async def change_jobs(
    ledger: Ledger, who: Person, words: Sequence[str], wish: DesiredState, *, by: str
) -> wire.Changed:
    """Have jobs cancelled, held or released: all of them, or none if one may not be."""
    numbers = {word: parse_job_id(word) for word in words}
    rows = await ledger.jobs.rows([number for number in numbers.values() if number])
    there = {row.id for row in rows}
    if missing := [word for word, number in numbers.items() if number not in there]:
        raise no_such_job(missing)
    require_all(who, Deed.CHANGE, rows)
    every = list(dict.fromkeys([n for row in rows for n in await _meant(ledger, row)]))
    changed = set(await ledger.jobs.set_desired_state(every, wish, by=by))
    return wire.Changed(
        changed=[format_job_id(n) for n in every if n in changed],
        unchanged=[format_job_id(n) for n in every if n not in changed],
    )


def possible_changes(who: Person, row: JobRow) -> tuple[DesiredState, ...]:
    """List the changes that would have an effect on a job and that this person may make."""
    if row.state not in OPEN_JOBS or row.desired_state is DesiredState.CANCEL:
        return ()
    if not (who.role.may(Role.MEMBER) and who.may(Deed.CHANGE, row)):
        return ()
    if row.state is JobState.HELD or row.desired_state is DesiredState.HOLD:
        return (DesiredState.RUN, DesiredState.CANCEL)
    return (
        (DesiredState.CANCEL,) if row.state is JobState.RUNNING else (DesiredState.HOLD, DesiredState.CANCEL)
    )


async def _specs(ledger: Ledger, jobs: Sequence[wire.JobSpec]) -> list[JobSpec]:
    """The jobs in the model's types; what they come after must exist, or they would wait for ever."""
    specs = [job.to_model() for job in jobs]
    before = {a.job for spec in specs for a in spec.after}
    if before and (missing := before - {row.id for row in await ledger.jobs.rows(sorted(before))}):
        raise no_such_job([format_job_id(number) for number in sorted(missing)], "to come after")
    return specs


async def _meant(ledger: Ledger, row: JobRow) -> list[JobId]:
    """The job itself, or of an array's first task all that are open; they are one person's."""
    if row.array != row.id:
        return [row.id]
    return sorted([task.id async for task in tasks_of(ledger, row.id, OPEN_JOBS)]) or [row.id]


def _refusal(error: PermanentError) -> RequestError:
    """Why jobs were not stored, by the kind of refusal."""
    match error:
        case NotAllowed():
            return RequestError.wrap(ErrorKind.FORBIDDEN, error)
        case KeyReused():
            return RequestError.wrap(ErrorKind.CONFLICT, error)
        case _:
            return RequestError.wrap(ErrorKind.INVALID, error)
