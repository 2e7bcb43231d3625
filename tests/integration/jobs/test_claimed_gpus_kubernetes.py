"""GPUs that pods claim or share, on real Kueue: admitted by quota, counted, charged as any other.

Nodes of KWOK's publish their GPUs in ResourceSlices that this module makes and takes away again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any

import psycopg
import pytest

from fairway.cost.rates import memory_part
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.model.job import Ending, EngineId, JobState, Order, SeenJob
from fairway.model.names import SliceName, TeamName, UserName
from fairway.model.observation import PoolTotals, pool_totals
from lab.kubernetes import Api, dra, kwok
from lab.kubernetes.api import ApiError
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.jobs.kubernetes_jobs import Stage, create, member, native
from tests.integration.jobs.metered_stage import metered_stage
from tests.integration.policy.policy_lab import governed
from tests.kinds.pods import PodRecorder, pod_times
from tests.waiting import Deadline

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]

NODES, GPUS = 2, 8
TEAM = "ml"
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: claims
currency: USD
clusters: {{ lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  plain:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 3.60
    kubernetes:
      node_labels: {{ nvidia.com/gpu.product: {model}, topology.fairway/rack: rack-000 }}
  claimed:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 3.60
    kubernetes: {{ device_class: gpu.example.com, node_labels: {{ nvidia.com/gpu.product: {model}-DRA }} }}
  cut:
    cluster: lab
    gpu: A100-80GB
    slices: [3g.40gb, 1g.10gb]
    capacity: owned
    price: 3.60
    kubernetes:
      device_classes: {{ 3g.40gb: mig-3g-40gb.example.com, 1g.10gb: mig-1g-10gb.example.com }}
      node_labels: {{ nvidia.com/gpu.product: {model}-DRA-MIG }}
  shared:
    cluster: lab
    gpu: A100-80GB
    slices: [shared-4]
    capacity: owned
    price: 3.60
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model}-SHARED }} }}
teams:
  ml:
    guarantee: {{ plain: 6, claimed: 6, cut/3g.40gb: 2, shared/shared-4: 4 }}
    borrow: {{ plain: 0, claimed: 0, cut/3g.40gb: 0, shared/shared-4: 0 }}
    members: [alice]
  counted:
    borrow: {{ claimed: unlimited }}
    members: [bob]
"""
SHARED_NODE = kwok.site_node(
    "shared-0000",
    {"labels": {"nvidia.com/gpu.product": f"{kwok.MODEL}-SHARED"}, "devices": {"nvidia.com/gpu.shared": 8}},
)


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    """Nodes, classes and slices; the next module finds the cluster as this one did."""
    lab = governed("kubernetes")
    api = LabKubernetes(lab.instance).api
    wanted = [*dra.nodes(NODES), SHARED_NODE, *dra.objects(NODES, GPUS)]
    made = [one for one in wanted if not _exists(api, one)]
    for one in made:
        api.apply(one)
    asyncio.run(_apply())
    yield
    asyncio.run(lab.clear())
    for one in reversed(made):
        with suppress(ApiError):
            api.delete(api.path_of(one))


def _exists(api: Api, one: dict[str, Any]) -> bool:
    try:
        return bool(api.get(api.path_of(one)))
    except ApiError:
        return False


def _stage() -> Stage:
    instance = governed("kubernetes").instance
    kubeconfig = instance.facts()["fairway_kubeconfig"]
    fleet = parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL), "claims.yaml")
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    return Stage(instance, engine, fleet, LabKubernetes(instance))


async def _apply() -> None:
    own = _stage()
    await own.apply()
    await own.engine.close()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    own = _stage()
    own.follow()
    yield own
    await own.leave()
    own.clear()


def order(stage: Stage, pool: str, gpus: int = 1, nodes: int = 1, slice_: str | None = None) -> Order:
    env = {kwok.RUN_FOR_ENV: "600s"}
    made = stage.order("x", pool=pool, gpus=gpus, nodes=nodes, env=env, team=TEAM, user="alice")
    name = SliceName(slice_) if slice_ else None
    spec = replace(made.spec, gpus=replace(made.spec.gpus, slice=name))
    return replace(made, spec=spec, supply=replace(made.supply, slice=name))


async def totals(stage: Stage) -> dict[str, PoolTotals]:
    seen = await stage.engine.observe()
    return {f"{t.pool}/{t.slice}" if t.slice else f"{t.pool}": t for t in pool_totals(seen.nodes) if t.pool}


def counts(of: PoolTotals) -> tuple[int, int, int, int]:
    return of.total, of.in_use, of.free, of.unhealthy


