"""Pools whose jobs share GPUs: guarantees of shards or MPS, and what a plan says of others' shares."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import notices, required_lines
from fairway.engines.slurm.policy.partition_lines import partition_lines
from fairway.engines.slurm.policy.partition_settings import node_groups, node_settings
from fairway.engines.slurm.policy.partitions import sites
from fairway.engines.slurm.policy.render import render_slurm
from fairway.engines.slurm.policy.translate import PolicyContext, wanted_objects
from fairway.engines.slurm.rest.wire import WireNode
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from tests.unit.engines.slurm.policy.made import HEAD, by_name
from tests.unit.engines.slurm.policy.test_job_submit import DRIVER, submit

POOL = """
  small:
    cluster: hpc
    gpu: L4
    {slices}
    capacity: owned
    price: 0.80
    slurm: {{ partition: small, gres: l4 }}
"""
TEAMS = """
teams:
  vision: {{ guarantee: {{ {small}: 8 }}, members: [alice] }}
  speech: {{ borrow: {{ {small}: unlimited }}, members: [bob] }}
"""
NODES = node_settings(
    [
        WireNode("s01", (), ("small",), "gpu:l4:4,shard:l4:16"),
        WireNode("s02", (), ("small",), "gpu:l4:4,shard:l4:16"),
        WireNode("p01", (), ("visual",), "gpu:a40:2,mps:a40:200"),
        WireNode("g01", (), ("gpu",), "gpu:a100:8"),
    ]
)


def fleet(number: int | None = 4) -> Fleet:
    slices = f"slices: [shared-{number}]" if number else ""
    small = f"small/shared-{number}" if number else "small"
    return parse_fleet(HEAD + POOL.format(slices=slices) + TEAMS.format(small=small), "fleet.yaml")


def ground(number: int | None = 4) -> PolicyContext:
    return PolicyContext.of(fleet(number), "hpc", NODES)


def test_settings_tell_how_gpus_are_shared() -> None:
    assert NODES["nodes/small"] == "node=2,gres/gpu=8,gres/gpu:l4=8,shared/shard:l4/4=8"
    groups = {group.partitions: dict(group.shared) for group in node_groups(NODES)}
    assert groups[frozenset({"visual"})] == {("mps", "a40", 100): 2}
    assert groups[frozenset({"gpu"})] == {}


@pytest.mark.parametrize(
    ("number", "settings", "resource"),
    [
        (4, NODES, "gres/shard"),
        (4, {}, "gres/shard"),
        (100, {}, "gres/mps"),
        (4, {"partition/small/TRES": "gres/gpu=8,gres/mps=800"}, "gres/mps"),
        (None, NODES, "gres/gpu:l4"),
    ],
)
def test_the_resource_that_slurm_counts(number: int, settings: dict[str, str], resource: str) -> None:
    (site,) = (s for s in sites(fleet(number), "hpc", settings) if s.supply.pool == "small")
    assert site.tres == resource
    assert site.is_limited is (number is None)


def test_a_guarantee_is_of_shards_and_there_is_no_ceiling() -> None:
    objects = by_name(wanted_objects(ground()))
    assert objects["qos vision.small.shared-4.own"]["GrpTRES.gres/shard"] == 8
    assert "GrpTRES.gres/gpu" not in objects["qos vision.small.shared-4.own"]
    assert not any("shard" in field for field in objects["account vision"])


def test_shards_are_accounted_and_count_in_past_use() -> None:
    tracked = next(line for line in required_lines(ground()) if line.parameter == "AccountingStorageTRES")
    assert tracked.value.endswith(",gres/shard")
    weights = {line.partition: line.options["TRESBillingWeights"] for line in partition_lines(ground())}
    assert weights["small"] == weights["small-lent"] == "GRES/gpu=1.0,GRES/shard=0.25"
    assert weights["gpu"] == "GRES/gpu=1.0"


@pytest.mark.parametrize(
    ("number", "codes"),
    [
        (4, {"SharesNotLimited"}),
        (8, {"SharesNotLimited", "SharingNotDeclared"}),
        (None, {"SharingNotDeclared"}),
    ],
)
def test_what_a_plan_says(number: int | None, codes: set[str]) -> None:
    told = [n for n in notices(ground(number)) if n.code.startswith(("Shares", "Sharing"))]
    assert {n.code for n in told} == codes
    assert all("small" in n.message for n in told)
    assert all("shared-4" in n.hint for n in told if n.code == "SharingNotDeclared")


LUA = pytest.mark.skipif(not shutil.which("lua"), reason="no lua here: apt install lua5.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(tmp_path_factory.mktemp("shared"), 4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(tmp_path_factory.mktemp("whole"), None)


@LUA
@pytest.mark.parametrize("request_", ["gres/shard:3", "gres/shard:l4:3", "gres/shard", "gres:shard:1"])
def test_shards_of_a_team_are_governed(folder: Path, request_: str) -> None:
    words = ("account=vision", "partition=small", f"tres_per_node={request_}")
    job = submit(folder, "alice", *words)
    assert (job["code"], job["qos"]) == ("0", "vision.small.shared-4.own,fairway.lent")
    assert (job["partition"], job["tres_per_node"]) == ("small,small-lent", request_)


@LUA
@pytest.mark.parametrize("request_", ["gres/gpu:1", "gres/gpu:l4:1", "gres/mps:50"])
def test_whole_gpus_are_refused_where_jobs_share_them(folder: Path, request_: str) -> None:
    words = ("account=vision", "partition=small", f"tres_per_node={request_}")
    job = submit(folder, "alice", *words)
    if "mps" in request_:
        assert job["qos"] == "fairway.lent", "nothing of the pool: as a job without GPUs"
    else:
        assert "belong to no pool: jobs share them, --gres=shard:N" in job["said"]


@LUA
def test_a_team_without_a_grant_gets_no_shards(folder: Path) -> None:
    words = ("account=vision", "partition=gpu", "tres_per_node=gres/gpu:1")
    assert "has no grant on pool gpu" in submit(folder, "alice", *words)["said"]


@LUA
def test_shards_that_the_pool_does_not_declare_are_on_loan(whole: Path) -> None:
    words = ("account=vision", "partition=small", "tres_per_node=gres/shard:1")
    job = submit(whole, "alice", *words)
    assert (job["qos"], job["partition"]) == ("fairway.lent", "small-lent")
    job = submit(whole, "alice", "account=vision", "partition=small", "tres_per_node=gres/gpu:1")
    assert (job["qos"], job["tres_per_node"]) == ("vision.small.own,fairway.lent", "gres/gpu:l4:1")


def rendered(folder: Path, number: int | None) -> Path:
    settings = {**NODES, f"{names.SITE_QOS}": "normal"}
    (folder / "job_submit.lua").write_text(
        render_slurm(fleet(number), "hpc", found=settings)["job_submit.lua"]
    )
    (folder / "driver.lua").write_text(DRIVER)
    return folder
