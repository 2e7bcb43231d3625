"""The configuration of a cluster follows from its size and ports."""

from __future__ import annotations

import pytest

from lab.slurm import config
from lab.slurm.config import Layout


def layout(nodes: int, version: str = "24.11") -> Layout:
    return Layout(version, "host", nodes, 20_000, 20_001, range(20_003, 20_003 + nodes + 1))


@pytest.mark.parametrize(
    ("nodes", "names", "ports"),
    [
        (1, "gpu[001-001]", "[20003-20003]"),
        (4, "gpu[001-004]", "[20003-20006]"),
        (1000, "gpu[001-1000]", "[20003-21002]"),
    ],
)
def test_every_node_has_a_port_of_its_own(nodes: int, names: str, ports: str) -> None:
    text = config.slurm(layout(nodes))
    assert f"NodeName={names} NodeHostname=host NodeAddr=127.0.0.1 Port={ports} " in text
    assert f"NodeName=mig001 NodeHostname=host NodeAddr=127.0.0.1 Port={20_003 + nodes} " in text
    assert len(layout(nodes).node_names) == len(layout(nodes).node_ports)


def test_starts_are_calmed_only_on_a_large_cluster() -> None:
    assert "sched_max_job_start" not in config.slurm(layout(40))
    assert "sched_max_job_start=40" in config.slurm(layout(41))


def test_metrics_are_asked_for_only_where_slurm_has_them() -> None:
    assert "MetricsType" not in config.slurm(layout(4, "24.11"))
    assert "MetricsType" in config.slurm(layout(4, "26.05"))


def test_what_a_policy_sets_is_not_set_twice() -> None:
    policy = [
        "PartitionName=gpu PriorityTier=10",
        "PartitionName=gpu-lent Nodes=gpu001",
        "priorityweightqos=7",
    ]
    text = config.slurm(layout(4), policy)
    assert "PartitionName=gpu Nodes=gpu[001-004] Default=YES PriorityTier=10\n" in text
    assert "PartitionName=mig Nodes=mig001\n" in text
    assert config.policy_file(layout(4), policy).splitlines()[1:] == policy[1:]
    assert "PriorityWeightQOS" not in text
    assert text.endswith("Include policy.conf\n")


def test_every_node_stands_in_one_rack() -> None:
    made = Layout("24.11", "host", 3, 20_000, 20_001, range(20_003, 20_009), spot_nodes=2)
    assert config.topology(made).splitlines() == [
        "SwitchName=rack1 Nodes=gpu001,gpu002",
        "SwitchName=rack2 Nodes=gpu003",
        "SwitchName=rack3 Nodes=mig001,spot001,spot002",
        "SwitchName=core Switches=rack[1-3]",
    ]
    assert "PartitionName=spot Nodes=spot[001-002]" in config.slurm(made)
    assert "Port=[20007-20008] Gres=gpu:a100:8" in config.slurm(made)
