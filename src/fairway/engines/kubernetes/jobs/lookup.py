"""Look up one workload in the API server directly, for callers without a mirror that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct, structs

from fairway.engines.kubernetes.api.connection import lacks_right
from fairway.engines.kubernetes.api.kinds import KUEUE
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import OwnedMeta
from fairway.engines.kubernetes.jobs.attempts import count_forgotten_attempts
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    PodFacts,
    WorkloadFacts,
    WorkloadObject,
    job_transform,
    pod_transform,
    workload_transform,
)
from fairway.engines.kubernetes.jobs.observed import (
    ObservedJob,
    ObservedPod,
    is_service,
    job_of,
    with_claims_of,
)
from fairway.engines.kubernetes.jobs.root_status import RootObject, root_path, status_of
from fairway.engines.kubernetes.jobs.roots import Plurals, Root, Roots, root_of, workload_owner
from fairway.engines.kubernetes.nodes.claims import CLAIMS, RESOURCE_API, ClaimObject, PodClaims, total
from fairway.engines.kubernetes.nodes.devices import device_classes
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.model.errors import Refused
from fairway.model.fleet import Pool
from fairway.model.job import EngineId
from fairway.model.workload_kinds import GROUP_KIND, JOB, WORKLOAD_KINDS, HoldBy

JOBS: Final = "jobs.batch"
_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
_ALL_KINDS: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class ParsedId:
    """The parts of an engine id."""

    namespace: str
    name: str
    uid: str = ""
    """The beginning of the uid; empty for what Fairway submitted."""
    kind: str = ""
    """In lower case; empty for a Job, and for what Fairway submitted."""


def parse_id(engine_id: EngineId) -> ParsedId:
    """Parse `namespace/name`, `namespace/name/uid` or `namespace/kind/name/uid`."""
    match engine_id.split("/"):
        case [namespace, kind, name, uid]:
            return ParsedId(namespace, name, uid, kind)
        case [namespace, name, uid]:
            return ParsedId(namespace, name, uid)
        case parts:
            return ParsedId(parts[0], "/".join(parts[1:]))


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """A Job, or an object of another kind, its Workloads and its pods as they are now."""

    namespace: str
    name: str
    path: str
    resource: str
    """The name of its kind, as rights and errors have it; with `path` empty if it is no object of its own."""
    job: JobFacts
    metadata: OwnedMeta
    workloads: tuple[WorkloadObject, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    root: Root | None = None
    """None: a Job."""
    object: RootObject | None = None
    facts: tuple[WorkloadFacts, ...] = field(default=(), repr=False)
    """Of the Workloads."""

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations

    @property
    def workload(self) -> WorkloadObject | None:
        """Return the Workload that decides when it starts. Returns None if it is in no queue."""
        current = [w for w, facts in zip(self.workloads, self.facts, strict=True) if not facts.replaced]
        by_age = sorted(current, key=lambda w: w.metadata.creation_timestamp)
        return next((w for w in by_age if w.status.admission is None), by_age[0] if by_age else None)

    def observed(self) -> ObservedJob:
        """Convert to what a mirror that has just started would have observed."""
        evictions = tuple(sorted(w.evicted for w in self.facts if w.evicted))
        flavors = tuple(pair for w in self.facts for pair in w.flavors)
        if self.root is None:
            own, pods = with_claims_of(self.job, self.facts, self.pods)
            job = ObservedJob(
                self.namespace, self.name, own, None, self.facts, pods, evictions, flavors=flavors
            )
            return count_forgotten_attempts(job)
        live = self.facts or any(not pod.ended for pod in self.pods)
        status = status_of(self.object) if self.object and not live else None
        sets = (s for w in self.facts for s in w.pod_sets)
        job = ObservedJob(
            self.namespace, self.name, job_of(self.root, self.facts, self.pods, status), None, self.facts,
            self.pods, evictions, root=self.root, status=status, flavors=flavors,
            service=is_service(self.root, (p.facts for p in self.pods), sets),
        )  # fmt: skip
        return count_forgotten_attempts(job)


def job_path(namespace: str, name: str) -> str:
    """Return the path of a Job."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


