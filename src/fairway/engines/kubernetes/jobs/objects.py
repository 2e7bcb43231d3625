"""Reduce Jobs, Workloads and Pods to the facts about jobs that are stored in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from fairway.engines.kubernetes.api.wire import Condition, OwnedMeta, PodObject, PodSpec
from fairway.engines.kubernetes.nodes.facts import Amounts, gpu_test, requested
from fairway.engines.kubernetes.policy.admission_policies import (
    JOB,
    MAX_EXEC_TIME,
    PRIORITY_CLASS,
    QUEUE_NAME,
    USER,
)
from fairway.engines.kubernetes.policy.intervention.intervene import DEACTIVATED_FOR
from fairway.engines.kubernetes.policy.workloads import PodTemplate, WorkloadStatus
from fairway.explain.engine_reasons import container_code, kueue_code, pod_code
from fairway.model.fleet import Pool

HELD_WAITING = "fairway.dev/held-waiting"
"""On a Workload: how often it was held before it ran. Kueue counts these as evictions; none is an attempt."""
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


class JobSpecObject(Struct, rename="camel", frozen=True, gc=False):
    """The spec of a Job."""

    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a Job."""

    start_time: str = ""
    completion_time: str = ""
    failed: int = 0
    conditions: list[Condition] = []


class JobObject(Struct, frozen=True, gc=False):
    """A Job."""

    metadata: OwnedMeta
    spec: JobSpecObject = JobSpecObject()
    status: JobStatus = JobStatus()


class WorkloadObjectSpec(Struct, frozen=True, gc=False):
    """Whether a Workload may be admitted."""

    active: bool = True


class WorkloadObject(Struct, frozen=True, gc=False):
    """A Workload without its pod sets: the mirror follows all of them, and does not need these."""

    metadata: OwnedMeta
    spec: WorkloadObjectSpec = WorkloadObjectSpec()
    status: WorkloadStatus = WorkloadStatus()


class Running(Struct, rename="camel", frozen=True, gc=False):
    """Since when a container runs."""

    started_at: str | None = None


class Terminated(Struct, rename="camel", frozen=True, gc=False):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class Waiting(Struct, frozen=True, gc=False):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True, gc=False):
    """The state of a container."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of one container."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    """How it ended before its last restart."""
    restart_count: int = 0


class PodStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class JobPodObject(Struct, frozen=True, gc=False):
    """A Pod, of a Job or on its own."""

    metadata: OwnedMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


class JobFacts(Struct, frozen=True, gc=False):
    """A Job, as long as it exists."""

    uid: str
    created: datetime
    ours: bool
    user: str
    priority: str
    devices: Amounts
    """Of each pod."""
    selector: tuple[tuple[str, str], ...]
    pods: int
    """At a time."""
    together: bool
    """Whether its pods must share a level of the topology."""
    owner: str
    """The object that manages it, as `Kind/name`; empty: none does."""
    queue: str
    """The LocalQueue it names; empty: none."""
    seconds: int | None
    suspended: bool
    started: datetime | None
    """The last time it was unsuspended."""
    failed_pods: int
    finished: str
    """Complete or Failed, with the reason: `Failed/DeadlineExceeded`; empty: it has not ended."""
    finished_at: datetime | None
    message: str
    deleted_at: datetime | None


class WorkloadFacts(Struct, frozen=True, gc=False):
    """A Workload: its Job's place in the queue."""

    job_uid: str
    held: bool
    """A user holds it. One that an intervention deactivated to make room is not held."""
    flavors: tuple[tuple[str, str], ...]
    evictions: int
    evicted: tuple[datetime, str, str] | None
    """The last eviction: when, its reason, and Kueue's message."""
    message: str
    """Why it waits."""
    code: str
    """The same as a code of `explain.reasons`; empty: none fits."""
    deleted_at: datetime | None


class PodFacts(Struct, frozen=True, gc=False):
    """A pod that ran, runs or will run."""

    name: str
    uid: str
    job: str
    """Empty: it has none."""
    job_uid: str
    index: int | None
    node: str
    devices: Amounts
    created: datetime
    started: datetime | None
    """When its first container ran; None: none has run, as while an image cannot be pulled."""
    start_is_exact: bool
    """False if no container has a start of its own: `started` is when the node accepted the pod."""
    ended: datetime | None
    """When its containers ended, by the kubelet; if that is unknown, when its deletion was requested."""
    phase: str
    exit_code: int | None
    signal: int | None
    deletion_requested: datetime | None
    """Its deletion timestamp without the grace period."""
    disrupted: str
    """Why Kubernetes itself ended it: the reason of DisruptionTarget."""
    message: str
    code: str
    """What `message` means, as a code of `explain.reasons`; empty: none fits."""


