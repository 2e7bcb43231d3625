"""What slurmctld shows of partitions and their nodes' GPUs, recorded from the lab's sites."""

from __future__ import annotations

from fairway.engines.slurm.policy.partition_settings import gpu_types, node_groups
from fairway.engines.slurm.policy.partitions import partition_types
from tests.unit.engines.slurm.sites import found_at


def test_limits_of_a_partition_are_named_as_in_slurm_conf() -> None:
    settings = found_at("campus").settings
    assert settings["partition/vip/AllowAccounts"] == "physics,ml_team"
    assert settings["partition/vip/MaxTime"] == "2880"
    assert settings["partition/interactive/AllowQos"] == "normal,debug"
    assert settings["partition/long/MaxNodes"] == "2"
    assert settings["partition/long/DefaultTime"] == "720"
    assert "partition/short/AllowAccounts" not in settings
    mixed = found_at("mixed").settings
    assert (mixed["partition/gpu/AllowGroups"], mixed["partition/gpu/QOS"]) == ("gpuusers", "gpupart")
    assert found_at("priorities").settings["partition/production/PriorityJobFactor"] == "100"


def test_gpus_have_their_type_where_accounting_has_none() -> None:
    settings = found_at("department").settings
    assert "gres/gpu:a100" not in settings["partition/gpu/TRES"]
    assert partition_types(settings, "gpu") == ("a100",)
    assert gpu_types(settings, ("gpu", "cpu")) == {"a100": 24}


def test_nodes_are_counted_once_however_many_partitions_they_are_in() -> None:
    settings = found_at("campus").settings
    assert {tuple(sorted(g.partitions)): g.gpus for g in node_groups(settings) if g.gpus} == {
        ("interactive", "short"): 8,
        ("long", "short"): 8,
        ("long", "short", "vip"): 16,
    }
    assert gpu_types(settings, ("short", "long", "interactive", "vip")) == {"a100": 32}
