"""Find the GPU workloads that no queue counts: what the admission policies would stop at its next pod.

They are left alone where they ran before Fairway. Once the policies are in force nothing new can come, so
only namespaces that are left alone are read again: one of them may become a team's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct, field

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import EXISTING, TEAM
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import Condition, Owner
from fairway.engines.kubernetes.nodes.devices import looks_like_gpu, whole_number
from fairway.engines.kubernetes.policy.admission_policies import QUEUE_NAME, REVISION_LABELS, STRAYS
from fairway.engines.kubernetes.policy.pod_policies import GATE, WORKLOAD
from fairway.engines.kubernetes.policy.workloads import TemplateContainer
from fairway.model.errors import Refused
from fairway.policy.objects import FoundObject, FoundPolicy, GpuWorkload, ObjectKey

GPU_CLAIMS: Final = "dra.gpus"
"""The setting for whether resource claims can be for GPUs: `yes`, `no`, or `counted` by queues of pools."""
FINISHED_POD: Final = "finished Pod"

_STRAYS_BINDING: Final = ObjectKey(kinds.ADMISSION_BINDING.name, STRAYS)
_NAMES: Final = "spec.matchResources.namespaceSelector.matchExpressions[kubernetes.io/metadata.name].values"
_TEAM_FIELD: Final = f"metadata.labels[{TEAM}]"
_EXISTING_FIELD: Final = f"metadata.annotations[{EXISTING}]"
_TEMPLATES: Final = (
    ("Deployment", "/apis/apps/v1", "deployments.apps"),
    ("StatefulSet", "/apis/apps/v1", "statefulsets.apps"),
    ("DaemonSet", "/apis/apps/v1", "daemonsets.apps"),
    ("CronJob", "/apis/batch/v1", "cronjobs.batch"),
    ("Job", "/apis/batch/v1", "jobs.batch"),
)


class _Meta(Struct, rename="camel", frozen=True, gc=False):
    """Identity, age, labels and owners."""

    name: str = ""
    namespace: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[Owner] = field(default_factory=list)

    @property
    def controller(self) -> Owner | None:
        return next((o for o in self.owner_references if o.controller), None)


class _Gate(Struct, frozen=True, gc=False):
    """What keeps a pod from being scheduled."""

    name: str = ""


class _PodSpec(Struct, rename="camel", frozen=True, gc=False):
    """What the containers of a pod request."""

    containers: list[TemplateContainer] = []
    init_containers: list[TemplateContainer] = []
    resource_claims: list[dict[str, Any]] = []
    scheduling_gates: list[_Gate] = []

    def gpus(self, resources: Collection[str]) -> int:
        """Count devices as the admission policies do."""
        return sum(
            whole_number(amount)
            for container in (*self.containers, *self.init_containers)
            for name, amount in {**container.resources.requests, **container.resources.limits}.items()
            if name in resources or looks_like_gpu(name)
        )


class _Status(Struct, frozen=True, gc=False):
    """The phase of a pod."""

    phase: str = ""


class _Pod(Struct, frozen=True, gc=False):
    """A pod."""

    metadata: _Meta
    spec: _PodSpec = _PodSpec()
    status: _Status = _Status()

    @property
    def finished(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    def asks(self, resources: Collection[str], claims: bool) -> bool:
        """Return whether it asks for devices; with `claims`, also by resource claims."""
        return bool(self.spec.gpus(resources) or (claims and self.spec.resource_claims))

    @property
    def counted(self) -> bool:
        """Whether a queue counts it, or will: see `pod_policies`."""
        return WORKLOAD in self.metadata.annotations or any(
            g.name == GATE for g in self.spec.scheduling_gates
        )


class _Template(Struct, frozen=True, gc=False):
    """The template of an object's pods."""

    spec: _PodSpec = _PodSpec()


class _OwnerSpec(Struct, rename="camel", frozen=True, gc=False):
    """What an object that makes pods has: a template, or that of the Jobs it makes."""

    suspend: bool = False
    template: _Template = _Template()
    job_template: _JobTemplate | None = None

    @property
    def pod(self) -> _PodSpec:
        return self.job_template.spec.template.spec if self.job_template else self.template.spec


class _JobSpec(Struct, frozen=True, gc=False):
    """The spec of the Jobs that a CronJob makes."""

    template: _Template = _Template()


