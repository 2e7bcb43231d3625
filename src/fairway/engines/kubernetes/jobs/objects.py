"""The few fields of Jobs, Workloads and Pods that describe jobs, and what is stored in memory of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from msgspec import Struct, field

from fairway.engines.kubernetes.api.wire import Condition, ObjectMeta, PodObject, PodSpec
from fairway.engines.kubernetes.nodes.facts import Amounts, gpu_test, requested
from fairway.engines.kubernetes.policy.admission_policies import JOB, LONGEST, PRIORITY_CLASS, USER
from fairway.engines.kubernetes.policy.nudge.nudge import FOR
from fairway.engines.kubernetes.policy.workloads import TemplateSpec
from fairway.explain.engine_reasons import kueue_code, pod_code
from fairway.model.fleet import Pool

HELD_WAITING = "fairway.dev/held-waiting"
"""On a Workload: how often it was held before it ran. Kueue counts these as evictions; none is an attempt."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


class Owner(Struct, frozen=True, gc=False):
    """The owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class JobMeta(ObjectMeta, rename="camel", frozen=True, gc=False):
    """An object's identity, creation, labels, owners and deletion."""

    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[Owner] = field(default_factory=list)

    def owner(self, kind: str) -> Owner | None:
        return next((o for o in self.owner_references if o.kind == kind), None)


class JobTemplate(Struct, frozen=True, gc=False):
    """The template of its pods."""

    spec: TemplateSpec = TemplateSpec()


class JobSpecObject(Struct, rename="camel", frozen=True, gc=False):
    """The spec of a Job."""

    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    template: JobTemplate = JobTemplate()


class JobStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a Job."""

    start_time: str = ""
    completion_time: str = ""
    failed: int = 0
    conditions: list[Condition] = []


class JobObject(Struct, frozen=True, gc=False):
    """A Job."""

    metadata: JobMeta
    spec: JobSpecObject = JobSpecObject()
    status: JobStatus = JobStatus()


class Evictions(Struct, frozen=True, gc=False):
    """How often a Workload was evicted for one reason."""

    count: int = 0


class SchedulingStats(Struct, frozen=True, gc=False):
    """Kueue's counters of a Workload."""

    evictions: list[Evictions] = []


class WorkloadObjectSpec(Struct, frozen=True, gc=False):
    """Whether a Workload may be admitted."""

    active: bool = True


class AssignedPods(Struct, frozen=True, gc=False):
    """The flavor of each resource of a set of pods."""

    flavors: dict[str, str] = {}


class WorkloadObjectAdmission(Struct, rename="camel", frozen=True, gc=False):
    """The quota a Workload was given."""

    pod_set_assignments: list[AssignedPods] = []


class WorkloadObjectStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a Workload."""

    admission: WorkloadObjectAdmission | None = None
    conditions: list[Condition] = []
    scheduling_stats: SchedulingStats = SchedulingStats()


class WorkloadObject(Struct, frozen=True, gc=False):
    """A Workload, without the fields that only policy reads."""

    metadata: JobMeta
    spec: WorkloadObjectSpec = WorkloadObjectSpec()
    status: WorkloadObjectStatus = WorkloadObjectStatus()


class Terminated(Struct, rename="camel", frozen=True, gc=False):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class Waiting(Struct, frozen=True, gc=False):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True, gc=False):
    """The state of a container."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, gc=False):
    """The status of one container."""

    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class JobPodObject(Struct, frozen=True, gc=False):
    """A Pod, of a Job or on its own."""

    metadata: JobMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


# What is kept in memory


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
    seconds: int | None
    suspended: bool
    started: datetime | None
    """The last time it was unsuspended."""
    failed_pods: int
    finished: str
    """Complete or Failed, with the reason: `Failed/DeadlineExceeded`; empty: it has not ended."""
    finished_at: datetime | None
    words: str
    deleted_at: datetime | None


