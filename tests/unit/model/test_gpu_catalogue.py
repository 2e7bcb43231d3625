"""The catalogue of GPU types, field by field against the data it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairway.model.gpu import GpuType, MigProfile, Vendor, fits, is_plain
from fairway.model.gpu_catalogue import CATALOGUE

MIG = Path(__file__).parents[3].parent / "shared" / "data" / "mig"
TABLE = {
    "A30_PCIE_24GB": "A30",
    "A100_PCIE_40GB": "A100-40GB",
    "A100_SXM4_40GB": "A100-40GB",
    "A100_PCIE_80GB": "A100-80GB",
    "A100_SXM4_80GB": "A100-80GB",
    "H100_SXM5_80GB": "H100-80GB",
    "H200_SXM5_141GB": "H200-141GB",
    "B200_SXM5_180GB": "B200-180GB",
}
WITH_MIG = [gpu for gpu in CATALOGUE.values() if gpu.profiles]


def mig_data(name: str) -> str:
    path = MIG / name
    if not path.exists():
        pytest.skip(
            f"no {path.name} here: the MIG reference data stands beside the checkout, in shared/data/mig"
        )
    return path.read_text()


def as_row(profile: MigProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "compute_slices": profile.compute_slices,
        "max_instances": profile.max_instances,
        "memory_mb": profile.memory_mib,
        "placements": [[start, profile.memory_slices] for start in profile.starts],
    }


@pytest.mark.parametrize(("key", "name"), TABLE.items())
def test_each_profile_is_as_in_the_table(key: str, name: str) -> None:
    row = json.loads(mig_data("mig_profiles.json"))[key]
    gpu = CATALOGUE[name]
    assert gpu.memory_gb == row["memory_mb"] // 1024
    told = {
        p["name"]: {k: v for k, v in p.items() if k not in {"sm", "placement_source"}}
        for p in row["profiles"]
    }
    assert {p.name: as_row(p) for p in gpu.profiles} == told


def test_the_table_has_no_gpu_that_the_catalogue_lacks() -> None:
    assert set(json.loads(mig_data("mig_profiles.json"))) - {"_about"} == set(TABLE)


def test_every_profile_of_the_catalogue_is_known_to_the_mig_manager_with_that_count() -> None:
    """The GPUs the table lacks have their names and counts from here; the others get a second witness."""
    counts: dict[str, set[int]] = {}
    for key, sections in yaml.safe_load(mig_data("mig-parted_config-default.yaml"))["mig-configs"].items():
        if key == "all-balanced":
            continue
        for section in sections:
            for name, count in (section.get("mig-devices") or {}).items():
                counts.setdefault(name, set()).add(count)
    unknown = [
        (gpu.name, p.name)
        for gpu in WITH_MIG
        for p in gpu.profiles
        if p.max_instances not in counts.get(p.name, set())
    ]
    assert unknown == []


def test_the_balanced_layouts_of_the_mig_manager_fit() -> None:
    balanced = yaml.safe_load(mig_data("mig-parted_config-default.yaml"))["mig-configs"]["all-balanced"]
    layouts = [section["mig-devices"] for section in balanced]
    seen = set()
    for gpu in WITH_MIG:
        for layout in layouts:
            slices = [gpu.profile(name) for name, count in layout.items() for _ in range(count)]
            known = [p for p in slices if p is not None]
            if len(known) == len(slices):
                assert fits(gpu, known) is not None, (gpu.name, layout)
                seen.add(gpu.name)
    assert seen == {gpu.name for gpu in WITH_MIG}


@pytest.mark.parametrize("gpu", CATALOGUE.values(), ids=lambda gpu: gpu.name)
def test_a_type_is_whole(gpu: GpuType) -> None:
    assert CATALOGUE[gpu.name] is gpu
    assert 16 <= gpu.memory_gb <= 256
    assert (gpu.memory_slices == 0) == (gpu.compute_slices == 0) == (gpu.profiles == ())
    assert len({p.name for p in gpu.profiles}) == len(gpu.profiles)


@pytest.mark.parametrize("gpu", WITH_MIG, ids=lambda gpu: gpu.name)
def test_a_profile_fits_as_often_as_it_says_and_not_once_more(gpu: GpuType) -> None:
    for p in gpu.profiles:
        assert fits(gpu, [p] * p.max_instances) is not None
        assert fits(gpu, [p] * (p.max_instances + 1)) is None
        # The limit of a plain profile is a matter of room, not of the number alone.
        if is_plain(p):
            roomier = MigProfile(p.name, p.compute_slices, p.memory_slices, p.memory_mib, p.starts, 99)
            assert fits(gpu, [roomier] * (p.max_instances + 1)) is None


@pytest.mark.parametrize("gpu", WITH_MIG, ids=lambda gpu: gpu.name)
def test_a_profile_lies_within_the_gpu(gpu: GpuType) -> None:
    for p in gpu.profiles:
        assert p.starts and all(0 <= s <= gpu.memory_slices - p.memory_slices for s in p.starts)
        assert 0 < gpu.fraction(p) <= 1
        assert p.memory_mib <= gpu.memory_gb * 1024
        assert p.name.startswith(f"{p.compute_slices}g.")


def test_products_name_one_type_each() -> None:
    products = [product for gpu in CATALOGUE.values() for product in gpu.products]
    assert len(products) == len(set(products))


def test_amd_is_amd() -> None:
    assert {gpu.name for gpu in CATALOGUE.values() if gpu.vendor is Vendor.AMD} == {
        "MI210",
        "MI250X",
        "MI300X",
        "MI325X",
    }
