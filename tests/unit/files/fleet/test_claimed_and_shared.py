"""Pools whose GPUs pods claim by DeviceClass or share: what a fleet file says of them, and its faults."""

from __future__ import annotations

import pytest

from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Fleet, KubernetesPlace
from fairway.policy.fleet_diff import describe
from tests.unit.files.fleets import SOUND, checked

PLACE = "kubernetes: { node_labels: { example.org/pool: h100 } }"


def place(new: str, more: str = "") -> KubernetesPlace:
    found = fleet(new, more).pool("cloud-h100").place
    assert isinstance(found, KubernetesPlace)
    return found


def text(new: str, more: str = "") -> str:
    """The sound fleet with another section `kubernetes` in its pool, and keys of the pool before it."""
    assert PLACE in SOUND
    return SOUND.replace(PLACE, f"{more}kubernetes: {new}")


def fleet(new: str, more: str = "") -> Fleet:
    report = checked(text(new, more))
    assert report.fleet is not None, report.faults
    return report.fleet


def test_a_device_class_is_counted_under_its_own_name_unless_the_file_has_another() -> None:
    assert place("{ device_class: gpu.nvidia.com }").resource == "gpu.nvidia.com/gpu"
    named = place("{ device_class: gpu.nvidia.com, resource: example.org/whole-gpu }")
    assert (named.device_class, named.resource) == ("gpu.nvidia.com", "example.org/whole-gpu")


def test_shared_gpus_have_the_vendors_shared_resource_unless_the_file_names_another() -> None:
    shared = "slices: [shared-4]\n    "
    assert place("{}", shared).resource == "nvidia.com/gpu.shared"
    assert place("{ resource: nvidia.com/gpu }", shared).resource == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("new", "more"),
    [
        ("{ device_class: gpu.nvidia.com }", ""),
        ("{ device_class: gpu.nvidia.com, resource: example.org/whole-gpu }", ""),
        ("{ device_classes: { 1g.10gb: mig.example.org } }", "slices: [1g.10gb]\n    "),
        ("{}", "slices: [shared-7]\n    "),
        ("{ resource: nvidia.com/gpu }", "slices: [shared-7]\n    "),
    ],
)
def test_it_reads_back(new: str, more: str) -> None:
    written = fleet(new, more)
    assert checked(compose_fleet(written, ())).fleet == written


def test_a_change_of_class_is_a_change_of_the_pool() -> None:
    changes = [str(c) for c in describe(fleet("{}"), fleet("{ device_class: gpu.nvidia.com }"))]
    assert any("by device class gpu.nvidia.com" in change for change in changes)


@pytest.mark.parametrize(
    ("new", "more", "code", "hint"),
    [
        (
            "{ device_class: gpu.nvidia.com }",
            "slices: [1g.10gb]\n    ",
            "SlicesDisagree",
            "device_classes: { 1g",
        ),
        ("{ device_classes: { 1g.10gb: a.b } }", "", "SlicesDisagree", "device_class: gpu"),
        ("{ device_classes: { 1g.10gb: a.b } }", "slices: [3g.40gb]\n    ", "SlicesDisagree", "each of them"),
        ("{ device_class: Gpu_1 }", "", "BadValue", "DeviceClass"),
        ("{}", "slices: [shared-4, 1g.10gb]\n    ", "SlicesDoNotFit", "a pool for each"),
        ("{}", "slices: [shared-1]\n    ", "BadValue", "shared-N"),
    ],
)
def test_a_fault_says_what_to_write(new: str, more: str, code: str, hint: str) -> None:
    [fault] = checked(text(new, more)).faults
    assert fault.code == code
    assert hint in f"{fault.hint} {fault.expected}"


SLURM = "slurm: { partition: gpu, gres: a100 }"


def test_jobs_share_gpus_on_slurm_too() -> None:
    assert not checked(SOUND.replace(SLURM, f"slices: [shared-2]\n    {SLURM}")).faults


def test_shared_gpus_of_a_partition_are_its_whole_gpus() -> None:
    both = f"""slices: [shared-2]
    {SLURM}
  again:
    cluster: hpc
    gpu: A100-80GB
    capacity: owned
    price: 1
    {SLURM}"""
    assert [f.code for f in checked(SOUND.replace(SLURM, both)).faults] == ["SameGpus"]


def test_a_virtual_cluster_shares_no_gpus() -> None:
    virtual = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters: { sim: { engine: virtual } }
pools:
  p:
    cluster: sim
    gpu: A100-80GB
    slices: [shared-2]
    capacity: owned
    price: 1
    virtual: { nodes: 1, gpus_per_node: 8 }
"""
    assert "WrongEngine" in [f.code for f in checked(virtual).faults]