async def test_claimed_and_shared_gpus_count_as_extended_ones(
    stage: Stage, ledger: Ledger, database_url: str
) -> None:
    """The same jobs on two pools of the same size: the same places, the same waits, the same usage."""
    async with metered_stage(stage, ledger, TEAM) as (_, recorders):
        gangs = {pool: order(stage, pool, gpus=2, nodes=3) for pool in ("plain", "claimed")}
        slices = [order(stage, "cut", nodes=2, slice_="3g.40gb")]
        slices += [order(stage, "shared", slice_="shared-4") for _ in range(4)]
        first = [*gangs.values(), *slices]
        ids = dict(zip((o.job for o in first), await stage.send(*first), strict=True))
        for engine_id in ids.values():
            job = await stage.until(
                engine_id, lambda j: j.state is JobState.RUNNING and j.attempts[-1].devices
            )
            assert job.supply is not None
        then = [order(stage, pool, gpus=2) for pool in gangs]
        ids |= dict(zip((o.job for o in then), await stage.send(*then), strict=True))
        waits = [await stage.until(ids[o.job], lambda j: j.reason_code == "QuotaInUse") for o in then]
        assert [(j.gpus, j.nodes, j.supply) for j in waits] == [(2, 1, o.supply) for o in then]

        now = await totals(stage)
        assert counts(now["plain"]) == counts(now["claimed"]) == (16, 6, 10, 0)
        assert counts(now["cut/3g.40gb"]) == (2, 2, 0, 0)
        assert "cut/1g.10gb" not in now, "nothing is left of the GPU to cut"
        assert counts(now["shared/shared-4"]) == (8, 4, 4, 0)

        orders = [*first, *then]
        assert not await stage.engine.cancel([ids[o.job] for o in first])
        for one in then:
            await stage.until(ids[one.job], lambda j: j.state is JobState.RUNNING and j.attempts[-1].devices)
        assert not await stage.engine.cancel([ids[o.job] for o in then])
        done = {o.job: await stage.until_over(ids[o.job]) for o in orders}
        assert _shape(done, [gangs["plain"], then[0]]) == _shape(done, [gangs["claimed"], then[1]])
        used = await _until_metered(database_url, orders, ids, recorders[TEAM])
    # 3.60 an hour is a thousandth a second; four replicas are one GPU, and so are two of the larger slices.
    of_a_gpu = {"plain": Fraction(1), "claimed": Fraction(1), "cut": Fraction(1, 2), "shared": Fraction(1, 4)}
    held = {pool: sum(n for (p, _), n in used.items() if p == pool) for pool in of_a_gpu}
    assert {pool: _cost(stage, used, pool) for pool in held} == {
        pool: seconds * of_a_gpu[pool] / 1000 for pool, seconds in held.items()
    }
    assert all(held.values())
    left = await totals(stage)
    assert {name: t.in_use for name, t in left.items()} == dict.fromkeys(left, 0)


def _shape(done: dict[Any, SeenJob], orders: list[Order]) -> list[tuple[object, ...]]:
    """What does not depend on the pool."""
    jobs = [done[o.job] for o in orders]
    return [(j.gpus, j.nodes, j.exit_code, [(a.devices, a.ending) for a in j.attempts]) for j in jobs]


Used = Counter[tuple[str, str]]


async def _until_metered(url: str, orders: list[Order], ids: dict[Any, EngineId], pods: PodRecorder) -> Used:
    """Device-seconds by pool and slice, once they are what the pods' own times come to."""
    deadline = Deadline(40)
    while True:
        theirs: Used = Counter()
        for one in orders:
            times = [pod_times(pod) for pod in pods.of(ids[one.job])]
            ends = [end for _, end in times if end is not None]
            if len(ends) == one.spec.nodes:
                key = (str(one.supply.pool), one.supply.slice or "")
                theirs[key] += one.spec.devices * _seconds(min(begin for begin, _ in times), max(ends))
        with psycopg.connect(url, autocommit=True) as db:
            found = db.execute(
                "SELECT c.pool, c.slice, sum(u.devices::bigint * u.seconds) FROM usage u"
                " JOIN job_class c ON c.id = u.class GROUP BY 1, 2"
            )
            ours: Used = Counter({(pool, slice_ or ""): int(n) for pool, slice_, n in found})
        if ours == theirs and len(theirs) == 4:
            return ours
        assert not deadline.passed, (ours, theirs)
        await asyncio.sleep(0.3)


def _seconds(start: datetime, end: datetime) -> int:
    return int((end - start).total_seconds())


def _cost(stage: Stage, used: Used, name: str) -> Fraction:
    pool = stage.fleet.pool(name)
    parts = (
        n * memory_part(pool.gpu, SliceName(s) if s else None) for (p, s), n in used.items() if p == name
    )
    return sum(parts, Fraction(0)) * Fraction(pool.price) / 3600


def template(name: str, gpus: int = 1, device_class: str = dra.GPU_CLASS) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": gpus}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}},
    }


