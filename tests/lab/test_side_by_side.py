"""Both Slurm versions and two Kubernetes clusters at once, and then not a trace of any."""

from __future__ import annotations

import pytest

from tests.lab.driving import LOOPBACK, addresses_of, assert_nothing_is_left, lab, ports, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.mark.nightly("four clusters at once; test_slurm.py runs two of them in CI, and each stage has others")
def test_four_clusters_live_side_by_side_and_leave_nothing() -> None:
    clusters = [
        up("slurm", "beside-24", "--version", "24.11", "--nodes", "2"),
        up("slurm", "beside-26", "--version", "26.05", "--nodes", "2"),
        up("kubernetes", "beside-one", "--nodes", "2"),
        up("kubernetes", "beside-two", "--nodes", "2", "--real-nodes", "1"),
    ]
    try:
        assert [cluster.state for cluster in clusters] == ["up"] * 4
        taken = [ports(cluster) for cluster in clusters]
        assert len(set().union(*taken)) == sum(map(len, taken)), "two of them share a port"
        for cluster in clusters:
            assert set(addresses_of(cluster).values()) == {LOOPBACK}
        for name in ("beside-24", "beside-26"):
            assert lab("run", name, "sinfo", "-h", "-p", "gpu", "-o", "%D").strip() == "2"
        for name, nodes in (("beside-one", 3), ("beside-two", 4)):  # each has a node with slices too
            assert len(lab("run", name, "kubectl", "get", "nodes", "-o", "name").split()) == nodes
        lab("down", *(cluster.name for cluster in clusters))
        for cluster in clusters:
            assert_nothing_is_left(cluster)
    finally:
        lab("wipe", *(cluster.name for cluster in clusters))
