"""What a fleet means on Kueue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.kubernetes.policy.advice import GROUPS, MANAGES_ALL, NAME_LABEL, SELECTOR, UNSELECTED
from fairway.engines.kubernetes.policy.fields import unflatten
from fairway.engines.kubernetes.policy.import_ import import_policy
from fairway.engines.kubernetes.policy.mutating_policies import queue_policy
from fairway.engines.kubernetes.policy.translate import ROOT, translate
from fairway.model.names import ClusterName
from fairway.policy.objects import ObjectKey, Translation
from fairway.policy.plan import compute_changes
from tests.unit.engines.kubernetes.policy.fleets import FACTS, JOBS_ONLY, applied, fields_of, fleet, nothing

if TYPE_CHECKING:
    from fairway.engines.port import Governs, Imports, Intervenes, Observes

CLOUD = ClusterName("cloud")
GPU = "spec.resourceGroups[nvidia.com/gpu].flavors[a100].resources[nvidia.com/gpu]"


def test_the_engine_keeps_the_ports() -> None:
    if TYPE_CHECKING:

        def keeps(engine: KubernetesEngine) -> tuple[Observes, Governs, Intervenes, Imports]:
            return engine, engine, engine, engine

    for method in ("observe", "find_policy", "translate", "activity", "write", "intervene", "import_policy"):
        assert callable(getattr(KubernetesEngine, method))


@pytest.fixture
def family() -> Translation:
    return translate(fleet(), CLOUD, nothing())


def test_a_team_without_children_has_its_guarantee_in_its_own_queue(family: Translation) -> None:
    queue = fields_of(family, "ClusterQueue", "product")
    assert queue["spec.cohortName"] == ROOT
    assert queue[f"{GPU}.nominalQuota"] == 12
    assert queue[f"{GPU}.borrowingLimit"] == 4
    assert queue["spec.fairSharing.weight"] == 40
    assert queue["spec.preemption.reclaimWithinCohort"] == "Any"
    assert queue["spec.namespaceSelector.matchLabels[fairway.dev/team]"] == "product"
    assert "spec.resourceGroups[nvidia.com/gpu].flavors[spot]" not in str(queue)  # no grant, no way


def test_a_family_is_a_cohort_that_keeps_what_children_leave(family: Translation) -> None:
    cohort = fields_of(family, "Cohort", "research")
    assert cohort["spec.parentName"] == ROOT
    assert cohort[f"{GPU}.nominalQuota"] == 8  # 16 less nlp's 8
    assert cohort[f"{GPU}.borrowingLimit"] == 8
    assert cohort["spec.fairSharing.weight"] == 60
    nlp, vision = (fields_of(family, "ClusterQueue", name) for name in ("nlp", "vision"))
    assert (nlp["spec.cohortName"], nlp[f"{GPU}.nominalQuota"]) == ("research", 8)
    assert (vision["spec.cohortName"], vision[f"{GPU}.nominalQuota"]) == ("research", 0)
    assert f"{GPU}.borrowingLimit" not in vision  # only what research may hold
    assert fields_of(family, "ClusterQueue", "research")[f"{GPU}.nominalQuota"] == 0


def test_what_nobody_is_guaranteed_is_the_fleets_to_lend(family: Translation) -> None:
    root = fields_of(family, "Cohort", ROOT)
    assert root[f"{GPU}.nominalQuota"] == 32 - 16 - 12
    assert (
        root["spec.resourceGroups[nvidia.com/gpu].flavors[spot].resources[nvidia.com/gpu].nominalQuota"] == 16
    )
    mig = "spec.resourceGroups[nvidia.com/mig-1g.10gb,nvidia.com/mig-3g.40gb].flavors[mig].resources"
    assert root[f"{mig}[nvidia.com/mig-1g.10gb].nominalQuota"] == 2


def test_slices_of_one_pool_share_a_group_and_ungranted_ones_are_closed(family: Translation) -> None:
    mig = "spec.resourceGroups[nvidia.com/mig-1g.10gb,nvidia.com/mig-3g.40gb].flavors[mig].resources"
    nlp = fields_of(family, "ClusterQueue", "nlp")
    assert nlp[f"{mig}[nvidia.com/mig-1g.10gb].nominalQuota"] == 0
    assert f"{mig}[nvidia.com/mig-1g.10gb].borrowingLimit" not in nlp
    assert nlp[f"{mig}[nvidia.com/mig-3g.40gb].borrowingLimit"] == 0


def test_low_jobs_have_a_queue_that_takes_nothing(family: Translation) -> None:
    low = fields_of(family, "ClusterQueue", "nlp.low")
    assert low["spec.fairSharing.weight"] == 0
    assert low["spec.preemption.reclaimWithinCohort"] == "Never"
    assert low[f"{GPU}.nominalQuota"] == 0
    assert low["spec.cohortName"] == "research"  # inside research's ceiling of 24
    assert fields_of(family, "LocalQueue", "nlp/low")["spec.clusterQueue"] == "nlp.low"
    assert ObjectKey("ClusterQueue", "product.low") not in {o.key for o in family.objects}  # may not use low


def test_low_jobs_stand_outside_a_ceiling_that_is_never_felt() -> None:
    found = translate(
        fleet("teams: { a: { guarantee: { a100: 8 }, borrow: { a100: 24 } } }"), CLOUD, nothing()
    )
    assert fields_of(found, "ClusterQueue", "a.low")["spec.cohortName"] == ROOT
    assert not any(o.key.kind == "ResourceQuota" for o in found.objects)


def test_a_ceiling_counts_pods_too_where_it_can(family: Translation) -> None:
    of_jobs = translate(fleet(), CLOUD, nothing(**JOBS_ONLY))
    quota = fields_of(of_jobs, "ResourceQuota", "product/fairway-ceiling")
    assert quota == {"spec.hard[requests.nvidia.com/gpu]": 16}
    assert ObjectKey("ResourceQuota", "nlp/fairway-ceiling") not in {o.key for o in of_jobs.objects}
    # Pods that wait in a queue would count, and keep those of admitted jobs away.
    assert not any(o.key.kind == "ResourceQuota" for o in family.objects)


def test_priorities_are_counted_from_the_default(family: Translation) -> None:
    values = {o.key.name: o.fields["value"] for o in family.objects if o.key.kind == "WorkloadPriorityClass"}
    assert values == {"urgent": 50, "normal": 0, "low": -40}


def test_limits_and_priorities_stand_on_the_namespace(family: Translation) -> None:
    assert fields_of(family, "Namespace", "nlp") == {
        "metadata.labels[fairway.dev/team]": "nlp",
        "metadata.annotations[fairway.dev/priorities]": "urgent,normal,low",
        "metadata.annotations[fairway.dev/job-gpus]": "16",
        "metadata.annotations[fairway.dev/job-seconds]": "3600",
        "metadata.annotations[fairway.dev/devices]": "nvidia.com/gpu,nvidia.com/mig-1g.10gb",
    }


def test_members_may_do_what_members_may(family: Translation) -> None:
    binding = fields_of(family, "RoleBinding", "product/fairway-members")
    assert binding["subjects"] == ("User/anna", "User/bob")
    assert binding["roleRef.name"] == "fairway-member"


def test_a_draining_team_starts_nothing_nor_do_those_inside() -> None:
    drained = fleet().teams[0]
    whole = replace(fleet(), teams=(replace(drained, draining=True), *fleet().teams[1:]))
    found = translate(whole, CLOUD, nothing())
    for queue in ("research/main", "nlp/main", "nlp/low"):
        assert fields_of(found, "LocalQueue", queue)["spec.stopPolicy"] == "Hold"
    assert "spec.stopPolicy" not in fields_of(found, "LocalQueue", "product/main")


def test_every_flavor_has_a_topology_down_to_the_node(family: Translation) -> None:
    assert fields_of(family, "Topology", "spot")["spec.levels"] == ("kubernetes.io/hostname",)
    assert fields_of(family, "Topology", "a100")["spec.levels"] == (
        "topology.fairway/block",
        "topology.fairway/rack",
        "kubernetes.io/hostname",
    )
    assert fields_of(family, "ResourceFlavor", "spot")["spec.nodeTaints"] == ("fairway/spot=true:NoSchedule",)


def test_what_cannot_be_changed_gets_a_new_name_and_keeps_it() -> None:
    """Kueue refuses to change a topology's levels and the labels of a flavor that has one."""
    first = translate(fleet(), CLOUD, nothing())
    moved = fleet()
    pools = tuple(
        replace(p, topology=("topology.fairway/rack",)) if p.name == "a100" else p for p in moved.pools
    )
    moved = replace(moved, pools=pools)
    second = translate(moved, CLOUD, applied(first))
    changes = {(c.action.value, str(c.key)) for c in compute_changes(second, applied(first))}
    assert ("create", "Topology a100.2") in changes
    assert ("delete", "Topology a100") in changes
    assert ("create", "ResourceFlavor a100.2") in changes
    third = translate(moved, CLOUD, applied(second))
    assert not compute_changes(third, applied(second))


