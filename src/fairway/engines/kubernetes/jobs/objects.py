"""Reduce Jobs, Workloads and Pods to the facts about jobs that are stored in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from fairway.engines.kubernetes.api.wire import (
    EPOCH,
    Condition,
    OwnedMeta,
    Owner,
    PodClaimStatus,
    PodObject,
    PodSpec,
    moment,
)
from fairway.engines.kubernetes.jobs.labels import peoples_labels
from fairway.engines.kubernetes.jobs.roots import Root, controlling_owner, root_of, workload_owner
from fairway.engines.kubernetes.nodes.claims import total
from fairway.engines.kubernetes.nodes.devices import device_classes, whole_number
from fairway.engines.kubernetes.nodes.facts import Amounts, gpu_test, requested
from fairway.engines.kubernetes.policy.admission_policies import (
    JOB,
    MAX_EXEC_TIME,
    PRIORITY_CLASS,
    QUEUE_NAME,
    USER,
)
from fairway.engines.kubernetes.policy.intervention.intervene import DEACTIVATED_FOR
from fairway.engines.kubernetes.policy.pod_policies import ELASTIC, GATE, GROUP, WORKLOAD
from fairway.engines.kubernetes.policy.workloads import PodSet, PodTemplate, WorkloadStatus
from fairway.explain.engine_reasons import container_code, kueue_code, pod_code
from fairway.model.fleet import Pool
from fairway.model.labels import Labels

HOLD_GATE = "fairway.dev/hold"
"""The admission gate of a Job that is created held: Kueue admits nothing that is gated."""
HELD_WAITING = "fairway.dev/held-waiting"
"""On a Workload: how often it was held before it ran. Kueue counts these as evictions; none is an attempt."""
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_REPLACES: Final = "kueue.x-k8s.io/workload-slice-replacement-for"


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


class WorkloadObjectSpec(Struct, rename="camel", frozen=True, gc=False):
    """Whether a Workload may be admitted, its queue and its pod sets."""

    active: bool = True
    queue_name: str = ""
    pod_sets: list[PodSet] = []


class WorkloadObject(Struct, frozen=True, gc=False):
    """A Workload."""

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


class PodStatus(PodClaimStatus, rename="camel", frozen=True, gc=False):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: list[Condition] = field(default_factory=list)
    container_statuses: list[ContainerStatus] = field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = field(default_factory=list)


class SchedulingGate(Struct, frozen=True, gc=False):
    """What keeps a pod from being scheduled."""

    name: str = ""


class JobPodSpec(PodSpec, rename="camel", frozen=True, gc=False):
    """Where a pod may run, and whether it may run yet."""

    scheduling_gates: list[SchedulingGate] = field(default_factory=list)
    restart_policy: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)


class JobPodObject(Struct, frozen=True, gc=False):
    """A Pod of any workload."""

    metadata: OwnedMeta
    spec: JobPodSpec
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
    work_queue: bool
    """Whether it goes on with other pods when one has succeeded: these do not run as a gang."""
    together: bool
    """Whether its pods must share a level of the topology."""
    owner: Owner | None
    """The object that manages it: this one is then no workload of its own."""
    queue: str
    """The LocalQueue it names; empty: none."""
    labels: Labels
    """Of it and its pods, as far as people chose them."""
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


Eviction = tuple[datetime, str, str]
"""When, Kueue's reason, and its message."""


class PodSetFacts(Struct, frozen=True, gc=False):
    """Equal pods with devices."""

    count: int
    devices: Amounts
    """Of each pod."""
    selector: tuple[tuple[str, str], ...]
    restarts: bool
    """Whether its containers are restarted for ever."""
    together: bool
    """Whether all of them must be in one domain of the topology."""


class WorkloadFacts(Struct, frozen=True, gc=False):
    """A Workload: the place in the queue of what a person created, or of one of its replicas."""

    name: str
    uid: str
    owner: Owner
    """What it queues: a Job, or an object of another kind, or one of its pods."""
    created: datetime
    queue: str
    pod_sets: tuple[PodSetFacts, ...]
    """Those with devices; of a Job, which has its own template, those that claim devices."""
    admitted: bool
    considered: bool
    """Whether Kueue has decided on it so far."""
    finished: str
    """Its end, in the form of a Job's: `Complete/Succeeded`; empty: it has not ended."""
    finished_at: datetime | None
    finished_message: str
    replaced: bool
    """Whether a larger or smaller one has replaced it, as when an elastic job grows."""
    replaces: str
    """The name of the one that it is to replace, once it is admitted; empty: none."""
    held: bool
    """A user holds it. One that an intervention deactivated to make room is not held."""
    flavors: tuple[tuple[str, str], ...]
    evictions: int
    evicted: Eviction | None
    """The last eviction."""
    message: str
    """Why it waits."""
    code: str
    """The same as a code of `explain.reasons`; empty: none fits."""
    deleted_at: datetime | None