def claiming(pod: dict[str, Any], **claim: str) -> dict[str, Any]:
    """A pod that claims its GPUs, in place of those in its limits."""
    pod.pop("nodeSelector", None)
    pod["resourceClaims"] = [{"name": "gpus", **claim}]
    pod["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return pod


def job(name: str, **claim: str) -> dict[str, Any]:
    made = native(name)
    claiming(made["spec"]["template"]["spec"], **claim)
    made["spec"]["template"]["metadata"] = {"annotations": {kwok.RUN_FOR: "600s"}}
    return made


def pod(name: str, **claim: str) -> dict[str, Any]:
    spec = claiming(native(name)["spec"]["template"]["spec"], **claim)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def refusal(api: Api, path: str, body: dict[str, Any] | None, verb: str = "POST") -> str:
    try:
        api.text(verb, path, body)
    except ApiError as error:
        assert error.status == 403, error
        return str(error)
    raise AssertionError(f"{verb} {path} was accepted")


async def test_no_claim_passes_the_queue(stage: Stage) -> None:
    alice, admin = member(stage, "alice"), stage.cluster.api
    templates = f"{dra.API}/namespaces/{TEAM}/resourceclaimtemplates"
    for wanted in (template("own"), template("huge", 64), template("other", 1, "unmapped.example.com")):
        with suppress(ApiError):  # there since the last run: nobody may take them away
            alice.text("POST", templates, wanted)
    # What a policy can see is refused.
    jobs, pods = f"/apis/batch/v1/namespaces/{TEAM}/jobs", f"/api/v1/namespaces/{TEAM}/pods"
    by_name = {"resourceClaimName": "shared"}
    assert "resourceClaimTemplateName" in refusal(alice, jobs, job("by-name", **by_name))
    assert "resourceClaimTemplateName" in refusal(admin, pods, pod("by-name", **by_name))
    own = {"resourceClaimTemplateName": "own"}
    refusal(admin, "/api/v1/namespaces/default/pods", pod("stray", **own))
    refusal(alice, f"{dra.API}/namespaces/{TEAM}/resourceclaims", {**template("c"), "kind": "ResourceClaim"})
    # Another template of the same name could ask for more than Kueue has counted.
    refusal(alice, f"{templates}/own", None, "DELETE")
    # What only Kueue can see waits.
    over = create(alice, TEAM, job("over", resourceClaimTemplateName="huge"))
    other = create(alice, TEAM, job("other", resourceClaimTemplateName="other"))
    assert (await stage.until(over, lambda j: j.reason_code == "AboveQuota", 90)).gpus == 64
    assert (await stage.until(other, lambda j: j.reason_code == "ClaimNotCounted", 90)).attempts == ()
    why = await stage.engine.explain(over, stage.fleet)
    assert why is not None and why.code == "AboveQuota"
    seen = await totals(stage)
    assert seen["claimed"].in_use == 0


async def test_a_guarantee_of_claimed_gpus_comes_back(stage: Stage) -> None:
    """One job borrows a whole node, another the rest of what is lent: the last one to start yields."""
    lent = [
        replace(order(stage, "claimed", gpus=8), team=TeamName("counted"), user=UserName("bob")) for _ in "ab"
    ]
    first, last = await stage.send(lent[0]), await stage.send(lent[1])
    for engine_id in (*first, *last):
        await stage.until(engine_id, lambda j: j.state is JobState.RUNNING and j.attempts[-1].devices == 8)
    assert (await totals(stage))["claimed"].free == 0
    (own,) = await stage.send(order(stage, "claimed", gpus=2))
    back = await stage.until(own, lambda j: j.state is JobState.RUNNING and j.attempts[-1].devices == 2)
    assert len(back.attempts) == 1
    yielded = [j for i in (*first, *last) if (j := stage.seen[i]).attempts[0].ending is Ending.PREEMPTED]
    assert [(j.attempts[0].devices, j.gpus) for j in yielded] == [(8, 8)]
    assert (await totals(stage))["claimed"].in_use == 10


async def test_replicas_that_claim_gpus_are_counted_each(stage: Stage) -> None:
    alice = member(stage, "alice")
    with suppress(ApiError):
        alice.text("POST", f"{dra.API}/namespaces/{TEAM}/resourceclaimtemplates", template("own"))
    spec = claiming(native("x")["spec"]["template"]["spec"], resourceClaimTemplateName="own")
    spec["restartPolicy"] = "Always"
    labels = {"app": "chat"}
    service = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": {kwok.RUN_FOR: "600s"}}, "spec": spec},
        },
    }
    path = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
    made = json.loads(alice.text("POST", path, service))
    engine_id = EngineId(f"{TEAM}/deployment/chat/{made['metadata']['uid'][:8]}")
    try:
        running = await stage.until(
            engine_id, lambda j: [a.devices for a in j.attempts if a.ended_at is None] == [1, 1]
        )
        assert running.supply == stage.fleet.pool("claimed").supplies[0]
        assert (running.gpus, running.nodes, running.team) == (1, 2, TEAM)
        assert (await totals(stage))["claimed"].in_use == 2
    finally:
        stage.cluster.api.delete(f"{path}/chat")
    await stage.until(engine_id, lambda j: j.attempts and all(a.ended_at for a in j.attempts))
