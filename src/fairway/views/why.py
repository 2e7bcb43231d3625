"""Why a job waits, as the ledger knows it: each reason with its code, words and remedy. Pure.

A job comes here with its code and, if it waits for a budget, with that as its reason
(`api.convert.budgets.explained`); this adds what people asked for and what it comes after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from fairway.cost.budget_text import SPENT_CODE
from fairway.explain.reasons import REASONS, WaitReason
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import clean, span
from fairway.views.jobs import asked_text, nodes_text, pool_text, standing
from fairway.wire import jobs as wire

_HELD: Final = ("Held", "HeldByAdmin")


def why_of(
    job: wire.JobDetail, before: Sequence[wire.Job], away: str, now: datetime, *, plain: bool = False
) -> wire.Why:
    """Explain a job.

    `before`: the jobs it comes after; `away`: why its cluster does not answer; `plain`: what its engine says
    is fit for people as it is.
    """
    nodes = job.attempts[-1].nodes if job.attempts else []
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
        reasons=list(_reasons(job, before, away, plain=plain)),
    )


def _summary(job: wire.JobDetail, nodes: Sequence[str], now: datetime) -> str:
    said = standing(job, now)
    if job.state is JobState.RUNNING:
        return f"{said} on {nodes_text(nodes)}"
    if job.state in OPEN_JOBS:
        return f"{said} for {asked_text(job)} of {clean(pool_text(job))}"
    if job.started_at is None or job.ended_at is None:
        return f"{said}; it never ran"
    return f"{said}; it ran {span((job.ended_at - job.started_at).total_seconds())} on {nodes_text(nodes)}"


def _reasons(
    job: wire.JobDetail, before: Sequence[wire.Job], away: str, *, plain: bool
) -> Iterator[wire.WhyReason]:
    if job.state is JobState.RUNNING or job.state is JobState.DONE:
        return
    if job.state not in OPEN_JOBS:
        yield from _ended(job)
        return
    if held := job.state is JobState.HELD or job.desired_state == "hold":
        yield _held(job, plain=plain)
    if spent := job.code == SPENT_CODE:
        engine = clean(job.engine_reason)
        yield wire.WhyReason(code=job.code, text=clean(job.reason), hint=clean(job.hint), engine=engine)
    if job.state is JobState.QUEUED:
        yield from _not_sent(job, before, away, told=held or spent)
    elif job.state is JobState.WAITING and not held and not spent:
        yield _waits(job, plain=plain)


def _held(job: wire.JobDetail, *, plain: bool) -> wire.WhyReason:
    by_engine = job.code in _HELD
    reason = REASONS[job.code if by_engine else "Held"]
    said = [e for e in job.events if e.kind in ("held", "released")]
    by = f" {said[-1].by} held it." if said and said[-1].kind == "held" and said[-1].by else ""
    return _told(job, reason, reason.means + by, job.engine_reason if by_engine and not plain else "")


def _not_sent(
    job: wire.JobDetail, before: Sequence[wire.Job], away: str, *, told: bool
) -> Iterator[wire.WhyReason]:
    """Generate the reasons why a job is not sent to its engine yet; `told`: another reason was given."""
    if job.code == "Retry":
        yield _told(job, REASONS["Retry"], job.reason)
    if still := [other for other in before if other.state in OPEN_JOBS]:
        text = "it comes after " + ", ".join(f"{clean(o.name)} ({o.id}), which is {o.state}" for o in still)
        yield _told(job, REASONS["AfterAnother"], text)
    if away:
        yield _told(job, REASONS["ClusterAway"], f"{job.cluster} does not answer: {away}")
    elif not (told or still or job.code == "Retry"):
        yield _told(job, REASONS["NotSent"])


def _waits(job: wire.JobDetail, *, plain: bool) -> wire.WhyReason:
    engine = job.engine_reason
    if not engine:
        return _told(job, REASONS["EngineSilent"])
    known = REASONS.get(job.code)
    if known is None:
        return _told(job, REASONS["EngineSays"], engine)
    return _told(job, known, engine) if plain else _told(job, known, engine=engine)


def _ended(job: wire.JobDetail) -> Iterator[wire.WhyReason]:
    """Generate how the job ended, if a reason is known, with a remedy if there is one."""
    if not (job.reason or job.code):
        return
    known = REASONS.get(job.code)
    hint = known.remedy_for(job.id, job.engine_id) if known else job.hint
    if not hint and job.attempts and not job.native:
        hint = f"what it printed:  fairway logs {job.id}"
    yield wire.WhyReason(code=job.code, text=clean(job.reason or job.code), hint=clean(hint), engine="")


def _told(job: wire.JobDetail, reason: WaitReason, text: str = "", engine: str = "") -> wire.WhyReason:
    return wire.WhyReason(
        code=reason.code,
        text=clean(text) or reason.means,
        hint=reason.remedy_for(job.id, job.engine_id),
        engine=clean(engine),
    )
