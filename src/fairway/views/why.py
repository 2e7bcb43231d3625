"""Explain why a job waits, from the ledger: each reason with its code, text and remedy. Pure.

The job already has its reason code and, if it waits for a budget, that budget as its reason
(`services.convert.jobs.with_budget_reason`); this module adds holds by users and dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from fairway.cost.budget_text import SPENT_CODE
from fairway.explain.reasons import REASONS, WaitReason
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.team import Supply
from fairway.model.text import clean, count, sentence, span
from fairway.views.jobs import STATE_WORDS, name_and_state, nodes_text, pool_text, request_text
from fairway.wire import jobs as wire

_HELD_CODES: Final = ("Held", "HeldByAdmin", "HeldAfterFailure", "ReservationGone")


GPU_EVENT: Final = "gpu"
"""The kind of an event of a job's timeline: a GPU of it reported an error."""
GPU_FAILED: Final = "gpu-failed"
"""The same, and it explains the end of an attempt."""
SILENT_SECONDS: Final = 30
"""After this time, the engine has had a chance to report a reason."""


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """Why a job waits in its engine's queue, as decided from what engine, ledger and policy know."""

    code: str
    """A code of `explain.reasons`; empty: none fits."""
    text: str = ""
    """Names and numbers; empty: the meaning of the code says it all."""
    engine: str = ""
    """The engine's own text."""
    hidden_by: str = ""
    """Why the engine gives no reason that can be trusted; empty: it does."""
    problem: str = ""
    """Why the engine could not be asked; empty: it answered."""


def build_why(
    job: wire.JobDetail,
    before: Sequence[wire.Job],
    away: str,
    now: datetime,
    *,
    left_by: str | None = None,
    plain: bool = False,
    answer: WaitAnswer | None = None,
) -> wire.Why:
    """Build the explanation of a job.

    `before`: the jobs it depends on; `away`: why its cluster does not answer; `left_by`: who had Fairway
    leave its cluster; `plain`: the engine's own text is readable as it is; `answer`: why it waits, if its
    engine was asked.
    """
    nodes = _nodes(job)
    return wire.Why(
        id=job.id,
        name=job.name,
        state=job.state,
        summary=_summary(job, nodes, now),
        cluster=job.cluster,
        pool=job.pool,
        slice=job.slice,
        nodes=nodes,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        reasons=[
            *_gpu_reasons(job),
            *_reasons(job, before, away, now, left_by=left_by, plain=plain, answer=answer),
        ],
    )


def _nodes(job: wire.JobDetail) -> list[str]:
    """Return the nodes of the last attempt, or of all replicas that run."""
    if job.replicas:
        return sorted({node for a in job.attempts if a.ending is None for node in a.nodes})
    return job.attempts[-1].nodes if job.attempts else []


def _summary(job: wire.JobDetail, nodes: Sequence[str], now: datetime) -> str:
    text = name_and_state(job, now)
    if job.last_seen_at is not None:
        return text
    if job.state is JobState.RUNNING:
        return f"{text} on {nodes_text(nodes)}"
    if job.state in OPEN_JOBS:
        where = clean(job.pool or pool_text(job))
        return f"{text}; it requests {request_text(job)} in {where}"
    if job.started_at is None or job.ended_at is None:
        return f"{text} without having run"
    ran = span((job.ended_at - job.started_at).total_seconds())
    return f"{text} after running for {ran} on {nodes_text(nodes)}"


def _gpu_reasons(job: wire.JobDetail) -> Iterator[wire.WhyReason]:
    """Generate GPU errors of a job that runs, or that ended because of one."""
    if job.last_seen_at is not None or job.state in (JobState.DONE, JobState.CANCELLED):
        return
    last = job.attempts[-1] if job.attempts else None
    for event in job.events[::-1]:
        if last is None or event.kind not in (GPU_EVENT, GPU_FAILED) or event.at < last.started_at:
            continue
        if event.kind == GPU_FAILED:
            yield _why_reason(job, REASONS["GpuFailed"], event.text)
            return
        if job.state is JobState.RUNNING:
            yield _why_reason(job, REASONS["GpuEvent"], event.text)
            return


def _reasons(
    job: wire.JobDetail,
    before: Sequence[wire.Job],
    away: str,
    now: datetime,
    *,
    left_by: str | None,
    plain: bool,
    answer: WaitAnswer | None,
) -> Iterator[wire.WhyReason]:
    if job.last_seen_at is not None:  # nothing else that is known of it is current
        yield wire.WhyReason(code=job.code, text=clean(job.reason), hint=clean(job.hint), engine="")
        return
    if job.state is JobState.RUNNING or job.state is JobState.DONE:
        if job.state is JobState.RUNNING and (reason := REASONS.get(job.code)) is not None:
            text = f"The job has started, but not all of it is running now. {reason.means}"
            if job.replicas is not None:
                rest = job.nodes - job.replicas
                text = f"{count(rest, 'replica')} cannot start. {reason.means}" if rest > 0 else reason.means
            yield _why_reason(job, reason, text, job.engine_reason)
        return
    if job.state not in OPEN_JOBS:
        yield from _ending_reason(job)
        return
    if held := job.state is JobState.HELD or job.desired_state == "hold":
        yield _held_reason(job, plain=plain)
    if spent := job.code == SPENT_CODE:
        engine = clean(job.engine_reason)
        yield wire.WhyReason(code=job.code, text=clean(job.reason), hint=clean(job.hint), engine=engine)
    if job.state is JobState.QUEUED:
        if left_by is not None:
            by = f" ({left_by} ran fairway leave)" if left_by else ""
            text = f"Fairway no longer manages cluster {job.cluster} and sends no jobs there{by}."
            yield _why_reason(job, REASONS["ClusterNotGoverned"], text)
        yield from _not_sent(job, before, away, explained=held or spent or left_by is not None)
    elif job.state is JobState.WAITING and not held and not spent:
        yield _waiting_reason(job, plain=plain) if answer is None else _answer_reason(job, answer, now)


