"""Group the pods of a gang into attempts, and tell how each ended. Pure.

An attempt is a set of pods that ran together. It begins when the first container ran and ends when the last
one ended, by the kubelet's times. A pod whose image cannot be pulled is in no attempt. A pod that replaces
another begins the next attempt: after a preemption all pods are replaced, after the loss of a node maybe only
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fairway.engines.kubernetes.jobs.objects import JobFacts, PodFacts
from fairway.engines.kubernetes.jobs.observed import AttemptPods, ObservedJob, ObservedPod
from fairway.model.job import Attempt, AttemptEnd, Ending, NodeGpus
from fairway.model.names import NodeName

MAX_REASON_LENGTH: Final = 500
_GRACE: Final = timedelta(seconds=120)
"""How long after an eviction the last container of an attempt may end: pods have time to save."""
_SECOND: Final = timedelta(seconds=1)
"""Times of conditions and of pods are whole seconds, each written by another clock."""
_LAG: Final = timedelta(seconds=10)
"""How long after an eviction the Job controller may still create pods."""


def group_by_attempt(observed: ObservedJob) -> tuple[AttemptPods, ...]:
    """Group the pods that started into sets that ran together."""
    started = [p for p in observed.pods if p.facts.started is not None]
    started.sort(key=lambda p: (p.facts.created, p.facts.name))
    attempts: list[AttemptPods] = []
    current: list[ObservedPod] = []
    for pod in started:
        if any(_replaces(pod.facts, other, observed.job.pods) for other in current):
            attempts.append(tuple(current))
            current = [p for p in current if not p.ended and not _has_place_of(pod.facts, p.facts)]
        current.append(pod)
    return (*attempts, tuple(current)) if current else tuple(attempts)


def _replaces(pod: PodFacts, other: ObservedPod, at_a_time: int) -> bool:
    """Return whether a pod replaced another that did not succeed."""
    before = other.facts
    if _has_place_of(pod, before):
        return True
    if not other.ended or before.phase == "Succeeded":
        return False
    end = before.ended or before.deletion_requested
    return at_a_time == 1 or (end is not None and end < pod.created)


def _has_place_of(pod: PodFacts, before: PodFacts) -> bool:
    """Return whether two pods have the same place in a gang.

    An index counts inside one Job, and a workload may have several: these keep their names when they are
    created again, as the pods of other controllers do.
    """
    if pod.index is None or before.index is None:
        return pod.name == before.name
    names = [p.owner.name if p.owner else "" for p in (pod, before)]
    return pod.index == before.index and names[0] == names[1]


def pod_of_node(pods: AttemptPods, node: int) -> ObservedPod | None:
    """Return the pod of a gang's node. Returns None if there is none."""
    jobs = {p.facts.owner.uid for p in pods if p.facts.owner}
    indexed = next((p for p in pods if p.facts.index == node), None) if len(jobs) == 1 else None
    unindexed = pods[node] if node < len(pods) and (pods[node].facts.index is None or len(jobs) > 1) else None
    return indexed or unindexed


def attempts_of(observed: ObservedJob, groups: Sequence[AttemptPods], resource: str) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    for before, pods, after in zip(((), *groups), groups, (*groups[1:], ()), strict=False):
        waiting_since = attempts[-1].ended_at if attempts else None
        neighbours = (before, pods, after)
        attempts.append(_attempt(observed, neighbours, waiting_since or observed.job.created, resource))
    return tuple(attempts)