async def look_up_workload(
    requests: KubeRequests,
    engine_id: EngineId,
    pools: tuple[Pool, ...] = (),
    *,
    pods: bool = True,
    workloads: bool = True,
) -> FoundWorkload | None:
    """Look up a workload. Returns None if it is gone, or if another object has its name now."""
    wanted = parse_id(engine_id)
    if not wanted.kind:
        found = await _look_up_job(requests, wanted, pools, pods=pods)
        if found is not None or wanted.uid:
            return found
    if wanted.kind == GROUP_KIND.lower():
        return await _look_up_group(requests, wanted, pools, pods=pods)
    plurals = Plurals()
    for api_version, kind in await _candidates(requests, plurals, wanted.kind):
        place = await root_path(requests, plurals, Root(api_version, kind, wanted.namespace, wanted.name, ""))
        item = await _get_root(requests, place, may_fail=not wanted.kind) if place else None
        if item is None or place is None or not item.metadata.uid.startswith(wanted.uid):
            continue
        root = root_of(api_version, kind, item.metadata)
        if not workloads and (wanted.kind or root.ours):
            return FoundWorkload(
                root.namespace, root.name, *place, job_of(root, (), ()), item.metadata, (), (), root, item
            )
        if wanted.kind or root.ours:
            return await _with_parts(requests, place, root, item, pools, pods=pods)
    return None


async def _get_root(requests: KubeRequests, place: tuple[str, str], *, may_fail: bool) -> RootObject | None:
    """Read an object. `may_fail`: one of a kind that Fairway may not read is not Fairway's."""
    try:
        return await requests.get(*place, RootObject)
    except Refused as error:
        if may_fail and lacks_right(error):
            return None
        raise


async def _look_up_job(
    requests: KubeRequests, wanted: ParsedId, pools: tuple[Pool, ...], *, pods: bool
) -> FoundWorkload | None:
    namespace, path = wanted.namespace, job_path(wanted.namespace, wanted.name)
    job = await requests.get(path, JOBS, JobObject)
    if job is None or not job.metadata.uid.startswith(wanted.uid):
        return None
    if (facts := job_transform(pools)(job)).owner is not None:
        return None  # a part of another workload
    workloads: list[WorkloadObject] = await requests.list_all(
        f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS,
        {"labelSelector": f"{_JOB_UID}={job.metadata.uid}"}, WorkloadObject,
    )  # fmt: skip
    found: list[ObservedPod] = []
    if pods:
        query = {"labelSelector": f"{_CONTROLLER_UID}={job.metadata.uid}"}
        found = [ObservedPod(facts) for facts in await _pods(requests, namespace, pools, query)]
    transform = workload_transform(pools)
    reduced = [(w, transform(w)) for w in workloads]
    kept = [(w, own) for w, own in reduced if own is not None and own.owner.uid == facts.uid]
    return FoundWorkload(
        namespace, wanted.name, path, JOBS, facts, job.metadata,
        tuple(w for w, _ in kept), tuple(found), facts=tuple(facts for _, facts in kept),
    )  # fmt: skip


async def _look_up_group(
    requests: KubeRequests, wanted: ParsedId, pools: tuple[Pool, ...], *, pods: bool
) -> FoundWorkload | None:
    """Look up a pod group, of which there is no object but its Workload."""
    path = f"{KUEUE}/namespaces/{wanted.namespace}/workloads/{wanted.name}"
    workload = await requests.get(path, WORKLOADS, WorkloadObject)
    if workload is None or not workload.metadata.uid.startswith(wanted.uid):
        return None
    facts = workload_transform(pools)(workload)
    if facts is None or facts.owner.kind != GROUP_KIND:
        return None
    root = Root(
        "", GROUP_KIND, wanted.namespace, wanted.name, workload.metadata.uid, facts.created, queue=facts.queue
    )
    found: list[ObservedPod] = []
    if pods:
        listed = await _pods(requests, wanted.namespace, pools)
        found = [ObservedPod(pod) for pod in listed if pod.group == wanted.name]
    job = job_of(root, (facts,), found)
    return FoundWorkload(
        wanted.namespace, wanted.name, "", "", job, workload.metadata, (workload,), tuple(found), root,
        facts=(facts,),
    )  # fmt: skip