def _held_reason(job: wire.JobDetail, *, plain: bool) -> wire.WhyReason:
    by_engine = job.code in _HELD_CODES
    reason = REASONS[job.code if by_engine else "Held"]
    hold_events = [e for e in job.events if e.kind in ("held", "released")]
    last = hold_events[-1] if hold_events else None
    by = last.by if last and last.kind == "held" else ""
    means = reason.means.replace("by its owner or an operator", f"by {by}") if by else reason.means
    return _why_reason(job, reason, means, job.engine_reason if by_engine and not plain else "")


def _not_sent(
    job: wire.JobDetail, before: Sequence[wire.Job], away: str, *, explained: bool
) -> Iterator[wire.WhyReason]:
    """Generate the reasons why a job is not sent to its engine yet; `explained`: it has another reason."""
    if job.code == "Retry":
        yield _why_reason(job, REASONS["Retry"], job.reason)
    if open_jobs := [other for other in before if other.state in OPEN_JOBS]:
        others = ", ".join(f"{clean(o.name)} ({o.id}, {STATE_WORDS[o.state]})" for o in open_jobs)
        yield _why_reason(job, REASONS["AfterAnother"], f"The job starts after {others}.")
    if away:
        yield _why_reason(job, REASONS["ClusterAway"], f"Cluster {job.cluster} is unreachable: {away}")
    elif not (explained or open_jobs or job.code == "Retry"):
        yield _why_reason(job, REASONS["NotSent"])


def _waiting_reason(job: wire.JobDetail, *, plain: bool) -> wire.WhyReason:
    engine = job.engine_reason
    reason = REASONS.get(job.code)
    if reason is None:
        return _why_reason(job, REASONS["EngineSays" if engine else "EngineSilent"], engine)
    return _why_reason(job, reason, engine) if plain else _why_reason(job, reason, engine=engine)


def _answer_reason(job: wire.JobDetail, answer: WaitAnswer, now: datetime) -> wire.WhyReason:
    """Return the reason of a job whose engine was asked about it."""
    notes = []
    if answer.hidden_by:
        notes.append(f"Cluster {job.cluster} reports no reason: {answer.hidden_by}.")
    if answer.problem:
        notes.append(f"Cluster {job.cluster} could not be queried for details: {answer.problem.rstrip('.')}.")
    reason = REASONS.get(answer.code)
    if reason is not None:
        text = sentence(answer.text) if answer.text else reason.means
        return _why_reason(job, reason, " ".join([text, *notes]), answer.engine)
    if answer.engine:
        return _why_reason(job, REASONS["EngineSays"], " ".join([answer.engine, *notes]))
    silent = REASONS["EngineSilent"]
    if (now - job.submitted_at).total_seconds() > SILENT_SECONDS and not answer.problem:
        notes = notes or [f"Cluster {job.cluster} reports no reason."]
        notes.append("Enough GPUs are free, no limit applies and no job is ahead: it should start soon.")
        return _why_reason(job, silent, " ".join(notes))
    return _why_reason(job, silent, " ".join([silent.means, *notes]))


def _ending_reason(job: wire.JobDetail) -> Iterator[wire.WhyReason]:
    """Generate how the job ended, if a reason is known, with a remedy if there is one."""
    if not (job.reason or job.code):
        return
    reason = REASONS.get(job.code)
    hint = reason.remedy_for(job.id, job.engine_id) if reason else job.hint
    if not hint and job.attempts and not job.native:
        hint = f"show its output:  fairway logs {job.id}"
    yield wire.WhyReason(code=job.code, text=clean(job.reason or job.code), hint=clean(hint), engine="")


def _why_reason(job: wire.JobDetail, reason: WaitReason, text: str = "", engine: str = "") -> wire.WhyReason:
    return wire.WhyReason(
        code=reason.code,
        text=clean(text) or reason.means,
        hint=reason.remedy_for(job.id, job.engine_id),
        engine=clean(engine),
    )


def smaller_option(job: wire.Job, gpus: int, nodes: int) -> wire.Alternative:
    """Describe a smaller request that the free GPUs of the job's pool allow now."""
    noun = f"{job.slice} slice" if job.slice else "GPU"
    if nodes == job.nodes:
        text = f"{count(gpus, noun)}{' per node' if nodes > 1 else ''} instead of {job.gpus}"
    else:
        text = f"{count(nodes, 'node')} instead of {job.nodes}"
    verb = "fits" if (gpus if nodes == job.nodes else nodes) == 1 else "fit"
    flag = f"{gpus}x{job.slice}" if job.slice else str(gpus)
    again = f"--gpus {flag}" + (f" --nodes {nodes}" if nodes > 1 else "")
    return wire.Alternative(
        text=f"{text} {verb} now",
        command=f"fairway cancel {job.id}, then submit it again with  {again}",
        pool=job.pool or "",
        slice=job.slice,
        gpus=gpus,
        nodes=nodes,
        price_change=None,
    )


def pool_option(job: wire.Job, where: Supply, change: Decimal, currency: str) -> wire.Alternative:
    """Describe another pool that can start the job now; `change`: of the price of a GPU-hour."""
    price = f", {change:+.2f} {currency} per GPU-hour" if change else ", at the same price"
    return wire.Alternative(
        text=f"pool {where.pool} has room now{price}",
        command=f"fairway cancel {job.id}, then submit it again with  --pool {where.pool}",
        pool=where.pool,
        slice=where.slice,
        gpus=job.gpus,
        nodes=job.nodes,
        price_change=change or None,
    )
