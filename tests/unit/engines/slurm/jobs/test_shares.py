"""Jobs that share GPUs by shards or MPS hold parts of them: never nothing, never a whole GPU each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.engines.slurm.jobs import sacct, squeue
from fairway.engines.slurm.jobs.explain import SizedNode, gpus_of
from fairway.engines.slurm.jobs.squeue import FleetLookup, JobDevices, SharesLookup
from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.rest.wire import WireNode
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Devices
from fairway.model.team import Supply
from tests.unit.engines.slurm.jobs.test_mirror import FLEET, record, row

NODES = (
    WireNode("s01", (), ("gpu",), "gpu:a100:4,shard:a100:16", "shard:a100:3(3/4,0/4,0/4,0/4)"),
    WireNode("e01", (), ("gpu",), "gpu:a100:4,shard:a100:32"),
    WireNode("p01", (), ("gpu",), "gpu:a100:2,mps:a100:200"),
    WireNode("k01", (), ("gpu",), "gpu:a100:2,mps:a100:8K"),
    WireNode("o01", (), ("gpu",), "gpu:a100:4,shard:a100:4"),
    WireNode("w01", (), ("gpu",), "gpu:a100:8"),
)


def shared(number: int) -> Supply:
    return Supply(PoolName("gpu"), SliceName(f"shared-{number}"))


def declared(number: int) -> Fleet:
    gpu, *others = FLEET.pools
    return replace(FLEET, pools=(replace(gpu, slices=(SliceName(f"shared-{number}"),)), *others))


def lookup(fleet: Fleet = FLEET, nodes: tuple[WireNode, ...] = NODES) -> FleetLookup:
    return FleetLookup(fleet, PoolMatcher(fleet.pools), SharesLookup(nodes))


@pytest.mark.parametrize(
    ("tres", "asked", "node", "held"),
    [
        ("cpu=1,gres/shard=3", "gres/shard:3", "s01", JobDevices(shared(4), 3)),
        ("cpu=1,gres/shard=3", "gres/shard:3", "e01", JobDevices(shared(8), 3)),
        ("cpu=1,gres/mps=50", "gres/mps:50", "p01", JobDevices(shared(100), 50)),
        ("cpu=1,gres/mps=50", "", "p01", JobDevices(shared(100), 50)),  # as sacct has it
        ("cpu=1", "gres/shard:a100:2", "s01", JobDevices(shared(4), 4)),  # of two nodes, and not accounted
        ("cpu=1", "gres:shard", "s01", JobDevices(shared(4), 2)),
        ("cpu=1,gres/mps=1000", "gres/mps:1000", "k01", JobDevices(shared(100), 25)),  # 4096 a GPU
        ("cpu=1,gres/shard=3", "gres/shard:3", "o01", JobDevices(Supply(PoolName("gpu")), 3)),  # of one a GPU
        (
            "cpu=1,gres/shard=3",
            "gres/shard:3",
            "gone",
            JobDevices(shared(4), 3),
        ),  # as others of the partition
        ("cpu=1,gres/shard=3", "gres/shard:3", "", JobDevices(shared(4), 3)),  # waits
        ("cpu=1,gres/gpu=2,gres/gpu:a100=2", "gres/gpu:2", "s01", JobDevices(Supply(PoolName("gpu")), 2)),
    ],
)
def test_what_a_job_holds_of_a_pool_of_whole_gpus(tres: str, asked: str, node: str, held: JobDevices) -> None:
    assert lookup().devices("gpu", tres, asked, 2, node) == held


def test_a_pool_that_declares_its_shares_counts_whole_gpus_in_them() -> None:
    known = lookup(declared(4))
    assert known.devices("gpu", "gres/shard=3", "", 1, "s01") == JobDevices(shared(4), 3)
    assert known.devices("gpu", "gres/gpu=2,gres/gpu:a100=2", "", 1, "s01") == JobDevices(shared(4), 8)
    assert known.devices("gpu", "gres/gpu=2", "", 1, "w01") == JobDevices(shared(4), 8)
    assert known.devices("gpu", "gres/shard=3", "", 1, "e01") == JobDevices(shared(8), 3)
    assert known.devices("gpu", "gres/shard=3", "", 1, "o01") == JobDevices(shared(4), 12)


def test_without_any_node_that_tells_it_is_at_most_a_gpu_on_each() -> None:
    nothing = lookup(nodes=())
    assert nothing.devices("gpu", "gres/shard=6", "", 2, "s01") == JobDevices(Supply(PoolName("gpu")), 2)
    assert nothing.devices("gpu", "gres/mps=50", "", 1, "p01") == JobDevices(shared(100), 50)
    assert lookup(declared(4), ()).devices("gpu", "gres/shard=6", "", 2, "s01") == JobDevices(shared(4), 6)


def test_shares_of_no_pool_count_as_the_gpus_that_they_are_on() -> None:
    node = WireNode("x01", (), ("other",), "gpu:h100:2,shard:h100:8")
    assert lookup(nodes=(node,)).devices("other", "gres/shard=3", "", 1, "x01") == JobDevices(None, 1)


def test_jobs_of_squeue_and_of_the_accounting() -> None:
    on = {"numnodes": "1", "nodelist": "s01", "tres_alloc": "cpu=1,node=1,gres/shard=3"}
    job = squeue.to_job(row(**on, tres_per_node="gres/shard:3"), lookup())
    assert (job.supply, job.gpus, job.attempts[0].devices) == (shared(4), 3, 3)
    past = sacct.to_job([record(nnodes="1", nodelist="s01", alloctres="cpu=1,gres/shard=3")], lookup())
    assert (past.supply, past.gpus, past.attempts[0].devices) == (shared(4), 3, 3)


def test_what_is_learnt_of_nodes_counts_at_once() -> None:
    known = lookup(nodes=())
    assert known.devices("gpu", "gres/shard=3", "", 1, "s01").devices == 1
    known.learn(SharesLookup(NODES))
    assert known.devices("gpu", "gres/shard=3", "", 1, "s01") == JobDevices(shared(4), 3)


GRES, USED = "gpu:a100:4,shard:a100:16", "gpu:a100:1(IDX:2),shard:a100:5(1/4,4/4,0/4,0/4)"


def test_a_node_of_a_pool_of_whole_gpus_has_no_second_capacity_for_its_shards() -> None:
    (devices,) = PoolMatcher(FLEET.pools).devices(("gpu",), GRES, USED)
    assert devices == Devices(PoolName("gpu"), "gpu:a100", None, total=4, in_use=3)


@pytest.mark.parametrize(
    ("number", "used", "total", "in_use"),
    [
        (4, USED, 16, 9),
        (8, USED, 32, 18),
        (2, USED, 8, 5),  # a quarter of a GPU takes one of two halves
        (4, "gpu:a100:0(IDX:N/A),mps:a100:150(50/100,100/100,0/100,0/100)", 16, 6),
        (4, "gpu:a100:4(IDX:0-3),shard:a100:0(-/4,-/4,-/4,-/4)", 16, 16),
    ],
)
def test_a_node_of_a_pool_of_shared_gpus(number: int, used: str, total: int, in_use: int) -> None:
    (devices,) = PoolMatcher(declared(number).pools).devices(("gpu",), GRES, used)
    slice_ = SliceName(f"shared-{number}")
    assert devices == Devices(PoolName("gpu"), "gpu:a100", slice_, total, in_use)


def test_gpus_with_used_shares_are_not_free_as_a_whole() -> None:
    assert gpus_of(SizedNode("s01", gres=GRES, gres_used=USED), "a100") == (4, 1)
