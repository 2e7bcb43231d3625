"""The second partition of a pool is as limited as the site's own."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import found_settings, notices
from fairway.engines.slurm.policy.partition_lines import is_right, partition_lines
from fairway.engines.slurm.policy.translate import PolicyContext, wanted_objects
from fairway.files import parse_fleet
from fairway.policy.objects import FoundObject
from tests.unit.engines.slurm.policy.made import HEAD, by_name

TEAMS = "teams:\n  physics: { guarantee: { gpu: 8 }, members: [alice] }\n"
UNSET = {"set": False, "infinite": True, "number": 0}


def number(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


def record(name: str, nodes: str = "g[001-004]", **changes: Any) -> dict[str, Any]:
    """A partition as slurmrestd 24.11.5 shows it (campus, interactive)."""
    return {
        "name": name,
        "nodes": {"allowed_allocation": "", "configured": nodes, "total": 4},
        "accounts": {"allowed": changes.get("accounts", ""), "deny": ""},
        "groups": {"allowed": changes.get("groups", "")},
        "qos": {"allowed": changes.get("qos", ""), "deny": "", "assigned": changes.get("assigned", "")},
        "tres": {"billing_weights": "", "configured": "cpu=256,gres/gpu=32,gres/gpu:a100=32"},
        "defaults": {
            "memory_per_cpu": -9223372036854771808,
            "partition_memory_per_cpu": number(4000),
            "partition_memory_per_node": {"set": False, "infinite": False, "number": 0},
            "time": number(60),
            "job": "DefCPUPerGPU=4",
        },
        "grace_time": 0,
        "maximums": {
            "cpus_per_node": number(48),
            "cpus_per_socket": UNSET,
            "partition_memory_per_cpu": {"set": False, "infinite": False, "number": 0},
            "partition_memory_per_node": number(0),
            "nodes": number(2),
            "oversubscribe": {"jobs": 1, "flags": []},
            "time": number(2880),
            "over_time_limit": {"set": False, "infinite": False, "number": 0},
        },
        "minimums": {"nodes": 0},
        "priority": {"job_factor": 1, "tier": changes.get("tier", 1)},
        "partition": {"state": ["UP"]},
    }


def context(*records: dict[str, Any], **settings: str) -> PolicyContext:
    others = ", ".join(r["name"] for r in records[1:] if not r["name"].endswith("-lent"))
    place = f"{{ partition: gpu, gres: a100, other_partitions: [{others}] }}"
    fleet = parse_fleet(HEAD.replace("{ partition: gpu, gres: a100 }", place) + TEAMS, "fleet.yaml")
    found = found_settings({"partitions": records}, None)
    return PolicyContext.of(fleet, "hpc", found | {names.SITE_QOS: "debug,long,normal"} | settings)


def line(here: PolicyContext, partition: str) -> dict[str, str]:
    text = {w.partition: w.line for w in partition_lines(here)}[partition]
    return dict(word.split("=", 1) for word in text.split()[1:])


def test_the_second_partition_has_every_limit_and_rule_of_the_first() -> None:
    lent = line(context(record("gpu", accounts="physics,ml_team", groups="gpuusers")), "gpu-lent")
    assert lent == {
        "Nodes": "g[001-004]",
        "PriorityTier": "0",
        "TRESBillingWeights": "GRES/gpu=1.0",
        "AllowAccounts": "physics,ml_team",
        "AllowGroups": "gpuusers",
        "DefMemPerCPU": "4000",
        "DefaultTime": "01:00:00",
        "MaxCPUsPerNode": "48",
        "MaxNodes": "2",
        "MaxTime": "2-00:00:00",
        "DefCpuPerGPU": "4",
    }


def test_a_qos_that_was_not_allowed_is_denied_and_ours_need_not_be_named() -> None:
    here = context(record("gpu", qos="normal,debug"))
    for partition in ("gpu", "gpu-lent"):
        assert line(here, partition)["AllowQos"] == "ALL"
        assert line(here, partition)["DenyQos"] == "long"


def test_the_sites_tiers_stay_where_there_is_room_below_them() -> None:
    here = context(record("gpu", tier=20), record("long", tier=10), record("vip", tier=50))
    tiers = {
        p: line(here, p)["PriorityTier"] for p in ("gpu", "long", "vip", "gpu-lent", "long-lent", "vip-lent")
    }
    assert tiers == {
        "gpu": "20",
        "long": "10",
        "vip": "50",
        "gpu-lent": "1",
        "long-lent": "0",
        "vip-lent": "2",
    }


def test_tiers_are_raised_alike_where_there_is_none() -> None:
    here = context(record("gpu", tier=1), record("vip", tier=2))
    tiers = {p: line(here, p)["PriorityTier"] for p in ("gpu", "vip", "gpu-lent", "vip-lent")}
    assert tiers == {"gpu": "2", "vip": "3", "gpu-lent": "0", "vip-lent": "1"}


def test_the_qos_of_a_partition_keeps_its_limits() -> None:
    here = context(record("gpu", assigned="gpupart"))
    assert line(here, "gpu")["QOS"] == "fairway.gate.gpu"
    assert line(here, "gpu-lent")["QOS"] == "gpupart"
    limits = {"MaxTRESPerUser.gres/gpu": 4, "MaxJobsPerUser": 10, "Priority": 7}
    objects = by_name(wanted_objects(here, (FoundObject(names.qos_key("gpupart"), limits, ours=False),)))
    assert objects["qos fairway.gate.gpu"] == {
        "MaxTRESPerUser.gres/gpu": 4,
        "MaxJobsPerUser": 10,
        "MaxJobsPerAccount": 0,
    }


@pytest.mark.parametrize("qos", ["", "normal,debug"])
@pytest.mark.parametrize("assigned", ["", "gpupart"])
def test_what_is_installed_is_what_is_rendered_again(qos: str, assigned: str) -> None:
    before = [record("gpu", qos=qos, assigned=assigned, tier=1), record("vip", accounts="physics", tier=2)]
    first = list(partition_lines(context(*before)))
    names_of = {"AllowQos", "DenyQos"}
    running = dict(context(*before).settings)
    for wanted in first:  # the second partitions come to be; ALL is shown as nothing
        for key, value in wanted.options.items():
            running[f"partition/{wanted.partition}/{key}"] = value
        if wanted.options.keys() & names_of:
            running.pop(f"partition/{wanted.partition}/AllowQos", None)
    here = context(*before)
    after = PolicyContext.of(here.fleet, "hpc", running)
    assert list(partition_lines(after)) == first
    assert all(is_right(wanted, running) for wanted in first)
    assert not all(is_right(wanted, here.settings) for wanted in first)


def test_a_partition_with_several_types_is_named_in_the_plan() -> None:
    here = PolicyContext.of(parse_fleet(HEAD + TEAMS, "fleet.yaml"), "hpc", {})
    named = [n.message for n in notices(here) if n.code == "TypeMustBeNamed"]
    assert len(named) == 1
    assert "partition mig must name a type" in named[0]
