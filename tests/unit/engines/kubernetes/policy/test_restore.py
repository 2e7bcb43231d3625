"""Leaving a Kubernetes cluster: whole objects come back, and release unbinds every guard."""

from __future__ import annotations

from typing import Any

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy import restore
from fairway.policy.objects import Action, FoundObject, FoundPolicy, ObjectKey, SavedObject


def body(**labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {
            "name": "vision",
            "uid": "1",
            "resourceVersion": "7",
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            "managedFields": [{}],
            "labels": {"site": "a", **labels},
        },
        "spec": {"stopPolicy": "None"},
        "status": {"pendingWorkloads": 3},
    }


def test_a_record_is_the_object_as_people_wrote_it() -> None:
    record = restore.record_of(kinds.CLUSTER_QUEUE, body())
    assert record["metadata"] == {"name": "vision", "labels": {"site": "a"}}
    assert record["spec"] == {"stopPolicy": "None"}
    assert "status" not in record


def test_the_patch_removes_what_came_later_and_replaces_lists() -> None:
    now = {"metadata": {"labels": {"site": "a", "team": "x"}}, "spec": {"groups": [1, 2], "weight": 3}}
    saved = {"metadata": {"labels": {"site": "a"}}, "spec": {"groups": [1], "strategy": "StrictFIFO"}}
    assert restore.merge_patch(now, saved) == {
        "metadata": {"labels": {"team": None}},
        "spec": {"groups": [1], "weight": None, "strategy": "StrictFIFO"},
    }


def test_of_a_namespace_only_fairways_own_labels_come_back() -> None:
    namespace = {"metadata": {"name": "vision", "labels": {"site": "a", kinds.TEAM: "vision"}}, "spec": {}}
    record = restore.record_of(kinds.NAMESPACE, namespace)
    assert record["metadata"]["labels"] == {kinds.TEAM: "vision"}
    assert "spec" not in record


def test_a_namespace_without_labels_of_fairways_keeps_the_sites() -> None:
    before = {"metadata": {"name": "vision", "labels": {"site": "a"}}}
    governed = {"metadata": {"name": "vision", "labels": {"site": "a", kinds.TEAM: "vision"}}}
    now, saved = (restore.record_of(kinds.NAMESPACE, body) for body in (governed, before))
    assert restore.merge_patch(now, saved) == {"metadata": {"labels": {kinds.TEAM: None}}}


def test_a_namespace_that_fairway_created_stays_without_its_labels() -> None:
    key = ObjectKey("Namespace", "vision")
    found = FoundPolicy("kubernetes", (FoundObject(key, {"x": "y"}, ours=True),), {})
    leaving = restore.leaving("cloud", found, [SavedObject(key, {}, None)], {})
    (change,) = leaving.restored
    assert change.record is not None
    assert change.record["metadata"] == {"name": "vision", "labels": {}, "annotations": {}}
    assert [n.code for n in leaving.notices] == ["NamespacesStay"]


def test_release_unbinds_policies_and_starts_stopped_queues() -> None:
    objects = (
        FoundObject(ObjectKey("ValidatingAdmissionPolicyBinding", "fairway-pods"), {}, ours=True),
        FoundObject(ObjectKey("ValidatingAdmissionPolicyBinding", "site"), {}, ours=False),
        FoundObject(ObjectKey("ResourceQuota", "vision/fairway-ceiling"), {}, ours=True),
        FoundObject(ObjectKey("LocalQueue", "vision/main"), {"spec.stopPolicy": "Hold", "a": 1}, ours=True),
        FoundObject(ObjectKey("ClusterQueue", "vision"), {"a": 1}, ours=True),
    )
    changes = restore.guards(FoundPolicy("kubernetes", objects, {}))
    assert [(c.action, c.key.name, c.wanted) for c in changes] == [
        (Action.DELETE, "vision/fairway-ceiling", None),
        (Action.DELETE, "fairway-pods", None),
        (Action.UPDATE, "vision/main", {"a": 1}),
    ]
