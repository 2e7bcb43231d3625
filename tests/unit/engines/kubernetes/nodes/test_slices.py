"""Devices that drivers publish: which class they are of, how many there are, and how many are free."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import pytest

from fairway.engines.kubernetes.nodes.claims import ClaimFacts, DeviceId
from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices
from fairway.engines.kubernetes.nodes.observe import observe_nodes
from fairway.engines.kubernetes.nodes.slices import (
    DeviceClasses,
    DeviceClassObject,
    DeviceCounts,
    SliceFacts,
    SliceObject,
    count_devices,
    device_classes_of,
    slice_transform,
)
from fairway.model.observation import Devices, pool_totals
from tests.unit.engines.kubernetes.nodes.made import pool

DRIVER = "gpu.example.com"
GPU, BIG, SMALL = "gpu.example.com/gpu", "big.example.com/gpu", "small.example.com/gpu"
IS_GPU = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"


def profile(name: str) -> str:
    return f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '{name}'"


def classes(**selectors: str) -> DeviceClasses:
    """Classes by their resource, each with one expression."""
    found = [
        msgspec.convert(
            {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}}]}},
            DeviceClassObject,
        )
        for name, text in selectors.items()
    ]
    return device_classes_of(found, {name: name for name in selectors})


ALL = device_classes_of(
    [
        msgspec.convert(
            {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}}]}},
            DeviceClassObject,
        )
        for name, text in (("gpu", IS_GPU), ("big", profile("3g.40gb")), ("small", profile("1g.10gb")))
    ],
    {"gpu": GPU, "big": BIG, "small": SMALL},
)


def device(name: str, memory: int = 0, **attributes: str) -> Mapping[str, object]:
    consumes = [{"counterSet": "gpu-0", "counters": {"memory": {"value": f"{memory}Gi"}}}] if memory else []
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "consumesCounters": consumes,
    }


def gpus(count: int) -> list[Mapping[str, object]]:
    return [device(f"gpu-{n}", type="gpu") for n in range(count)]


def reduced(found: DeviceClasses, **spec: object) -> SliceFacts:
    whole = {"driver": DRIVER, "pool": {"name": "n1", "generation": 1}, "nodeName": "n1", **spec}
    facts = slice_transform(found)(msgspec.convert({"metadata": {"name": "s"}, "spec": whole}, SliceObject))
    assert facts is not None
    return facts


def ALONE(_: str) -> Collection[str]:  # noqa: N802
    """No pool claims anything on the node."""
    return ()


COUNTERS = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}
CUT = [
    device("whole", 80, type="gpu"),
    *(device(f"big-{n}", 40, type="mig", profile="3g.40gb") for n in range(2)),
    *(device(f"small-{n}", 10, type="mig", profile="1g.10gb") for n in range(7)),
]
"""One GPU of 80 GiB as a driver publishes it that can cut it: as a whole, and every part that it could be."""


def counted(
    order: DeviceClasses, held: Collection[str] = (), own: Collection[str] = (GPU, BIG, SMALL)
) -> Mapping[str, DeviceCounts]:
    slices = [reduced(order, **COUNTERS), reduced(order, devices=CUT)]
    ids: set[DeviceId] = {(DRIVER, "n1", name) for name in held}
    return count_devices(slices, ids, lambda _: own).get("n1", {})


def test_whole_gpus_are_counted_by_class_and_node() -> None:
    slices = [
        reduced(ALL, devices=gpus(4)),
        reduced(ALL, devices=gpus(2), nodeName="n2", pool={"name": "n2", "generation": 1}),
    ]
    held = {(DRIVER, "n1", "gpu-0"), (DRIVER, "n1", "gpu-3"), ("nic.example.com", "n1", "gpu-1")}
    assert count_devices(slices, held, ALONE) == {
        "n1": {GPU: DeviceCounts(4, 2)},
        "n2": {GPU: DeviceCounts(2, 0)},
    }


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = reduced(ALL, devices=gpus(8))
    new = reduced(ALL, devices=gpus(3), pool={"name": "n1", "generation": 2})
    assert count_devices([old, new], set(), ALONE) == {"n1": {GPU: DeviceCounts(3, 0)}}


def test_a_tainted_device_is_unhealthy_until_nobody_uses_it_and_after() -> None:
    broken = {**device("gpu-0", type="gpu"), "taints": [{"key": "broken", "effect": "NoExecute"}]}
    warned = {**device("gpu-1", type="gpu"), "taints": [{"key": "hot", "effect": "None"}]}
    slices = [reduced(ALL, devices=[broken, warned])]
    assert count_devices(slices, set(), ALONE) == {"n1": {GPU: DeviceCounts(2, 0, 1)}}
    assert count_devices(slices, {(DRIVER, "n1", "gpu-0")}, ALONE) == {"n1": {GPU: DeviceCounts(2, 1, 0)}}


def test_a_gpu_that_could_be_cut_is_counted_once() -> None:
    assert counted(ALL) == {GPU: DeviceCounts(1, 0)}


def test_what_is_left_of_a_gpu_that_is_cut_counts_as_the_first_class_that_fits() -> None:
    assert counted(ALL, {"big-0"}) == {BIG: DeviceCounts(2, 1)}
    assert counted(ALL, {"small-0"}) == {BIG: DeviceCounts(1, 0), SMALL: DeviceCounts(4, 1)}
    assert counted(ALL, {"big-1", "small-0", "small-1"}) == {
        BIG: DeviceCounts(1, 1),
        SMALL: DeviceCounts(4, 2),
    }
    assert counted(ALL, {"whole"}) == {GPU: DeviceCounts(1, 1)}


def test_the_order_of_the_fleet_file_says_how_a_free_gpu_is_counted() -> None:
    small_first = device_classes_of(
        [
            msgspec.convert(
                {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": profile(text)}}]}},
                DeviceClassObject,
            )
            for name, text in (("big", "3g.40gb"), ("small", "1g.10gb"))
        ],
        {"small": SMALL, "big": BIG},
    )
    assert counted(small_first) == {SMALL: DeviceCounts(7, 0)}


def test_a_free_gpu_counts_for_the_pool_of_its_node() -> None:
    """The class of whole GPUs is of another pool, whose nodes these are not."""
    assert counted(ALL, own=(BIG, SMALL)) == {BIG: DeviceCounts(2, 0)}
    assert counted(ALL, {"whole"}, own=(BIG, SMALL)) == {GPU: DeviceCounts(1, 1)}


@pytest.mark.parametrize("held", [set(), {"big-0"}, {"small-0", "small-4"}, {"big-1", "small-6"}, {"whole"}])
def test_the_parts_of_a_gpu_never_add_up_to_more_than_it(held: set[str]) -> None:
    size = {GPU: 80, BIG: 40, SMALL: 10}
    counts = counted(ALL, held)
    assert sum(size[resource] * found.total for resource, found in counts.items()) <= 80


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        (f"device.driver == '{DRIVER}'", True),
        (f'device.driver == "{DRIVER}"', True),
        ("device.driver == 'other.example.com'", False),
        (IS_GPU, True),
        (IS_GPU.replace("'gpu'", "'mig'"), False),
        (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].cores == 7", True),
        (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].ecc == true", True),
        (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].ecc == false", False),
        (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].none == 'x'", False),
        (f"device.driver == '{DRIVER}' && device.attributes['k8s.io'].numa == 1", True),
        (f"device.driver == '{DRIVER}' && device.capacity['{DRIVER}'].memory.isInteger()", True),
        ("true", False),  # a class that names no driver has the devices of the driver of its own name
    ],
)
def test_a_class_selects_by_driver_and_attributes(expression: str, matches: bool) -> None:
    published = {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "cores": {"int": 7},
            "ecc": {"bool": True},
            "k8s.io/numa": {"int": 1},
        },
    }
    found = classes(some=expression)
    spec = {
        "driver": DRIVER,
        "pool": {"name": "n1", "generation": 1},
        "nodeName": "n1",
        "devices": [published],
    }
    facts = slice_transform(found)(msgspec.convert({"metadata": {"name": "s"}, "spec": spec}, SliceObject))
    assert bool(facts and facts.devices[0].resource) is matches


def test_a_class_without_a_driver_is_of_the_driver_of_its_name() -> None:
    found = device_classes_of(
        [msgspec.convert({"metadata": {"name": DRIVER}, "spec": {}}, DeviceClassObject)], {DRIVER: GPU}
    )
    assert count_devices([reduced(found, devices=gpus(2))], set(), ALONE) == {"n1": {GPU: DeviceCounts(2, 0)}}


def test_a_class_that_does_not_exist_has_no_devices() -> None:
    assert device_classes_of([], {"gpu": GPU}) == DeviceClasses()


def test_pools_of_claimed_gpus_are_observed_like_those_of_extended_resources() -> None:
    """The same nodes, the same use: once by extended resources, once by slices and claims."""
    facts = NodeFacts((("kind", "a"),), (), (), True, "", False, "")
    by_name = {"n1": facts, "n2": NodeFacts((("kind", "b"),), (), (), True, "", False, "")}
    offered = (("nvidia.com/gpu", 4),)
    plain = {
        "n1": NodeFacts((("kind", "a"),), offered, (("nvidia.com/gpu", 3),), True, "", False, ""),
        "n2": NodeFacts((("kind", "b"),), offered, offered, True, "", False, ""),
    }
    named = (pool("a", {"kind": "a"}, resource=GPU), pool("b", {"kind": "b"}, resource=GPU))
    extended = (pool("a", {"kind": "a"}), pool("b", {"kind": "b"}))
    sick = {**device("gpu-0", type="gpu"), "taints": [{"key": "broken", "effect": "NoSchedule"}]}
    slices = [
        reduced(ALL, devices=[sick, *gpus(4)[1:]]),
        reduced(ALL, devices=gpus(4), nodeName="n2", pool={"name": "n2", "generation": 1}),
    ]
    held = {("n1", 1), ("n1", 2), *(("n2", n) for n in range(4))}
    claims = [ClaimFacts("", ((GPU, 1),), ((DRIVER, node, f"gpu-{n}"),)) for node, n in held]
    pods = [PodDevices("n1", (("nvidia.com/gpu", 2),)), PodDevices("n2", (("nvidia.com/gpu", 4),))]
    claimed = observe_nodes(by_name, (), named, slices, claims)
    assert pool_totals(claimed.nodes) == pool_totals(observe_nodes(plain, pods, extended).nodes)
    assert claimed.nodes[0].devices == (Devices(named[0].name, GPU, None, 4, 2, 1),)