def _attempt(
    observed: ObservedJob,
    neighbours: tuple[AttemptPods, AttemptPods, AttemptPods],
    waiting_since: datetime,
    resource: str,
) -> Attempt:
    """Return the attempt of the second of these; before and after it are its neighbours, empty: none."""
    before, pods, after = neighbours
    facts = [p.facts for p in pods]
    earlier = {p.facts.uid for p in before}
    started = min(f.started for f in facts if f.started is not None and f.uid not in earlier)
    stayed = {p.facts.uid for p in after}
    ended_pods = [p for p in pods if p.facts.uid not in stayed] or list(pods)
    ended = None
    if after or (all(p.ended for p in pods) and not _is_unfinished(observed, pods)):
        replaced_at = min((p.facts.created for p in after if p not in pods), default=None)
        ended = max(started, *(pod_end(observed, p, replaced_at) for p in ended_pods))
    nodes = tuple(NodeName(n) for n in sorted({f.node for f in facts if f.node}))
    devices = devices_of(facts, resource)
    gpus = node_gpus(observed.namespace, facts)
    if ended is None:
        return Attempt(started, nodes, devices, gpus=gpus)
    ending, reason = _ending(observed, ended_pods, started, ended, waiting_since, last=not after)
    worst = failure_of(ended_pods) or ended_pods[0].facts
    code, signal = (0, None) if ending is Ending.DONE else (worst.exit_code, worst.signal)
    return Attempt(started, nodes, devices, ended, ending, code, signal, reason[:MAX_REASON_LENGTH], gpus)


def node_gpus(namespace: str, pods: Iterable[PodFacts]) -> tuple[NodeGpus, ...]:
    """Return the pods with GPUs by node, as dcgm-exporter names them."""
    on_node: dict[str, list[str]] = {}
    for pod in pods:
        if pod.node and pod.devices:
            on_node.setdefault(pod.node, []).append(f"{namespace}/{pod.name}")
    return tuple(NodeGpus(NodeName(node), tuple(sorted(on_node[node]))) for node in sorted(on_node))


def devices_of(pods: Iterable[PodFacts], resource: str) -> int:
    """Return how many devices of this resource pods hold."""
    return sum(count for pod in pods for name, count in pod.devices if name == resource)


def _is_unfinished(observed: ObservedJob, pods: AttemptPods) -> bool:
    """Return whether an attempt of ended pods goes on: others have not started, or more will be created."""
    if observed.deleted_at or observed.job.finished or observed.job.suspended:
        return False
    if observed.kind and not any(w.admitted for w in observed.workloads):
        return False  # nothing holds GPUs for pods that may come
    if observed.job.ours and failure_of(pods) is not None:
        return True  # the Job is about to fail: Fairway's Jobs do not retry
    return all(p.facts.phase == "Succeeded" for p in pods)


def pod_end(observed: ObservedJob, pod: ObservedPod, replaced_at: datetime | None) -> datetime:
    """Return when a pod ended: by the kubelet, else the earliest time at which something ended it."""
    facts = pod.facts
    end = facts.ended or facts.deletion_requested
    if end is None:
        since = facts.started or facts.created
        evicted = [at for at, _, _ in observed.evictions if at >= since]
        others = (replaced_at, observed.job.finished_at, observed.deleted_at, pod.gone_at)
        end = min([*evicted, *(t for t in others if t is not None)], default=since)
    return end


def failure_of(pods: Iterable[ObservedPod]) -> PodFacts | None:
    """Return a pod that failed by itself, before its deletion was requested. Returns None if none did."""
    for pod in pods:
        facts = pod.facts
        by_itself = facts.deletion_requested is None or (
            facts.ended is not None and facts.ended < facts.deletion_requested
        )
        if facts.exit_code and not facts.disrupted and by_itself:
            return facts
    return None


