"""Manifests and jobs on several nodes, submitted to real Kubernetes with the real operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from fairway.model.job import JobState, Order, engine_name
from fairway.model.workload_kinds import DEPLOYMENT, JOB, JOB_SET, POD, WORKLOAD_KINDS, WorkloadKind
from fairway.wire.jobs import JobSpec
from lab.kubernetes.api import ApiError
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.policy.policy_lab import governed
from tests.kinds import manifests
from tests.kinds.manifests import Json
from tests.waiting import Deadline

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    yield
    asyncio.run(governed("kubernetes").clear())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    own = Stage.of(governed("kubernetes").instance)
    await own.apply()
    own.follow()
    yield own
    await own.leave()
    own.clear()


def order(stage: Stage, body: Json) -> Order:
    """An order of a manifest, to nodes of KWOK."""
    spec = JobSpec(name=body["metadata"]["name"], manifest=body).to_model()
    made = stage.order(pool="gpu")
    return replace(made, spec=spec, engine_name=engine_name("t3st", made.job, 1, spec.name))


def has(stage: Stage, kind: WorkloadKind) -> bool:
    try:
        found = stage.cluster.api.get(f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}")
    except ApiError:
        return False
    return kind.plural in {resource["name"] for resource in found["resources"]}


def objects(stage: Stage, kind: WorkloadKind) -> list[Json]:
    found: list[Json] = stage.cluster.api.get(kind.path("ml"))["items"]
    return found


MAKERS = {
    "Deployment": manifests.deployment,
    "JobSet": manifests.job_set,
    "LeaderWorkerSet": manifests.leader_worker_set,
    "Pod": manifests.pod,
    "RayCluster": manifests.ray_cluster,
    "StatefulSet": manifests.stateful_set,
}


async def test_every_kind_is_created_once_runs_in_its_team_and_is_cancelled(stage: Stage) -> None:
    kinds = [kind for kind in WORKLOAD_KINDS if kind.kind in MAKERS and has(stage, kind)]
    assert {DEPLOYMENT, POD} <= set(kinds)
    orders = {
        kind: order(stage, MAKERS[kind.kind](f"own-{kind.kind.lower()}"[:20], 1, 2)[0]) for kind in kinds
    }
    sent = await stage.send(*orders.values())
    assert await stage.send(*orders.values()) == sent, "found, not doubled"
    for kind, engine_id in zip(kinds, sent, strict=True):
        made = orders[kind]
        assert engine_id == f"ml/{made.engine_name}"
        seen = await stage.until_state(engine_id, JobState.RUNNING, within=90)
        assert (seen.kind, seen.team, seen.user, seen.priority) == (kind.kind, "ml", "alice", "normal")
        assert (seen.name, seen.service) == (made.engine_name, kind.service)
        assert seen.supply == made.supply
        ours = [o for o in objects(stage, kind) if o["metadata"]["name"] == made.engine_name]
        assert len(ours) == 1
    assert not await stage.engine.cancel(sent)
    for engine_id in sent:
        assert (await stage.until_over(engine_id, within=90)).state is JobState.CANCELLED


async def test_a_kind_that_is_not_installed_is_refused(stage: Stage) -> None:
    body = {**manifests.ray_cluster("none", 1, 1)[0], "apiVersion": "ray.io/v9"}
    refused = await stage.engine.never_fits(order(stage, body), stage.fleet)
    assert refused is not None
    assert refused.code == "KindNotInstalled"
    (sent,) = await stage.submit(order(stage, body))
    assert sent.refusal is not None
    assert sent.refusal.code == "KindNotInstalled"


async def test_what_the_guard_refuses_is_refused_with_its_words(stage: Stage) -> None:
    (body,) = manifests.pod("forged", 1, 1)
    body["spec"]["schedulerName"] = "mine"
    (sent,) = await stage.submit(order(stage, body))
    if sent.refusal is None:  # then it must not pass the queue by
        assert sent.engine_id is not None
        pod = next(o for o in objects(stage, POD) if o["metadata"]["name"] == sent.order.engine_name)
        assert any(g["name"] == "kueue.x-k8s.io/admission" for g in pod["spec"].get("schedulingGates", []))


async def test_the_pods_of_a_gang_have_names(stage: Stage) -> None:
    gang = stage.order("true", pool="gpu", nodes=2, gpus=2, env={"KWOK": "1"})
    (engine_id,) = await stage.send(gang)
    kind = JOB_SET if has(stage, JOB_SET) else JOB
    assert any(o["metadata"]["name"] == gang.engine_name for o in objects(stage, kind))
    deadline, pods = Deadline(45), list[Json]()
    while len(pods) < gang.spec.nodes and not deadline.passed:
        await asyncio.sleep(0.1)
        pods = [p for p in objects(stage, POD) if p["metadata"]["name"].startswith(gang.engine_name)]
    services = {
        o["metadata"]["name"] for o in stage.cluster.api.get("/api/v1/namespaces/ml/services")["items"]
    }
    names = {f"{p['spec']['hostname']}.{p['spec']['subdomain']}" for p in pods}
    assert len(names) == gang.spec.nodes
    assert {p["spec"]["subdomain"] for p in pods} <= services
    for pod in pods:
        env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        assert env["MASTER_ADDR"] in names, "the name of the first pod"
    done = await stage.until_over(engine_id, within=90)
    assert (done.state, len(done.attempts), done.attempts[0].devices) == (JobState.DONE, 1, 4)
