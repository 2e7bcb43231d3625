"""Join a Job, its Workload and its pods, deleted ones too, into one job with its attempts. Pure.

An attempt is a set of pods that ran together. It begins when the first container ran and ends when the last
one ended, by the kubelet's times. A pod whose image cannot be pulled is in no attempt. A pod that replaces
another begins the next attempt: after a preemption all pods are replaced, after the loss of a node maybe only
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fairway.engines.kubernetes.jobs.objects import JobFacts, PodFacts, WorkloadFacts
from fairway.engines.kubernetes.nodes.devices import resources_of, slice_of
from fairway.explain.engine_reasons import kueue_code
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import (
    ENDED_JOBS,
    Attempt,
    AttemptEnd,
    Ending,
    EngineId,
    JobState,
    NodeGpus,
    SeenJob,
)
from fairway.model.names import ClusterName, NodeName, PriorityName, TeamName, UserName
from fairway.model.team import Supply

Eviction = tuple[datetime, str, str]
"""When, Kueue's reason, and its message."""

_GRACE: Final = timedelta(seconds=120)
"""How long after an eviction the last container of an attempt may end: pods have time to save."""
_SECOND: Final = timedelta(seconds=1)
"""Times of conditions and of pods are whole seconds, each written by another clock."""
_LAG: Final = timedelta(seconds=10)
"""How long after an eviction the Job controller may still create pods."""
_MAX_REASON_LENGTH: Final = 500


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as it was last reported, and whether it has been deleted."""

    facts: PodFacts
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A Job with its Workload and pods, as the informers or a lookup reported them."""

    namespace: str
    name: str
    job: JobFacts
    deleted_at: datetime | None = None
    """When the Job was deleted; it may have ended long before."""
    workload: WorkloadFacts | None = None
    pods: tuple[ObservedPod, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    forgotten_attempts: int = 0
    """Attempts before those of `pods`, of which no pods are left."""
    watched: bool = False
    """Whether it has been followed since before its end, so that no pods are missing."""
    is_pod: bool = False
    """Whether it is a GPU pod that no Job created, followed as a job that nobody governs."""
    node_labels: tuple[tuple[str, str], ...] | None = None
    """Of the node of such a pod; None: not known."""


AttemptPods = tuple[ObservedPod, ...]
"""The pods of one attempt."""


class SupplyLookup:
    """A lookup of the supplies of a fleet by flavor or by labels: computed once, used for every job."""

    def __init__(self, fleet: Fleet, cluster: ClusterName) -> None:
        self.teams: Final = frozenset(t.name for t in fleet.teams)
        self.priorities: Final = frozenset(p.name for p in fleet.priorities)
        self._pools: Final = {
            str(p.name): p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace)
        }

    def by_flavor(self, flavors: Sequence[tuple[str, str]]) -> Supply | None:
        """Return the supply of the flavors Kueue assigned. A flavor that was recreated is named POOL.2."""
        for resource, flavor in flavors:
            pool = self._pools.get(flavor) or self._pools.get(flavor.partition(".")[0])
            if pool is not None and resource in resources_of(pool):
                return _supply(pool, resource)
        return None

    def by_node(self, resource: str, labels: Mapping[str, str]) -> Supply | None:
        """Return the supply of a resource on a node with these labels. Returns None if no pool claims it."""
        for pool in self._pools.values():
            if resource in resources_of(pool) and _labels(pool).items() <= labels.items():
                return _supply(pool, resource)
        return None

    def by_labels(self, resource: str, labels: Mapping[str, str]) -> Supply | None:
        """Return the supply of what a Job requests. Returns None unless exactly one pool matches."""
        pools = [p for p in self._pools.values() if resource in resources_of(p)]
        if len(pools) > 1:
            pools = [p for p in pools if _labels(p) and _labels(p).items() <= labels.items()]
        return _supply(pools[0], resource) if len(pools) == 1 else None


def _labels(pool: Pool) -> Mapping[str, str]:
    return pool.place.node_labels if isinstance(pool.place, KubernetesPlace) else {}


def _supply(pool: Pool, resource: str) -> Supply:
    return Supply(pool.name, slice_of(resource) if pool.slices else None)


def pod_of_node(pods: AttemptPods, node: int) -> ObservedPod | None:
    """Return the pod of a gang's node. Returns None if there is none."""
    indexed = next((p for p in pods if p.facts.index == node), None)
    return indexed or (pods[node] if node < len(pods) and pods[node].facts.index is None else None)


