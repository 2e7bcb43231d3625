"""How the mirror lives with its connection; what it tells of jobs is for the contract suite."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, JobState
from tests.unit.engines.kubernetes.api.connections import CLUSTER, Connections, connection
from tests.unit.engines.kubernetes.jobs.cluster_events import FLEET, T0, Events


async def test_a_pod_that_no_queue_counts_is_of_the_pool_of_its_node() -> None:
    """It has no flavor, and its node is the only thing that tells."""
    events = Events()
    events.pod("debug", started=5, workload="")
    assert events.records.by_uid["pod-debug"].pods
    labels = FLEET.pool("a100").place.node_labels  # type: ignore[union-attr]
    assert events.records.unknown_nodes() == {"gpu-1"}
    events.records.node_labels["gpu-1"] = tuple(labels.items())
    job = events.one()
    assert (job.engine_id, job.state) == ("research/pod/debug/pod-debu", JobState.RUNNING)
    assert (job.team, job.supply) == ("research", FLEET.pool("a100").supplies[0])
    assert [(a.devices, a.nodes, a.started_at.second) for a in job.attempts] == [(2, ("gpu-1",), 5)]
    assert events.records.find(EngineId("research/debug")) is None, "it is no Job"

    events.pod("debug", started=5, deletion=600, workload="")
    events.gone("Pod", "debug")
    over = events.one()
    assert (over.state, over.reason) == (JobState.CANCELLED, "the Pod was deleted")
    assert over.attempts[0].ended_at == T0 + timedelta(seconds=600)
    assert events.seen() == {}


async def test_a_pod_on_a_node_of_no_pool_is_of_none() -> None:
    events = Events()
    events.pod("debug", started=5, workload="")
    events.records.node_labels["gpu-1"] = ()
    assert events.one().supply is None


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
