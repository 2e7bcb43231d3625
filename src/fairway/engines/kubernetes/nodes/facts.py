"""Reduce nodes and pods to the facts that Fairway stores: a few hundred bytes each, whatever their size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from fairway.engines.kubernetes.api.wire import Condition, FieldOwner, NodeObject, PodObject
from fairway.engines.kubernetes.nodes.devices import (
    PRODUCT,
    REPLICAS,
    claimed_resources,
    is_known_gpu,
    whole_number,
)
from fairway.model.fleet import KubernetesPlace, Pool

Amounts = tuple[tuple[str, int], ...]
"""Resources and how many of each, by name."""

_NEVER_REPORTED = Condition(type="Ready", reason="NoStatus", message="its kubelet has never reported")


class NodeFacts(Struct, frozen=True, gc=False):
    """The labels, health and devices of a node."""

    labels: tuple[tuple[str, str], ...]
    """Only those that some pool selects by, the GPU product, and how many pods share a GPU, by name."""
    capacity: Amounts
    allocatable: Amounts
    ready: bool
    not_ready_reason: str
    cordoned: bool
    cordon_reason: str


class PodDevices(Struct, frozen=True, gc=False):
    """The devices that one bound, unfinished pod holds on its node."""

    node: str
    devices: Amounts


def node_transform(pools: Iterable[Pool]) -> Callable[[NodeObject], NodeFacts]:
    """Return the function that reduces nodes to facts, on a cluster with these pools."""
    pools = tuple(pools)
    is_gpu = gpu_test(pools)
    places = [p.place for p in pools if isinstance(p.place, KubernetesPlace)]
    label_keys = sorted({PRODUCT, REPLICAS, *(key for place in places for key in place.node_labels)})

    def transform(node: NodeObject) -> NodeFacts:
        conditions, labels = node.status.conditions, node.metadata.labels
        ready = next((c for c in conditions if c.type == "Ready"), _NEVER_REPORTED)
        return NodeFacts(
            labels=tuple((k, labels[k]) for k in label_keys if k in labels),
            capacity=_amounts(node.status.capacity, is_gpu),
            allocatable=_amounts(node.status.allocatable, is_gpu),
            ready=ready.status == "True",
            not_ready_reason="" if ready.status == "True" else _not_ready_reason(ready),
            cordoned=node.spec.unschedulable,
            cordon_reason=_cordon_reason(node) if node.spec.unschedulable else "",
        )

    return transform


def pod_transform(pools: Iterable[Pool]) -> Callable[[PodObject], PodDevices | None]:
    """Return the function that reduces pods to the devices they hold.

    It returns None for the many pods that are not bound or hold no GPUs.
    """
    is_gpu = gpu_test(pools)

    def transform(pod: PodObject) -> PodDevices | None:
        if not pod.spec.node_name:
            return None
        devices = requested(pod, is_gpu)
        return PodDevices(pod.spec.node_name, devices) if devices else None

    return transform


def requested(pod: PodObject, is_counted: Callable[[str], bool]) -> Amounts:
    """Return the amounts of the counted resources that the scheduler reserves for a pod.

    Init containers run one after the other, so the largest counts; those that restart (sidecars) stay, so
    they count beside every init container after them and beside the containers. The larger of both phases
    is held.
    """
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(running, container.resources.requests, is_counted)
    for container in pod.spec.init_containers:
        step = dict(sidecars)
        _add(step, container.resources.requests, is_counted)
        if container.restart_policy == "Always":
            _add(running, container.resources.requests, is_counted)
            sidecars = step
        for resource, count in step.items():
            starting[resource] = max(starting.get(resource, 0), count)
    total = {r: max(running.get(r, 0), starting.get(r, 0)) for r in running.keys() | starting.keys()}
    _add(total, pod.spec.overhead, is_counted)
    by_claim = pod.status.claimed_resources
    return tuple(sorted((r, n) for r, n in total.items() if n > 0 and r not in by_claim))


def _add(sums: dict[str, int], requests: Mapping[str, str], is_counted: Callable[[str], bool]) -> None:
    for resource, quantity in requests.items():
        if is_counted(resource):
            sums[resource] = sums.get(resource, 0) + whole_number(quantity)


def _amounts(quantities: Mapping[str, str], is_counted: Callable[[str], bool]) -> Amounts:
    return tuple(sorted((r, whole_number(q)) for r, q in quantities.items() if is_counted(r)))


def gpu_test(pools: Iterable[Pool]) -> Callable[[str], bool]:
    """Return a test for which resources are devices on a cluster with these pools."""
    claimed = claimed_resources(pools)

    def is_gpu(resource: str) -> bool:
        return resource in claimed or is_known_gpu(resource)

    return is_gpu


def _not_ready_reason(ready: Condition) -> str:
    status = "NotReady" if ready.status == "False" else "Ready is unknown"
    since = f" since {ready.last_transition_time}" if ready.last_transition_time else ""
    return ": ".join(part for part in (f"{status}{since}", ready.reason, ready.message) if part)


def _cordon_reason(node: NodeObject) -> str:
    """Describe a cordon: why, by whom (the annotation, else the field manager) and since when."""
    annotations = node.metadata.annotations
    owners = (
        owner
        for owner in node.metadata.managed_fields
        if owner.fields_v1 and owner.fields_v1.spec and owner.fields_v1.spec.unschedulable is not None
    )
    owner = next(owners, FieldOwner())
    since = f" since {owner.time}" if owner.time else ""
    who = annotations.by or owner.manager
    why = f": {annotations.reason}" if annotations.reason else ""
    return f"cordoned{since}{f' by {who}' if who else ''}{why}"
