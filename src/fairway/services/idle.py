"""Show what idle rules did to a job and do next, and postpone them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.ledger.telemetry.idle import StoredStep, past_steps
from fairway.model.access import JobPermission
from fairway.model.fleet import Fleet
from fairway.model.idle import DONE_WORDS, IdleOutcome
from fairway.model.job import OPEN_JOBS, JobState, format_job_id
from fairway.model.team import TeamTree
from fairway.model.text import duration_text
from fairway.policy.idle import MAX_AGE_SECONDS, NextStep, RuleSet, next_step
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.job_references import find_jobs
from fairway.services.rights import Person, require_permission
from fairway.wire import jobs as wire

EVENT_KIND = "idle"


async def idle_status(
    ledger: Ledger, fleets: Fleets, row: JobRow, now: datetime
) -> tuple[wire.IdleStatus | None, list[wire.Event]]:
    """Return what is next for a job that idle rules watch, and what they did to it so far."""
    steps = (await ledger.idle.steps([row.id])).get(row.id, ())
    keep = (await ledger.idle.keeps([row.id])).get(row.id)
    coming = None
    if row.state is JobState.RUNNING:
        fleet = await fleets.applied(row.cluster)
        if fleet is not None and fleet.idle.rules:
            coming = await _coming(ledger, fleet, row, steps, None if keep is None else keep.until, now)
    kept = keep is not None and keep.until > now and row.state in OPEN_JOBS
    status = wire.IdleStatus(
        kept_until=keep.until if keep is not None and kept else None,
        kept_by=keep.by if keep is not None and kept else "",
        kept_for=keep.reason if keep is not None and kept else "",
        rule=coming.rule.name if coming else None,
        action=coming.step.action if coming else None,
        due_at=datetime.fromtimestamp(coming.due_at, UTC) if coming else None,
        dry_run=coming.rule.dry_run if coming else False,
        evidence=coming.evidence if coming else "",
        longest_keep_seconds=(await fleets.in_force()).idle.longest_keep_seconds,
    )
    return (status if kept or coming else None), [_event(step) for step in steps]


async def _coming(
    ledger: Ledger,
    fleet: Fleet,
    row: JobRow,
    steps: Sequence[StoredStep],
    keep_until: datetime | None,
    now: datetime,
) -> NextStep | None:
    found = await ledger.idle.candidate(row.id, fleet.diagnosis)
    mark = await ledger.gpu_use.mark(row.cluster)
    if found is None or mark is None or now.timestamp() - mark.read_to > MAX_AGE_SECONDS:
        return None
    rule = RuleSet(fleet.idle.rules, TeamTree(fleet.teams)).rule_of(found.job)
    if rule is None:
        return None
    windows = (await ledger.idle.windows([row.id])).get(row.id, ())
    until = None if keep_until is None else keep_until.timestamp()
    return next_step(found.job, rule, windows, mark.read_to, past_steps(steps), until)


def _event(step: StoredStep) -> wire.Event:
    done = DONE_WORDS[step.action]
    match step.outcome:
        case IdleOutcome.DONE:
            text = done
        case IdleOutcome.DRY_RUN:
            text = f"dry run: it would have been {done}"
        case None:
            text = f"to be {done}"
        case outcome:
            text = f"not {done}, {outcome}: {step.detail}"
    return wire.Event(at=step.at, kind=EVENT_KIND, by=f"rule {step.rule}", text=f"{text}; {step.evidence}")


async def list_steps(ledger: Ledger, *, before: int | None, limit: int) -> list[wire.IdleStep]:
    """List what idle rules did, or would have done, the newest first."""
    return [
        wire.IdleStep(
            id=listed.step.id,
            at=listed.step.at,
            cluster=listed.cluster,
            job=format_job_id(listed.step.job),
            name=listed.name,
            user=listed.user,
            team=listed.team,
            rule=listed.step.rule,
            action=listed.step.action,
            outcome=listed.step.outcome,
            detail=listed.step.detail,
            idle_since=listed.step.idle_since,
            evidence=listed.step.evidence,
        )
        for listed in await ledger.idle.newest(limit, before)
    ]


async def keep_jobs(
    ledger: Ledger, fleets: Fleets, who: Person, request: wire.KeepRequest, *, by: str, now: datetime
) -> wire.Kept:
    """Have idle rules leave jobs alone for a while: all of them, or none if one is not permitted."""
    longest = (await fleets.in_force()).idle.longest_keep_seconds
    if request.seconds > longest:
        raise RequestError(
            ErrorKind.INVALID,
            "KeepTooLong",
            f"idle rules can be postponed by at most {duration_text(longest)}, and the request is for "
            f"{duration_text(request.seconds)}; nothing was done",
            f"request less, and repeat it later:  fairway keep JOB --for {duration_text(longest)}",
        )
    rows = await find_jobs(ledger, request.jobs)
    require_permission(who, JobPermission.CHANGE, rows)
    still_open = [row.id for row in rows if row.state in OPEN_JOBS]
    until = now + timedelta(seconds=request.seconds)
    await ledger.idle.keep(still_open, until, by, request.reason)
    return wire.Kept(
        kept=[format_job_id(number) for number in still_open],
        over=[format_job_id(row.id) for row in rows if row.state not in OPEN_JOBS],
        until=until,
    )