def job_transform(pools: Iterable[Pool]) -> Callable[[JobObject], JobFacts]:
    """Return the function that reduces Jobs to facts, on a cluster with these pools."""
    is_gpu = gpu_test(pools)

    def transform(job: JobObject) -> JobFacts:
        meta, spec, status = job.metadata, job.spec, job.status
        parallel = 1 if spec.parallelism is None else spec.parallelism
        at_a_time = parallel if spec.completions is None else min(parallel, spec.completions)
        end = next((c for c in status.conditions if c.type in _ENDS and c.status == "True"), None)
        template = spec.template.spec
        exec_seconds = meta.labels.get(MAX_EXEC_TIME, "")
        return JobFacts(
            uid=meta.uid,
            created=moment(meta.creation_timestamp) or EPOCH,
            ours=JOB in meta.labels,
            user=meta.annotations.get(USER, ""),
            priority=meta.labels.get(PRIORITY_CLASS, ""),
            devices=requested(PodObject(meta, template.pod()), is_gpu),
            selector=tuple(sorted(template.node_selector.items())),
            pods=max(1, at_a_time),
            together=REQUIRED_TOPOLOGY in spec.template.metadata.annotations,
            owner=_controller(meta),
            queue=meta.labels.get(QUEUE_NAME, ""),
            seconds=spec.active_deadline_seconds or (int(exec_seconds) if exec_seconds.isdigit() else None),
            suspended=spec.suspend,
            started=moment(status.start_time),
            failed_pods=status.failed,
            finished=f"{end.type}/{end.reason}" if end else "",
            finished_at=(moment(status.completion_time) or moment(end.last_transition_time)) if end else None,
            message=end.message if end and end.type == "Failed" else "",
            deleted_at=moment(meta.deletion_timestamp),
        )

    return transform


def _controller(meta: OwnedMeta) -> str:
    """Return the object that decides when a Job starts. A CronJob only creates it."""
    owner = next((o for o in meta.owner_references if o.controller and o.kind != "CronJob"), None)
    return f"{owner.kind}/{owner.name}" if owner else ""


def job_of_pod(pod: PodFacts) -> JobFacts:
    """Return a GPU pod that no Job created as if it had one: a Deployment's, an operator's, a bare pod."""
    ends = {"Succeeded": "Complete/", "Failed": "Failed/"}
    return JobFacts(
        uid=pod.uid,
        created=pod.created,
        ours=False,
        user="",
        priority="",
        devices=pod.devices,
        selector=(),
        pods=1,
        together=False,
        owner="",
        queue="",
        seconds=None,
        suspended=False,
        started=pod.started,
        failed_pods=0,
        finished=ends.get(pod.phase, ""),
        finished_at=pod.ended,
        message=pod.message if pod.phase == "Failed" else "",
        deleted_at=None,
    )


def workload_facts(workload: WorkloadObject) -> WorkloadFacts | None:
    """Reduce a Workload to facts. Returns None unless it belongs to a Job."""
    meta, status = workload.metadata, workload.status
    owner = meta.owner("Job")
    if owner is None:
        return None
    conditions = {c.type: c for c in status.conditions}
    evicted, quota = conditions.get("Evicted"), conditions.get("QuotaReserved")
    eviction = None
    if evicted is not None and evicted.status == "True":
        at = moment(evicted.last_transition_time)
        eviction = (at, evicted.reason, evicted.message) if at else None
    assignments = status.admission.pod_set_assignments if status.admission else ()
    message = quota.message if quota is not None and quota.status != "True" else ""
    return WorkloadFacts(
        job_uid=owner.uid,
        held=_is_held(workload, conditions),
        flavors=tuple(sorted({pair for a in assignments for pair in a.flavors.items()})),
        evictions=max(0, sum(e.count for e in status.scheduling_stats.evictions) - held_waiting(meta)),
        evicted=eviction,
        message=message,
        code=kueue_code(message),
        deleted_at=moment(meta.deletion_timestamp),
    )


def held_waiting(meta: OwnedMeta) -> int:
    """Return how often a Workload was held while it waited."""
    count = meta.annotations.get(HELD_WAITING, "")
    return int(count) if count.isdigit() else 0


def _is_held(workload: WorkloadObject, conditions: dict[str, Condition]) -> bool:
    if not workload.spec.active:
        return DEACTIVATED_FOR not in workload.metadata.annotations
    quota = conditions.get("QuotaReserved")
    return quota is not None and quota.status == "False" and quota.reason == "AdmissionGated"


