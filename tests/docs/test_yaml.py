"""Every YAML block of the docs is what it looks like: a fleet, a job, settings, a manifest, a part of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairway.files import check_fleet, check_jobs
from fairway.model.workload_kinds import workload_kind
from fairway.settings import SETTINGS
from tests.docs.reading import Block, blocks, pages

BLOCKS = [block for page in pages() for block in blocks(page) if block.language in ("yaml", "yml")]
SECTIONS = {"clusters", "pools", "teams", "priorities", "fairness", "users", "cost", "gpu_types"}
SECTIONS |= {"budgets", "diagnosis", "health", "idle", "notify"}
SURROUNDINGS: dict[str, Any] = {
    "apiVersion": "fairway/v1alpha1",
    "kind": "Fleet",
    "name": "acme",
    "currency": "USD",
    "clusters": {
        "hpc": {"engine": "slurm", "url": "https://hpc:6820", "credentials": {"jwt_key_file": "/etc/key"}},
        "cloud": {"engine": "kubernetes", "kubeconfig": "/etc/kubeconfig"},
    },
}
POOLS = {
    "hpc-a100": {"slurm": {"partition": "gpu", "gres": "a100"}, "cluster": "hpc", "gpu": "A100-80GB"},
    "hpc-mig": {
        "slurm": {"partition": "mig"},
        "cluster": "hpc",
        "gpu": "A100-80GB",
        "slices": ["1g.10gb", "3g.40gb"],
    },
}
TEAMS = {"nlp": {"guarantee": {"hpc-a100": 8}}}
PARTS_OF_OTHERS = {"fairSharing", "resources", "integrations", "credentials", "slice_prices"}
"""Checked where the whole is: Kueue's configuration in the lab, the others within a fleet file."""


def whole_fleet(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a fleet file with what the page leaves out around it."""
    fleet = {**SURROUNDINGS, **part}
    if "budgets" in part and "teams" not in part:
        fleet["teams"] = TEAMS
    fleet["clusters"] = {**SURROUNDINGS["clusters"], **part.get("clusters", {})}
    if "pools" not in part:
        fleet["pools"] = {name: {"capacity": "owned", "price": 1.9, **pool} for name, pool in POOLS.items()}
    return fleet


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_the_block_is_what_it_looks_like(block: Block, tmp_path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(block.text) if one is not None]
    assert documents, block.where
    for one in documents:
        check(one, block, tmp_path / "fleet.yaml")


def check(one: Any, block: Block, file: Path) -> None:
    version, kind = str(one.get("apiVersion", "")), str(one.get("kind", ""))
    is_workload = workload_kind(version, kind) is not None and "copied" not in block.title
    if is_workload or (kind == "Job" and version.startswith("fairway/")):
        report = check_jobs(yaml.safe_dump(one), block.where)
        assert [fault for fault in report.faults if fault.severity == "error"] == [], block.where
    elif one.get("kind") == "Fleet" or set(one) <= SECTIONS:
        file.write_text(yaml.safe_dump(whole_fleet(one), sort_keys=False))
        faults = check_fleet(file).faults
        assert [fault for fault in faults if fault.severity == "error"] == [], block.where
    elif "kind" in one:
        assert {"apiVersion", "metadata"} <= set(one), block.where
    elif set(one) <= PARTS_OF_OTHERS:
        assert all(one.values()), block.where
    else:
        assert set(one) <= {setting.name for setting in SETTINGS}, f"{block.where}: what is it?"


def test_there_are_many() -> None:
    assert len(BLOCKS) > 25
