from __future__ import annotations

import pytest

from fairway.engines.kubernetes.nodes.devices import (
    is_known_gpu,
    looks_like_gpu,
    resource_of,
    resources_of,
    slice_of,
    whole_number,
)
from fairway.model.names import SliceName
from tests.unit.engines.kubernetes.nodes.made import pool


@pytest.mark.parametrize(
    ("resource", "known"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-3g.40gb", True),
        ("amd.com/gpu", True),
        ("gpu.intel.com/i915", True),
        ("gpu.intel.com/xe", True),
        ("nvidia.com/gpumem", False),
        ("cpu", False),
        ("memory", False),
        ("rdma/ib", False),
        ("intel.com/gpu-like", False),
    ],
)
def test_vendors_names_are_known(resource: str, known: bool) -> None:
    assert is_known_gpu(resource) is known


@pytest.mark.parametrize(
    ("resource", "slice_"),
    [
        ("nvidia.com/mig-1g.10gb", "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
        ("nvidia.com/mig-1g.20gb.gfx", "1g.20gb+gfx"),
    ],
)
def test_slices_have_a_resource_and_back(resource: str, slice_: str) -> None:
    assert slice_of(resource) == slice_
    assert resource_of(SliceName(slice_)) == resource


def test_whole_gpus_are_no_slice() -> None:
    assert slice_of("nvidia.com/gpu") is None


def test_a_pool_of_slices_does_not_claim_whole_gpus() -> None:
    assert resources_of(pool("p", slices=("1g.10gb", "3g.40gb"))) == (
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-3g.40gb",
    )
    assert resources_of(pool("p", resource="amd.com/gpu")) == ("amd.com/gpu",)


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("8", 8),
        ("0", 0),
        ("2k", 2000),
        ("1Ki", 1024),
        ("16e0", 16),
        ("", 0),
        ("many", 0),
        ("NaN", 0),
        ("-", 0),
    ],
)
def test_quantities(quantity: str, number: int) -> None:
    assert whole_number(quantity) == number


@pytest.mark.parametrize(
    ("resource", "like"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("aws.amazon.com/neuroncore", True),
        ("google.com/tpu", True),
        ("example.org/a100-mps", True),
        ("habana.ai/gaudi", True),
        ("squat.ai/input", False),
        ("nvidia.com/gpumem", False),
        ("rdma/hca_shared_devices", False),
        ("nvidia.com/hostdev", False),
        ("cpu", False),
    ],
)
def test_other_devices_are_known_by_their_names(resource: str, like: bool) -> None:
    assert looks_like_gpu(resource) is like
