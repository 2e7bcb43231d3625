"""Resource claims: what they request and hold, and for which pod they count."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairway.engines.kubernetes.api.store import Added, Deleted, Modified, StoredObject
from fairway.engines.kubernetes.api.wire import PodObject
from fairway.engines.kubernetes.nodes.claims import (
    ClaimFacts,
    ClaimObject,
    PodClaims,
    claim_transform,
    with_claims,
)
from fairway.engines.kubernetes.nodes.facts import requested
from tests.unit.engines.kubernetes.nodes.made import pod

GPU, MIG = "gpu.example.com/gpu", "mig.example.com/gpu"
CLASSES = {"gpu.example.com": GPU, "mig.example.com": MIG}
POD = {"kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}


def facts(*requests: Mapping[str, object], owners: object = (POD,), **status: object) -> ClaimFacts | None:
    claim = {
        "metadata": {"name": "c", "uid": "c1", "ownerReferences": owners},
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }
    return claim_transform(CLASSES)(msgspec.convert(claim, ClaimObject))


def request(class_: str = "gpu.example.com", **more: object) -> Mapping[str, object]:
    return {
        "name": "g",
        "exactly": {"deviceClassName": class_, "allocationMode": "ExactCount", "count": 1, **more},
    }


def result(device: str, request: str = "g", **more: object) -> Mapping[str, object]:
    return {"request": request, "driver": "gpu.example.com", "pool": "n1", "device": device, **more}


def allocated(*results: Mapping[str, object]) -> Mapping[str, object]:
    return {"devices": {"results": results}}


def test_a_claim_counts_what_it_requests_until_it_is_allocated() -> None:
    assert facts(request(count=2), request("mig.example.com")) == ClaimFacts(
        "pod-1", ((GPU, 2), (MIG, 1)), ()
    )


def test_an_allocated_claim_counts_and_holds_what_it_got() -> None:
    found = facts(
        request(allocationMode="All", count=0), allocation=allocated(result("gpu-0"), result("gpu-1"))
    )
    held = (("gpu.example.com", "n1", "gpu-0"), ("gpu.example.com", "n1", "gpu-1"))
    assert found == ClaimFacts("pod-1", ((GPU, 2),), held)


def test_all_devices_of_a_node_count_once_they_are_known() -> None:
    assert facts(request(allocationMode="All", count=0)) is None


def test_of_alternatives_the_first_counts_until_one_was_allocated() -> None:
    either = {
        "name": "g",
        "firstAvailable": [
            {
                "name": "large",
                "deviceClassName": "gpu.example.com",
                "allocationMode": "ExactCount",
                "count": 1,
            },
            {
                "name": "small",
                "deviceClassName": "mig.example.com",
                "allocationMode": "ExactCount",
                "count": 2,
            },
        ],
    }
    waiting = facts(either)
    assert waiting is not None and waiting.devices == ((GPU, 1),)
    got = facts(either, allocation=allocated(result("m-0", "g/small"), result("m-1", "g/small")))
    assert got is not None and got.devices == ((MIG, 2),)


def test_an_administrators_look_at_a_device_holds_nothing() -> None:
    assert facts(request(adminAccess=True)) is None
    assert facts(request(adminAccess=True), allocation=allocated(result("gpu-0", adminAccess=True))) is None


def test_devices_of_a_class_of_no_pool_are_held_and_not_counted() -> None:
    assert facts(request("nic.example.com")) is None
    found = facts(request("other.example.com"), allocation=allocated(result("gpu-0")))
    assert found == ClaimFacts("pod-1", (), (("gpu.example.com", "n1", "gpu-0"),))


def test_a_claim_that_pods_share_counts_for_the_first() -> None:
    users = [{"resource": "pods", "uid": "pod-1"}, {"resource": "pods", "uid": "pod-2"}]
    shared = facts(request(), owners=(), reservedFor=users, allocation=allocated(result("gpu-0")))
    assert shared is not None and shared.pod == "pod-1"
    alone = facts(request(), owners=())
    assert alone is not None and alone.pod == ""


def stored(uid: str, value: ClaimFacts, version: int = 1) -> StoredObject[ClaimFacts]:
    return StoredObject(uid, version, value)


def test_a_pod_has_the_devices_of_all_its_claims() -> None:
    claims, two, one = PodClaims(), ClaimFacts("pod-1", ((GPU, 2),), ()), ClaimFacts("pod-1", ((MIG, 1),), ())
    assert claims.on_change(Added(("x", "a"), stored("a", two))) == {"pod-1"}
    claims.on_change(Added(("x", "b"), stored("b", one)))
    assert claims.devices("pod-1") == ((GPU, 2), (MIG, 1))
    claims.on_change(
        Modified(("x", "a"), stored("a", two), stored("a", ClaimFacts("pod-1", ((GPU, 3),), ()), 2))
    )
    assert claims.devices("pod-1") == ((GPU, 3), (MIG, 1))


def test_a_shared_claim_moves_to_the_next_pod() -> None:
    claims, first, second = (
        PodClaims(),
        ClaimFacts("pod-1", ((GPU, 1),), ()),
        ClaimFacts("pod-2", ((GPU, 1),), ()),
    )
    claims.on_change(Added(("x", "a"), stored("a", first)))
    assert claims.on_change(Modified(("x", "a"), stored("a", first), stored("a", second, 2))) == {
        "pod-1",
        "pod-2",
    }
    assert (claims.devices("pod-1"), claims.devices("pod-2")) == ((), ((GPU, 1),))


def test_nothing_is_remembered_of_claims_that_are_gone() -> None:
    claims, one = PodClaims(), ClaimFacts("pod-1", ((GPU, 1),), ())
    claims.on_change(Added(("x", "a"), stored("a", one)))
    assert claims.on_change(Deleted(("x", "a"), stored("a", one))) == {"pod-1"}
    assert claims.devices("pod-1") == () and not claims._by_pod


def test_a_pod_that_ended_keeps_the_devices_of_its_deleted_claims() -> None:
    classes = frozenset(CLASSES.values())
    running = with_claims((("nvidia.com/gpu", 1),), ((GPU, 2),), (), classes)
    assert running == ((GPU, 2), ("nvidia.com/gpu", 1))
    assert with_claims((("nvidia.com/gpu", 1),), (), running, classes) == running


def test_extended_resources_that_a_claim_holds_count_by_the_claim() -> None:
    asks = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2", "amd.com/gpu": "1"}}}]}
    plain = pod(**asks)
    mapping = {
        "requestMappings": [{"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "r"}]
    }
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "p-extended-resources-x", **mapping}}
    backed = msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"nodeName": "n1", **asks}, "status": status}, PodObject
    )
    counts = lambda name: "gpu" in name  # noqa: E731
    assert requested(plain, counts) == (("amd.com/gpu", 1), ("nvidia.com/gpu", 2))
    assert requested(backed, counts) == (("amd.com/gpu", 1),)