class WorkloadFacts(Struct, frozen=True, gc=False):
    """A Workload: its Job's place in the queue."""

    job_uid: str
    held: bool
    """A user holds it. One that a nudge deactivated to make room is not held."""
    flavors: tuple[tuple[str, str], ...]
    evictions: int
    evicted: tuple[datetime, str, str] | None
    """The last eviction: when, its reason, and Kueue's message."""
    words: str
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
    ended: datetime | None
    """When its containers ended, by their own time; if that is unknown, when it was told to terminate."""
    phase: str
    exit_code: int | None
    signal: int | None
    told_to_go: datetime | None
    disrupted: str
    """Why Kubernetes itself ended it: the reason of DisruptionTarget."""
    words: str
    code: str = ""
    """What `words` mean, as a code of `explain.reasons`; empty: none fits."""
    user: str = ""


def job_keeper(pools: Iterable[Pool]) -> Callable[[JobObject], JobFacts]:
    """Return the function that reduces Jobs to facts, on a cluster with these pools."""
    is_gpu = gpu_test(pools)

    def keep(job: JobObject) -> JobFacts:
        meta, spec, status = job.metadata, job.spec, job.status
        parallel = 1 if spec.parallelism is None else spec.parallelism
        most = parallel if spec.completions is None else min(parallel, spec.completions)
        end = next((c for c in status.conditions if c.type in _ENDS and c.status == "True"), None)
        template = spec.template.spec
        longest = meta.labels.get(LONGEST, "")
        return JobFacts(
            uid=meta.uid,
            created=moment(meta.creation_timestamp) or EPOCH,
            ours=JOB in meta.labels,
            user=meta.annotations.get(USER, ""),
            priority=meta.labels.get(PRIORITY_CLASS, ""),
            devices=requested(PodObject(meta, template.pod()), is_gpu),
            selector=tuple(sorted(template.node_selector.items())),
            pods=max(1, most),
            seconds=spec.active_deadline_seconds or (int(longest) if longest.isdigit() else None),
            suspended=spec.suspend,
            started=moment(status.start_time),
            failed_pods=status.failed,
            finished=f"{end.type}/{end.reason}" if end else "",
            finished_at=(moment(status.completion_time) or moment(end.last_transition_time)) if end else None,
            words=end.message if end and end.type == "Failed" else "",
            deleted_at=moment(meta.deletion_timestamp),
        )

    return keep


def keep_workload(workload: WorkloadObject) -> WorkloadFacts | None:
    """Reduce a Workload to facts. Returns None unless it belongs to a Job."""
    meta, status = workload.metadata, workload.status
    owner = meta.owner("Job")
    if owner is None:
        return None
    conditions = {c.type: c for c in status.conditions}
    evicted, quota = conditions.get("Evicted"), conditions.get("QuotaReserved")
    sent_back = None
    if evicted is not None and evicted.status == "True":
        at = moment(evicted.last_transition_time)
        sent_back = (at, evicted.reason, evicted.message) if at else None
    given = status.admission.pod_set_assignments if status.admission else ()
    words = quota.message if quota is not None and quota.status != "True" else ""
    return WorkloadFacts(
        job_uid=owner.uid,
        held=_is_held(workload, conditions),
        flavors=tuple(sorted({pair for a in given for pair in a.flavors.items()})),
        evictions=max(0, sum(e.count for e in status.scheduling_stats.evictions) - held_waiting(meta)),
        evicted=sent_back,
        words=words,
        code=kueue_code(words),
        deleted_at=moment(meta.deletion_timestamp),
    )


def held_waiting(meta: JobMeta) -> int:
    """Return how often a Workload was held while it waited."""
    count = meta.annotations.get(HELD_WAITING, "")
    return int(count) if count.isdigit() else 0


def _is_held(workload: WorkloadObject, conditions: dict[str, Condition]) -> bool:
    if not workload.spec.active:
        return FOR not in workload.metadata.annotations
    quota = conditions.get("QuotaReserved")
    return quota is not None and quota.status == "False" and quota.reason == "AdmissionGated"