def engine_id(namespace: str, name: str, job: JobFacts) -> EngineId:
    """Return a Job's permanent id. Fairway uses a name once; users may reuse theirs, so the uid is added."""
    return EngineId(f"{namespace}/{name}" if job.ours else f"{namespace}/{name}/{job.uid[:8]}")


def pod_id(namespace: str, name: str, job: JobFacts) -> EngineId:
    """Return the permanent id of a pod that no Job created; no Job has such an id."""
    return EngineId(f"{namespace}/pod/{name}/{job.uid[:8]}")


def join(observed: ObservedJob, supplies: SupplyLookup) -> SeenJob:
    """Return the job, with its attempts as far as their pods were observed."""
    job = observed.job
    attempts = _attempts(observed, group_by_attempt(observed))
    ended = attempts and attempts[-1].ended_at is not None
    state, reason, code = _state(observed, running=bool(attempts) and not ended)
    if state is JobState.FAILED and attempts and attempts[-1].exit_code:
        # Kubernetes' own message is about our podFailurePolicy, not about the failure.
        reason = attempts[-1].reason or f"exit code {attempts[-1].exit_code}"
    unobserved = state in ENDED_JOBS and not attempts and not observed.watched
    if unobserved and job.started is not None and job.finished_at is not None:
        # Its pods are gone and were not observed: Kubernetes removes those that ran too long.
        attempts = (_forgotten_attempt(job, job.started, job.finished_at),)
    governed = observed.namespace in supplies.teams and not observed.is_pod
    team = TeamName(observed.namespace) if governed else None
    resource, gpus = job.devices[0] if job.devices else ("", 0)
    return SeenJob(
        engine_id=(pod_id if observed.is_pod else engine_id)(observed.namespace, observed.name, job),
        name=observed.name,
        user=UserName("" if job.user.startswith("system:") else job.user),
        team=team,
        state=state,
        submitted_at=job.created,
        supply=_supply_of(observed, resource, supplies) if resource else None,
        gpus=gpus,
        nodes=job.pods,
        priority=PriorityName(job.priority) if job.priority in supplies.priorities else None,
        time_seconds=job.seconds,
        reason=reason[:_MAX_REASON_LENGTH],
        reason_code=code,
        attempts=attempts,
        earlier_attempts=observed.forgotten_attempts,
        earlier_end=_earlier_end(observed, attempts),
        ended_at=_ended_at(observed, attempts) if state in ENDED_JOBS else None,
        exit_code=attempts[-1].exit_code if attempts and state in ENDED_JOBS else None,
    )


def _supply_of(observed: ObservedJob, resource: str, supplies: SupplyLookup) -> Supply | None:
    if observed.is_pod:
        labels = observed.node_labels
        return None if labels is None else supplies.by_node(resource, dict(labels))
    if observed.workload and (supply := supplies.by_flavor(observed.workload.flavors)) is not None:
        return supply
    return supplies.by_labels(resource, dict(observed.job.selector))


# attempts


def group_by_attempt(observed: ObservedJob) -> tuple[AttemptPods, ...]:
    """Group the pods that started into sets that ran together."""
    started = [p for p in observed.pods if p.facts.started is not None]
    started.sort(key=lambda p: (p.facts.created, p.facts.name))
    attempts: list[AttemptPods] = []
    current: list[ObservedPod] = []
    for pod in started:
        if any(_replaces(pod.facts, other, observed.job.pods) for other in current):
            attempts.append(tuple(current))
            current = [p for p in current if not _has_ended(p) and p.facts.index != pod.facts.index]
        current.append(pod)
    return (*attempts, tuple(current)) if current else tuple(attempts)


def _replaces(pod: PodFacts, other: ObservedPod, at_a_time: int) -> bool:
    """Return whether a pod replaced another that did not succeed."""
    before = other.facts
    if pod.index is not None and pod.index == before.index:
        return True
    if not _has_ended(other) or before.phase == "Succeeded":
        return False
    end = before.ended or before.deletion_requested
    return at_a_time == 1 or (end is not None and end < pod.created)


def _has_ended(pod: ObservedPod) -> bool:
    return pod.deleted or pod.facts.ended is not None


def _attempts(observed: ObservedJob, groups: Sequence[AttemptPods]) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    for before, pods, after in zip(((), *groups), groups, (*groups[1:], ()), strict=False):
        waiting_since = attempts[-1].ended_at if attempts else None
        attempts.append(_attempt(observed, before, pods, after, waiting_since or observed.job.created))
    return tuple(attempts)


