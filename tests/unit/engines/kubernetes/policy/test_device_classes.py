"""Pools whose GPUs pods claim: quota, flavors, the line that Kueue needs, and what the plan says of them."""

from __future__ import annotations

import json

from fairway.engines.kubernetes.policy.device_classes import MAPPINGS, MISSING_CLASSES, mappings_setting
from fairway.engines.kubernetes.policy.translate import translate
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.objects import Translation
from tests.unit.engines.kubernetes.policy.fleets import HEAD, JOBS_ONLY, applied, fields_of, nothing

CLOUD = ClusterName("cloud")
POOLS = """
  claimed:
    cluster: cloud
    gpu: H100-80GB
    capacity: owned
    price: 3
    kubernetes: { device_class: gpu.example.com, node_labels: { pool: claimed } }
  cut:
    cluster: cloud
    gpu: A100-80GB
    slices: [3g.40gb, 1g.10gb]
    capacity: owned
    price: 2
    kubernetes:
      device_classes: { 3g.40gb: big.example.com, 1g.10gb: small.example.com }
      node_labels: { pool: cut }
"""
SHARED = """
  shared:
    cluster: cloud
    gpu: L40S
    slices: [shared-4]
    capacity: owned
    price: 1
    kubernetes: { node_labels: { pool: shared } }
"""
TEAMS = """
teams:
  research:
    guarantee: { a100: 8, claimed: 6, cut/3g.40gb: 2, shared/shared-4: 8 }
    borrow: { a100: 0, claimed: 2, cut/3g.40gb: 0, shared/shared-4: 4 }
"""
SIZES = {
    "capacity.claimed": "16",
    "capacity.cut/3g.40gb": "2",
    "capacity.cut/1g.10gb": "0",
    "capacity.shared/shared-4": "32",
}
MAPPED = {
    MAPPINGS: mappings_setting(
        {
            "deviceClassMappings": [
                {"name": f"{name}.example.com/gpu", "deviceClassNames": [f"{name}.example.com"]}
                for name in ("gpu", "big", "small")
            ]
        }
    )
}


def fleet() -> Fleet:
    return parse_fleet(HEAD + POOLS + SHARED + TEAMS, "fleet.yaml")


def made(**settings: str) -> Translation:
    return translate(fleet(), CLOUD, nothing(**SIZES, **settings))


def test_quota_is_of_the_resource_that_kueue_counts_claims_by() -> None:
    groups = fields_of(made(), "ClusterQueue", "research")
    quota = {key.partition("resources[")[2]: value for key, value in groups.items() if "nominalQuota" in key}
    assert quota == {
        "nvidia.com/gpu].nominalQuota": 8,
        "gpu.example.com/gpu].nominalQuota": 6,
        "big.example.com/gpu].nominalQuota": 2,
        "small.example.com/gpu].nominalQuota": 0,
        "nvidia.com/gpu.shared].nominalQuota": 8,
        "fairway.dev/anywhere].nominalQuota": 0,
    }


def test_what_is_not_guaranteed_of_claimed_and_shared_gpus_is_lent() -> None:
    root = fields_of(made(), "Cohort", "fairway.fleet")
    lent = {key.partition("resources[")[2]: value for key, value in root.items() if "nominalQuota" in key}
    assert lent["gpu.example.com/gpu].nominalQuota"] == 10
    assert lent["nvidia.com/gpu.shared].nominalQuota"] == 24


def test_flavors_of_claimed_gpus_have_no_topology() -> None:
    """Kueue 0.19 never admits a claim in a flavor with a topology: it looks for the devices on nodes."""
    wanted = made()
    assert "spec.topologyName" not in fields_of(wanted, "ResourceFlavor", "claimed")
    assert "spec.topologyName" not in fields_of(wanted, "ResourceFlavor", "cut")
    assert fields_of(wanted, "ResourceFlavor", "shared")["spec.topologyName"] == "shared"
    topologies = {o.key.name for o in wanted.objects if o.key.kind == "Topology"}
    assert topologies == {"a100", "mig", "spot", "shared"}


def test_a_resource_quota_counts_pods_of_extended_resources_alone() -> None:
    hard = fields_of(made(**JOBS_ONLY), "ResourceQuota", "research/fairway-ceiling")
    assert {key.partition("requests.")[2] for key in hard} == {"nvidia.com/gpu]", "nvidia.com/gpu.shared]"}


def test_applying_it_leaves_nothing_to_do() -> None:
    wanted = made()
    again = translate(fleet(), CLOUD, applied(wanted, **SIZES))
    assert {o.key: o.fields for o in again.objects} == {o.key: o.fields for o in wanted.objects}


def test_kueue_must_map_the_classes() -> None:
    [advice] = [a for a in made().advice if "deviceClassMappings" in a.line]
    assert advice.line == (
        "resources: {deviceClassMappings: ["
        "{name: big.example.com/gpu, deviceClassNames: [big.example.com]}, "
        "{name: gpu.example.com/gpu, deviceClassNames: [gpu.example.com]}, "
        "{name: small.example.com/gpu, deviceClassNames: [small.example.com]}]}"
    )
    assert not [a for a in made(**MAPPED).advice if "deviceClassMappings" in a.line]


def test_mappings_of_other_classes_stay_and_a_wrong_name_is_corrected() -> None:
    have = {"nic.example.com": "nic.example.com/nic", "gpu.example.com": "whole-gpus"}
    [advice] = [a for a in made(**{MAPPINGS: json.dumps(have)}).advice if "deviceClassMappings" in a.line]
    assert "{name: nic.example.com/nic, deviceClassNames: [nic.example.com]}" in advice.line
    assert "{name: gpu.example.com/gpu, deviceClassNames: [gpu.example.com]}" in advice.line
    assert "whole-gpus" not in advice.line and "whole-gpus" in advice.running


def test_a_plan_says_what_kueue_does_not_do_for_claims_and_which_class_is_missing() -> None:
    notices = {n.code: n for n in made(**{MISSING_CLASSES: "small.example.com"}).notices}
    assert "claimed, cut" in notices["ClaimsNotPlaced"].message
    assert "small.example.com" in notices["DeviceClassMissing"].message
    assert "DeviceClassMissing" not in {n.code for n in made().notices}
