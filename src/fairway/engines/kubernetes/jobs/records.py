"""Sort what the informers report by workload: Jobs, and the root owners of Workloads and GPU pods.

Callbacks of informers do not wait, and a root may have to be read: pods and Workloads whose root is not known
yet wait here until it is. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from fairway.engines.kubernetes.api.store import Change, Deleted, Key
from fairway.engines.kubernetes.jobs.attempts import count_forgotten_attempts
from fairway.engines.kubernetes.jobs.objects import Eviction, JobFacts, PodFacts, WorkloadFacts, keep_start
from fairway.engines.kubernetes.jobs.observed import (
    Labels,
    ObservedJob,
    ObservedPod,
    RootStatus,
    engine_ids,
    is_service,
    job_of,
    with_claims_of,
)
from fairway.engines.kubernetes.jobs.roots import ITSELF, Dependent, Root, Roots
from fairway.engines.kubernetes.nodes.claims import ClaimFacts, PodClaims, with_claims
from fairway.engines.kubernetes.nodes.facts import Amounts
from fairway.model.job import EngineId, parse_engine_name
from fairway.model.workload_kinds import GROUP_KIND

MAX_DELETED_PODS: Final = 200
"""Deleted pods stored per gang: one that fails for ever does not fill the memory."""
MAX_REPLICAS: Final = 5000
"""Pods that ended stored per service or work queue, until they are delivered."""
LINGER_SECONDS: Final = 3.0
"""How long after the deletion of a Job that of its Workload and pods is awaited: it shows the time."""
ENDING_SECONDS: Final = 150.0
"""How long after a Job was deleted its pods may take to end."""
ORPHAN_SECONDS: Final = 60.0
"""How long a pod whose owner is gone waits: for the garbage collector, before it counts as a workload; or, if
it is gone too, for a report of its owner, which comes by another watch."""
FIRST_CHECK_SECONDS: Final = 1.0
LAST_CHECK_SECONDS: Final = 300.0
"""How soon an object without pods and Workloads is read again: twice as late each time."""
_IGNORED: Final = ""


@dataclass(slots=True)
class Record:
    """One workload with all that the informers reported of it."""

    uid: str
    namespace: str
    name: str
    root: Root | None = None
    """None: a Job."""
    job: JobFacts | None = None
    """Of a Job as reported; of others as last joined."""
    workloads: dict[str, WorkloadFacts] = field(default_factory=dict)
    """By name."""
    last_workload: WorkloadFacts | None = None
    """The last one that was deleted."""
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    settled: dict[str, Amounts] = field(default_factory=dict)
    """Pods that exist, have ended, and were delivered, with the GPUs that each held on its own."""
    evictions: list[Eviction] = field(default_factory=list)
    flavors: tuple[tuple[str, str], ...] = ()
    service: bool | None = None
    """None: not known yet."""
    forgotten_attempts: int | None = None
    """None: not yet counted."""
    watched: bool = False
    deleted: bool = False
    deleted_at: datetime | None = None
    """When it was deleted, by the API server's times, once that is known."""
    deletion_reported_at: float = 0.0
    """When its deletion was reported, by our clock."""
    status: RootStatus | None = None
    check_at: float = 0.0
    check_seconds: float = FIRST_CHECK_SECONDS

    @property
    def separate(self) -> bool:
        """Whether each pod holds its GPUs on its own."""
        return bool(self.service) or (self.job is not None and self.job.work_queue)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither pods that may run nor a Workload: only the object itself tells more."""
        return not self.workloads and all(p.ended for p in self.pods.values())


@dataclass(slots=True)
class _WaitingPod:
    """A pod whose root is not known yet."""

    key: Key
    pod: ObservedPod
    since: float


@dataclass(slots=True)
class _WaitingWorkload:
    """A Workload whose root is not known yet."""

    key: Key
    facts: WorkloadFacts
    since: float
    deleted: bool = False


class Records:
    """All workloads of a cluster, by the uid of their root."""

    def __init__(
        self,
        roots: Roots,
        clock: Callable[[], float],
        notify: Callable[[], None],
        classes: frozenset[str] = frozenset(),
    ) -> None:
        """Follow no workloads yet; `classes` are the resources by which Kueue counts claims."""
        self.by_uid: dict[str, Record] = {}
        self.changed: set[str] = set()
        self.deleted: set[str] = set()
        """Deleted workloads, until their end and that of their pods is known."""
        self.node_labels: dict[str, Labels] = {}
        self._roots = roots
        self._clock = clock
        self._notify = notify
        self._classes = classes
        self._claims = PodClaims()
        self._by_id: dict[EngineId, str] = {}
        self._record_of: dict[str, str] = {}
        """The uids of pods and Workloads that exist, each with that of its record."""
        self._groups: dict[Key, str] = {}
        """Pod groups by namespace and name."""
        self._waiting_pods: dict[str, _WaitingPod] = {}
        self._waiting_workloads: dict[str, _WaitingWorkload] = {}
        self._idle: set[str] = set()

    # what is known

    def find(self, engine_id: EngineId) -> ObservedJob | None:
        """Return what was reported of a workload. Returns None if it is not followed."""
        record = self.by_uid.get(self._by_id.get(engine_id, ""))
        return None if record is None else self.observed(record)

    def observed(self, record: Record) -> ObservedJob:
        pods, workloads = tuple(record.pods.values()), tuple(record.workloads.values())
        if not workloads and record.last_workload is not None and record.status is None:
            workloads = (record.last_workload,)
        if record.root is not None:
            if record.service is None and (pods or workloads):
                sets = (s for w in workloads for s in w.pod_sets)
                record.service = is_service(record.root, (p.facts for p in pods), sets)
            record.job = job_of(record.root, workloads, pods, record.status, record.job)
        if flavors := tuple(pair for w in workloads for pair in w.flavors):
            record.flavors = tuple(dict.fromkeys(flavors))
        if record.job is None:
            raise AssertionError("unreachable")  # a Job is followed from its first report on
        job, pods = with_claims_of(record.job, workloads, pods) if self._classes else (record.job, pods)
        nodes = {p.facts.node for p in pods} & self.node_labels.keys()
        observed = ObservedJob(
            record.namespace,
            record.name,
            job,
            record.deleted_at,
            workloads,
            pods,
            tuple(record.evictions),
            record.forgotten_attempts or 0,
            record.watched,
            record.root,
            bool(record.service),
            record.status,
            record.flavors,
            {node: self.node_labels[node] for node in nodes},
        )
        if record.forgotten_attempts is None:
            observed = count_forgotten_attempts(observed)
            record.forgotten_attempts = observed.forgotten_attempts
        return observed

    def unknown_nodes(self) -> set[str]:
        """Return the nodes whose labels tell what devices a changed workload has, if they are not known."""
        records = [r for uid in self.changed if (r := self.by_uid.get(uid)) is not None]
        return {
            p.facts.node for r in records for p in r.pods.values() if p.facts.node and p.facts.devices
        } - self.node_labels.keys()

    def clear(self) -> None:
        """Forget everything."""
        for found in (self.by_uid, self.node_labels, self._by_id, self._record_of, self._groups):
            found.clear()
        for waiting in (self._waiting_pods, self._waiting_workloads):
            waiting.clear()
        self._claims = PodClaims()
        for uids in (self.changed, self.deleted, self._idle):
            uids.clear()

    # changes

    def on_job(self, change: Change[JobFacts]) -> None:
        if isinstance(change, Deleted):
            record = self.by_uid.get(change.before.uid)
            if record is not None:
                self._mark_deleted(record)
            return
        facts = change.now.value
        if facts.owner is not None:
            self._roots.add(_root_of_job(change.key, facts), facts.owner)
            self._notify_if_waiting()
            return
        record = self.by_uid.get(facts.uid)
        if record is None:
            record = Record(facts.uid, *change.key, job=facts, watched=not facts.finished, service=False)
            self._add(record)
            self._notify_if_waiting()
        record.job = facts
        self._mark_changed(record)

    def on_workload(self, change: Change[WorkloadFacts]) -> None:
        if isinstance(change, Deleted):
            facts = change.before.value
            if (waiting := self._waiting_workloads.get(facts.uid)) is not None:
                waiting.deleted = True  # it may be all that is ever reported of what was deleted at once
            elif (record := self.by_uid.get(self._record_of.pop(facts.uid, ""))) is not None:
                self._detach_workload(record, facts)
            return
        facts = change.now.value
        uid = self._record_of.get(facts.uid) or self._root_of_workload(change.key[0], facts)
        if uid is None:
            self._waiting_workloads[facts.uid] = _WaitingWorkload(change.key, facts, self._clock())
            self._notify()
            return
        self._waiting_workloads.pop(facts.uid, None)  # sorted in later, it would replace these newer facts
        if uid in self.by_uid:  # else what it belongs to is over and gone, and so will it be
            self._attach_workload(self.by_uid[uid], facts)

    def on_pod(self, change: Change[PodFacts]) -> None:
        deleted = isinstance(change, Deleted)
        facts = change.before.value if isinstance(change, Deleted) else change.now.value
        waiting = self._waiting_pods.get(facts.uid)
        merged = self._merged(waiting.pod.facts if waiting else None, facts)
        unexpected = deleted and merged.ended is None and merged.deletion_requested is None
        pod = ObservedPod(merged, deleted, gone_at=_now() if unexpected else None)
        if waiting is not None:
            waiting.pod = pod
            return
        uid = self._record_of.get(facts.uid) or self._root_of_pod(change.key[0], pod)
        if uid is None:
            if not deleted:
                self._waiting_pods[facts.uid] = _WaitingPod(change.key, pod, self._clock())
                self._notify()
        elif uid in self.by_uid:
            self._attach_pod(self.by_uid[uid], pod)

    def on_claim(self, change: Change[ClaimFacts]) -> None:
        for uid in self._claims.on_change(change):
            waiting = self._waiting_pods.get(uid)
            record = self.by_uid.get(self._record_of.get(uid, ""))
            if waiting is not None:
                waiting.pod = replace(waiting.pod, facts=self._merged(None, waiting.pod.facts))
            elif record is not None and (pod := record.pods.get(uid)) is not None:
                record.pods[uid] = replace(pod, facts=self._merged(pod.facts, pod.facts))
                self._mark_changed(record)

    def _merged(self, before: PodFacts | None, facts: PodFacts) -> PodFacts:
        """Return a pod's new facts with what is known of it: its start, and the devices of its claims."""
        if before is not None:
            facts = keep_start(before, facts)
        if not facts.claims:
            return facts
        claimed = self._claims.devices(facts.uid)
        known = before.devices if before is not None else facts.devices
        return structs.replace(facts, devices=with_claims(facts.devices, claimed, known, self._classes))

    # roots

    def unresolved(self) -> list[Dependent]:
        """Return the owners that are to be read for pods and Workloads whose root is not known."""
        owners = [
            *(
                (w.key[0], w.facts.owner)
                for w in self._waiting_workloads.values()
                if w.facts.owner.kind != "Pod"
            ),
            *((w.key[0], w.pod.facts.owner) for w in self._waiting_pods.values() if w.pod.facts.owner),
        ]
        return [
            (namespace, owner) for namespace, owner in owners if self._roots.find(namespace, owner) is None
        ]

    def settle(self) -> None:
        """Sort in what has been resolved since."""
        for uid, waiting in list(self._waiting_pods.items()):
            pod, orphan = waiting.pod, self._clock() - waiting.since > ORPHAN_SECONDS
            found = self._root_of_pod(waiting.key[0], pod, orphan=orphan)
            if found is None and not (pod.deleted and orphan):
                continue
            del self._waiting_pods[uid]
            if found in self.by_uid:
                self._attach_pod(self.by_uid[found], pod)
        for uid, workload in list(self._waiting_workloads.items()):
            found = self._root_of_workload(workload.key[0], workload.facts)
            late = workload.deleted and self._clock() - workload.since > ORPHAN_SECONDS
            if found is None and not late:
                continue
            del self._waiting_workloads[uid]
            if found in self.by_uid:
                self._attach_workload(self.by_uid[found], workload.facts)
                if workload.deleted:
                    self._record_of.pop(uid, None)
                    self._detach_workload(self.by_uid[found], workload.facts)
        self._roots.prune(self._dependents)

    def _dependents(self) -> Iterator[Dependent]:
        for record in self.by_uid.values():
            for pod in record.pods.values():
                if pod.facts.owner is not None and not pod.deleted:
                    yield record.namespace, pod.facts.owner
            for workload in record.workloads.values():
                yield record.namespace, workload.owner

    def _root_of_pod(  # noqa: PLR0911  (one line for each kind of owner)
        self, namespace: str, pod: ObservedPod, *, orphan: bool = False
    ) -> str | None:
        """Return the record of a pod's root; empty: it is none to follow. Returns None if it is not known."""
        facts = pod.facts
        if facts.owner is None:
            group = self._groups.get((namespace, facts.group)) if facts.group else None
            if group is not None or (facts.group and facts.gated):
                return group
            return self._record(facts.root) if facts.root else _IGNORED
        job = self.by_uid.get(facts.owner.uid)
        if job is not None and job.root is None and job.namespace == namespace:
            return job.uid
        root = self._roots.find(namespace, facts.owner)
        if root is None:
            return None
        if root is ITSELF:
            if not orphan:
                return None
            # The garbage collector is about to delete it. Who paid for it so far pays for the rest.
            if pod.deleted or facts.deletion_requested is not None:
                return _IGNORED
            return self._record(Root("v1", "Pod", namespace, facts.name, facts.uid, facts.created))
        if _is_job(root):
            return root.uid if root.uid in self.by_uid else None
        return self._record(root) if facts.devices or facts.claims else _IGNORED

    def _root_of_workload(self, namespace: str, facts: WorkloadFacts) -> str | None:
        """Return the record of a Workload's root; empty: it is none to follow. Returns None if not known."""
        owner = facts.owner
        if owner.kind == GROUP_KIND:
            root: Root | None = Root(
                "", GROUP_KIND, namespace, facts.name, facts.uid, facts.created, queue=facts.queue
            )
        elif owner.kind == "Pod":
            return self._record_of.get(owner.uid)
        elif (job := self.by_uid.get(owner.uid)) is not None and job.root is None:
            return job.uid
        else:
            root = self._roots.find(namespace, owner)
        if root is ITSELF:  # the object was deleted before it was read
            root = _root_of_reference(namespace, facts)
            self._roots.add(root, None)  # its pods find it, too
        if root is None:
            return None
        if _is_job(root):
            return root.uid if root.uid in self.by_uid else None
        return self._record(root)

    def _record(self, root: Root) -> str:
        """Return the record of a root; a new one if it has none."""
        record = self.by_uid.get(root.uid)
        if record is None:
            record = Record(root.uid, root.namespace, root.name, root, watched=True)
            self._add(record)
            if root.kind == GROUP_KIND:
                self._groups[root.namespace, root.name] = root.uid
        # An owner that cannot be read has whatever uid its dependents say, also that of another namespace.
        return record.uid if record.namespace == root.namespace else _IGNORED

    def _add(self, record: Record) -> None:
        self.by_uid[record.uid] = record
        ours = record.job.ours if record.job else bool(record.root and record.root.ours)
        self._by_id[_ids(record)[0 if ours else 1]] = record.uid

    # records

    def _attach_workload(self, record: Record, facts: WorkloadFacts) -> None:
        self._record_of[facts.uid] = record.uid
        record.workloads[facts.name] = facts
        if (evicted := facts.evicted) is not None:
            if evicted not in record.evictions[-1:]:
                record.evictions = [*record.evictions[-MAX_DELETED_PODS:], evicted]
            for uid, pod in record.pods.items():
                counted = pod.facts.workload == facts.name or facts.owner.uid == uid
                if counted and pod.facts.ended is None and evicted[0] >= pod.facts.created:
                    record.pods[uid] = replace(pod, eviction=evicted)
        self._mark_changed(record)

    def _detach_workload(self, record: Record, facts: WorkloadFacts) -> None:
        record.last_workload = record.workloads.pop(facts.name, facts)
        if record.root is not None and record.root.kind == GROUP_KIND:
            self._mark_deleted(record)
        self._mark_changed(record)

    def _attach_pod(self, record: Record, pod: ObservedPod) -> None:
        facts = pod.facts
        if pod.deleted:
            self._record_of.pop(facts.uid, None)
        else:
            self._record_of[facts.uid] = record.uid
        if facts.uid in record.settled:
            if pod.deleted:
                del record.settled[facts.uid]
            return
        before = record.pods.get(facts.uid)
        if before is not None:
            pod = replace(pod, facts=self._merged(before.facts, facts), eviction=before.eviction)
        record.pods[facts.uid] = pod
        if pod.deleted and facts.uid == record.uid:
            self._mark_deleted(record)  # the pod is the workload
        elif pod.deleted and len(record.pods) > (MAX_REPLICAS if record.separate else MAX_DELETED_PODS):
            _drop_oldest(record)
        self._mark_changed(record)

    def _mark_changed(self, record: Record) -> None:
        self.changed.add(record.uid)
        if record.root is not None and not record.deleted:
            if record.is_idle:
                if record.uid not in self._idle:
                    record.check_seconds = FIRST_CHECK_SECONDS
                    record.check_at = self._clock()
                self._idle.add(record.uid)
            else:
                record.status = None
                self._idle.discard(record.uid)
        self._notify()

    def _mark_deleted(self, record: Record) -> None:
        record.deleted = True
        record.deletion_reported_at = self._clock()
        self._idle.discard(record.uid)
        self.deleted.add(record.uid)
        self._mark_changed(record)

    def _notify_if_waiting(self) -> None:
        if self._waiting_pods or self._waiting_workloads:
            self._notify()

    def forget(self, record: Record) -> None:
        """Forget a workload that has ended and no longer exists."""
        self.by_uid.pop(record.uid, None)
        self.deleted.discard(record.uid)
        self._idle.discard(record.uid)
        key = (record.namespace, record.name)
        if self._groups.get(key) == record.uid:
            del self._groups[key]
        for id_ in [id_ for id_ in _ids(record) if self._by_id.get(id_) == record.uid]:
            del self._by_id[id_]

    # objects without pods

    def to_check(self) -> list[tuple[Record, Root]]:
        """Return workloads of which only the object itself can tell whether they go on, if it is time."""
        now = self._clock()
        due = [self.by_uid[uid] for uid in self._idle if uid in self.by_uid]
        return [(record, record.root) for record in due if record.root and record.check_at <= now]

    def checked(self, record: Record, status: RootStatus | None) -> None:
        """Record what an object without pods says; None: it does not exist any more."""
        record.check_at = self._clock() + record.check_seconds
        record.check_seconds = min(LAST_CHECK_SECONDS, 2 * record.check_seconds)
        if status is None:
            self._mark_deleted(record)
        elif status != record.status:
            record.status = status
            self.changed.add(record.uid)

    # delivery

    def is_settled(self, record: Record) -> bool:
        """Return whether the end of a deleted workload is known: when it was, and how its pods ended."""
        waited = self._clock() - record.deletion_reported_at
        if record.deleted_at is None:
            times = [p.facts.deletion_requested for p in record.pods.values() if p.facts.deletion_requested]
            workload = next(iter(record.workloads.values()), record.last_workload)
            times += [workload.deleted_at] if workload and workload.deleted_at else []
            times += [record.job.deleted_at] if record.job and record.job.deleted_at else []
            if times:
                # A service has lost many pods before: it was deleted with the last ones.
                record.deleted_at = min(times) if record.root is None else max(times)
            elif waited > LINGER_SECONDS:
                # It was in no queue and had no pods: only the event itself shows the time.
                record.deleted_at = _now()
            else:
                return bool(record.job and record.job.finished)
        if waited > ENDING_SECONDS:
            record.pods = {uid: replace(p, deleted=True) for uid, p in record.pods.items()}
        return True

    def delivered(self, record: Record, pods: Iterable[ObservedPod]) -> None:
        """Forget pods that ended, hold their GPUs on their own, and were delivered as they are.

        One stays, so that a work queue without running pods has an attempt that says what it is.
        """
        for pod in pods:
            if len(record.pods) > 1 and record.pods.get(pod.facts.uid) is pod:
                del record.pods[pod.facts.uid]
                if not pod.deleted:
                    record.settled[pod.facts.uid] = pod.facts.devices

    def deliver_again(self, pods: Iterable[PodFacts]) -> None:
        """Take pods back that were delivered and still exist, and mark everything as changed."""
        for facts in pods:
            record = self.by_uid.get(self._record_of.get(facts.uid, ""))
            if record is not None and facts.uid in record.settled:
                devices = record.settled.pop(facts.uid)
                record.pods[facts.uid] = ObservedPod(structs.replace(facts, devices=devices))
        self.changed.update(self.by_uid)