class _JobTemplate(Struct, frozen=True, gc=False):
    """The template of the Jobs that a CronJob makes."""

    spec: _JobSpec = _JobSpec()


class _OwnerStatus(Struct, frozen=True, gc=False):
    """The conditions of an object that makes pods."""

    conditions: list[Condition] = []


class _PodMaker(Struct, frozen=True, gc=False):
    """An object that makes pods."""

    metadata: _Meta
    spec: _OwnerSpec = _OwnerSpec()
    status: _OwnerStatus = _OwnerStatus()

    @property
    def queued(self) -> bool:
        """Whether it names a queue."""
        return QUEUE_NAME in self.metadata.labels

    @property
    def ended(self) -> bool:
        """Whether it makes no pods any more, or none yet: then it is governed where it is started."""
        return self.spec.suspend or any(
            c.status == "True" and c.type in {"Complete", "Failed"} for c in self.status.conditions
        )


Dependent = tuple[str, Owner]
"""An object's namespace and its controlling owner."""
FindRoots = Callable[[KubeRequests, Collection[Dependent]], Awaitable[Mapping[Dependent, tuple[str, str]]]]
"""Finds kind and name of what people created, from the owners of pods."""


async def find_workloads(
    requests: KubeRequests,
    objects: Sequence[FoundObject],
    resources: Collection[str],
    find_roots: FindRoots,
    *,
    claims: bool,
) -> tuple[GpuWorkload, ...]:
    """Return the GPU workloads of namespaces that are not governed yet.

    `claims`: a pod with resource claims counts too.
    """
    binding = next((o for o in objects if o.key == _STRAYS_BINDING and o.ours), None)
    if binding is None:
        bases = [""]
    else:
        governed = {o.key.name for o in objects if o.key.kind == kinds.NAMESPACE.name and is_governed(o)}
        bases = [f"/namespaces/{name}" for name in sorted(names_left_alone(binding) - governed)]
    lists = await asyncio.gather(
        *(_list(requests, f"/api/v1{base}/pods", "pods", _Pod) for base in bases),
        *(
            _list(requests, f"{root}{base}/{resource.partition('.')[0]}", resource, _PodMaker)
            for base in bases
            for _, root, resource in _TEMPLATES
        ),
    )
    pods = [pod for part in lists[: len(bases)] for pod in part]
    makers = [
        (_TEMPLATES[i % len(_TEMPLATES)][0], maker)
        for i, part in enumerate(lists[len(bases) :])
        for maker in part
    ]
    uncounted = [p for p in pods if not p.counted and p.asks(resources, claims)]
    owners = {(p.metadata.namespace, p.metadata.controller) for p in uncounted}
    roots = await find_roots(requests, {(namespace, owner) for namespace, owner in owners if owner})
    return _collect(_of_pods(uncounted, resources, roots), _of_makers(makers, resources, claims))


async def _list(requests: KubeRequests, path: str, resource: str, type_: type[Any]) -> list[Any]:
    """Return the objects of a list; none where Fairway may not read it: it then sees them by their pods."""
    try:
        return await requests.list_all(path, resource, type_=type_)
    except Refused as e:
        if e.code in {"NotAnApiServer", "Forbidden"}:
            return []
        raise


def _of_pods(
    pods: Sequence[_Pod], resources: Collection[str], roots: Mapping[Dependent, tuple[str, str]]
) -> Iterator[GpuWorkload]:
    for pod in pods:
        gpus, meta = pod.spec.gpus(resources), pod.metadata
        kind, name = _owner(meta)
        root = roots.get((meta.namespace, meta.controller)) if meta.controller else None
        held = 0 if pod.finished else gpus
        since = "" if pod.finished else meta.creation_timestamp
        if kind != "Pod" or not pod.finished:
            yield GpuWorkload(kind, meta.namespace, name, gpus, held, since, root)
        else:  # it does not come back, and shows that the namespace uses GPUs
            yield GpuWorkload(FINISHED_POD, meta.namespace, name, gpus)


def _owner(meta: _Meta) -> tuple[str, str]:
    """Return the object that pods are named by in the admission policy: stable over revisions."""
    owner = meta.controller
    if owner is None:
        return "Pod", meta.name
    for label, kind in REVISION_LABELS.items():
        suffix = f"-{meta.labels.get(label, '-')}"
        if owner.kind == "ReplicaSet" and owner.name.endswith(suffix):
            return kind, owner.name.removesuffix(suffix)
    return owner.kind, owner.name