class PodFacts(Struct, frozen=True, gc=False):
    """A pod that ran, runs or will run."""

    name: str
    uid: str
    owner: Owner | None
    """What created it; None: it is a root itself, or one of a group."""
    root: Root | None
    """The pod itself, if nothing else created it."""
    group: str
    """The name of its pod group, if nothing else created it; empty: none."""
    workload: str
    """The Workload that counts it; empty: none does so far."""
    gated: bool
    """Whether it waits for Kueue."""
    restarts: bool
    """Whether its containers are restarted for ever."""
    selector: tuple[tuple[str, str], ...]
    labels: Labels
    """As far as people chose them."""
    index: int | None
    node: str
    devices: Amounts
    """Those of its claims are added when these are reported."""
    claims: bool
    """Whether it claims devices."""
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
    evicted: Eviction | None
    """Why Kueue ended it."""
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
            work_queue=spec.completions is not None and spec.completions > parallel,
            together=REQUIRED_TOPOLOGY in spec.template.metadata.annotations,
            owner=controlling_owner(meta.owner_references),
            queue=meta.labels.get(QUEUE_NAME, ""),
            labels=_shared_selector(peoples_labels(spec.template.metadata.labels | meta.labels)),
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


def workload_transform(pools: Iterable[Pool]) -> Callable[[WorkloadObject], WorkloadFacts | None]:
    """Return the function that reduces Workloads to facts: those of Jobs, and those with GPUs."""
    pools = tuple(pools)
    is_gpu, classes = gpu_test(pools), frozenset(device_classes(pools).values())

    def transform(workload: WorkloadObject) -> WorkloadFacts | None:
        meta, status = workload.metadata, workload.status
        owner = workload_owner(meta)
        counted = classes.__contains__ if owner.kind == "Job" else is_gpu
        pod_sets = tuple(_pod_sets(workload, counted, classes)) if classes or owner.kind != "Job" else ()
        if owner.kind != "Job" and not pod_sets:
            return None
        conditions = {c.type: c for c in status.conditions}
        evicted, quota = conditions.get("Evicted"), conditions.get("QuotaReserved")
        end = conditions.get("Finished")
        end = end if end is not None and end.status == "True" else None
        message = quota.message if quota is not None and quota.status != "True" else ""
        return WorkloadFacts(
            name=meta.name,
            uid=meta.uid,
            owner=_shared(owner),
            created=moment(meta.creation_timestamp) or EPOCH,
            queue=workload.spec.queue_name,
            pod_sets=pod_sets,
            admitted=status.admission is not None,
            considered=quota is not None,
            finished=_FINISHED.get(end.reason, "") if end else "",
            finished_at=moment(end.last_transition_time) if end else None,
            finished_message=end.message if end else "",
            replaced=end is not None and end.reason not in _FINISHED,
            replaces=meta.annotations.get(_REPLACES, "").rpartition("/")[2],
            held=_is_held(workload, conditions),
            flavors=_flavors(status, is_gpu),
            evictions=max(0, sum(e.count for e in status.scheduling_stats.evictions) - held_waiting(meta)),
            evicted=_eviction(evicted, evicted.reason) if evicted is not None else None,
            message=message,
            code=kueue_code(message),
            deleted_at=moment(meta.deletion_timestamp),
        )

    return transform


_FINISHED: Final = {"Succeeded": "Complete/Succeeded", "Failed": "Failed/Failed"}
"""How Kueue finishes what has ended. It finishes Workloads for other reasons, too: others replace these."""


def _pod_sets(
    workload: WorkloadObject, is_counted: Callable[[str], bool], classes: frozenset[str]
) -> Iterable[PodSetFacts]:
    for pod_set in workload.spec.pod_sets:
        template = pod_set.template.spec
        devices = requested(PodObject(_NO_META, template.pod()), is_counted)
        if classes:
            devices = total(devices, _claimed(workload.status, pod_set, classes))
        if devices and pod_set.count:
            selector = tuple(sorted(template.node_selector.items()))
            restarts = template.restart_policy in {"", "Always"}
            request = pod_set.topology_request
            together = request is not None and bool(request.required)
            yield PodSetFacts(pod_set.count, devices, selector, restarts, together)


