"""Explain why a job waits, from the ledger: each reason with its code, text and remedy. Pure.

The job already has its reason code and, if it waits for a budget, that budget as its reason
(`services.convert.jobs.with_budget_reason`); this module adds holds by users and dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal

from fairway.cost.budget_text import SPENT_CODE
from fairway.explain.binding import ALONE, REPEATED, in_binding_order
from fairway.explain.findings import Finding
from fairway.explain.reasons import REASONS, WaitReason
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.team import Supply
from fairway.model.text import clean, count, duration_text, sentence, span
from fairway.simulate.remedies import Remedy
from fairway.views.jobs import STATE_WORDS, name_and_state, nodes_text, pool_text, request_text
from fairway.wire import jobs as wire

_HELD_CODES: Final = ("Held", "HeldByAdmin", "HeldAfterFailure", "ReservationGone")


GPU_EVENT: Final = "gpu"
"""The kind of an event of a job's timeline: a GPU of it reported an error."""
GPU_FAILED: Final = "gpu-failed"
"""The same, and it explains the end of an attempt."""
_KILLED: Final = 9
"""The signal of the kernel's out-of-memory killer."""
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
    evidence: tuple[str, ...] = ()


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
        return _why_reason(job, reason, " ".join([text, *notes]), answer.engine, answer.evidence)
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
        if (how := _plain_ending(job)) is not None:
            yield wire.WhyReason(code="", text=how[0], hint=how[1], engine="")
        return
    reason = REASONS.get(job.code)
    hint = reason.remedy_for(job.id, job.engine_id) if reason else job.hint
    if not hint and job.attempts and not job.native:
        hint = f"show its output:  fairway logs {job.id}"
    yield wire.WhyReason(code=job.code, text=clean(job.reason or job.code), hint=clean(hint), engine="")


def _plain_ending(job: wire.JobDetail) -> tuple[str, str] | None:
    """Return how a job ended of which its engine says no more, and what to do. Returns None if nothing."""
    last = job.attempts[-1] if job.attempts else None
    if last is None or job.native:
        return None
    if job.state is JobState.TIMED_OUT:
        limit = "" if job.time_seconds is None else f" of {duration_text(job.time_seconds)}"
        longer = "TIME" if job.time_seconds is None else duration_text(2 * job.time_seconds)
        return (
            f"The job reached its time limit{limit} and was ended.",
            f"submit it again with a longer limit:  fairway submit --again {job.id} --time {longer}",
        )
    if job.state is JobState.FAILED and (last.signal == _KILLED or job.exit_code == 128 + _KILLED):
        return (
            "The program was killed (signal 9), as it is when it needs more memory than the job has.",
            f"show its output:  fairway logs {job.id}; if it needs more memory:  "
            f"fairway submit --again {job.id} --memory SIZE",
        )
    return None


def with_remaining(why: wire.Why, job: wire.JobDetail, findings: Sequence[Finding]) -> wire.Why:
    """Add to the reasons why a job does not start what would remain without them, in binding order."""
    if not why.reasons or job.state not in OPEN_JOBS or job.state is JobState.RUNNING:
        return why
    known = {reason.code for reason in why.reasons}
    last = max(why.reasons, key=lambda reason: reason.code in ALONE)
    chain = in_binding_order(Finding(last.code, last.text), findings)[1:]
    added = [
        _why_reason(job, REASONS[f.code], sentence(f.text) if f.text else "", evidence=f.evidence)
        for f in chain
        if f.code in REASONS and (f.code not in known or f.code in REPEATED)
    ]
    shown = {clean(r.text) for r in why.reasons}
    return why.model_copy(update={"reasons": [*why.reasons, *(r for r in added if r.text not in shown)]})


def _why_reason(
    job: wire.JobDetail,
    reason: WaitReason,
    text: str = "",
    engine: str = "",
    evidence: Sequence[str] = (),
) -> wire.WhyReason:
    return wire.WhyReason(
        code=reason.code,
        text=clean(text) or reason.means,
        hint=reason.remedy_for(job.id, job.engine_id),
        engine=clean(engine),
        evidence=[clean(text) for text in evidence],
    )


