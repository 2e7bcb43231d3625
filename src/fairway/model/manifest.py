"""Read a Kubernetes manifest of a workload: its pod templates, the devices it requests, what it must not set.

Nothing here raises for a manifest of a wrong shape: what the API server checks anyway is left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from fairway.model.job import MAX_NAME_LENGTH, GpuRequest
from fairway.model.names import SliceName
from fairway.model.workload_kinds import (
    POD,
    WORKLOAD_KINDS,
    HoldBy,
    PodTemplatePath,
    WorkloadKind,
    workload_kind,
)

Json = dict[str, Any]
Path = tuple[str | int, ...]

MAX_MANIFEST_BYTES: Final = 256 * 1024
"""Of one manifest as JSON; it is stored with its job."""
MAX_MANIFEST_DEPTH: Final = 32
MAX_MANIFEST_NAME: Final = 30
"""Characters of a job's name: controllers append to the name of the object, some beyond 47 in all."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
TIME_LABEL: Final = "kueue.x-k8s.io/max-exec-time-seconds"

_MAX_DEVICES: Final = 1024
_MAX_PODS: Final = 10_000
_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?")
_GPU: Final = re.compile(r"gpu|/mig-|/mps|neuron|tpu|npu|gaudi")
_MIG: Final = re.compile(r"nvidia\.com/mig-([0-9a-z.+-]+)")
_SERVER_FIELDS: Final = (
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_OF_JOBS: Final = frozenset({"namespace", "creationTimestamp", *_SERVER_FIELDS})
_FAIRWAYS: Final = "fairway.dev/"
_KUEUES: Final = "kueue.x-k8s.io/"
_FOR_USERS: Final = frozenset(
    f"{_KUEUES}{name}"
    for name in (
        "elastic-job",
        "job-completions-equal-parallelism",
        "job-min-parallelism",
        "podset-group-name",
        "podset-preferred-topology",
        "podset-required-topology",
        "podset-unconstrained-topology",
        "safe-to-forcefully-delete",
    )
)
"""What users may set of Kueue's labels and annotations. With others a pod could claim another's quota."""
_OF_ROOTS: Final = frozenset({QUEUE_LABEL, PRIORITY_LABEL, TIME_LABEL})


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """Why a manifest is refused."""

    path: Path
    message: str
    hint: str

    @property
    def where(self) -> str:
        """Return the path as text: `spec.containers[0].name`."""
        return "".join(f"[{p}]" if isinstance(p, int) else f".{p[:100]}" for p in self.path)[1:] or "manifest"


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods that a workload creates from one template."""

    path: Path
    """Of the template."""
    pods: int
    devices: Mapping[str, int]
    """Of each pod, by resource: only extended resources."""
    template: Json | None
    """None: it is in another object."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says that Fairway has to know."""

    kind: WorkloadKind
    """With the version that the manifest names."""
    name: str
    namespace: str
    """Empty: none, or `default`."""
    priority: str
    pod_sets: tuple[PodSet, ...]
    """Those that request devices."""
    resource: str
    """The extended resource of its devices."""
    gpus: GpuRequest
    """Of the largest pod."""
    pods: int
    """Pods with devices."""
    devices: int
    """Of all pods."""


@dataclass(slots=True)
class _Problems:
    """Problems found so far."""

    found: list[ManifestProblem] = field(default_factory=list)

    def add(self, path: Path, message: str, hint: str) -> None:
        self.found.append(ManifestProblem(path, message, hint))


def read_manifest(body: Json) -> tuple[Manifest | None, tuple[ManifestProblem, ...]]:
    """Read a manifest. Returns None, with every problem, if Fairway must not submit it."""
    problems = _Problems()
    if (shape := _shape_problem(body)) is not None:
        return None, (shape,)
    kind = _kind(body, problems)
    if kind is None:
        return None, tuple(problems.found)
    pod_sets = _check_object(kind, body, problems)
    meta = _mapping(body.get("metadata"))
    name = _text(meta.get("name")) or _text(meta.get("generateName"))
    if not as_manifest_name(name):
        problems.add(("metadata", "name"), "the manifest has no name", "set  metadata.name: my-workload")
    labels = _mapping(meta.get("labels"))
    namespace = _text(meta.get("namespace"))
    resource = _resource(pod_sets, problems)
    counted = [s for s in pod_sets if s.devices.get(resource, 0) and s.pods]
    pods = sum(s.pods for s in counted)
    devices = sum(s.pods * s.devices[resource] for s in counted)
    each = max((s.devices[resource] for s in counted), default=0)
    if resource and not devices:
        problems.add((), "the manifest creates no pods: its replicas are 0", "set the number of replicas")
    elif each > _MAX_DEVICES or pods > _MAX_PODS:
        limits = f"at most {_MAX_DEVICES:,} for one pod, and {_MAX_PODS:,} pods"
        problems.add((), f"{each:,} GPUs for a pod and {pods:,} pods are too many", f"request {limits}")
    if problems.found:
        return None, tuple(problems.found)
    mig = _MIG.fullmatch(resource)
    slice_ = SliceName(mig[1].replace(".me", "+me")) if mig else None
    return Manifest(
        kind,
        as_manifest_name(name),
        "" if namespace == "default" else namespace,
        _text(labels.get(PRIORITY_LABEL)),
        tuple(counted),
        resource,
        GpuRequest(each, slice=slice_),
        pods,
        devices,
    ), ()


def without_placement(body: Json) -> Json:
    """Return a manifest without what a job has beside it: namespace, priority, and what kubectl adds."""
    meta = {k: v for k, v in _mapping(body.get("metadata")).items() if k not in _OF_JOBS and v is not None}
    if PRIORITY_LABEL in _mapping(meta.get("labels")):
        meta["labels"] = {k: v for k, v in meta["labels"].items() if k != PRIORITY_LABEL}
    return {**{k: v for k, v in body.items() if k != "status"}, "metadata": meta}


def encode_manifest(body: Json) -> str:
    """Encode a manifest that `read_manifest` accepts."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def decode_manifest(text: str) -> Json:
    """Decode a manifest that was encoded by `encode_manifest`."""
    decoded: Json = json.loads(text)
    return decoded


def as_manifest_name(name: str) -> str:
    """Shorten a name so that the names that controllers derive from it stay valid."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[: min(MAX_MANIFEST_NAME, MAX_NAME_LENGTH)].strip("-._")


def pod_sets_of(kind: WorkloadKind, body: Json) -> Iterator[PodSet]:
    """Yield the pods that an object creates, one set for each template; those of objects within it too."""
    if kind.group == POD.group and kind.kind == POD.kind:
        yield PodSet((), 1, _pod_devices(_mapping(body.get("spec"))), body)
    for at in kind.templates:
        for path, template in _expand(body, at.template):
            if isinstance(template, dict):
                devices = _pod_devices(_mapping(template.get("spec")))
                yield PodSet(path, _pods(body, at, path), devices, template)
    if kind.resources is not None:
        for path, resources in _expand(body, kind.resources.template):
            devices = _amounts(_mapping(resources))
            yield PodSet(path, _pods(body, kind.resources, path), devices, None)
    for path, inner_kind, inner in _objects(kind, body):
        for pod_set in pod_sets_of(inner_kind, inner) if inner_kind is not None else ():
            yield PodSet((*path, *pod_set.path), pod_set.pods, pod_set.devices, pod_set.template)


def _objects(kind: WorkloadKind, body: Json) -> Iterator[tuple[Path, WorkloadKind | None, Json]]:
    """Yield the whole objects within an object, which have no such objects themselves."""
    for path, inner in _expand(body, kind.objects) if kind.objects else ():
        if isinstance(inner, dict):
            found = workload_kind(_text(inner.get("apiVersion")), _text(inner.get("kind")))
            yield path, None if found is None or found.objects else found, inner


def _expand(node: object, path: Sequence[str], before: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every value at a path, with the keys that `*` matched."""
    if not path:
        yield before, node
    elif path[0] != "*":
        if isinstance(node, dict) and path[0] in node:
            yield from _expand(node[path[0]], path[1:], (*before, path[0]))
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _expand(value, path[1:], (*before, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _expand(value, path[1:], (*before, i))


def _at(node: object, path: Sequence[str | int]) -> object:
    for key in path:
        if isinstance(node, dict) and isinstance(key, str):
            node = node.get(key)
        elif isinstance(node, list) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return None
    return node


def _pods(body: Json, at: PodTemplatePath, path: Path) -> int:
    """Return the number of pods of the template at `path`."""
    pods = 1
    for count in at.counts:
        # In the path of the count, `*` means the same item as in the path of the template.
        keys = tuple(path[i] if part == "*" else part for i, part in enumerate(count))
        number = _number(_at(body, keys), 1)
        if count[-1] == "parallelism":  # a Job does not run more pods than it has to complete
            number = min(number, _number(_at(body, (*keys[:-1], "completions")), number))
        if at.leader and count is at.counts[-1] and isinstance(_at(body, at.leader), dict):
            number = max(0, number - 1)
        pods *= number
    return pods


def _pod_devices(spec: Json) -> Mapping[str, int]:
    """Return the extended resources that the scheduler reserves for a pod."""
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in _list(spec.get("containers")):
        _sum(running, _container(container))
    for container in _list(spec.get("initContainers")):
        step = dict(sidecars)
        _sum(step, _container(container))
        if _mapping(container).get("restartPolicy") == "Always":
            _sum(running, _container(container))
            sidecars = step
        starting = {r: max(starting.get(r, 0), step.get(r, 0)) for r in {*starting, *step}}
    total = {r: max(running.get(r, 0), starting.get(r, 0)) for r in {*running, *starting}}
    return MappingProxyType({r: n for r, n in sorted(total.items()) if n > 0})


def _container(container: object) -> Mapping[str, int]:
    return _amounts(_mapping(_mapping(container).get("resources")))


def _amounts(resources: Json) -> Mapping[str, int]:
    """Return the extended resources of requests and limits, of which requests default to limits."""
    amounts: dict[str, int] = {}
    for part in ("limits", "requests"):
        for name, quantity in _mapping(resources.get(part)).items():
            if "/" in name:
                amounts[name] = max(amounts.get(name, 0), _number(quantity, 0))
    return MappingProxyType({r: n for r, n in sorted(amounts.items()) if n > 0})


def _sum(sums: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def _number(value: object, default: int) -> int:
    """Return a whole number from 0, as YAML or a quantity has it; anything else counts as `default`."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return max(0, min(value, 10**9))


# checks


def _shape_problem(body: Json) -> ManifestProblem | None:
    """Return why a manifest cannot be stored. Returns None if it can."""
    level: list[object] = [body]
    for _ in range(MAX_MANIFEST_DEPTH):
        level = [
            value
            for node in level
            for value in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
        if not level:
            break
    else:
        return ManifestProblem(
            (), f"the manifest is nested more than {MAX_MANIFEST_DEPTH} deep", "is it the right file?"
        )
    try:
        size = len(encode_manifest(body))
    except ValueError:
        return ManifestProblem((), "the manifest has a number that JSON cannot have", "write a finite number")
    if size > MAX_MANIFEST_BYTES:
        hint = "put data into a ConfigMap, the image or a volume"
        return ManifestProblem(
            (),
            f"the manifest has {size:,} bytes as JSON, and at most {MAX_MANIFEST_BYTES:,} are stored",
            hint,
        )
    return None


def _kind(body: Json, problems: _Problems) -> WorkloadKind | None:
    version, name = _text(body.get("apiVersion")), _text(body.get("kind"))
    if name == "List" or isinstance(body.get("items"), list):
        problems.add(("kind",), "this is a list of objects", "submit one object in each file")
        return None
    kind = workload_kind(version, name)
    if kind is None:
        known = ", ".join(sorted(k.kind for k in WORKLOAD_KINDS if k.hold is not HoldBy.SUSPEND))
        problems.add(
            ("kind",),
            f"{version[:100]} {name[:100]} is not a kind of workload that Fairway can submit",
            f"submit one of {known}; create others by  kubectl apply: Fairway sees and charges them too",
        )
        return None
    number = version.rpartition("/")[2]
    if _VERSION.fullmatch(number) is None:
        problems.add(("apiVersion",), f"{version[:100]} is no API version", f"write  {kind.api_version}")
        return None
    if kind.hold is HoldBy.SUSPEND:
        problems.add(
            ("kind",),
            f"a {kind.kind} creates a job at each of its times, so it is no job itself",
            "create it by  kubectl apply: Fairway sees, queues and charges each of its Jobs",
        )
        return None
    return replace(kind, version=number)


def _check_object(kind: WorkloadKind, body: Json, problems: _Problems) -> list[PodSet]:
    """Check an object, its pod templates and the objects within it. Returns its pods."""
    if body.get("status"):
        problems.add(("status",), "status is written by the cluster", "remove status")
    namespace = _text(_mapping(body.get("metadata")).get("namespace"))
    for path, inner_kind, inner in _objects(kind, body):
        if inner_kind is None:
            # Its controller creates them with rights that the user may not have.
            what = f"{_text(inner.get('apiVersion'))[:100]} {_text(inner.get('kind'))[:100]}"
            problems.add(
                path,
                f"{what} within a {kind.kind} is not a kind of workload that Fairway can submit",
                "create it by  kubectl apply",
            )
            continue
        own = _text(_mapping(inner.get("metadata")).get("namespace"))
        if own and own != namespace:
            problems.add(
                (*path, "metadata", "namespace"),
                f"an object within the {kind.kind} is in another namespace, {own[:100]}",
                "remove its namespace",
            )
    for path, metadata in _all_metadata(body):
        _check_metadata(metadata, path, problems)
    pod_sets = list(pod_sets_of(kind, body))
    for pod_set in pod_sets:
        if pod_set.template and _mapping(pod_set.template.get("spec")).get("resourceClaims"):
            problems.add(
                (*pod_set.path, "spec", "resourceClaims"),
                "resource claims request devices in objects of their own, which Fairway does not create",
                "request GPUs in the limits, or create it by  kubectl apply",
            )
    return pod_sets


def _all_metadata(node: object, at: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield the metadata of an object, and of everything within it that becomes an object."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "metadata" and isinstance(value, dict):
                yield (*at, key), value
            else:
                yield from _all_metadata(value, (*at, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _all_metadata(value, (*at, i))


def _check_metadata(meta: Json, at: Path, problems: _Problems) -> None:
    for name in _SERVER_FIELDS:
        if meta.get(name):
            problems.add((*at, name), f"{name} is written by the cluster", f"remove {name}")
    for part in ("labels", "annotations"):
        for key in _mapping(meta.get(part)):
            allowed = key in _FOR_USERS or (at == ("metadata",) and part == "labels" and key in _OF_ROOTS)
            if key.startswith(_FAIRWAYS) or (key.startswith(_KUEUES) and not allowed):
                whose = "Fairway" if key.startswith(_FAIRWAYS) else "Kueue"
                problems.add((*at, part, key), f"{key[:100]} is for {whose} to set", f"remove {key[:100]}")


def _resource(pod_sets: Sequence[PodSet], problems: _Problems) -> str:
    """Return the extended resource of the GPUs. Empty if there is not exactly one."""
    names = sorted({name for s in pod_sets for name in s.devices})
    gpus = [name for name in names if _GPU.search(name)] or names
    if len(gpus) == 1:
        return gpus[0]
    if gpus:
        several = ", ".join(name[:100] for name in gpus[:5])
        problems.add(
            (), f"the manifest requests GPUs of several kinds: {several}", "request GPUs of one kind"
        )
    elif any(_claims(s.template) for s in pod_sets):
        problems.add(
            (),
            "the manifest claims its devices, and how many is in a template of claims, which is not read",
            "create it with kubectl: it is queued and mirrored all the same; or write a job file, whose pods "
            "get their claims from Fairway",
        )
    else:
        problems.add(
            (),
            "the manifest does not say how many GPUs it needs",
            "add to a container:  resources: { limits: { nvidia.com/gpu: 8 } }",
        )
    return ""


def _claims(template: Json | None) -> bool:
    """Return whether the pods of a template claim devices."""
    return bool(_mapping(_mapping(template).get("spec")).get("resourceClaims"))


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