async def _with_parts(
    requests: KubeRequests, place: tuple[str, str], root: Root, item: RootObject, pools: tuple[Pool, ...],
    *, pods: bool,
) -> FoundWorkload:  # fmt: skip
    """Add the Workloads and pods of an object: those in its namespace that it is the root of."""
    namespace, roots, transform = root.namespace, Roots(), workload_transform(pools)
    listed: list[WorkloadObject] = await requests.list_all(
        f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS, type_=WorkloadObject
    )
    gpu_pods = [p for p in await _pods(requests, namespace, pools) if p.devices] if pods else []
    owners = [(namespace, workload_owner(w.metadata)) for w in listed]
    owners += [(namespace, pod.owner) for pod in gpu_pods if pod.owner]
    await roots.resolve(requests, [pair for pair in owners if pair[1].kind != GROUP_KIND])

    def belongs(workload: WorkloadObject) -> bool:
        found = roots.find(namespace, workload_owner(workload.metadata))
        return found is not None and found.uid == root.uid

    def is_own(pod: PodFacts) -> bool:
        found = roots.find(namespace, pod.owner) if pod.owner else pod.root
        return found is not None and found.uid == root.uid

    kept = [(w, facts) for w in listed if belongs(w) and (facts := transform(w)) is not None]
    own = tuple(ObservedPod(pod) for pod in gpu_pods if is_own(pod))
    reduced = tuple(facts for _, facts in kept)
    return FoundWorkload(
        namespace, root.name, *place, job_of(root, reduced, own), item.metadata, tuple(w for w, _ in kept),
        own, root, item, reduced,
    )  # fmt: skip


async def _pods(
    requests: KubeRequests, namespace: str, pools: tuple[Pool, ...], query: Mapping[str, str] | None = None
) -> list[PodFacts]:
    transform = pod_transform(pools)
    listed: list[JobPodObject] = await requests.list_all(
        f"/api/v1/namespaces/{namespace}/pods", "pods", query, JobPodObject
    )
    found = [facts for pod in listed if (facts := transform(pod)) is not None]
    if any(pod.claims for pod in found):
        classes = device_classes(pools)
        claims = await requests.list_all(
            f"{RESOURCE_API}/namespaces/{namespace}/resourceclaims", CLAIMS, type_=ClaimObject
        )
        by_pod = PodClaims.of(claims, classes)
        found = [structs.replace(pod, devices=total(pod.devices, by_pod.devices(pod.uid))) for pod in found]
    return found


async def _candidates(requests: KubeRequests, plurals: Plurals, kind: str) -> list[tuple[str, str]]:
    """Return the versions and names of kinds with this name in lower case; empty: all registered ones."""
    registered = [
        (k.api_version, k.kind)
        for k in WORKLOAD_KINDS
        if (not kind and k is not JOB and k.hold is not HoldBy.SUSPEND) or k.kind.lower() == kind
    ]
    found = [pair for pair in registered if await plurals.find(requests, *pair) is not None]
    if found or not kind:
        return found
    groups = await requests.get("/apis", "", _Groups, _ALL_KINDS)
    return [
        (f"{group.metadata.name}/{version.version}", resource.response_kind.kind)
        for group in (groups.items if groups else ())
        for version in group.versions[:1]
        for resource in version.resources
        if resource.response_kind.kind.lower() == kind and resource.scope == "Namespaced"
    ]


class _Kind(Struct, frozen=True, gc=False):
    kind: str = ""


class _Resource(Struct, rename="camel", frozen=True, gc=False):
    response_kind: _Kind = _Kind()
    scope: str = ""


class _Version(Struct, frozen=True, gc=False):
    version: str
    resources: list[_Resource] = []


class _Group(Struct, frozen=True, gc=False):
    metadata: OwnedMeta
    versions: list[_Version] = []


class _Groups(Struct, frozen=True, gc=False):
    items: list[_Group] = []
