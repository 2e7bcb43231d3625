"""How the mirror lives with its connection; what it tells of jobs is for the contract suite."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from fairway.engines.kubernetes.api.store import Added, Deleted, StoredObject
from fairway.engines.kubernetes.jobs.join import SupplyLookup
from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.engines.kubernetes.jobs.objects import JobPodObject, PodFacts, pod_transform
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner
from fairway.engines.port import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, JobState
from tests.unit.engines.kubernetes.api.connections import CLUSTER, Connections, connection
from tests.unit.engines.kubernetes.policy.fleets import fleet as small_fleet

FLEET = small_fleet()


def a_pod(meta: dict[str, object] | None = None) -> StoredObject[PodFacts]:
    written = {
        "metadata": {
            "name": "chat-1", "uid": "pod-uid-1", "namespace": "research",
            "creationTimestamp": "2026-11-15T12:00:00Z", **(meta or {}),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat", "uid": "rs"}],
        },
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-11-15T12:00:01Z",
            "containerStatuses": [
                {"name": "main", "state": {"running": {"startedAt": "2026-11-15T12:00:05Z"}}}
            ],
        },
    }  # fmt: skip
    facts = pod_transform(FLEET.pools)(msgspec.convert(written, JobPodObject))
    assert facts is not None
    return StoredObject("pod-uid-1", 1, facts)


async def test_a_gpu_pod_that_no_job_made_is_followed_as_work_of_nobody() -> None:
    """In the namespace of a team, too: nobody asked its queue, so it is not the team's usage."""
    mirror = KubernetesMirror(connection(Connections()), FLEET.pools)
    supplies = SupplyLookup(FLEET, CLUSTER.name)
    key = ("research", "chat-1")
    mirror._on_pod(Added(key, a_pod()))
    labels = FLEET.pool("a100").place.node_labels  # type: ignore[union-attr]
    mirror._node_labels["gpu-1"] = tuple(labels.items())
    (job,) = mirror._join_changed(supplies)
    assert (job.engine_id, job.state, job.team) == ("research/pod/chat-1/pod-uid-", JobState.RUNNING, None)
    assert job.supply == FLEET.pool("a100").supplies[0]
    assert [(a.devices, a.nodes, a.started_at.second) for a in job.attempts] == [(2, ("gpu-1",), 5)]
    assert mirror.observed(EngineId("research/chat-1")) is None, "it is no Job"

    told: dict[str, object] = {"deletionTimestamp": "2026-11-15T12:10:30Z", "deletionGracePeriodSeconds": 30}
    mirror._on_pod(Deleted(key, a_pod(told)))
    (over,) = mirror._join_changed(supplies)
    assert (over.state, over.reason) == (JobState.CANCELLED, "the pod was deleted")
    assert over.attempts[0].ended_at == datetime(2026, 11, 15, 12, 10, tzinfo=UTC)
    assert list(mirror._join_changed(supplies)) == []


async def test_a_pod_on_a_node_of_no_pool_is_of_none() -> None:
    mirror = KubernetesMirror(connection(Connections()), FLEET.pools)
    mirror._on_pod(Added(("research", "chat-1"), a_pod()))
    mirror._node_labels["gpu-1"] = ()
    (job,) = mirror._join_changed(SupplyLookup(FLEET, CLUSTER.name))
    assert job.supply is None


@pytest.mark.parametrize("act", ["cancel", "hold", "release"])
async def test_a_pod_that_no_job_made_is_not_changed(act: str) -> None:
    runner = KubernetesRunner(connection(Connections()), FLEET.pools)
    pod = EngineId("research/pod/chat-1/pod-uid-")
    refused = await getattr(runner, act)([pod])
    assert refused[pod].code == "PodWithoutJob"
    assert "kubectl describe pod --namespace research chat-1" in refused[pod].hint


async def test_a_mirror_goes_on_after_a_lookup_met_a_401() -> None:
    """The lookup replaces the connection that the mirror's informers run on."""
    made = Connections()
    through = connection(made)
    fleet = Fleet("acme", "USD", (CLUSTER,), ())
    mirror = KubernetesMirror(through, ())
    first = await mirror.changes(None, fleet)
    made.status = 401
    with pytest.raises(Refused):
        await mirror.look_up([EngineId("research/train")], fleet)
    made.status = 200

    async with asyncio.timeout(10):
        again = await mirror.changes(first.mark, fleet)
        later = await mirror.changes(again.mark, fleet)

    assert again.snapshot  # its informers began anew, on the new connection
    assert not later.snapshot
    assert len(made.made) == 2
    await mirror.close()


async def test_a_mirror_goes_on_after_its_own_401() -> None:
    made = Connections()
    through = connection(made)
    fleet = Fleet("acme", "USD", (CLUSTER,), ())
    mirror = KubernetesMirror(through, ())
    mark = (await mirror.changes(None, fleet)).mark
    made.status = 401
    async with asyncio.timeout(10):
        with pytest.raises(Refused) as said:
            while True:
                mark = (await mirror.changes(mark, fleet)).mark
    assert said.value.code == "Unauthorized"

    made.status = 200
    async with asyncio.timeout(10):
        again = await mirror.changes(mark, fleet)

    assert again.snapshot
    await mirror.close()