def test_applying_what_is_wanted_leaves_nothing_to_do(family: Translation) -> None:
    again = translate(fleet(), CLOUD, applied(family))
    assert not compute_changes(again, applied(family))


def test_fields_lead_back_to_the_objects(family: Translation) -> None:
    policy = unflatten(fields_of(family, "ValidatingAdmissionPolicy", "fairway-jobs"))
    assert [v["name"] for v in policy["spec"]["variables"]][:2] == ["parallel", "kind"]
    *of_devices, whose, made_by = policy["spec"]["validations"]
    assert all(
        "variables.asks" in v["expression"] or "variables.gpus " in v["expression"] for v in of_devices
    )
    assert "fairway.dev/user" in whose["message"]
    assert "fairway.dev/job" in made_by["message"]


def test_a_fleet_without_teams_governs_nothing() -> None:
    assert not translate(fleet(""), CLOUD, nothing()).objects


def test_what_kueue_must_be_configured_with_is_said() -> None:
    settings = {
        "kueue.fairSharing.preemptionStrategies": "",
        "kueue.resources.quotaCheckStrategy": "",
        "kueue.featureGates": "TopologyAwareScheduling=false",
    }
    found = translate(fleet(), CLOUD, nothing(**settings))
    assert [a.line.partition(":")[0] for a in found.advice] == ["fairSharing", "resources", "featureGates"]
    assert not translate(fleet(), CLOUD, nothing()).advice


