"""Replies recorded from real clusters of each version (record.py), read as the engine reads them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.nodes.observe import to_node
from fairway.engines.slurm.rest.wire import NodesReply, PartitionsReply, Reply
from fairway.model.fleet import Capacity, Pool, SlurmPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node

REPLIES = Path(__file__).parent / "replies"
VERSIONS = ["24.11.5", "26.05.5"]


def recorded(version: str, name: str) -> tuple[int, bytes]:
    kept = json.loads((REPLIES / version / f"{name}.json").read_text())
    return kept["status"], json.dumps(kept["body"]).encode()


def pool(name: str, place: SlurmPlace, *slices: str) -> Pool:
    return Pool(
        PoolName(name),
        ClusterName("hpc"),
        GpuType("A100-80GB", memory_gb=80),
        Capacity.OWNED,
        Decimal(1),
        place,
        slices=tuple(SliceName(profile) for profile in slices),
    )


CLAIMS = PoolMatcher([pool("a100", SlurmPlace("gpu", "a100")), pool("mig", SlurmPlace("mig"), "1g.10gb")])


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def nodes(version: str) -> dict[str, Node]:
    _, body = recorded(version, "nodes")
    return {wire.name: to_node(wire, CLAIMS) for wire in msgspec.json.decode(body, type=NodesReply).nodes}


def gpus(
    in_use: int, pool: str | None = "a100", kind: str = "gpu:a100", total: int = 8
) -> tuple[Devices, ...]:
    return (Devices(PoolName(pool) if pool else None, kind, None, total, in_use),)


def test_the_reply_names_its_version(version: str) -> None:
    _, body = recorded(version, "nodes")
    assert msgspec.json.decode(body, type=NodesReply).meta.slurm.release == version


def test_a_well_node(nodes: dict[str, Node]) -> None:
    assert nodes["gpu002"] == Node(NodeName("gpu002"), Health.READY, "", gpus(0))


def test_a_drained_node_with_jobs_and_who_drained_it_when(version: str, nodes: dict[str, Node]) -> None:
    drained = nodes["gpu001"]
    assert drained.health is Health.DRAINED
    assert drained.devices == gpus({"24.11.5": 6, "26.05.5": 3}[version])
    assert drained.reason.startswith("fan is noisy, see T-7 (root, 20")
    assert drained.reason.endswith(" UTC)")


def test_a_node_in_maintenance_names_the_reservation(nodes: dict[str, Node]) -> None:
    assert nodes["gpu003"].health is Health.DRAINED
    assert nodes["gpu003"].reason == "in a maintenance reservation: m1"


def test_a_node_whose_slurmd_died(nodes: dict[str, Node]) -> None:
    assert nodes["gpu004"].health is Health.DOWN
    assert nodes["gpu004"].reason.startswith("Not responding (slurm, 20")
    assert nodes["gpu004"].devices == gpus(0)


def test_slices_of_a_pool_and_slices_of_none(nodes: dict[str, Node]) -> None:
    assert nodes["mig001"].devices == (
        Devices(PoolName("mig"), "gpu:1g.10gb", SliceName("1g.10gb"), total=4, in_use=2),
        Devices(None, "gpu:3g.40gb", SliceName("3g.40gb"), total=2, in_use=0),
    )


def test_a_gpu_that_is_shared_out_counts_as_in_use(nodes: dict[str, Node]) -> None:
    """Two are held whole and three of the sixteen shards lie on a third one."""
    assert nodes["shr001"].devices == gpus(3, pool=None, kind="gpu:l4", total=4)


def test_gpus_without_a_type(nodes: dict[str, Node]) -> None:
    assert nodes["unt001"].devices == gpus(2, pool=None, kind="gpu", total=4)


def test_a_powered_down_cloud_node_is_there_to_be_had(nodes: dict[str, Node]) -> None:
    assert nodes["cloud001"].health is Health.READY
    assert nodes["cloud001"].devices == gpus(0, pool=None)


def test_partitions(version: str) -> None:
    _, body = recorded(version, "partitions")
    found = {partition.name for partition in msgspec.json.decode(body, type=PartitionsReply).partitions}
    assert {"gpu", "mig", "dynamic"} <= found


def test_a_rejected_token(version: str) -> None:
    status, body = recorded(version, "rejected")
    (fault,) = msgspec.json.decode(body, type=Reply).errors
    assert (status, fault.error_number) == (511, 1007)
