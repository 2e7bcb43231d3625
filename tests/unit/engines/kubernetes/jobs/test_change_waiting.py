"""Changes of suspended Jobs: what is patched, what Kubernetes keeps, and what has started."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fairway.engines.kubernetes.jobs.manifest import job_manifest
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner
from fairway.model.errors import Refused
from fairway.model.job import EngineId, Order, Tolerates
from fairway.model.job_change import JobChange, WaitingChange
from fairway.model.names import PoolName, PriorityName
from fairway.model.team import Supply
from tests.unit.engines.kubernetes.api.connections import Connections, connection
from tests.unit.engines.kubernetes.jobs.objects_served import ObjectsServed
from tests.unit.engines.kubernetes.jobs.test_manifest import CLUSTER, SPEC, order
from tests.unit.engines.kubernetes.policy.fleets import FAMILY, fleet

FLEET = fleet(FAMILY + "  movers: { borrow: { a100: 8, spot: 8 } }\n")
BEFORE = order(SPEC)
NAME = str(BEFORE.engine_name)
ID = EngineId(f"research/{NAME}")


@pytest.fixture
def served() -> ObjectsServed:
    return ObjectsServed()


@pytest.fixture
def runner(served: ObjectsServed, monkeypatch: pytest.MonkeyPatch) -> KubernetesRunner:
    made = Connections()
    monkeypatch.setattr(made, "answer", served.answer)
    return KubernetesRunner(connection(made), FLEET.pools)


def changed(change: JobChange, before: Order = BEFORE) -> WaitingChange:
    supply = Supply(change.pool) if change.pool else before.supply
    spec = change.apply_to(before.spec)
    return WaitingChange(
        ID, before, replace(before, spec=spec, supply=supply, priority=change.priority or before.priority)
    )


def there(served: ObjectsServed, of: Order = BEFORE, **spec: Any) -> None:
    made = job_manifest(of, FLEET, CLUSTER)
    meta = {"labels": made["metadata"]["labels"], "annotations": made["metadata"]["annotations"]}
    served.add("batch/v1", "Job", NAME, resourceVersion="7", spec=made["spec"] | spec, **meta)


async def test_a_smaller_request_is_patched_where_it_waits(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    there(served)
    assert await runner.change([changed(JobChange(gpus=1, time_seconds=600))], FLEET) == {}
    ((method, path, body),) = served.sent
    assert (method, path) == ("PATCH", served.path("batch/v1", "Job", NAME))
    patch = json.loads(body)
    assert patch["metadata"] == {"resourceVersion": "7"}, "not if it starts meanwhile"
    assert patch["spec"]["activeDeadlineSeconds"] == 600
    ((container),) = patch["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["image"] == "acme/train:1", "a merge patch replaces the whole list"
    assert list(patch["spec"]["template"]["spec"]) == ["containers"]


async def test_what_is_so_already_is_not_patched_even_if_it_runs(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    one = changed(JobChange(gpus=1))
    there(served, one.after, suspend=False)
    assert await runner.change([one], FLEET) == {}
    assert served.sent == []
    there(served, BEFORE, suspend=False)
    refused = await runner.change([one], FLEET)
    assert refused[ID].code == "JobStarted"
    assert served.sent == []


async def test_a_job_that_is_gone_is_no_refusal(served: ObjectsServed, runner: KubernetesRunner) -> None:
    assert await runner.change([changed(JobChange(gpus=1))], FLEET) == {}


async def test_a_move_takes_the_old_pools_nodes_off(served: ObjectsServed, runner: KubernetesRunner) -> None:
    other = PoolName("spot")
    before = order(replace(SPEC, tolerates=frozenset({Tolerates.SPOT})), team="movers")
    one = changed(JobChange(pool=other), before)
    old, new = (job_manifest(o, FLEET, CLUSTER)["spec"]["template"]["spec"] for o in (before, one.after))
    assert old.get("nodeSelector") != new.get("nodeSelector"), "else the test shows nothing"
    there(served, before)
    assert await runner.change([one], FLEET) == {}
    pod = json.loads(served.sent[0][2])["spec"]["template"]["spec"]
    surplus = set(old.get("nodeSelector", {})) - set(new.get("nodeSelector", {}))
    assert pod["nodeSelector"] == {**dict.fromkeys(surplus), **new.get("nodeSelector", {})}


async def test_the_priority_is_a_label(served: ObjectsServed, runner: KubernetesRunner) -> None:
    urgent = changed(JobChange(priority=PriorityName("urgent")))
    there(served)
    assert await runner.change([urgent], FLEET) == {}
    patch = json.loads(served.sent[0][2])
    assert patch["metadata"]["labels"] == {"kueue.x-k8s.io/priority-class": "urgent"}
    assert "spec" not in patch


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (JobChange(nodes=2), "the number of its nodes"),
        (JobChange(priority=PriorityName("low")), "its queue"),
    ],
)
async def test_what_kubernetes_keeps(
    served: ObjectsServed, runner: KubernetesRunner, change: JobChange, why: str
) -> None:
    one = changed(change)
    with pytest.raises(Refused, match=why):
        runner.check_change(one.before, one.after, FLEET)
    there(served)
    assert (await runner.change([one], FLEET))[ID].code == "CannotChange"
    assert served.sent == []


def test_what_a_gang_was_told_stays(runner: KubernetesRunner) -> None:
    gang = order(replace(SPEC, nodes=2))
    one = changed(JobChange(gpus=1), gang)
    with pytest.raises(Refused, match="receive"):
        runner.check_change(one.before, one.after, FLEET)
    later = changed(JobChange(time_seconds=60), gang)
    runner.check_change(later.before, later.after, FLEET)
