"""Join pods that hold their GPUs on their own: the replicas of a service, and the pods of a work queue. Pure.

Each pod that ran is an attempt of its own, and several run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fairway.engines.kubernetes.jobs.attempts import (
    DISRUPTED,
    MAX_REASON_LENGTH,
    devices_of,
    eviction_ending,
    failure_of,
    node_gpus,
    pod_end,
)
from fairway.engines.kubernetes.jobs.objects import PodFacts
from fairway.engines.kubernetes.jobs.observed import ObservedJob, ObservedPod, current_workloads
from fairway.model.job import Attempt, Ending, JobState
from fairway.model.names import NodeName

UNCOUNTED = ("not counted by any queue", "NotQueued")
GATED = ("waits for Kueue to queue it", "NotConsidered")
SCALED_TO_0 = "scaled to 0"


def replica_attempts(observed: ObservedJob, resource: str) -> tuple[Attempt, ...]:
    """Return an attempt for each pod that started, the oldest first and those that run last."""
    attempts = [
        _attempt(observed, pod, started, resource)
        for pod in observed.pods
        if (started := pod.facts.started) is not None
    ]
    return tuple(sorted(attempts, key=lambda a: (a.ended_at is None, a.started_at, a.replica)))


def _attempt(observed: ObservedJob, pod: ObservedPod, started: datetime, resource: str) -> Attempt:
    facts = pod.facts
    nodes = (NodeName(facts.node),) if facts.node else ()
    devices = devices_of([facts], resource)
    gpus = node_gpus(observed.namespace, [facts])
    if not pod.ended:
        return Attempt(started, nodes, devices, gpus=gpus, replica=facts.name)
    ended = max(started, pod_end(observed, pod, None))
    ending, reason = _ending(observed, pod, ended)
    code, signal = (0, None) if ending is Ending.DONE else (facts.exit_code, facts.signal)
    return Attempt(
        started, nodes, devices, ended, ending, code, signal, reason[:MAX_REASON_LENGTH], gpus, facts.name
    )


def _ending(  # noqa: PLR0911  (one line for each way)
    observed: ObservedJob, pod: ObservedPod, ended: datetime
) -> tuple[Ending, str]:
    facts, job = pod.facts, observed.job
    if facts.phase == "Succeeded" and facts.exit_code in {0, None}:
        return Ending.DONE, ""
    if (eviction := facts.evicted or pod.eviction) is not None:
        return eviction_ending(eviction[1]), eviction[2]
    if not job.finished and observed.deleted_at is not None and ended >= observed.deleted_at:
        return Ending.CANCELLED, ""
    if failure_of([pod]) is not None:
        return Ending.FAILED, facts.message
    if facts.disrupted:
        return DISRUPTED.get(facts.disrupted, Ending.NODE_LOST), facts.disrupted
    if facts.phase == "Failed" and facts.deletion_requested is None:
        return Ending.FAILED, facts.message
    if observed.service:
        return Ending.DONE, "its pod was deleted"  # it was scaled down, or its template changed
    if job.finished == "Failed/DeadlineExceeded":
        return Ending.TIMED_OUT, job.message
    return (Ending.FAILED, job.message) if job.finished else (Ending.REQUEUED, "its pod was deleted")


def replicas_wanted(observed: ObservedJob) -> int:
    """Return how many replicas a service wants: those that are there, and those that its queue holds back."""
    there = sum(1 for p in observed.pods if not p.ended and not p.facts.deletion_requested)
    queued = sum(
        s.count
        for w in current_workloads(observed.workloads)
        if not w.finished and w.owner.kind != "Pod"
        for s in w.pod_sets
    )
    return max(there, queued)


def replica_state(observed: ObservedJob, *, running: bool) -> tuple[JobState, str, str]:
    """Return the state of a service, why one of its replicas waits, and the code of that."""
    if observed.deleted_at is not None and not running:
        return JobState.CANCELLED, f"the {observed.kind} was deleted", ""
    if observed.job.finished and not running:
        done = observed.job.finished.startswith("Complete")
        return (JobState.DONE if done else JobState.FAILED), observed.job.message, ""
    live = [p.facts for p in observed.pods if not p.ended]
    if running:
        return JobState.RUNNING, *(_waiting_reason(observed, live) or uncounted(observed, live))
    workloads = [w for w in observed.workloads if not w.replaced and not w.finished]
    if workloads and all(w.held for w in workloads):
        message = workloads[0].message
        return JobState.HELD, message, "Held" if message else ""
    if not live and not workloads and observed.status is not None and observed.status.replicas == 0:
        return JobState.HELD, SCALED_TO_0, "Held"
    return JobState.WAITING, *(_waiting_reason(observed, live) or uncounted(observed, live))


def _waiting_reason(observed: ObservedJob, live: Sequence[PodFacts]) -> tuple[str, str] | None:
    """Return why a replica waits, and the code: by its Workload, else by its pod. Returns None if none does.

    A replica on a node counts as starting, and one without a node as waiting, which is reported first.
    """
    by_name = {w.name: w for w in observed.workloads}
    waiting = [p for p in live if p.started is None and not p.deletion_requested]
    for pod in sorted(waiting, key=lambda p: (bool(p.node), p.created, p.name)):
        if pod.message and not pod.gated:
            return pod.message, pod.code
        own = by_name.get(pod.workload) or next(
            (w for w in observed.workloads if w.owner.uid == pod.uid), None
        )
        if own is not None and own.message:
            return own.message, own.code
    # Not that of a pod that was deleted a moment ago.
    whole = [w for w in observed.workloads if w.owner.kind != "Pod" and not w.admitted and not w.held]
    queued = next((w for w in whole if w.message), None)
    if queued is not None:
        return queued.message, queued.code
    return GATED if any(p.gated for p in waiting) else None


def uncounted(observed: ObservedJob, live: Sequence[PodFacts]) -> tuple[str, str]:
    """Return that no queue counts a pod of it, and the code; empty if all are counted.

    A Job has a label of its queue, or none.
    """
    alone = any(p.devices and not p.gated and not p.workload for p in live)
    return UNCOUNTED if alone and observed.kind else ("", "")