def _claimed(status: WorkloadStatus, pod_set: PodSet, classes: frozenset[str]) -> Amounts:
    """Return the devices that each pod of a set claims, as Kueue has counted them."""
    assigned = status.admission.pod_set_assignments if status.admission else ()
    found = [a.resource_usage for a in assigned if a.name == pod_set.name]
    found += [r.resources for r in status.resource_requests if r.name == pod_set.name]
    amounts = ((r, whole_number(n) // max(1, pod_set.count)) for r, n in (found or [{}])[0].items())
    return tuple(sorted((r, n) for r, n in amounts if r in classes and n))


def _flavors(status: WorkloadStatus, is_gpu: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    """Return the flavors of devices that Kueue assigned, those of the most devices first."""
    amounts: Counter[tuple[str, str]] = Counter()
    for assigned in status.admission.pod_set_assignments if status.admission else ():
        for resource, flavor in assigned.flavors.items():
            if is_gpu(resource):
                amounts[resource, flavor] += whole_number(assigned.resource_usage.get(resource, "0"))
    return tuple(sorted(amounts, key=lambda pair: (-amounts[pair], pair)))


def _eviction(condition: Condition, reason: str) -> Eviction | None:
    at = moment(condition.last_transition_time)
    return (at, reason, condition.message) if condition.status == "True" and at else None


@lru_cache(maxsize=4096)
def _shared(owner: Owner) -> Owner:
    """Return one copy of an owner for all that it owns."""
    return owner


_NO_META: Final = OwnedMeta()


def held_waiting(meta: OwnedMeta) -> int:
    """Return how often a Workload was held while it waited."""
    count = meta.annotations.get(HELD_WAITING, "")
    return int(count) if count.isdigit() else 0


def _is_held(workload: WorkloadObject, conditions: dict[str, Condition]) -> bool:
    if not workload.spec.active:
        return DEACTIVATED_FOR not in workload.metadata.annotations
    quota = conditions.get("QuotaReserved")
    if quota is None or quota.status != "False" or quota.reason != "AdmissionGated":
        return False
    # A gate of somebody else's is no hold: nobody could release it with Fairway.
    return HOLD_GATE in quota.message or "gated by" not in quota.message


def pod_transform(pools: Iterable[Pool]) -> Callable[[JobPodObject], PodFacts | None]:
    """Return the function that reduces pods to facts: those of Jobs, and those with GPUs or claims.

    Claims are for GPUs only where a pool names a DeviceClass.
    """
    pools = tuple(pools)
    is_gpu, classes = gpu_test(pools), device_classes(pools)

    def transform(pod: JobPodObject) -> PodFacts | None:
        meta, status = pod.metadata, pod.status
        owner = controlling_owner(meta.owner_references)
        devices = requested(PodObject(meta, pod.spec, status), is_gpu)
        claims = bool(classes) and bool(pod.spec.resource_claims or status.claimed_resources)
        if not devices and not claims and (owner is None or owner.kind != "Job"):
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
            owner=_shared(owner) if owner else None,
            root=None if owner else root_of("v1", "Pod", meta),
            group="" if owner else meta.labels.get(GROUP, ""),
            workload=meta.annotations.get(WORKLOAD, ""),
            gated=any(gate.name in (GATE, ELASTIC) for gate in pod.spec.scheduling_gates),
            restarts=pod.spec.restart_policy in {"", "Always"},
            selector=_shared_selector(tuple(sorted(pod.spec.node_selector.items()))),
            labels=_shared_selector(peoples_labels(meta.labels)),
            index=int(index) if index.isdigit() else None,
            node=pod.spec.node_name,
            devices=devices,
            claims=claims,
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
            evicted=next(
                (
                    _eviction(c, c.reason.removeprefix(_EVICTED))
                    for c in status.conditions
                    if c.type == "TerminationTarget" and c.reason.startswith(_EVICTED)
                ),
                None,
            ),
            message=message,
            code=code,
        )

    return transform


_EVICTED: Final = "WorkloadEvictedDueTo"


@lru_cache(maxsize=4096)
def _shared_selector(selector: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return selector


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
    if before.deletion_requested is not None and now.ended is not None:
        # The kubelet requests it again once all containers have ended.
        now = replace(now, deletion_requested=before.deletion_requested)
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


_UNKNOWN = frozenset({"Unknown", "ContainerStatusUnknown"})
_ENDS = frozenset({"Complete", "Failed"})
