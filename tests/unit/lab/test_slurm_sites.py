"""The sites of the lab: each is a whole cluster, and the lab adds only what this machine needs."""

from __future__ import annotations

import re

import pytest

from lab.errors import LabError
from lab.slurm import config
from lab.slurm.config import Layout
from lab.slurm.site import Site, expanded, site_names


def layout(name: str, *, partition_qos: bool = True) -> Layout:
    site = Site(name)
    ports = range(20_003, 20_003 + len(site.node_names))
    return Layout("24.11", "host", 4, 20_000, 20_001, ports, site=site, partition_qos=partition_qos)


def test_there_are_eleven_sites() -> None:
    assert len(site_names()) == 11
    with pytest.raises(LabError, match="no site nowhere"):
        Site("nowhere")


@pytest.mark.parametrize("name", site_names())
def test_a_site_is_a_whole_cluster(name: str) -> None:
    site = Site(name)
    text = config.slurm(layout(name))
    nodes = set(site.node_names)
    assert nodes
    for line in text.splitlines():
        if found := re.match(r"PartitionName=\S+ Nodes=(\S+)", line):
            assert set(expanded(found[1])) <= nodes, line
        if line.startswith("NodeName=") and "DEFAULT" not in line:
            assert "NodeAddr=127.0.0.1 Port=" in line
    for line in site.lines("gres.conf"):
        assert set(expanded(line.split()[0].removeprefix("NodeName="))) <= nodes
    parameters = [line.split("=")[0].lower() for line in text.splitlines() if "Name=" not in line]
    assert len(parameters) == len(set(parameters)), "a parameter is set twice"


@pytest.mark.parametrize("name", site_names())
def test_a_site_is_not_tuned_to_fairway(name: str) -> None:
    """What the lab's own cluster has for Fairway's sake is not on a site's."""
    text = config.slurm(layout(name)).lower()
    assert "preempt/qos" not in text
    assert "fairway." not in text
    assert ("jobsubmitplugins" in text) == bool(Site(name).text("job_submit.lua"))


def test_the_first_start_is_without_the_qos_of_partitions() -> None:
    assert "QoS=gpupart" in config.slurm(layout("mixed"))
    assert "QoS=" not in config.slurm(layout("mixed", partition_qos=False))


def test_a_site_without_accounting_has_no_database() -> None:
    assert "slurmdbd" not in config.slurm(layout("standalone"))
    assert "AccountingStorageHost" in config.slurm(layout("department"))


def test_a_policy_adds_to_the_partition_of_a_site() -> None:
    text = config.slurm(layout("department"), ["PartitionName=gpu PriorityTier=10", "PriorityWeightAge=5"])
    assert re.search(r"PartitionName=gpu Nodes=.* MaxTime=2-00:00:00 .* PriorityTier=10$", text, re.MULTILINE)
    assert "PriorityWeightAge" not in text  # it comes by the include
    assert "PartitionName=gpu" not in config.policy_file(layout("department"), ["PartitionName=gpu X=1"])


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("gpu[01-03]", ["gpu01", "gpu02", "gpu03"]),
        ("n[01-02],fat01", ["n01", "n02", "fat01"]),
        ("g[001,003-004]", ["g001", "g003", "g004"]),
    ],
)
def test_lists_of_hosts(hosts: str, names: list[str]) -> None:
    assert expanded(hosts) == tuple(names)
