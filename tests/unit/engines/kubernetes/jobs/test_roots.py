"""Owner chains: which owner is followed, where they end, how often the API server is asked."""

from __future__ import annotations

import pytest

from fairway.engines.kubernetes.api.wire import OwnedMeta, Owner
from fairway.engines.kubernetes.jobs.roots import (
    GIVE_UP_SECONDS,
    ITSELF,
    LIST_FROM,
    Root,
    Roots,
    controlling_owner,
    workload_owner,
)
from tests.unit.engines.kubernetes.jobs.objects_served import ObjectsServed


@pytest.fixture
def served() -> ObjectsServed:
    return ObjectsServed()


async def found(
    roots: Roots, served: ObjectsServed, owner: Owner, namespace: str = "research"
) -> Root | None:
    await roots.resolve(served.requests(), [(namespace, owner)])
    return roots.find(namespace, owner)


def ref(kind: str, name: str = "x", *, controller: bool = True, api_version: str = "apps/v1") -> Owner:
    return Owner(kind, name, f"uid-{kind}-{name}".lower(), controller=controller, api_version=api_version)


# which owner


def test_only_a_controlling_owner_is_followed() -> None:
    assert controlling_owner([ref("A", controller=False), ref("B")]) == ref("B")
    assert controlling_owner([ref("A", controller=False)]) is None


@pytest.mark.parametrize("kind", ["CronJob", "RayCronJob", "CronWorkflow", "ScheduledSparkApplication"])
def test_what_a_schedule_creates_is_a_root(kind: str) -> None:
    assert controlling_owner([ref(kind)]) is None


def test_the_owner_of_a_workload() -> None:
    pods = [ref("Pod", f"llm-{i}", controller=False) for i in range(2)]
    llm = ref("StatefulSet", "llm", controller=False)
    assert workload_owner(OwnedMeta(owner_references=[*pods, ref("JobSet")])) == ref("JobSet")
    named = {
        "kueue.x-k8s.io/job-owner-gvk": "apps/v1, Kind=StatefulSet",
        "kueue.x-k8s.io/job-owner-name": "llm",
    }
    other = ref("Other", controller=False)
    assert workload_owner(OwnedMeta(owner_references=[other, *pods, llm], annotations=named)) == llm
    assert workload_owner(OwnedMeta(owner_references=[*pods, llm])) == llm
    group = workload_owner(OwnedMeta(name="batch", uid="w", owner_references=pods))
    assert (group.kind, group.name, group.uid) == ("PodGroup", "batch", "w")


# chains


async def test_a_worker_of_a_leader_worker_set_ends_at_the_set(served: ObjectsServed) -> None:
    """Its StatefulSet belongs to the leader's pod, which belongs to another StatefulSet."""
    lws = served.add("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm")
    leaders = served.add("apps/v1", "StatefulSet", "llm", lws)
    leader = served.add("v1", "Pod", "llm-0", leaders)
    workers = served.add("apps/v1", "StatefulSet", "llm-0", leader)
    root = await found(Roots(), served, workers)
    assert root is not None
    assert (root.kind, root.name, root.uid) == ("LeaderWorkerSet", "llm", lws.uid)
    assert root.api_version == "leaderworkerset.x-k8s.io/v1"


async def test_an_unknown_kind_is_named(served: ObjectsServed) -> None:
    thing = served.add(
        "acme.io/v1", "Thing", "t", labels={"kueue.x-k8s.io/queue-name": "main"},
        annotations={"fairway.dev/user": "alice"},
    )  # fmt: skip
    root = await found(Roots(), served, thing)
    assert root is not None
    assert (root.kind, root.queue, root.user) == ("Thing", "main", "alice")
    assert root.created is not None


async def test_a_job_of_a_cron_job_is_a_root(served: ObjectsServed) -> None:
    cron = served.add("batch/v1", "CronJob", "nightly")
    job = served.add("batch/v1", "Job", "nightly-1", cron)
    root = await found(Roots(), served, job)
    assert root is not None
    assert (root.kind, root.name) == ("Job", "nightly-1")


async def test_an_owner_that_does_not_exist_ends_the_chain_before_it(served: ObjectsServed) -> None:
    """Nobody checks the names that people write into owner references."""
    assert await found(Roots(), served, ref("StatefulSet", "gone")) is ITSELF
    owned = served.add("apps/v1", "ReplicaSet", "chat-1", ref("Deployment", "chat"))
    root = await found(Roots(), served, owned)
    assert root is not None
    assert root.kind == "ReplicaSet"


