"""KWOK nodes whose GPUs pods claim: DeviceClasses, and the ResourceSlices that a driver would publish."""

from __future__ import annotations

from lab.kubernetes.api import Json
from lab.kubernetes.kwok import MODEL, whole_node

DRIVER = "gpu.example.com"
API = "/apis/resource.k8s.io/v1"
GPU_CLASS = DRIVER
PROFILES = {"3g.40gb": (40, 2), "1g.10gb": (10, 7)}  # GB of memory, and how many fit
_GPU_MEMORY = 80


def class_of(profile: str) -> str:
    """The DeviceClass of a MIG profile."""
    return f"mig-{profile.replace('.', '-')}.example.com"


def classes() -> list[Json]:
    """One class for whole GPUs and one for each MIG profile."""
    profiles = [_class(class_of(name), type="mig", profile=name) for name in PROFILES]
    return [_class(GPU_CLASS, type="gpu"), *profiles]


def _class(name: str, **attributes: str) -> Json:
    # In this order: the scheduler fails on an attribute that a device does not have.
    terms = [f"device.attributes['{DRIVER}'].{key} == '{value}'" for key, value in attributes.items()]
    expression = " && ".join([f"device.driver == '{DRIVER}'", *terms])
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def dra_node(number: int) -> Json:
    """A node without extended resources: its GPUs are in a slice."""
    return whole_node(f"dra-{number:04d}", number, {"nvidia.com/gpu.product": f"{MODEL}-DRA"})


def cut_node(number: int) -> Json:
    """A node with one GPU that the driver cuts as claims ask for it."""
    return whole_node(f"dra-mig-{number:04d}", number, {"nvidia.com/gpu.product": f"{MODEL}-DRA-MIG"})


def gpu_slice(node: str, gpus: int, sick: int = 0) -> Json:
    """Whole GPUs of a node; the first `sick` of them carry a taint."""
    taint = {"taints": [{"key": f"{DRIVER}/unhealthy", "effect": "NoExecute"}]}
    devices = [
        {"name": f"gpu-{n}", **_described("gpu", _GPU_MEMORY), **(taint if n < sick else {})}
        for n in range(gpus)
    ]
    return _slice(f"{node}-gpus", node, 1, devices=devices)


def cut_slices(node: str) -> list[Json]:
    """One GPU as a whole and as every part that it could be cut into: all take of the same counters."""
    parts = [
        _part(f"gpu-0-mig-{name.replace('.', '-')}-{n}", memory, "mig", profile=name)
        for name, (memory, most) in PROFILES.items()
        for n in range(most)
    ]
    counters = {"name": "gpu-0", "counters": {"memory": {"value": f"{_GPU_MEMORY}Gi"}}}
    return [
        _slice(f"{node}-counters", node, 2, sharedCounters=[counters]),
        _slice(f"{node}-devices", node, 2, devices=[_part("gpu-0", _GPU_MEMORY, "gpu"), *parts]),
    ]


def _part(name: str, memory: int, kind: str, **attributes: str) -> Json:
    takes = {"counterSet": "gpu-0", "counters": {"memory": {"value": f"{memory}Gi"}}}
    return {"name": name, **_described(kind, memory, **attributes), "consumesCounters": [takes]}


def _described(kind: str, memory: int, **attributes: str) -> Json:
    known = {"type": kind, "productName": MODEL, **attributes}
    return {
        "attributes": {key: {"string": value} for key, value in known.items()},
        "capacity": {"memory": {"value": f"{memory}Gi"}},
    }


def _slice(name: str, node: str, of: int, **more: object) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": of}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **more},
    }


def nodes(count: int) -> list[Json]:
    """So many nodes of whole GPUs, and one whose GPU is cut; none if there are none."""
    return [*(dra_node(number) for number in range(count)), cut_node(0)] if count else []


def objects(count: int, gpus: int) -> list[Json]:
    """What a driver and its installation publish for those nodes."""
    if not count:
        return []
    whole = [gpu_slice(dra_node(number)["metadata"]["name"], gpus) for number in range(count)]
    return [*classes(), *whole, *cut_slices(cut_node(0)["metadata"]["name"])]