def pod_transform(pools: Iterable[Pool]) -> Callable[[JobPodObject], PodFacts | None]:
    """Return the function that reduces pods to facts: those of Jobs, and those with GPUs but no Job."""
    is_gpu = gpu_test(pools)

    def transform(pod: JobPodObject) -> PodFacts | None:
        meta, status = pod.metadata, pod.status
        owner = meta.owner("Job")
        devices = requested(PodObject(meta, pod.spec), is_gpu)
        if owner is None and not devices:
            return None
        ends = [s.state.terminated for s in status.container_statuses if s.state.terminated]
        over = bool(ends) and len(ends) == len(status.container_statuses)
        worst = next((e for e in ends if e.exit_code), ends[0] if ends else None)
        index = meta.labels.get(INDEX_LABEL, "")
        message, code = _pod_message(status, worst if over else None)
        first_start = _first_start(status)
        return PodFacts(
            name=meta.name,
            uid=meta.uid,
            job=owner.name if owner else "",
            job_uid=owner.uid if owner else "",
            index=int(index) if index.isdigit() else None,
            node=pod.spec.node_name,
            devices=devices,
            created=moment(meta.creation_timestamp) or EPOCH,
            started=first_start or _accepted(status),
            start_is_exact=first_start is not None,
            ended=_end(pod, ends, over=over),
            phase=status.phase,
            exit_code=worst.exit_code if worst and over else None,
            signal=(worst.signal or _signal(worst.exit_code)) if worst and over else None,
            deletion_requested=_deletion_requested(meta),
            disrupted=next(
                (c.reason for c in status.conditions if c.type == "DisruptionTarget" and c.status == "True"),
                "",
            ),
            message=message,
            code=code,
        )

    return transform


def _first_start(status: PodStatus) -> datetime | None:
    """Return when the first container of a pod ran, init containers included. Returns None if unknown.

    A container that restarted twice no longer reports its first start.
    """
    times = [
        at
        for container in (*status.container_statuses, *status.init_container_statuses)
        if container.restart_count <= 1
        for state in (container.state, container.last_state)
        for run in (state.running, state.terminated)
        if run is not None and (at := moment(run.started_at or "")) is not None
    ]
    return min(times, default=None)


def _accepted(status: PodStatus) -> datetime | None:
    """Return when the node accepted a pod whose containers ran at a time that nobody knows any more.

    Returns None if they have not run: while an image is pulled, or fails to be, a pod waits on its node.
    """
    waits = any(c.state.waiting for c in status.container_statuses)
    ran = status.phase in {"Running", "Succeeded"} or (status.phase == "Failed" and not waits)
    return moment(status.start_time) if ran else None


def keep_start(before: PodFacts, now: PodFacts) -> PodFacts:
    """Return a pod's new facts with the start that is known of it.

    A container that restarts forgets its first start. One whose pod was deleted before it ran is reported as
    terminated without a start: such a pod has not run.
    """
    never_ran = before.started is None and not now.start_is_exact and now.phase == "Failed"
    if before.started is None and not never_ran:
        return now
    return replace(now, started=before.started, start_is_exact=before.start_is_exact)


def _end(pod: JobPodObject, ends: list[Terminated], *, over: bool) -> datetime | None:
    if over:
        # A node that came back also reports containers of which it has no records any more.
        times = [t for e in ends if e.reason not in _UNKNOWN and (t := moment(e.finished_at or ""))]
        if times:
            return max(times)
    if over or pod.status.phase in {"Succeeded", "Failed"}:
        # Its end was not observed: use when the node stopped responding, or when the pod was deleted.
        not_ready = (c for c in pod.status.conditions if c.type == "Ready" and c.status == "False")
        at = next((moment(c.last_transition_time) for c in not_ready), None)
        return at or _deletion_requested(pod.metadata) or moment(pod.status.start_time)
    return None


def _deletion_requested(meta: OwnedMeta) -> datetime | None:
    at = moment(meta.deletion_timestamp)
    return at - timedelta(seconds=meta.deletion_grace_period_seconds) if at else None


def _signal(exit_code: int) -> int | None:
    return exit_code - 128 if 128 < exit_code < 193 else None


def _pod_message(status: PodStatus, end: Terminated | None) -> tuple[str, str]:
    """Return Kubernetes' message about a pod, and its code if it waits for a node or cannot start on one."""
    if end is not None and end.exit_code:
        return ": ".join(w for w in (end.reason, end.message.strip()) if w and w != "Error"), ""
    waiting = next((s.state.waiting for s in status.container_statuses if s.state.waiting), None)
    source = status if status.reason or status.message else waiting
    if source is not None:
        return ": ".join(w for w in (source.reason, source.message) if w), container_code(source.reason)
    unbound = next((c for c in status.conditions if c.type == "PodScheduled" and c.status == "False"), None)
    return (
        (f"{unbound.reason}: {unbound.message}", pod_code(unbound.reason, unbound.message))
        if unbound
        else ("", "")
    )


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN = frozenset({"Unknown", "ContainerStatusUnknown"})
_ENDS = frozenset({"Complete", "Failed"})


@lru_cache(maxsize=4096)  # many objects of one second
def moment(text: str) -> datetime | None:
    """Parse a time of the API server. Returns None for an empty one."""
    return datetime.fromisoformat(text) if text else None