async def test_another_object_of_the_same_name_is_not_the_owner(served: ObjectsServed) -> None:
    served.add("apps/v1", "StatefulSet", "llm", uid="new")
    assert await found(Roots(), served, ref("StatefulSet", "llm")) is ITSELF


async def test_an_owner_of_another_namespace_is_none(served: ObjectsServed) -> None:
    llm = served.add("apps/v1", "StatefulSet", "llm", namespace="product")
    roots = Roots()
    assert (await found(roots, served, llm, "product")) is not None
    assert (await found(roots, served, llm, "research")) is ITSELF


async def test_an_owner_that_may_not_be_read_is_named_by_its_reference(served: ObjectsServed) -> None:
    thing = served.add("acme.io/v1", "Thing", "t")
    served.refused["/apis/acme.io/v1/namespaces"] = 403
    root = await found(Roots(), served, thing)
    assert root == Root("acme.io/v1", "Thing", "research", "t", thing.uid)


async def test_an_owner_of_a_group_that_is_gone_is_named_by_its_reference(served: ObjectsServed) -> None:
    owner = Owner("Old", "o", "uid-old", controller=True, api_version="removed.io/v1")
    assert await found(Roots(), served, owner) == Root("removed.io/v1", "Old", "research", "o", "uid-old")


async def test_an_owner_of_the_whole_cluster_is_no_workload(served: ObjectsServed) -> None:
    assert await found(Roots(), served, ref("Node", api_version="v1")) is ITSELF


async def test_a_chain_in_a_circle_ends(served: ObjectsServed) -> None:
    first = ref("StatefulSet", "a")
    second = served.add("apps/v1", "ReplicaSet", "b", first)
    served.add("apps/v1", "StatefulSet", "a", second)
    assert (await found(Roots(), served, first)) is not None


# requests


async def test_owners_are_read_once(served: ObjectsServed) -> None:
    chat = served.add("apps/v1", "Deployment", "chat")
    owned = served.add("apps/v1", "ReplicaSet", "chat-1", chat)
    roots = Roots()
    for _ in range(3):
        await found(roots, served, owned)
    assert served.asked == {
        "/apis/apps/v1": 1,
        served.path("apps/v1", "Deployment", "chat"): 1,
        served.path("apps/v1", "ReplicaSet", "chat-1"): 1,
    }


async def test_many_owners_of_a_kind_are_listed(served: ObjectsServed) -> None:
    owners = [
        served.add("apps/v1", "ReplicaSet", f"r{i}", served.add("apps/v1", "Deployment", f"d{i}"))
        for i in range(LIST_FROM)
    ]
    roots = Roots()
    await roots.resolve(served.requests(), [("research", o) for o in [*owners, ref("ReplicaSet", "gone")]])
    names = {root.name for o in owners if (root := roots.find("research", o)) is not None}
    assert names == {f"d{i}" for i in range(LIST_FROM)}
    assert roots.find("research", ref("ReplicaSet", "gone")) is ITSELF
    assert sum(served.asked.values()) == 3


async def test_a_group_that_does_not_answer_holds_up_its_own_pods_only(served: ObjectsServed) -> None:
    now = 0.0
    thing = served.add("acme.io/v1", "Thing", "t")
    chat = served.add("apps/v1", "Deployment", "chat")
    served.refused["/apis/acme.io"] = 500
    roots = Roots(clock=lambda: now)
    both = [("research", thing), ("research", chat)]
    await roots.resolve(served.requests(), both)
    assert roots.find("research", thing) is None
    assert roots.find("research", chat) is not None
    now = GIVE_UP_SECONDS
    await roots.resolve(served.requests(), both)
    root = roots.find("research", thing)
    assert root is not None
    assert (root.kind, root.created) == ("Thing", None)


async def test_owners_without_dependents_are_forgotten(served: ObjectsServed) -> None:
    roots = Roots()
    owners = [served.add("apps/v1", "ReplicaSet", f"r{i}") for i in range(3000)]
    await roots.resolve(served.requests(), [("research", o) for o in owners])
    roots.prune(lambda: [("research", owners[0])])
    assert len(roots) == 1
    assert roots.find("research", owners[0]) is not None
    assert roots.find("research", owners[1]) is None
