"""Jobs, their attempts and events in wire types. Pure."""

from __future__ import annotations

import codecs
from typing import Any

from fairway.engines.port import LogPart
from fairway.ledger.records.jobs import JobCount, JobDetail, JobEvent, JobRow, StoredAttempt
from fairway.model.job import JobId, JobSpec, Placement, format_job_id
from fairway.policy.placement import PlacementOption
from fairway.wire import jobs as wire

NATIVE = "it was not submitted through Fairway"
NOT_SHOWN = "commands and environments are shown to the job's owner, leads of its team and operators"


def job(row: JobRow) -> wire.Job:
    """One job of a list."""
    return wire.Job(**_job(row))


def job_detail(found: JobDetail, *, readable: bool) -> wire.JobDetail:
    """One job with all that the caller may know of it."""
    spec = found.spec if readable else None
    return wire.JobDetail(
        **_job(found.row),
        spec=wire.JobSpec.from_model(spec) if spec else None,
        spec_note="" if spec else NATIVE if found.spec is None else NOT_SHOWN,
        placement_reason=found.placement_reason,
        engine_name=found.engine_name,
        submission=found.submission,
        attempts=[attempt(a) for a in found.attempts],
        events=[event(e) for e in found.events],
    )


def attempt(kept: StoredAttempt) -> wire.Attempt:
    """One run."""
    a = kept.attempt
    return wire.Attempt(
        number=kept.number,
        engine_id=kept.engine_id,
        started_at=a.started_at,
        ended_at=a.ended_at,
        ending=a.ending,
        nodes=list(a.nodes),
        devices=a.devices,
        exit_code=a.exit_code,
        signal=a.signal,
        reason=a.reason,
    )


def event(e: JobEvent) -> wire.Event:
    """One line of the timeline."""
    return wire.Event(at=e.at, kind=e.kind, by=e.by, text=e.text)


def submitted(spec: JobSpec, ids: tuple[JobId, ...], where: Placement) -> wire.SubmittedJob:
    """A job that was kept."""
    words = [format_job_id(number) for number in ids]
    return wire.SubmittedJob(id=words[0], ids=words, name=spec.name, placement=placement(where))


def placement(where: Placement) -> wire.Placement:
    """Where it goes."""
    return wire.Placement(
        cluster=where.cluster, pool=where.supply.pool, slice=where.supply.slice, why=where.why
    )


def option(o: PlacementOption) -> wire.PlaceOption:
    """A pool that fits."""
    return wire.PlaceOption(cluster=o.cluster, pool=o.supply.pool, slice=o.supply.slice, why=o.why)


def count(c: JobCount) -> wire.JobCount:
    """A sum of open jobs."""
    return wire.JobCount(
        cluster=c.cluster,
        team=c.team,
        pool=c.pool,
        slice=c.slice,
        state=c.state,
        jobs=c.jobs,
        devices=c.devices,
    )


def log_part(part: LogPart, number: int, offset: int) -> wire.LogPart:
    """Bytes as text. A character cut in two is left for the next piece."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(part.data, final=part.ended)
    cut = len(decoder.getstate()[0])
    return wire.LogPart(
        attempt=number, text=text, offset=offset, next_offset=part.next_offset - cut, ended=part.ended
    )


def _job(row: JobRow) -> dict[str, Any]:
    return {
        "id": format_job_id(row.id),
        "name": row.name,
        "cluster": row.cluster,
        "user": row.user,
        "team": row.team,
        "priority": row.priority,
        "pool": row.pool,
        "slice": row.slice,
        "gpus": row.gpus,
        "nodes": row.nodes,
        "devices": row.devices,
        "state": row.state,
        "desired_state": row.desired_state.value,
        "code": row.code or row.reason_code,
        "reason": row.reason,
        "engine_reason": "" if row.code else row.reason,
        "native": row.native,
        "engine_id": row.engine_id,
        "array": None if row.array is None else format_job_id(row.array),
        "array_index": row.array_index,
        "attempt_count": row.attempts,
        "submitted_at": row.submitted_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "exit_code": row.exit_code,
        "time_seconds": row.time_seconds,
    }
