"""Convert jobs, their attempts, events and logs to wire types. Pure functions."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeVar

from fairway.advise.diagnosis import Diagnosis
from fairway.advise.right_size import RightSize
from fairway.cost.budget_text import SPENT_CODE, SpentBudget, spent_hint, spent_text
from fairway.cost.job_cost import JobCost
from fairway.cost.rounding import rounded
from fairway.engines.port import LogPart
from fairway.ledger.records.fleet import LeftCluster
from fairway.ledger.records.gpu_use import JobUse
from fairway.ledger.records.jobs import JobCount, JobDetail, JobEvent, JobRow, StoredAttempt
from fairway.ledger.records.snapshots import JobForecast
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, PENDING_JOBS, JobId, JobSpec, JobState, Placement, format_job_id
from fairway.model.names import ClusterName, TeamName
from fairway.model.price import cent, money_text
from fairway.model.text import span
from fairway.policy.placement import PlacementOption
from fairway.services.convert.gpu_use import use as convert_use
from fairway.wire import jobs as wire

_MIN_WAIT_SECONDS: Final = 60
JobT = TypeVar("JobT", bound=wire.Job)
NATIVE = "the job was submitted outside Fairway"
NOT_SHOWN = "only the job's owner, leads of its team and operators may see commands and environments"


def job(row: JobRow, use: JobUse | None = None, cost: JobCost | None = None) -> wire.Job:
    """Convert a job without its details."""
    return wire.Job(**_job(row), use=convert_use(use) if use else None, cost=_cost(cost))


def forecast_start(found: JobForecast, now: datetime) -> wire.ForecastStart:
    """Convert when a waiting job is expected to start."""
    return wire.ForecastStart(
        earliest=found.earliest,
        expected=found.expected,
        latest=found.latest,
        started=found.started,
        futures=found.futures,
        computed_at=found.computed_at,
        age_seconds=max(0.0, (now - found.computed_at).total_seconds()),
        samples=found.samples,
        source=found.source,
        unknown=found.refused,
    )


def job_detail(
    found: JobDetail, use: JobUse | None = None, cost: JobCost | None = None, *, readable: bool
) -> wire.JobDetail:
    """Convert a job with its details; the spec only if the caller may read it."""
    spec = found.spec if readable else None
    return wire.JobDetail(
        **_job(found.row),
        use=convert_use(use) if use else None,
        cost=_cost(cost),
        spec=wire.JobSpec.from_model(spec) if spec else None,
        spec_note="" if spec else NATIVE if found.spec is None else NOT_SHOWN,
        placement_reason=found.placement_reason,
        engine_name=found.engine_name,
        submission=found.submission,
        attempts=[attempt(a) for a in found.attempts],
        events=[event(e) for e in found.events],
    )


def attempt(stored: StoredAttempt) -> wire.Attempt:
    """Convert one attempt."""
    known = asdict(stored.attempt)
    del known["gpus"], known["by"]  # for the loops alone
    return wire.Attempt(number=stored.number, engine_id=stored.engine_id, **known)


def event(e: JobEvent) -> wire.Event:
    """Convert an event of a job's timeline."""
    return wire.Event(at=e.at, kind=e.kind, by=e.by, text=e.text)


def diagnosis(found: Diagnosis, job_id: JobId, *, over: bool) -> wire.Diagnosis:
    """Convert what limits a job's use of its GPUs."""
    return wire.Diagnosis(
        code=found.code,
        text=found.means,
        evidence=list(found.evidence),
        confidence=found.confidence.word,
        hint=found.remedy_for(format_job_id(job_id), over=over),
    )


def right_size(
    found: RightSize, saved_wait: float | None, whose: str, currency: str | None
) -> wire.RightSize:
    """Convert advice on the next request; `currency` is None if the amount is not for the reader."""
    money = found.saved_money if currency else None
    wait = saved_wait if saved_wait is not None and saved_wait >= _MIN_WAIT_SECONDS else None
    amount = money_text(money, currency) if money is not None and currency else ""
    return wire.RightSize(
        pattern=found.pattern,
        jobs=found.jobs,
        request=found.request,
        saved_gpu_hours=found.saved_gpu_hours,
        saved_money=rounded(Fraction(money), cent(currency)) if money is not None and currency else None,
        saved_wait_seconds=wait,
        text=found.sentence(amount, whose) + (f" and {span(wait)} of waiting" if wait else ""),
    )


