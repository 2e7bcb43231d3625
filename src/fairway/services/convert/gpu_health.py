"""Convert events of GPUs to wire types, and to lines of a job's timeline. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.ledger.records.jobs import StoredAttempt
from fairway.ledger.telemetry.cordons import Cordon
from fairway.ledger.telemetry.gpu_events import FailingGpu, GpuEvent
from fairway.model.gpu_health import event_words
from fairway.model.job import Ending, JobId, format_job_id
from fairway.policy.retry import HardwareFault, Suspect, blame
from fairway.views.why import GPU_EVENT, GPU_FAILED
from fairway.wire import gpu_health as wire
from fairway.wire import jobs as jobs_wire

_FAILED = (Ending.FAILED, Ending.TIMED_OUT, Ending.NODE_LOST, Ending.LOST)


def gpu_event(event: GpuEvent) -> wire.GpuEvent:
    """Convert an event."""
    return wire.GpuEvent.model_validate(
        {
            "cluster": event.cluster,
            "node": event.node,
            "gpu": event.gpu,
            "uuid": event.uuid,
            "serial": event.serial,
            "model": event.model,
            "code": event.code,
            "class": event.class_,
            "text": event_words(event.code, event.detail),
            "at": event.at,
            "last_seen": event.last_seen,
            "job": None if event.job is None else format_job_id(event.job),
            "attempt": event.attempt,
        }
    )


def failing_gpu(gpu: FailingGpu) -> wire.FailingGpu:
    """Convert the history of a GPU."""
    return wire.FailingGpu(
        uuid=gpu.uuid,
        serial=gpu.serial,
        model=gpu.model,
        cluster=gpu.cluster,
        node=gpu.node,
        gpu=gpu.gpu,
        text=event_words(gpu.code),
        events=gpu.events,
        weeks=gpu.weeks,
        jobs=gpu.jobs,
        first_at=gpu.first_at,
        last_seen=gpu.last_seen,
    )


def job_event(job: JobId, event: GpuEvent, attempts: Sequence[StoredAttempt]) -> jobs_wire.Event:
    """Convert an event to a line of the timeline of a job that held the GPU, or may have held it."""
    words = f"GPU {event.gpu} of {event.node} {event_words(event.code, event.detail)}"
    if event.job is None:
        words += "; whether it was one of this job's is not known"
    fault = HardwareFault(event.node, event.gpu, event.code, event.at, event.last_seen, event.job)
    for stored in attempts:
        attempt = stored.attempt
        if attempt.ended_at is None or attempt.ending not in _FAILED or event.node not in attempt.nodes:
            continue
        suspect = Suspect(job, stored.number, attempt.nodes, attempt.started_at, attempt.ended_at)
        if blame(suspect, [fault]) is not None:
            seconds = round((attempt.ended_at - event.at).total_seconds())
            when = f"{seconds} s before" if seconds > 0 else "as"
            text = f"{words}, {when} attempt {stored.number} ended; this was not the program's fault"
            return jobs_wire.Event(at=event.at, kind=GPU_FAILED, by="", text=text)
    return jobs_wire.Event(at=event.at, kind=GPU_EVENT, by="", text=words)


def cordon(one: Cordon) -> wire.Cordon:
    """Convert a node that Fairway closed."""
    return wire.Cordon(
        cluster=one.cluster,
        node=one.node,
        at=one.at,
        reason=one.reason,
        done=one.done,
        lift_asked_by=one.lift_asked_by,
    )