def test_the_integrations_of_what_is_installed_are_said() -> None:
    frameworks = {"kueue.integrations.frameworks": "batch/job", GROUPS: "batch,apps,ray.io"}
    (advice,) = translate(fleet(), CLOUD, nothing(**frameworks)).advice
    assert advice.line == (
        "integrations: {frameworks: [batch/job, deployment, pod, ray.io/raycluster, ray.io/rayjob, "
        "ray.io/rayservice, statefulset]}"
    )
    assert advice.running == "integrations.frameworks: batch/job"
    # Where queues cannot be assigned, pods without GPUs would be held too.
    older = {**frameworks, "served.MutatingAdmissionPolicy": "no"}
    assert not translate(fleet(), CLOUD, nothing(**older)).advice
    holds = translate(fleet(), CLOUD, nothing(**frameworks, **{MANAGES_ALL: "true"})).advice
    assert [a.line.partition(":")[0] for a in holds] == ["manageJobsWithoutQueueName", "integrations"]


def test_undeclared_resources_are_not_ignored() -> None:
    """A Ray cluster with a head without GPUs never starts then, and devices without quota run free."""
    ignored = {"kueue.resources.quotaCheckStrategy": "IgnoreUndeclared"}
    (advice,) = translate(fleet(), CLOUD, nothing(**ignored)).advice
    assert advice.line == (
        "resources: {excludeResourcePrefixes: [cpu, memory, ephemeral-storage, hugepages-]}"
    )
    assert advice.why.startswith("instead of quotaCheckStrategy: IgnoreUndeclared")


def test_what_cannot_be_known_or_kept_is_said() -> None:
    teams = "teams: { a: { guarantee: { a100: 4 }, limits: { user: { gpus: 2 } }, members: [bob] } }"
    settings = {"kueue.configuration": "not known", "capacity.a100": "0", "rbac.fairway-member": "missing"}
    codes = {n.code for n in translate(fleet(teams), CLOUD, nothing(**settings)).notices}
    assert {"KueueConfigurationNotKnown", "NothingToLend", "MemberRoleMissing", "GpuPodsOnlyInTeams"} <= codes


BY_USER = """
teams:
  research:
    guarantee: { a100: 16 }
    limits: { user: { gpus: 8 } }
    members: [alice, bob@corp.example]
"""