def _attempt(
    observed: ObservedJob,
    before: AttemptPods,
    pods: AttemptPods,
    after: AttemptPods,
    waiting_since: datetime,
) -> Attempt:
    """Return the attempt of `pods`; `before` and `after` are those of its neighbours, empty: none."""
    facts = [p.facts for p in pods]
    earlier = {p.facts.uid for p in before}
    started = min(f.started for f in facts if f.started is not None and f.uid not in earlier)
    stayed = {p.facts.uid for p in after}
    ended_pods = [p for p in pods if p.facts.uid not in stayed] or list(pods)
    ended = None
    if after or (all(_has_ended(p) for p in pods) and not _is_unfinished(observed, pods)):
        replaced_at = min((p.facts.created for p in after if p not in pods), default=None)
        ended = max(started, *(_pod_end(observed, p, replaced_at) for p in ended_pods))
    nodes = tuple(NodeName(n) for n in sorted({f.node for f in facts if f.node}))
    devices = sum(n for f in facts for _, n in f.devices[:1])
    gpus = _node_gpus(observed.namespace, facts)
    if ended is None:
        return Attempt(started, nodes, devices, gpus=gpus)
    ending, reason = _ending(observed, ended_pods, started, ended, waiting_since, last=not after)
    worst = _failure(ended_pods) or ended_pods[0].facts
    code, signal = (0, None) if ending is Ending.DONE else (worst.exit_code, worst.signal)
    return Attempt(started, nodes, devices, ended, ending, code, signal, reason[:_MAX_REASON_LENGTH], gpus)


def _node_gpus(namespace: str, pods: Iterable[PodFacts]) -> tuple[NodeGpus, ...]:
    """Return the pods with GPUs by node, as dcgm-exporter names them."""
    on_node: dict[str, list[str]] = {}
    for pod in pods:
        if pod.node and pod.devices:
            on_node.setdefault(pod.node, []).append(f"{namespace}/{pod.name}")
    return tuple(NodeGpus(NodeName(node), tuple(sorted(on_node[node]))) for node in sorted(on_node))


def _is_unfinished(observed: ObservedJob, pods: AttemptPods) -> bool:
    """Return whether an attempt of ended pods goes on: others have not started, or more will be created."""
    if observed.deleted_at or observed.job.finished or observed.job.suspended:
        return False
    if observed.job.ours and _failure(pods) is not None:
        return True  # the Job is about to fail: Fairway's Jobs do not retry
    return all(p.facts.phase == "Succeeded" for p in pods)


def _pod_end(observed: ObservedJob, pod: ObservedPod, replaced_at: datetime | None) -> datetime:
    """Return when a pod ended: by the kubelet, else the earliest time at which something ended it."""
    facts = pod.facts
    end = facts.ended or facts.deletion_requested
    if end is None:
        since = facts.started or facts.created
        evicted = [at for at, _, _ in observed.evictions if at >= since]
        others = (replaced_at, observed.job.finished_at, observed.deleted_at)
        end = min([*evicted, *(t for t in others if t is not None)], default=since)
    return end


def _failure(pods: Iterable[ObservedPod]) -> PodFacts | None:
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
    if (failed := _failure(ended_pods)) is not None:
        return Ending.FAILED, failed.message
    created = min(p.facts.created for p in ended_pods)
    # From its creation on, because it may be evicted before it starts.
    if (evicted := _evicted(observed, min(created, started), ended)) is not None:
        return evicted
    disrupted = next((p.facts for p in ended_pods if p.facts.disrupted), None)
    if disrupted is not None:
        return _DISRUPTED.get(disrupted.disrupted, Ending.NODE_LOST), disrupted.disrupted
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
            return _eviction_ending(reason), message
    return None


def _eviction_ending(reason: str) -> Ending:
    if reason.endswith("MaximumExecutionTimeExceeded"):
        return Ending.TIMED_OUT
    return {"Preempted": Ending.PREEMPTED, "NodeFailures": Ending.NODE_LOST}.get(reason, Ending.REQUEUED)


def _earlier_end(observed: ObservedJob, attempts: Sequence[Attempt]) -> AttemptEnd | None:
    """Return how the last attempt ended of which no pods are left. Returns None if Kueue does not say so."""
    if not observed.forgotten_attempts:
        return None
    following = attempts[0].started_at if attempts else None
    ends = [e for e in observed.evictions if following is None or e[0] <= following]
    if not ends:
        return None
    at, reason, message = ends[-1]
    return AttemptEnd(at, _eviction_ending(reason), message[:_MAX_REASON_LENGTH])