def _now() -> datetime:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).replace(microsecond=0)


def _root_of_job(key: Key, facts: JobFacts) -> Root:
    return Root(
        "batch/v1", "Job", *key, facts.uid, facts.created, facts.ours, facts.user, facts.priority, facts.queue
    )


def _root_of_reference(namespace: str, facts: WorkloadFacts) -> Root:
    """Return the owner of a Workload, of which nothing but the reference to it is left."""
    owner = facts.owner
    return Root(
        owner.api_version,
        owner.kind,
        namespace,
        owner.name,
        owner.uid,
        facts.created,
        ours=parse_engine_name(owner.name) is not None,
        queue=facts.queue,
    )


def _is_job(root: Root) -> bool:
    return root.kind == "Job" and root.api_version.startswith("batch/")


def _ids(record: Record) -> tuple[EngineId, EngineId]:
    return engine_ids(record.namespace, record.root.kind if record.root else "", record.name, record.uid)


def _drop_oldest(record: Record) -> None:
    oldest = min(record.pods.values(), key=lambda p: p.facts.created)
    if oldest.deleted:
        del record.pods[oldest.facts.uid]
        if not record.separate:
            forgotten = record.forgotten_attempts or 0
            record.forgotten_attempts = forgotten + (oldest.facts.started is not None)
