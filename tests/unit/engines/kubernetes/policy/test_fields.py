"""Objects as flat fields and back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy.admission_policies import workload_policy
from fairway.engines.kubernetes.policy.fields import flatten, unflatten
from fairway.engines.kubernetes.policy.pod_policies import pod_policies
from fairway.engines.kubernetes.policy.read import found_object, without_interventions
from fairway.policy.objects import ObjectKey
from tests.unit.engines.kubernetes.policy.fleets import FACTS

names = st.from_regex(r"[a-z]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True)
resources = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"])
amounts = st.integers(0, 2000)


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for resource in draw(st.lists(resources, unique=True, max_size=3)):
        flavors = []
        for name in draw(st.lists(names, unique=True, min_size=1, max_size=3)):
            quota = {"name": resource, "nominalQuota": str(draw(amounts))}
            if draw(st.booleans()):
                quota["borrowingLimit"] = str(draw(amounts))
            flavors.append({"name": name, "resources": [quota]})
        made.append({"coveredResources": [resource], "flavors": flavors})
    return made


@given(groups(), names, st.dictionaries(names, names, max_size=3))
def test_a_queue_comes_back_as_it_was(
    made: list[dict[str, Any]], cohort: str, selected: dict[str, str]
) -> None:
    spec = {
        "cohortName": cohort,
        "resourceGroups": made,
        "namespaceSelector": {"matchLabels": selected} if selected else {},
        "fairSharing": {"weight": "3"},
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
    }
    assert unflatten(flatten(kinds.CLUSTER_QUEUE, {"spec": spec})) == {"spec": spec}


def test_an_admission_policy_comes_back_as_it_was() -> None:
    for _, policy, binding in (workload_policy(FACTS), *pod_policies(FACTS)):
        assert unflatten(flatten(kinds.ADMISSION_POLICY, {"spec": policy})) == {"spec": policy}
        assert unflatten(flatten(kinds.ADMISSION_BINDING, {"spec": binding})) == {"spec": binding}


def test_members_taints_and_levels_read_as_lines() -> None:
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"},
        "subjects": [
            {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice@corp.example"},
            {"kind": "ServiceAccount", "namespace": "ci", "name": "robot"},
        ],
    }
    fields = flatten(kinds.ROLE_BINDING, binding)
    assert fields["subjects"] == ("User/alice@corp.example", "ServiceAccount/ci/robot")
    assert unflatten(fields) == binding
    taint = {"spec": {"nodeTaints": [{"key": "a/b", "effect": "NoExecute"}]}}
    assert flatten(kinds.FLAVOR, taint) == {"spec.nodeTaints": ("a/b:NoExecute",)}
    assert unflatten(flatten(kinds.FLAVOR, taint)) == taint


def test_however_a_number_is_written_it_is_a_number() -> None:
    for written in (2000, "2000", "2k"):
        quota = {"spec": {"hard": {"requests.nvidia.com/gpu": written}}}
        assert flatten(kinds.RESOURCE_QUOTA, quota) == {"spec.hard[requests.nvidia.com/gpu]": 2000}


def test_what_the_api_server_fills_in_and_what_others_own_is_not_there() -> None:
    body = {
        "metadata": {"name": "q", "labels": {"mine": "x"}},
        "spec": {"clusterQueue": "a", "stopPolicy": "None", "fairSharing": {"weight": "1"}},
        "status": {"pendingWorkloads": 1},
    }
    assert flatten(kinds.LOCAL_QUEUE, body) == {"spec.clusterQueue": "a"}


def test_an_overridden_field_shows_what_policy_gave_it_unless_somebody_changed_it_since() -> None:
    note = '{"spec.fairSharing.weight": [60, "345m"]}'
    assert without_interventions({"spec.fairSharing.weight": "345m"}, note) == {"spec.fairSharing.weight": 60}
    assert without_interventions({"spec.fairSharing.weight": 7}, note) == {"spec.fairSharing.weight": 7}
    for nonsense in ("[]", "no json", '{"a": 1}', "7"):
        assert without_interventions({"a": 1}, nonsense) == {"a": 1}


def test_who_changed_it_is_the_last_who_is_not_fairway() -> None:
    def owner(manager: str, at: str, owned: dict[str, Any], **more: str) -> dict[str, Any]:
        return {"manager": manager, "time": at, "fieldsV1": owned, **more}

    managers = [
        owner("fairway", "2026-01-05T00:00:00Z", {"f:spec": {}}),
        owner("fairway-intervention", "2026-01-06T00:00:00Z", {"f:spec": {}}),
        owner("kubectl-edit", "2026-01-02T00:00:00Z", {"f:spec": {"f:stopPolicy": {}}}),
        owner("terraform", "2026-01-03T00:00:00Z", {"f:metadata": {"f:labels": {}}}),
        owner("kueue", "2026-01-04T00:00:00Z", {"f:metadata": {"f:finalizers": {}}}),
        owner("kueue", "2026-01-07T00:00:00Z", {"f:status": {}}, subresource="status"),
    ]
    labels = {"app.kubernetes.io/managed-by": "fairway", "fairway.dev/team": "nlp"}
    meta = {"name": "q", "namespace": "nlp", "labels": labels, "managedFields": managers}
    found = found_object(kinds.LOCAL_QUEUE, {"metadata": meta, "spec": {"clusterQueue": "a"}})
    assert found.changed_by == "terraform at 2026-01-03T00:00:00Z"
    assert (found.ours, found.team) == (True, "nlp")
    assert found.after == (ObjectKey("Namespace", "nlp"), ObjectKey("ClusterQueue", "a"))