def test_a_team_that_limits_its_users_has_a_cohort_for_each() -> None:
    found = translate(fleet(BY_USER), CLOUD, nothing())
    assert fields_of(found, "Cohort", "research")[f"{GPU}.nominalQuota"] == 16  # for all its users
    assert fields_of(found, "ClusterQueue", "research")[f"{GPU}.nominalQuota"] == 0
    for slug in ("alice", "bob-corp-example"):
        user = fields_of(found, "Cohort", f"research.{slug}")
        assert user["spec.parentName"] == "research"
        assert user[f"{GPU}.borrowingLimit"] == 8  # normal and low together
        assert fields_of(found, "ClusterQueue", f"research.{slug}")["spec.cohortName"] == f"research.{slug}"
        low = fields_of(found, "LocalQueue", f"research/low.{slug}")["spec.clusterQueue"]
        assert fields_of(found, "ClusterQueue", str(low))["spec.fairSharing.weight"] == 0
    notes = fields_of(found, "Namespace", "research")
    queues = notes["metadata.annotations[fairway.dev/user-queues]"]
    assert queues == "alice=alice,bob@corp.example=bob-corp-example"
    assert ObjectKey("MutatingAdmissionPolicy", "fairway-queues") in {o.key for o in found.objects}
    assert "priority" in {n.promise for n in found.notices}


def test_where_users_cannot_be_counted_the_plan_says_so() -> None:
    found = translate(fleet(BY_USER), CLOUD, nothing(**{"served.MutatingAdmissionPolicy": "no"}))
    assert "limits" in {n.promise for n in found.notices}
    assert fields_of(found, "LocalQueue", "research/default")["spec.clusterQueue"] == "research"
    assert not any(o.key.kind == "MutatingAdmissionPolicy" for o in found.objects)


def test_queues_of_users_are_read_back_as_a_limit() -> None:
    wanted = translate(fleet(BY_USER), CLOUD, nothing())
    bare = replace(fleet(BY_USER), teams=(), chosen_teams={})
    read = import_policy(bare, applied(wanted))
    assert read.fleet.teams == fleet(BY_USER).teams


@pytest.mark.parametrize(
    ("selector", "unselected", "named"),
    [
        (None, "", set()),
        ({"matchLabels": {"kueue": "managed"}}, "nlp", {"research", "nlp", "vision", "product"}),
        ({"matchExpressions": [{"key": "fairway.dev/team", "operator": "Exists"}]}, "", set()),
        (
            {"matchExpressions": [{"key": NAME_LABEL, "operator": "NotIn", "values": ["vision"]}]},
            "",
            {"vision"},
        ),
        ({"matchExpressions": [{"key": "fairway.dev/team", "operator": "DoesNotExist"}]}, "nlp", {"nlp"}),
    ],
)
def test_namespaces_that_kueue_leaves_alone_are_named(
    selector: dict[str, object] | None, unselected: str, named: set[str]
) -> None:
    found = nothing()
    settings = {**found.settings, SELECTOR: json.dumps(selector), UNSELECTED: unselected}
    notices = translate(fleet(), CLOUD, replace(found, settings=settings)).notices
    told = [n.message for n in notices if n.code == "NamespacesNotSelected"]
    assert {name for name in ("research", "nlp", "vision", "product") for m in told if name in m} >= named
    assert bool(told) is bool(named)


def test_a_job_without_gpus_leaves_the_queue_that_it_names() -> None:
    """It ran in a site's queue that covered CPUs, and never starts in one of GPUs alone."""
    _, policy, _ = queue_policy(FACTS)
    leave = policy["mutations"][0]["jsonPatch"]["expression"]
    assert "variables.kind == 'Job' && !variables.asks && !variables.child && variables.base in" in leave
    assert "op: 'remove', path: '/metadata/labels/kueue.x-k8s.io~1queue-name'" in leave
    assert "path: '/spec/suspend', value: false" in leave


def test_jobs_are_made_and_logs_read_in_the_namespaces_of_teams_alone(family: Translation) -> None:
    account = "system:serviceaccount:fairway:fairway"
    found = replace(nothing(), settings={**nothing().settings, "rbac.fairway-run": account})
    bound = translate(fleet(), CLOUD, found)
    binding = fields_of(bound, "RoleBinding", "product/fairway-run")
    assert unflatten(binding)["roleRef"]["name"] == "fairway-run"
    assert account in str(binding)
    own = {o.key.name for o in bound.objects if o.key.name.endswith("/fairway-run")}
    assert own == {f"{team.name}/fairway-run" for team in fleet().teams}
    # With the rights of an earlier release, which names no account, there is nothing to bind.
    assert not any("fairway-run" in o.key.name for o in family.objects)