def submitted(spec: JobSpec, ids: tuple[JobId, ...], where: Placement) -> wire.SubmittedJob:
    """Convert a job that was just stored."""
    formatted = [format_job_id(job_id) for job_id in ids]
    return wire.SubmittedJob(id=formatted[0], ids=formatted, name=spec.name, placement=placement(where))


def placement(where: Placement) -> wire.Placement:
    """Convert the placement of a job."""
    return wire.Placement(
        cluster=where.cluster, pool=where.supply.pool, slice=where.supply.slice, why=where.why
    )


def option(o: PlacementOption) -> wire.PlaceOption:
    """Convert a pool that fits a job."""
    return wire.PlaceOption(cluster=o.cluster, pool=o.supply.pool, slice=o.supply.slice, why=o.why)


def count(c: JobCount) -> wire.JobCount:
    """Convert a count of open jobs."""
    return wire.JobCount(**asdict(c))


def log_part(part: LogPart, number: int, offset: int) -> wire.LogPart:
    """Decode a part of a log. A character cut in two is left for the next part."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(part.data, final=part.ended)
    cut = len(decoder.getstate()[0])
    return wire.LogPart(
        attempt=number, text=text, offset=offset, next_offset=part.next_offset - cut, ended=part.ended
    )


def _cost(found: JobCost | None) -> wire.JobCost | None:
    return None if found is None else wire.JobCost(**asdict(found))


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
        "kind": row.kind,
        "service": row.service,
        "replicas": row.replicas,
        "project": row.project,
        "labels": dict(row.labels),
    }


def with_left_cluster(job: JobT, left: Mapping[ClusterName, LeftCluster]) -> JobT:
    """Set the reason of an open job whose cluster left the fleet. Others are unchanged."""
    found = left.get(ClusterName(job.cluster)) if job.state in OPEN_JOBS else None
    if found is None:
        return job
    reason = NotTracked(
        "ClusterNotTracked",
        f"Cluster {found.cluster} was removed from the fleet in revision {found.revision}; the job was last "
        f"seen at {found.seen_at:%Y-%m-%d %H:%MZ}",
        "it may still run there and is not charged after that time; to track it again, put the cluster "
        "back:  "
        "fairway get revisions  and  fairway rollback N",
    )
    return job.model_copy(
        update={
            "code": reason.code,
            "reason": reason.message,
            "hint": reason.hint,
            "last_seen_at": found.seen_at,
        }
    )


def _waits(job: wire.Job) -> bool:
    """Return whether a job waits at its engine, or some of its replicas do."""
    return job.state is JobState.WAITING or (job.state is JobState.RUNNING and job.replicas is not None)


def with_reason_time(job: JobT, times: Mapping[ClusterName, datetime]) -> JobT:
    """Set when the engine last reported why a job waits there. Others are unchanged."""
    at = times.get(ClusterName(job.cluster)) if job.reason and _waits(job) else None
    return job if at is None else job.model_copy(update={"reason_at": at})


class NotTracked(NamedTuple):
    """Why the state of a job is no longer known."""

    code: str
    message: str
    hint: str


def with_budget_reason(job: JobT, fleet: Fleet, held: Mapping[TeamName, SpentBudget]) -> JobT:
    """Set the reason of a job that waits for a spent budget; `engine_reason` stays. Others are unchanged."""
    budget = held.get(TeamName(job.team)) if job.team else None
    if budget is None or job.state not in PENDING_JOBS:
        return job
    low = {p.name for p in fleet.priorities if p.preemptible}
    if budget.hold is Hold.LOW_ONLY and job.priority in low:
        return job
    reason = {"code": SPENT_CODE, "reason": spent_text(budget), "hint": spent_hint(budget)}
    return job.model_copy(update=reason)