def _ending(  # noqa: PLR0911  (one line for each way)
    observed: ObservedJob,
    ended_pods: Sequence[ObservedPod],
    started: datetime,
    ended: datetime,
    waiting_since: datetime,
    *,
    last: bool,
) -> tuple[Ending, str]:
    job = observed.job
    if last and job.finished.startswith("Complete"):
        return Ending.DONE, ""
    if last and job.finished == "Failed/DeadlineExceeded":
        return Ending.TIMED_OUT, job.message
    if last and not job.finished and observed.deleted_at is not None and ended >= observed.deleted_at:
        return Ending.CANCELLED, ""  # whatever exit codes its pods had after their deletion was requested
    if (failed := failure_of(ended_pods)) is not None:
        return Ending.FAILED, failed.message
    created = min(p.facts.created for p in ended_pods)
    # From its creation on, because it may be evicted before it starts.
    if (evicted := _evicted(observed, min(created, started), ended)) is not None:
        return evicted
    disrupted = next((p.facts for p in ended_pods if p.facts.disrupted), None)
    if disrupted is not None:
        return DISRUPTED.get(disrupted.disrupted, Ending.NODE_LOST), disrupted.disrupted
    if observed.deleted_at is not None and last and not job.finished:
        return Ending.CANCELLED, ""
    if last and job.finished:
        return Ending.FAILED, job.message
    if all(p.facts.phase == "Succeeded" for p in ended_pods):
        return Ending.DONE, ""
    if any(p.facts.phase == "Failed" and p.facts.deletion_requested is None for p in ended_pods):
        return Ending.FAILED, next((p.facts.message for p in ended_pods if p.facts.message), "")
    # Where the Job controller lags, a Job is evicted even before its pods are created.
    return _evicted(observed, max(created - _LAG, waiting_since + _SECOND), ended) or (
        Ending.REQUEUED,
        "its pods were deleted",
    )


def _evicted(observed: ObservedJob, since: datetime, ended: datetime) -> tuple[Ending, str] | None:
    """Return how the last eviction since then ended an attempt. Returns None if there was none."""
    for at, reason, message in reversed(observed.evictions):
        if max(since, ended - _GRACE) <= at <= ended + _SECOND:
            return eviction_ending(reason), message
    return None


def eviction_ending(reason: str) -> Ending:
    if reason.endswith("MaximumExecutionTimeExceeded"):
        return Ending.TIMED_OUT
    return {"Preempted": Ending.PREEMPTED, "NodeFailures": Ending.NODE_LOST}.get(reason, Ending.REQUEUED)


def earlier_end(observed: ObservedJob, attempts: Sequence[Attempt]) -> AttemptEnd | None:
    """Return how the last attempt ended of which no pods are left. Returns None if Kueue does not say so."""
    if not observed.forgotten_attempts:
        return None
    following = attempts[0].started_at if attempts else None
    ends = [e for e in observed.evictions if following is None or e[0] <= following]
    if not ends:
        return None
    at, reason, message = ends[-1]
    return AttemptEnd(at, eviction_ending(reason), message[:MAX_REASON_LENGTH])


DISRUPTED: Final = {
    "PreemptionByScheduler": Ending.PREEMPTED,
    "PreemptionByKubeScheduler": Ending.PREEMPTED,
    "EvictionByEvictionAPI": Ending.REQUEUED,
}
"""Endings by the reason of DisruptionTarget; all others mean that the node is lost."""


def forgotten_attempt(job: JobFacts, started: datetime, ended: datetime) -> Attempt:
    ending = Ending.DONE if job.finished.startswith("Complete") else Ending.FAILED
    if job.finished == "Failed/DeadlineExceeded":
        ending = Ending.TIMED_OUT
    devices = job.pods * (job.devices[0][1] if job.devices else 0)
    code = 0 if ending is Ending.DONE else None
    return Attempt(started, (), devices, ended, ending, code, None, job.message[:MAX_REASON_LENGTH])


def count_forgotten_attempts(observed: ObservedJob) -> ObservedJob:
    """Add the number of attempts of which no pods are left.

    Kueue counts how often it evicted a Job, and Kubernetes how many of its pods failed; the pods may
    be gone. One that was evicted before its pods began counts too: it held its GPUs.
    """
    if observed.separate:
        return observed
    visible = len(group_by_attempt(observed))
    lost_pods = observed.job.failed_pods if observed.job.pods == 1 else 0
    evictions = observed.workload.evictions if observed.workload else 0
    runs = any(p.facts.started is not None and not p.facts.deletion_requested for p in observed.pods)
    total = evictions + max(lost_pods - (1 if observed.job.finished.startswith("Failed") else 0), 0)
    total += 1 if runs or observed.job.finished else 0
    forgotten = max(0, total - max(visible, 1 if observed.job.finished else 0))
    return replace(observed, forgotten_attempts=forgotten)