def _of_makers(
    makers: Sequence[tuple[str, _PodMaker]], resources: Collection[str], claims: bool
) -> Iterator[GpuWorkload]:
    for kind, maker in makers:
        pod = maker.spec.pod
        gpus = pod.gpus(resources)
        if maker.queued or (kind == "Job" and maker.ended):
            continue
        if gpus or (claims and pod.resource_claims):
            yield GpuWorkload(kind, maker.metadata.namespace, maker.metadata.name, gpus)


def _collect(*parts: Iterator[GpuWorkload]) -> tuple[GpuWorkload, ...]:
    found: dict[tuple[str, str, str], GpuWorkload] = {}
    for part in parts:
        for one in part:
            key = (one.namespace, one.kind, one.name)
            have = found.get(key, one)
            found[key] = replace(
                have,
                gpus_per_pod=max(have.gpus_per_pod, one.gpus_per_pod),
                gpus=one.gpus + (have.gpus if key in found else 0),
                since=min(s for s in (have.since, one.since) if s) if have.since or one.since else "",
                root=have.root or one.root,
            )
    return tuple(found[key] for key in sorted(found))


def is_governed(namespace: FoundObject) -> bool:
    """Return whether a namespace is a team's already: its policies are in force."""
    return namespace.ours and namespace.fields.get(_TEAM_FIELD) is not None


def names_left_alone(binding: FoundObject) -> set[str]:
    """Return the namespaces outside teams that a binding of `fairway-strays` leaves alone."""
    names = binding.fields.get(_NAMES)
    return {str(n) for n in names} - {"kube-system"} if isinstance(names, tuple) else set()


def left_alone(found: FoundPolicy, teams: Collection[str]) -> tuple[str, ...]:
    """Return the namespaces outside teams in which GPU pods are not refused.

    Those that used GPUs or had a queue before the policies came, and those that were a team's with such
    workloads.
    """
    objects = {o.key: o for o in found.objects}
    binding = objects.get(_STRAYS_BINDING)
    namespaces = [o for o in found.objects if o.key.kind == kinds.NAMESPACE.name]
    removed = {o.key.name for o in namespaces if is_governed(o) and o.fields.get(_EXISTING_FIELD)}
    if binding is not None and binding.ours:
        names = names_left_alone(binding)
    else:
        queues = (o for o in found.objects if o.key.kind == kinds.LOCAL_QUEUE.name and not o.ours)
        names = {w.namespace for w in found.workloads} | {q.key.name.partition("/")[0] for q in queues}
        names -= set(teams)
    return tuple(sorted(names | (removed - set(teams))))


def existing_in(
    namespace: str, have: FoundObject | None, workloads: Sequence[GpuWorkload]
) -> tuple[GpuWorkload, ...]:
    """Return the workloads of a team's namespace that its policy leaves alone.

    `have` is the namespace as it was found, `workloads` the GPU workloads found in it.
    """
    if have is not None and is_governed(have):
        return parse_annotation(namespace, have.fields.get(_EXISTING_FIELD))
    # The Jobs of a CronJob are governed where they are created.
    return tuple(w for w in workloads if w.kind not in {"CronJob", FINISHED_POD})


def annotation(workloads: Sequence[GpuWorkload]) -> str | None:
    """Return the annotation of a namespace with these workloads. Returns None if there are none."""
    return ",".join(f"{w.kind}/{w.name}={w.gpus_per_pod}" for w in workloads) or None


def parse_annotation(namespace: str, value: object) -> tuple[GpuWorkload, ...]:
    """Return the workloads of an annotation; what cannot be parsed is left out."""
    found = []
    for entry in str(value or "").split(","):
        owner, _, gpus = entry.partition("=")
        kind, _, name = owner.partition("/")
        if kind and name and gpus.isdigit():
            found.append(GpuWorkload(kind, namespace, name, int(gpus)))
    return tuple(found)


def has_gpu_classes(classes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of these DeviceClasses is for GPUs, by its name or by what it selects."""
    return any(word in str(c).lower() for c in classes for word in ("gpu", "mig.", "tpu", "neuron"))