def pod_keeper(pools: Iterable[Pool]) -> Callable[[JobPodObject], PodFacts | None]:
    """Return the function that reduces pods to facts: those of Jobs, and those with GPUs but no Job."""
    is_gpu = gpu_test(pools)

    def keep(pod: JobPodObject) -> PodFacts | None:
        meta, status = pod.metadata, pod.status
        owner = meta.owner("Job")
        devices = requested(PodObject(meta, pod.spec), is_gpu)
        if owner is None and not devices:
            return None
        ends = [s.state.terminated for s in status.container_statuses if s.state.terminated]
        over = bool(ends) and len(ends) == len(status.container_statuses)
        worst = next((e for e in ends if e.exit_code), ends[0] if ends else None)
        index = meta.labels.get(INDEX_LABEL, "")
        words, code = _pod_words(status, worst if over else None)
        return PodFacts(
            name=meta.name,
            uid=meta.uid,
            job=owner.name if owner else "",
            job_uid=owner.uid if owner else "",
            index=int(index) if index.isdigit() else None,
            node=pod.spec.node_name,
            devices=devices,
            created=moment(meta.creation_timestamp) or EPOCH,
            started=moment(status.start_time),
            ended=_end(pod, ends, over=over),
            phase=status.phase,
            exit_code=worst.exit_code if worst and over else None,
            signal=(worst.signal or _signal(worst.exit_code)) if worst and over else None,
            told_to_go=_told_to_go(meta),
            disrupted=next(
                (c.reason for c in status.conditions if c.type == "DisruptionTarget" and c.status == "True"),
                "",
            ),
            words=words,
            code=code,
            user=meta.annotations.get(USER, ""),
        )

    return keep


def _end(pod: JobPodObject, ends: list[Terminated], *, over: bool) -> datetime | None:
    if over:
        # A node that came back tells of containers it knows nothing of any more.
        times = [t for e in ends if e.reason not in _UNKNOWN and (t := moment(e.finished_at or ""))]
        if times:
            return max(times)
    if over or pod.status.phase in {"Succeeded", "Failed"}:
        # Nobody saw its end: the node was found to be silent, or the pod was told to go.
        silent = (c for c in pod.status.conditions if c.type == "Ready" and c.status == "False")
        at = next((moment(c.last_transition_time) for c in silent), None)
        return at or _told_to_go(pod.metadata) or moment(pod.status.start_time)
    return None


def _told_to_go(meta: JobMeta) -> datetime | None:
    at = moment(meta.deletion_timestamp)
    return at - timedelta(seconds=meta.deletion_grace_period_seconds) if at else None


def _signal(exit_code: int) -> int | None:
    return exit_code - 128 if 128 < exit_code < 193 else None


def _pod_words(status: PodStatus, end: Terminated | None) -> tuple[str, str]:
    """Return what Kubernetes says of a pod, and the code of it if it waits for a node."""
    if end is not None and end.exit_code:
        return ": ".join(w for w in (end.reason, end.message.strip()) if w and w != "Error"), ""
    if status.reason or status.message:
        return ": ".join(w for w in (status.reason, status.message) if w), ""
    waits = next((s.state.waiting for s in status.container_statuses if s.state.waiting), None)
    if waits is not None:
        return ": ".join(w for w in (waits.reason, waits.message) if w), ""
    unbound = next((c for c in status.conditions if c.type == "PodScheduled" and c.status == "False"), None)
    return (f"{unbound.reason}: {unbound.message}", pod_code(unbound.reason)) if unbound else ("", "")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN = frozenset({"Unknown", "ContainerStatusUnknown"})
_ENDS = frozenset({"Complete", "Failed"})


@lru_cache(maxsize=4096)  # many objects of one second
def moment(text: str) -> datetime | None:
    """Parse a time of the API server. Returns None for an empty one."""
    return datetime.fromisoformat(text) if text else None
