"""A policy that people made by hand, in the fleet's words."""

from __future__ import annotations

from dataclasses import replace

from fairway.engines.kubernetes import KubernetesEngine
from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy.fields import flatten
from fairway.engines.kubernetes.policy.import_ import import_policy
from fairway.engines.kubernetes.policy.translate import translate
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet, KubernetesPlace
from fairway.model.names import ClusterName
from fairway.model.team import Grant, Supply
from fairway.policy.objects import FoundObject, FoundPolicy, GpuWorkload, ObjectKey
from fairway.policy.plan import compute_changes
from tests.unit.engines.kubernetes.policy.fleets import FAMILY, SETTINGS, applied, fleet, nothing

CLOUD = ClusterName("cloud")
GPU = "nvidia.com/gpu"
ALONE = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  cloud: { engine: kubernetes, kubeconfig: /nowhere }
"""


def test_what_fairway_wrote_is_read_back() -> None:
    """The round trip: nothing is lost, and the plan of what was read is empty."""
    wanted = translate(fleet(FAMILY), CLOUD, nothing())
    read = import_policy(_without_teams(fleet()), applied(wanted))
    assert {t.name: t for t in read.fleet.teams} == {t.name: t for t in fleet().teams}
    assert read.fleet.priorities == fleet().priorities
    again = translate(read.fleet, CLOUD, applied(wanted))
    assert not compute_changes(again, applied(wanted))


def _without_teams(whole: Fleet) -> Fleet:
    return replace(whole, teams=(), chosen_teams={})


def _quota(flavor: str, nominal: int, **more: int) -> list[object]:
    resources = [{"name": GPU, "nominalQuota": str(nominal), **{k: str(v) for k, v in more.items()}}]
    return [{"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": resources}]}]


def _found(*objects: tuple[kinds.ObjectKind, str, dict[str, object]]) -> FoundPolicy:
    return FoundPolicy(
        "kubernetes v1.36.3, kueue v0.19.2",
        tuple(
            FoundObject(ObjectKey(k.name, name), flatten(k, body), ours=False) for k, name, body in objects
        ),
        SETTINGS,
    )


HAND_MADE = _found(
    (kinds.FLAVOR, "h100", {"spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}),
    (kinds.COHORT, "all", {"spec": {}}),
    (
        kinds.COHORT,
        "science",
        {"spec": {"parentName": "all", "resourceGroups": _quota("h100", 4, borrowingLimit=8)}},
    ),
    (
        kinds.CLUSTER_QUEUE,
        "bio-cq",
        {
            "spec": {
                "cohortName": "science",
                "resourceGroups": _quota("h100", 8),
                "queueingStrategy": "StrictFIFO",
                "fairSharing": {"weight": "3"},
            }
        },
    ),
    (kinds.CLUSTER_QUEUE, "alone", {"spec": {"resourceGroups": _quota("h100", 2)}}),
    (kinds.LOCAL_QUEUE, "bio/main", {"spec": {"clusterQueue": "bio-cq"}}),
    (kinds.LOCAL_QUEUE, "alone/q", {"spec": {"clusterQueue": "alone", "stopPolicy": "Hold"}}),
    (kinds.RESOURCE_QUOTA, "legacy/gpus", {"spec": {"hard": {"requests.nvidia.com/gpu": "4", "pods": "10"}}}),
    (
        kinds.ROLE_BINDING,
        "bio/editors",
        {
            "roleRef": {"kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "User", "name": "alice"}, {"kind": "Group", "name": "bio-people"}],
        },
    ),
    (kinds.PRIORITY_CLASS, "high", {"value": 1000}),
    (kinds.PRIORITY_CLASS, "standard", {"value": 0}),
)


def test_hand_made_queues_become_teams() -> None:
    read = import_policy(parse_fleet(ALONE, "fleet.yaml"), HAND_MADE)
    teams = {str(t.name): t for t in read.fleet.teams}
    supply = Supply(read.fleet.pools[0].name)
    assert list(teams) == ["science", "bio", "alone", "legacy"]
    assert teams["science"].grants == (Grant(supply, 12, 8),)  # with bio's 8 inside
    assert teams["bio"].parent == "science"
    assert teams["bio"].grants == (Grant(supply, 8, None),)
    assert (teams["bio"].share, teams["bio"].members) == (3, ("alice",))
    assert teams["alone"].grants == (Grant(supply, 2, 0),)  # in no cohort: nothing to borrow from
    assert teams["alone"].draining
    assert teams["legacy"].grants == (Grant(supply, 0, 4),)
    assert [(p.name, p.rank, p.default) for p in read.fleet.priorities] == [
        ("high", 1050, False),
        ("standard", 50, True),
    ]


def test_a_flavor_becomes_a_pool() -> None:
    (pool,) = import_policy(parse_fleet(ALONE, "fleet.yaml"), HAND_MADE).fleet.pools
    assert (str(pool.name), pool.gpu.name) == ("h100", "H100-80GB")
    assert pool.price == 0


def test_what_has_no_word_is_remarked() -> None:
    said = {
        (r.about, r.text.partition(":")[0]) for r in import_policy(parse_fleet(ALONE, "f"), HAND_MADE).remarks
    }
    assert ("ClusterQueue bio-cq", "StrictFIFO") in said
    assert any(about == "RoleBinding bio/editors" for about, _ in said)
    assert any(about == "ResourceFlavor h100" and "Topology" in text for about, text in said)


def test_gpus_that_no_queue_counts_become_pools() -> None:
    """A cluster with Kueue but without queues: what its nodes have is all there is to write down."""
    products = {
        "NVIDIA-H100-80GB-HBM3": ["nvidia.com/gpu"],
        "NVIDIA-A100-SXM4-80GB-MIG": [
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-3g.40gb",
            "nvidia.com/mig-1g.10gb",
        ],
        "Somebody-Elses": ["nvidia.com/gpu"],
    }

    read = import_policy(parse_fleet(ALONE, "fleet.yaml"), FoundPolicy("v1.36.3", (), {}), products)

    assert [(str(p.name), p.gpu.name, p.slices) for p in read.fleet.pools] == [
        ("a100-80gb-mig", "A100-80GB", ("1g.10gb", "3g.40gb")),
        ("h100-80gb", "H100-80GB", ()),
    ]
    assert {r.about for r in read.remarks} >= {"pool a100-80gb-mig", "pool h100-80gb"}


def test_gpus_that_a_flavor_counts_are_not_written_twice() -> None:
    (pool,) = import_policy(
        parse_fleet(ALONE, "fleet.yaml"), HAND_MADE, {"NVIDIA-H100-80GB-HBM3": ["nvidia.com/gpu"]}
    ).fleet.pools
    assert str(pool.name) == "h100"


TWO_FLAVORS = [
    {
        "coveredResources": [GPU],
        "flavors": [
            {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "32"}]},
            {"name": "spot", "resources": [{"name": GPU, "nominalQuota": "8"}]},
        ],
    }
]
SHARED_QUEUE = _found(
    (kinds.FLAVOR, "h100", {"spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}),
    (kinds.FLAVOR, "spot", {"spec": {"nodeLabels": {"pool": "spot"}}}),
    (
        kinds.CLUSTER_QUEUE,
        "everyone",
        {"spec": {"resourceGroups": TWO_FLAVORS}},
    ),
    (kinds.LOCAL_QUEUE, "team-a/queue", {"spec": {"clusterQueue": "everyone"}}),
    (kinds.LOCAL_QUEUE, "interns/queue", {"spec": {"clusterQueue": "everyone"}}),
    (kinds.LOCAL_QUEUE, "default/queue", {"spec": {"clusterQueue": "everyone"}}),
    (
        kinds.RESOURCE_QUOTA,
        "team-a/compute",
        {"spec": {"hard": {"requests.nvidia.com/gpu": "12", "count/jobs.batch": "20"}}},
    ),
)


def test_namespaces_that_share_a_queue_are_teams_inside_it() -> None:
    read = import_policy(parse_fleet(ALONE, "fleet.yaml"), SHARED_QUEUE)
    assert {str(t.name): t.parent for t in read.fleet.teams} == {
        "everyone": None,
        "interns": "everyone",
        "team-a": "everyone",
    }
    team = next(t for t in read.fleet.teams if t.name == "team-a")
    assert {str(g.supply): g.ceiling for g in team.grants} == {"h100": 12, "spot": 12}


def test_what_quotas_count_otherwise_and_namespaces_outside_teams_are_named() -> None:
    said = [f"{r.about}: {r.text}" for r in import_policy(parse_fleet(ALONE, "f"), SHARED_QUEUE).remarks]
    assert any("count/jobs.batch=20 has no word here and stays" in text for text in said)
    assert any("requests.nvidia.com/gpu=12 counts the GPUs of h100, spot together" in text for text in said)
    assert any(text.startswith("Namespace default: ") for text in said)


def test_workloads_that_no_queue_counts_are_named_by_what_people_created() -> None:
    found = replace(
        SHARED_QUEUE,
        workloads=(
            GpuWorkload("StatefulSet", "lab", "v1-0", 2, 4, "2026-11-17T11:52:00Z", ("Notebook", "v1")),
            GpuWorkload("Deployment", "lab", "chat", 1, 2, "2026-11-17T11:53:00Z"),
        ),
    )
    remarks = import_policy(parse_fleet(ALONE, "f"), found).remarks
    (said,) = [r.text for r in remarks if r.about == "Namespace lab" and "no queue counts" in r.text]
    assert "Notebook lab/v1 (4 GPUs since 2026-11-17 11:52), Deployment lab/chat (2 GPUs since" in said
    assert said.startswith("is no team here")


def test_a_cluster_without_kueue_has_pools_of_its_nodes_and_teams_of_its_quotas() -> None:
    hard: dict[str, object] = {"spec": {"hard": {"requests.nvidia.com/gpu": "16"}}}
    quota = (kinds.RESOURCE_QUOTA, "vision/gpus", hard)
    found = replace(_found(quota), settings={"kueue": "not installed"})
    read = import_policy(parse_fleet(ALONE, "f"), found, {"NVIDIA-H100-80GB-HBM3": ["nvidia.com/gpu"]})
    (pool,) = read.fleet.pools
    assert [(t.name, t.grants) for t in read.fleet.teams] == [("vision", (Grant(Supply(pool.name), 0, 16),))]
    assert any(r.about == "Kueue" for r in read.remarks)
    engine = KubernetesEngine(read.fleet.clusters[0], read.fleet.pools)
    wanted = engine.translate(read.fleet, found)
    assert (wanted.objects, [n.code for n in wanted.notices]) == ((), ["NoKueue"])


def _counting(resource: str, **settings: str) -> FoundPolicy:
    """A queue of 8 of a resource on H100s."""
    resources = [{"name": resource, "nominalQuota": "8"}]
    groups = [{"coveredResources": [resource], "flavors": [{"name": "h100", "resources": resources}]}]
    flavor: dict[str, object] = {"spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}
    found = _found(
        (kinds.FLAVOR, "h100", flavor), (kinds.CLUSTER_QUEUE, "cq", {"spec": {"resourceGroups": groups}})
    )
    return replace(found, settings={**found.settings, **settings})


def test_queues_of_shared_gpus_become_a_pool_of_replicas() -> None:
    known = _counting("nvidia.com/gpu.shared", **{"flavor-replicas/h100": "4"})
    read = import_policy(parse_fleet(ALONE, "fleet.yaml"), known)
    (pool,) = read.fleet.pools
    assert pool.slices == ("shared-4",)
    assert [(str(g.supply), g.guarantee) for t in read.fleet.teams for g in t.grants] == [
        ("h100/shared-4", 8)
    ]
    unknown = import_policy(parse_fleet(ALONE, "fleet.yaml"), _counting("nvidia.com/gpu.shared"))
    assert any("is a guess" in r.text and "share a GPU" in r.text for r in unknown.remarks)
    not_renamed = _counting("nvidia.com/gpu", **{"flavor-replicas/h100": "10"})
    (pool,) = import_policy(parse_fleet(ALONE, "fleet.yaml"), not_renamed).fleet.pools
    assert (pool.slices, pool.place.resource) == (("shared-10",), "nvidia.com/gpu")  # type: ignore[union-attr]


def test_queues_of_claims_become_a_pool_of_their_class() -> None:
    mapped = {"kueue.resources.deviceClassMappings": '{"gpu.nvidia.com": "whole-gpus", "nic.x": "nics"}'}
    read = import_policy(parse_fleet(ALONE, "fleet.yaml"), _counting("whole-gpus", **mapped))
    (pool,) = read.fleet.pools
    place = pool.place
    assert isinstance(place, KubernetesPlace)
    assert (place.device_class, place.resource) == ("gpu.nvidia.com", "whole-gpus")
    assert [(str(g.supply), g.guarantee) for t in read.fleet.teams for g in t.grants] == [("h100", 8)]
    assert not import_policy(parse_fleet(ALONE, "fleet.yaml"), _counting("nics", **mapped)).fleet.pools


def test_shared_gpus_that_no_queue_counts_become_a_pool_of_replicas() -> None:
    found = FoundPolicy("v1.36.3", (), {"uncounted-replicas/NVIDIA-L40S": "4"})
    products = {"NVIDIA-L40S": ["nvidia.com/gpu.shared"]}
    (pool,) = import_policy(parse_fleet(ALONE, "fleet.yaml"), found, products).fleet.pools
    assert (str(pool.name), pool.slices) == ("l40s-shared", ("shared-4",))