def smaller_option(job: wire.Job, gpus: int, nodes: int, *, in_place: bool = True) -> wire.Alternative:
    """Describe a smaller request that the free GPUs of the job's pool allow now.

    `in_place`: its engine can change the job; otherwise it has to be submitted again.
    """
    noun = f"{job.slice} slice" if job.slice else "GPU"
    if nodes == job.nodes:
        text = f"{count(gpus, noun)}{' per node' if nodes > 1 else ''} instead of {job.gpus}"
    else:
        text = f"{count(nodes, 'node')} instead of {job.nodes}"
    return wire.Alternative(
        kind="resize",
        text=text,
        command=resize_command(job, gpus, nodes, in_place=in_place),
        pool=job.pool or "",
        slice=job.slice,
        gpus=gpus,
        nodes=nodes,
        price_change=None,
    )


def pool_option(
    job: wire.Job, where: Supply, change: Decimal, currency: str, *, in_place: bool = True
) -> wire.Alternative:
    """Describe another pool that can start the job now; `change`: of the price of a GPU-hour."""
    price = f"{change:+.2f} {currency} per GPU-hour" if change else "at the same price"
    return wire.Alternative(
        kind="move",
        text=price,
        command=change_command(
            job, f"move {job.id} --pool {where.pool}", f"--pool {where.pool}", in_place=in_place
        ),
        pool=where.pool,
        slice=where.slice,
        gpus=job.gpus,
        nodes=job.nodes,
        price_change=change or None,
    )


def remedy_option(job: wire.Job, remedy: Remedy, fleet: Fleet, today: date) -> wire.Alternative:
    """Describe a change of a waiting job that the model has verified."""
    change, request = remedy.candidate.change, remedy.candidate.request
    gpus = job.gpus if change.gpus is None else change.gpus
    nodes = job.nodes if change.nodes is None else change.nodes
    kind: Literal["move", "resize", "set-time", "set-priority"] = "resize"
    noun = f"{job.slice} slice" if job.slice else "GPU"
    if change.pool is not None:
        kind, what = "move", ""
        command = f"fairway move {job.id} --pool {change.pool}"
        if remedy.candidate.elsewhere is not None:
            command = f"fairway submit --again {job.id} --pool {change.pool}; fairway cancel {job.id}"
    elif change.time_seconds is not None:
        kind, what = "set-time", "jobs like it nearly always ended sooner"
        command = f"fairway set-time {job.id} {duration_text(change.time_seconds)}"
    elif change.priority is not None:
        kind, what = "set-priority", f"instead of {job.priority}"
        command = f"fairway set-priority {job.id} {change.priority}"
    else:
        what = f"{count(gpus * nodes, noun)} instead of {job.gpus * job.nodes}"
        command = resize_command(job, gpus, nodes, in_place=True)
    sooner = f"{span(remedy.sooner)} sooner"
    price = None
    costs = ""
    own = next((p for p in fleet.pools if p.name == job.pool), None)
    new = next((p for p in fleet.pools if p.name == request.pool), None)
    if own is not None and new is not None and not job.slice and not request.slice:
        price = new.list_price(today) - own.list_price(today)
        more = new.list_price(today) * gpus * nodes - own.list_price(today) * job.gpus * job.nodes
        if more:
            costs = f"{abs(more):.2f} {fleet.currency} an hour {'more' if more > 0 else 'less'}"
    return wire.Alternative(
        kind=kind,
        text=", ".join(filter(None, (what, sooner, costs))),
        command=command,
        effect="starts now" if remedy.starts_now else f"within {span(remedy.within)}",
        starts_now=remedy.starts_now,
        starts_within_seconds=None if remedy.starts_now else remedy.within,
        sooner_seconds=remedy.sooner,
        pool=request.pool,
        slice=request.slice,
        gpus=gpus,
        nodes=nodes,
        price_change=price or None,
    )


def resize_command(job: wire.Job, gpus: int, nodes: int, *, in_place: bool) -> str:
    """Return the command that changes how many GPUs or nodes a waiting job requests."""
    flag = f"{gpus}x{job.slice}" if job.slice else str(gpus)
    again = f"--gpus {flag}" + (f" --nodes {nodes}" if nodes > 1 else "")
    parts = [f"--gpus {gpus}"] if gpus != job.gpus else []
    parts += [f"--nodes {nodes}"] if nodes != job.nodes else []
    return change_command(job, f"resize {job.id} {' '.join(parts)}", again, in_place=in_place)


def change_command(job: wire.Job, verb: str, flags: str, *, in_place: bool) -> str:
    """Return the command that changes a waiting job, or how to submit it again with other flags."""
    return f"fairway {verb}" if in_place else f"fairway cancel {job.id}, then submit it again with  {flags}"
