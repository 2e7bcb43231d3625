"""Hold what the informers, or a lookup, reported of one workload: its root, its Workloads and its pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from msgspec import structs

from fairway.engines.kubernetes.api.wire import EPOCH
from fairway.engines.kubernetes.jobs.objects import Eviction, JobFacts, PodFacts, PodSetFacts, WorkloadFacts
from fairway.engines.kubernetes.jobs.roots import Root
from fairway.engines.kubernetes.nodes.claims import total
from fairway.engines.kubernetes.nodes.facts import Amounts
from fairway.model.job import EngineId
from fairway.model.workload_kinds import workload_kind

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as it was last reported, and whether it has been deleted."""

    facts: PodFacts
    deleted: bool = False
    eviction: Eviction | None = None
    """How Kueue evicted the Workload that counts it, where that is this pod's alone."""
    gone_at: datetime | None = None
    """When its deletion was reported, by our clock, if nothing else was that ended it: it was deleted without
    a grace period, or while the API server was away."""

    @property
    def ended(self) -> bool:
        return self.deleted or self.facts.ended is not None


AttemptPods = tuple[ObservedPod, ...]
"""The pods of one attempt."""


@dataclass(frozen=True, slots=True)
class RootStatus:
    """What an object itself says once it has neither pods nor a Workload."""

    replicas: int | None = None
    """How many it wants; None: it has no such number."""
    finished: str = ""
    """As of a Job."""
    finished_at: datetime | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A Job, or an object of another kind, with its Workloads and pods."""

    namespace: str
    name: str
    job: JobFacts
    """Of an object of another kind: what it would be as a Job."""
    deleted_at: datetime | None = None
    """When it was deleted; it may have ended long before."""
    workloads: tuple[WorkloadFacts, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    forgotten_attempts: int = 0
    """Attempts before those of `pods`, of which no pods are left."""
    watched: bool = False
    """Whether it has been followed since before its end, so that no pods are missing."""
    root: Root | None = None
    """What a person created; None: a Job."""
    service: bool = False
    status: RootStatus | None = None
    """None: not read."""
    flavors: tuple[tuple[str, str], ...] = ()
    """Resources and flavors that Kueue assigned to it, now or before, those of the most devices first."""
    node_labels: Mapping[str, Labels] = field(default_factory=lambda: MappingProxyType({}))
    """Of the nodes of its pods, as far as they were read."""

    @property
    def kind(self) -> str:
        return self.root.kind if self.root else ""

    @property
    def workload(self) -> WorkloadFacts | None:
        """Return the Workload that decides when it starts. Returns None if it is in no queue."""
        current = [w for w in self.workloads if not w.replaced]
        return min(current, key=lambda w: (w.admitted, w.created, w.name), default=None)

    @property
    def separate(self) -> bool:
        """Whether each pod holds its GPUs on its own: those of a service, and those of a work queue."""
        return self.service or self.job.work_queue

    @property
    def engine_id(self) -> EngineId:
        """Return its permanent id. Fairway uses a name once; users may reuse theirs, so the uid is added."""
        ours, native = engine_ids(self.namespace, self.kind, self.name, self.job.uid)
        return ours if self.job.ours else native

    def resource(self) -> str:
        """Return the resource of which it requests the most; empty if it has no devices."""
        amounts: dict[str, int] = {}
        wanted = [s for w in self.workloads for s in w.pod_sets]
        each = [p.facts.devices for p in self.pods] or [self.job.devices, *(s.devices for s in wanted)]
        for resource, count in (pair for devices in each for pair in devices):
            amounts[resource] = amounts.get(resource, 0) + count
        return min(amounts, key=lambda resource: (-amounts[resource], resource), default="")


def engine_ids(namespace: str, kind: str, name: str, uid: str) -> tuple[EngineId, EngineId]:
    """Return the id of a workload that Fairway submitted, and the id of any other; a Job has no `kind`."""
    whole = f"{namespace}/{kind.lower()}/{name}" if kind else f"{namespace}/{name}"
    return EngineId(f"{namespace}/{name}"), EngineId(f"{whole}/{uid[:8]}")


def current_workloads(workloads: Iterable[WorkloadFacts]) -> list[WorkloadFacts]:
    """Return the Workloads that say how large an object is to be: without those that others replace."""
    current = [w for w in workloads if not w.replaced]
    replaced = {w.replaces for w in current}
    return [w for w in current if w.name not in replaced]


def with_claims_of(
    job: JobFacts, workloads: Sequence[WorkloadFacts], pods: Sequence[ObservedPod]
) -> tuple[JobFacts, tuple[ObservedPod, ...]]:
    """Return a Job and pods with the devices that Kueue has counted of their claims.

    For pods whose claims were not reported: Kubernetes deletes them when a pod ends. `job` has no devices of
    claims itself, because its template does not say how many they are.
    """
    sets = {w.name: max(w.pod_sets, key=lambda s: len(s.devices)) for w in workloads if w.pod_sets}
    filled = tuple(
        replace(pod, facts=structs.replace(pod.facts, devices=sets[pod.facts.workload].devices))
        if pod.facts.claims and not pod.facts.devices and pod.facts.workload in sets
        else pod
        for pod in pods
    )
    counted = total(*(s.devices for s in sets.values())) if len(sets) == 1 else ()
    known = next((p.facts.devices for p in filled if p.facts.claims and p.facts.devices), counted)
    missing = not job.devices and bool(known)
    return structs.replace(job, devices=known) if missing else job, filled


def is_service(root: Root, pods: Iterable[PodFacts], pod_sets: Iterable[PodSetFacts]) -> bool:
    """Return whether a workload runs until somebody ends it.

    Of a kind that is not registered the pods tell: those that finish by themselves do not restart for ever.
    """
    kind = workload_kind(root.api_version, root.kind)
    if kind is not None:
        return kind.service
    restarts = [pod.restarts for pod in pods] or [pod_set.restarts for pod_set in pod_sets]
    return bool(restarts) and all(restarts)


def job_of(
    root: Root,
    workloads: Sequence[WorkloadFacts],
    pods: Sequence[ObservedPod],
    status: RootStatus | None = None,
    before: JobFacts | None = None,
) -> JobFacts:
    """Return an object of any kind as if it were a Job, from its Workloads and its pods.

    `before` is the same of a time when it had some.
    """
    times = [*(w.created for w in workloads), *(p.facts.created for p in pods)]
    finished, finished_at, message = _end(root, workloads, pods, status)
    pod_sets = [s for w in current_workloads(workloads) for s in w.pod_sets]
    count, devices, selector = _request(pod_sets, pods)
    if before is not None and not devices:
        devices, selector = before.devices, before.selector
    created = root.created or (before.created if before else min(times, default=EPOCH))
    return JobFacts(
        uid=root.uid,
        created=created,
        ours=root.ours,
        user=root.user,
        priority=root.priority,
        devices=devices,
        selector=selector,
        pods=count,
        work_queue=False,
        together=any(s.together for s in pod_sets),
        owner=None,
        labels=next((p.facts.labels for p in pods if p.facts.labels), before.labels if before else ()),
        queue=root.queue or next((w.queue for w in workloads if w.queue), ""),
        seconds=None,
        suspended=False,
        started=min((p.facts.started for p in pods if p.facts.started), default=None),
        failed_pods=0,
        finished=finished,
        finished_at=finished_at,
        message=message,
        deleted_at=root.deleted_at,
    )


def _end(
    root: Root, workloads: Sequence[WorkloadFacts], pods: Sequence[ObservedPod], status: RootStatus | None
) -> tuple[str, datetime | None, str]:
    if root.kind == "Pod" and not root.api_version.count("/"):
        pod = next((p.facts for p in pods if p.facts.uid == root.uid), None)
        ends = {"Succeeded": "Complete/", "Failed": "Failed/"}
        # A pod whose deletion was requested ends as its signal makes it end: that is no failure of its own.
        if pod is not None and pod.phase in ends and not _was_stopped(pod):
            return ends[pod.phase], pod.ended, pod.message if pod.phase == "Failed" else ""
    current = [w for w in workloads if not w.replaced]
    if current and all(w.finished for w in current):
        last = max(current, key=lambda w: (w.finished_at or w.created, w.name))
        message = last.finished_message if last.finished.startswith("Failed") else ""
        return last.finished, last.finished_at, message
    if status is not None and status.finished:
        return status.finished, status.finished_at, status.message
    return "", None, ""


def _was_stopped(pod: PodFacts) -> bool:
    """Return whether a pod failed because it was deleted."""
    asked, ended = pod.deletion_requested, pod.ended
    return pod.phase == "Failed" and asked is not None and (ended is None or ended >= asked)


def _request(pod_sets: Sequence[PodSetFacts], pods: Sequence[ObservedPod]) -> tuple[int, Amounts, Labels]:
    """Return how many pods with devices there are to be, the devices of the largest, and its selector."""
    live = [p.facts for p in pods if not p.ended and not p.facts.deletion_requested] or [
        p.facts for p in pods
    ]
    each = [(pod.devices, pod.selector) for pod in live] or [(s.devices, s.selector) for s in pod_sets]
    devices, selector = max(each, key=lambda pair: sum(n for _, n in pair[0]), default=((), ()))
    places = {pod.name if pod.index is None else (pod.owner, pod.index) for pod in live}
    return max(1, sum(s.count for s in pod_sets), len(places)), devices, selector
