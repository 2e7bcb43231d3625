"""Why a job waits, as the ledger knows it: each reason with its code, words and remedy. Pure.

A job comes here with the budget it may wait for already in it (`budget_known.explained`); this adds what
people asked for, what it comes after, and the engine's words translated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from fairway.api import job_wire as wire
from fairway.api.job_words import asked_text, nodes_text, pool_text, standing
from fairway.cost.budget_words import SPENT_CODE
from fairway.explain.engine_words import read_words
from fairway.explain.reasons import REASONS, WaitReason
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.wording import clean, span

_HELD: Final = ("Held", "HeldByAdmin")


def why_of(
    job: wire.JobDetail, engine: str, before: Sequence[wire.Job], away: str, now: datetime
) -> wire.Why:
    """`engine`: its own words; `before`: the jobs it comes after; `away`: why its cluster does not answer."""
    nodes = job.each_attempt[-1].nodes if job.each_attempt else []
    return wire.Why(
        id=job.id,
        name=job.name,
        state=job.state,
        said=_said(job, nodes, now),
        cluster=job.cluster,
        pool=job.pool,
        slice=job.slice,
        nodes=nodes,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        reasons=list(_reasons(job, engine, before, away)),
    )


def _said(job: wire.JobDetail, nodes: Sequence[str], now: datetime) -> str:
    said = standing(job, now)
    if job.state is JobState.RUNNING:
        return f"{said} on {nodes_text(nodes)}"
    if job.state in OPEN_JOBS:
        return f"{said} for {asked_text(job)} of {clean(pool_text(job))}"
    if job.started_at is None or job.ended_at is None:
        return f"{said}; it never ran"
    return f"{said}; it ran {span((job.ended_at - job.started_at).total_seconds())} on {nodes_text(nodes)}"


def _reasons(
    job: wire.JobDetail, engine: str, before: Sequence[wire.Job], away: str
) -> Iterator[wire.WhyReason]:
    if job.state is JobState.RUNNING or job.state is JobState.DONE:
        return
    if job.state not in OPEN_JOBS:
        yield from _ended(job)
        return
    if held := job.state is JobState.HELD or job.wish == "hold":
        yield _held(job, engine)
    if spent := job.code == SPENT_CODE:
        text = job.reason.removesuffix(f" [{engine}]")
        yield wire.WhyReason(code=job.code, text=clean(text), hint=clean(job.hint), engine=clean(engine))
    if job.state is JobState.QUEUED:
        yield from _not_sent(job, before, away, told=held or spent)
    elif job.state is JobState.WAITING and not held and not spent:
        yield _waits(job, engine)


def _held(job: wire.JobDetail, engine: str) -> wire.WhyReason:
    known = read_words(engine)
    by_engine = known is not None and known.code in _HELD
    reason = REASONS[known.code if known and by_engine else "Held"]
    said = [e for e in job.events if e.kind in ("held", "released")]
    by = f" {said[-1].by} held it." if said and said[-1].kind == "held" and said[-1].by else ""
    return _told(job, reason, reason.means + by, engine if by_engine and known and not known.own else "")


def _not_sent(
    job: wire.JobDetail, before: Sequence[wire.Job], away: str, *, told: bool
) -> Iterator[wire.WhyReason]:
    """What keeps a job from being handed to its engine; `told`: something that does was said already."""
    if job.code == "Retry":
        yield _told(job, REASONS["Retry"], job.reason)
    if still := [other for other in before if other.state in OPEN_JOBS]:
        text = "it comes after " + ", ".join(f"{clean(o.name)} ({o.id}), which is {o.state}" for o in still)
        yield _told(job, REASONS["AfterAnother"], text)
    if away:
        yield _told(job, REASONS["ClusterAway"], f"{job.cluster} does not answer: {away}")
    elif not (told or still or job.code == "Retry"):
        yield _told(job, REASONS["NotSent"])


def _waits(job: wire.JobDetail, engine: str) -> wire.WhyReason:
    if not engine:
        return _told(job, REASONS["EngineSilent"])
    known = read_words(engine)
    if known is None:
        return _told(job, REASONS["EngineSays"], engine)
    return _told(job, known.reason, engine) if known.own else _told(job, known.reason, engine=engine)


def _ended(job: wire.JobDetail) -> Iterator[wire.WhyReason]:
    """How it ended, where somebody said so, with a remedy where there is one."""
    if not (job.reason or job.code):
        return
    known = REASONS.get(job.code)
    hint = known.remedy_for(job.id, job.engine_id) if known else job.hint
    if not hint and job.each_attempt and not job.native:
        hint = f"what it printed:  fairway logs {job.id}"
    yield wire.WhyReason(code=job.code, text=clean(job.reason or job.code), hint=clean(hint), engine="")


def _told(job: wire.JobDetail, reason: WaitReason, text: str = "", engine: str = "") -> wire.WhyReason:
    return wire.WhyReason(
        code=reason.code,
        text=clean(text) or reason.means,
        hint=reason.remedy_for(job.id, job.engine_id),
        engine=clean(engine),
    )