_DISRUPTED: Final = {
    "PreemptionByScheduler": Ending.PREEMPTED,
    "PreemptionByKubeScheduler": Ending.PREEMPTED,
    "EvictionByEvictionAPI": Ending.REQUEUED,
}
"""Endings by the reason of DisruptionTarget; all others mean that the node is lost."""


def _forgotten_attempt(job: JobFacts, started: datetime, ended: datetime) -> Attempt:
    ending = Ending.DONE if job.finished.startswith("Complete") else Ending.FAILED
    if job.finished == "Failed/DeadlineExceeded":
        ending = Ending.TIMED_OUT
    devices = job.pods * (job.devices[0][1] if job.devices else 0)
    code = 0 if ending is Ending.DONE else None
    return Attempt(started, (), devices, ended, ending, code, None, job.message[:_MAX_REASON_LENGTH])


def count_forgotten_attempts(observed: ObservedJob) -> ObservedJob:
    """Add the number of attempts of which no pods are left.

    Kueue counts how often it evicted a Job, and Kubernetes how many of its pods failed; the pods may
    be gone. One that was evicted before its pods began counts too: it held its GPUs.
    """
    visible = len(group_by_attempt(observed))
    lost_pods = observed.job.failed_pods if observed.job.pods == 1 else 0
    evictions = observed.workload.evictions if observed.workload else 0
    runs = any(p.facts.started is not None and not p.facts.deletion_requested for p in observed.pods)
    total = evictions + max(lost_pods - (1 if observed.job.finished.startswith("Failed") else 0), 0)
    total += 1 if runs or observed.job.finished else 0
    forgotten = max(0, total - max(visible, 1 if observed.job.finished else 0))
    return replace(observed, forgotten_attempts=forgotten)


# state


def _state(observed: ObservedJob, *, running: bool) -> tuple[JobState, str, str]:  # noqa: PLR0911
    """Return the state, the reason in Kubernetes' or Kueue's words, and its code if a pod waits."""
    job, workload = observed.job, observed.workload
    if job.finished and not running:
        if job.finished.startswith("Complete"):
            return JobState.DONE, "", ""
        timed_out = job.finished == "Failed/DeadlineExceeded"
        return (JobState.TIMED_OUT if timed_out else JobState.FAILED), job.message, ""
    if observed.deleted_at is not None and not running:
        return JobState.CANCELLED, f"the {'pod' if observed.is_pod else 'Job'} was deleted", ""
    pending = next((p.facts for p in observed.pods if not _has_ended(p) and p.facts.message), None)
    if running:
        return JobState.RUNNING, *((pending.message, pending.code) if pending else ("", ""))
    if workload is None and observed.is_pod and pending is None:
        return JobState.WAITING, "", ""
    if workload is None:
        return JobState.WAITING, *(
            _unqueued_reason(job) if pending is None else (pending.message, pending.code)
        )
    if workload.held:
        if observed.evictions and _eviction_ending(observed.evictions[-1][1]) is Ending.TIMED_OUT:
            return JobState.TIMED_OUT, observed.evictions[-1][2], ""  # Kueue's own limit: it stays suspended
        return JobState.HELD, workload.message, "Held" if workload.message else ""
    if pending is not None:
        return JobState.WAITING, pending.message, pending.code
    return JobState.WAITING, workload.message, kueue_code(workload.message, together=job.together)


def _unqueued_reason(job: JobFacts) -> tuple[str, str]:
    """Return why a Job without a Workload has no pods, and its code; empty: Kueue is about to queue it."""
    if job.suspended and job.owner:
        return f"managed by {job.owner}", "OwnerHoldsIt"
    if job.suspended:
        return ("suspended", "Held") if not job.ours and not job.priority and not job.queue else ("", "")
    return ("", "") if job.queue else ("no queue", "NotQueued")


def _ended_at(observed: ObservedJob, attempts: Sequence[Attempt]) -> datetime:
    """Return when the last container ended; for a job that never ran, when the Job ended."""
    last = attempts[-1] if attempts else None
    # A Job that neither finished nor was cancelled was back in its queue when it was deleted.
    ended = observed.job.finished or (last and last.ending in {Ending.CANCELLED, Ending.TIMED_OUT})
    if last and last.ended_at is not None and ended:
        return last.ended_at
    return observed.job.finished_at or observed.deleted_at or observed.job.created
