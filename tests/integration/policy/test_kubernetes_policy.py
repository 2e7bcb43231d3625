"""A fleet on real Kueue: written, found as written, changed by hand, healed, adopted, let go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairway.engines.kubernetes.api.kinds import INTERVENER, KINDS, OVERRIDDEN, RELEASED
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, Fleet, KubernetesConnection
from fairway.policy.objects import Action, Change, FoundObject, ObjectKey
from fairway.policy.plan import compute_adoption, compute_changes
from fairway.services.plans import plan_cluster
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError, Json
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import Governed, governed
from tests.plans import apply_plan

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: policy
currency: USD
clusters: {{ lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model} }} }}
    topology: [topology.fairway/rack]
"""
TEAMS = """
teams:
  research:
    guarantee: { gpu: 16 }
    borrow: { gpu: 8 }
    limits: { job: { gpus: 8, time: 1h } }
    teams: { nlp: { guarantee: { gpu: 8 }, members: [alice] } }
  product:
    guarantee: { gpu: 8 }
    borrow: { gpu: 4 }
    limits: { user: { gpus: 8 } }
    priorities: [normal, low]
    members: [bob]
"""
QUOTA = re.compile(
    r"spec.resourceGroups\[nvidia.com/gpu\].flavors\[gpu(.2)?\].resources\[nvidia.com/gpu\].nominalQuota"
)
"""Of a flavor that somebody changed and was made anew, maybe."""


class Here:
    """The cluster, the fleet on it, and an administrator who meddles."""

    def __init__(self, lab: Governed) -> None:
        self.lab = lab
        self.cluster = LabKubernetes(lab.instance)
        self.admin = self.cluster.api
        self.fleet = self.read(TEAMS)
        self.engine = KubernetesEngine(self.fleet.clusters[0], self.fleet.pools)

    def read(self, teams: str) -> Fleet:
        kubeconfig = self.lab.instance.facts()["fairway_kubeconfig"]
        return parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL) + teams, "policy.yaml")

    async def changes(self, fleet: Fleet | None = None) -> tuple[Change, ...]:
        found = await self.engine.find_policy()
        return compute_changes(self.engine.translate(fleet or self.fleet, found), found)

    async def apply(self, fleet: Fleet) -> None:
        plan = await plan_cluster(self.engine, fleet, fleet.clusters[0].name)
        applied = await apply_plan(self.engine, plan, force=True)
        assert applied.refusal is None, applied.refusal

    async def found(self, kind: str, name: str) -> FoundObject:
        policy = await self.engine.find_policy()
        return next(o for o in policy.objects if o.key == ObjectKey(kind, name))

    async def patch(self, kind: str, name: str, patch: Json, manager: str = "kubectl-edit") -> None:
        path = f"{KINDS[kind].path(name)}?fieldManager={manager}"
        await asyncio.to_thread(self.admin.merge, path, patch)


@pytest.fixture(scope="module")
def lab() -> Iterator[Governed]:
    """The cluster; taking a namespace away takes long enough to do it once."""
    own = governed("kubernetes")
    yield own
    asyncio.run(own.clear())


@pytest.fixture
async def here(lab: Governed) -> AsyncIterator[Here]:
    own = Here(lab)
    await own.apply(own.fleet)
    yield own
    await own.engine.close()


async def test_what_is_written_is_found(here: Here) -> None:
    assert not await here.changes()
    found = await here.engine.find_policy()
    assert found.engine_version.startswith("kubernetes v1.")
    assert "kueue v0." in found.engine_version
    assert {o.key.kind for o in found.objects if o.ours} == set(KINDS) - {"ResourceQuota"}
    assert not [o for o in found.objects if o.ours and o.changed_by], "nobody else changed anything"


BY_HAND: dict[str, tuple[str, Json, str]] = {
    "Namespace": ("nlp", {"metadata": {"annotations": {"fairway.dev/job-gpus": "64"}}}, "job-gpus"),
    "Cohort": ("research", {"spec": {"fairSharing": {"weight": "7"}}}, "spec.fairSharing.weight"),
    "ClusterQueue": ("nlp", {"spec": {"stopPolicy": "Hold"}}, "spec.stopPolicy"),
    "LocalQueue": ("nlp/main", {"spec": {"stopPolicy": "Hold"}}, "spec.stopPolicy"),
    "RoleBinding": (
        "nlp/fairway-members",
        {"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mallory"}]},
        "subjects",
    ),
    "WorkloadPriorityClass": ("low", {"value": 1000}, "value"),
    "ValidatingAdmissionPolicy": (
        "fairway-pods",
        {"spec": {"failurePolicy": "Ignore"}},
        "spec.failurePolicy",
    ),
    "ValidatingAdmissionPolicyBinding": (
        "fairway-jobs",
        {"spec": {"validationActions": ["Audit"]}},
        "spec.validationActions",
    ),
    "ResourceFlavor": (
        "gpu",
        {"spec": {"nodeTaints": [{"key": "x", "effect": "NoSchedule"}]}},
        "spec.nodeTaints",
    ),
}
"""A change of each kind that can be changed; Kueue refuses to change a Topology.

A ResourceQuota is wanted only where Kueue queues no pods."""


@pytest.mark.parametrize("kind", list(BY_HAND))
async def test_a_change_by_hand_shows_and_is_healed(here: Here, kind: str) -> None:
    name, patch, field = BY_HAND[kind]
    try:
        await here.patch(kind, name, patch)
    except ApiError as refusal:
        assert kind == "ResourceFlavor", refusal  # some releases refuse it: nothing to heal then
        return

    changed = await here.changes()
    assert [c.key for c in changed if c.action is Action.UPDATE or c.key.kind == kind], changed
    if kind != "ResourceFlavor":  # which gets a new name, see translate
        (change,) = changed
        assert change.key == ObjectKey(kind, name)
        assert any(field in f.field for f in change.fields), change.fields
        by = (await here.found(kind, name)).changed_by
        assert by is not None
        assert by.startswith("kubectl-edit at 2")

    await here.apply(here.fleet)
    assert not await here.changes()


async def test_a_quota_changed_by_hand_is_named_to_the_field(here: Here) -> None:
    path = KINDS["ClusterQueue"].path("nlp")
    body = await asyncio.to_thread(here.admin.get, path)
    groups = body["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = 31
    await here.patch("ClusterQueue", "nlp", {"spec": {"resourceGroups": groups}})
    (change,) = await here.changes()
    ((field, before, after),) = [(f.field, f.before, f.after) for f in change.fields]
    assert (before, after) == (31, 8)
    assert QUOTA.fullmatch(field), field


async def test_an_object_deleted_by_hand_comes_back(here: Here) -> None:
    await asyncio.to_thread(here.admin.delete, KINDS["LocalQueue"].path("nlp/low"))
    (change,) = await here.changes()
    assert (change.action, change.key) == (Action.CREATE, ObjectKey("LocalQueue", "nlp/low"))
    await here.apply(here.fleet)
    assert not await here.changes()


async def test_a_local_queue_that_points_elsewhere_is_made_anew(here: Here) -> None:
    """Kueue does not let a LocalQueue change its ClusterQueue (K8s F3)."""
    path = KINDS["LocalQueue"].path("nlp/main")
    body = await asyncio.to_thread(here.admin.get, path)
    await asyncio.to_thread(here.admin.delete, path)
    meta = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
    await asyncio.to_thread(
        here.admin.apply, {**body, "metadata": meta, "spec": {"clusterQueue": "product"}, "status": None}
    )
    (change,) = await here.changes()
    assert [(f.field, f.before, f.after) for f in change.fields] == [("spec.clusterQueue", "product", "nlp")]
    await here.apply(here.fleet)
    assert not await here.changes()


async def test_what_an_intervention_holds_is_nobodys_drift(here: Here) -> None:
    note = (
        '{"spec.queueingStrategy": ["BestEffortFIFO", "StrictFIFO"], "spec.fairSharing.weight": [1, "250m"]}'
    )
    patch = {
        "metadata": {"annotations": {OVERRIDDEN: note}},
        "spec": {"queueingStrategy": "StrictFIFO", "fairSharing": {"weight": "250m"}},
    }
    await here.patch("ClusterQueue", "nlp", patch, manager=INTERVENER)
    assert not await here.changes()
    await here.patch("ClusterQueue", "nlp", {"spec": {"fairSharing": {"weight": "9"}}})
    (change,) = await here.changes()
    assert [(f.field, f.before, f.after) for f in change.fields] == [("spec.fairSharing.weight", 9, 1)]


async def test_what_is_not_ours_is_not_written(here: Here) -> None:
    await here.patch(
        "LocalQueue", "nlp/low", {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}
    )
    key = ObjectKey("LocalQueue", "nlp/low")
    wanted = {"spec.clusterQueue": "nlp"}
    for action in (Action.CREATE, Action.UPDATE, Action.DELETE):
        with pytest.raises(Refused) as refusal:
            async for _ in here.engine.write([Change(action, key, wanted=wanted)]):
                pass
        assert refusal.value.code == "NotOurs"
    assert (await here.found("LocalQueue", "nlp/low")).fields == {"spec.clusterQueue": "nlp.low"}

    found = await here.engine.find_policy()
    (adoption,) = compute_adoption(found, [key])
    assert [c async for c in here.engine.write([adoption])] == [adoption]
    assert not await here.changes()


async def test_a_refusal_stops_and_says_what_the_api_server_said(here: Here) -> None:
    good = Change(Action.UPDATE, ObjectKey("WorkloadPriorityClass", "low"), wanted={"value": -41})
    bad = Change(Action.UPDATE, ObjectKey("ClusterQueue", "nlp"), wanted={"spec.queueingStrategy": "Random"})
    done = []
    with pytest.raises(Refused) as refusal:
        async for change in here.engine.write([good, bad]):
            done += [change]
    assert "Random" in str(refusal.value)
    assert done in ([good], [])


async def test_a_team_that_goes_leaves_its_namespace(here: Here) -> None:
    await asyncio.to_thread(
        here.admin.apply,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "product"}},
    )
    await here.apply(here.read(TEAMS.partition("  product:")[0]))
    left = await asyncio.to_thread(here.admin.get, KINDS["Namespace"].path("product"))
    assert RELEASED in left["metadata"]["labels"]
    assert not left["metadata"].get("annotations")
    await asyncio.to_thread(here.admin.get, "/api/v1/namespaces/product/configmaps/mine")
    assert not await here.changes(here.read(TEAMS.partition("  product:")[0]))

    await here.apply(here.fleet)  # and it is the team's again
    assert not await here.changes()


async def becomes(true: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
    """Ask until it is so."""
    deadline = asyncio.get_running_loop().time() + within
    while not await true():
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {within:g} s"
        await asyncio.sleep(0.3)


def job(name: str, *, gpus: int, labels: Json | None = None, seconds: int | None = 600, **pod: Any) -> Json:
    limit = {} if seconds is None else {"activeDeadlineSeconds": seconds}
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "none", "resources": limits}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **pod}
    template = {"metadata": {"annotations": {kwok.RUN_FOR: "1h"}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"backoffLimit": 0, "template": template, **limit},
    }


QUEUE, CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


async def test_the_api_server_refuses_what_kueue_would_let_through(here: Here) -> None:
    alice = Api.from_kubeconfig(here.cluster.pki.kubeconfig("alice"))
    bob = Api.from_kubeconfig(here.cluster.pki.kubeconfig("bob"))

    async def refused(who: Api, namespace: str, wanted: Json) -> str:
        try:
            await asyncio.to_thread(who.call, "POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", wanted)
        except ApiError as error:
            return error.message
        return ""

    async def in_force() -> bool:
        return bool(await refused(alice, "nlp", job("probe", gpus=1, schedulerName="mine")))

    await becomes(in_force, 20, "the policies bite")
    cases = {
        "over the team's limit of GPUs a job": (alice, "nlp", job("a", gpus=9)),
        "over the team's time limit a job": (alice, "nlp", job("b", gpus=1, seconds=7200)),
        "without one: set spec.activeDeadlineSeconds": (alice, "nlp", job("c", gpus=1, seconds=None)),
        "nodeName and other schedulers": (alice, "nlp", job("d", gpus=1, nodeName="gpu-0000")),
        "priorityClassName is not allowed": (
            alice,
            "nlp",
            job("e", gpus=1, priorityClassName="system-cluster-critical"),
        ),
        "the team may not use this priority class": (
            bob,
            "product",
            job("f", gpus=1, labels={CLASS: "urgent"}),
        ),
        "the queue of its name go together": (bob, "product", job("g", gpus=1, labels={CLASS: "low"})),
        "cannot create resource": (bob, "nlp", job("h", gpus=1)),
    }
    for words, (who, namespace, wanted) in cases.items():
        assert words in await refused(who, namespace, wanted), words
    neuron = job("n", gpus=1)
    neuron["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"aws.amazon.com/neuron": "1"}
    }
    assert "no grant on a pool with such devices" in await refused(alice, "nlp", neuron)
    low = job("low", gpus=1, labels={CLASS: "low", QUEUE: "low"})
    for who, namespace, wanted in (
        (alice, "nlp", job("fine", gpus=8)),
        (bob, "product", low),
        (alice, "nlp", job("cpu-only", gpus=0, seconds=None)),
    ):
        assert not await refused(who, namespace, wanted)
    # One that names a queue, as the site's queues may have wanted, leaves it: it would never start there.
    queued = job("i", gpus=0, seconds=None, labels={QUEUE: "main"})
    queued["spec"]["suspend"] = True
    assert not await refused(alice, "nlp", queued)
    made = await asyncio.to_thread(here.admin.get, "/apis/batch/v1/namespaces/nlp/jobs/i")
    assert QUEUE not in made["metadata"].get("labels", {})
    assert made["spec"]["suspend"] is False
    stray: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stray", "namespace": "default"},
        "spec": job("x", gpus=1)["spec"]["template"]["spec"],
    }
    with pytest.raises(ApiError, match="team's namespace only"):
        await asyncio.to_thread(here.admin.call, "POST", "/api/v1/namespaces/default/pods", stray)

    async def runs() -> bool:
        workloads = await here.engine.activity(
            [ObjectKey("Namespace", "nlp"), ObjectKey("ClusterQueue", "nlp")]
        )
        pods = await asyncio.to_thread(here.admin.get, "/api/v1/namespaces/nlp/pods")
        running = [p["metadata"]["name"] for p in pods["items"] if p["status"]["phase"] == "Running"]
        return len(running) == 3 and [under.running for under in workloads.values()] == [1, 1]

    await becomes(runs, 30, "a GPU job and two CPU jobs of nlp run")
    changed = [Change(Action.DELETE, ObjectKey("ClusterQueue", "nlp"))]
    activity = await here.engine.activity([c.key for c in changed])
    assert activity[changed[0].key].running >= 1
    for namespace, name in (("nlp", "fine"), ("product", "low"), ("nlp", "cpu-only")):
        with suppress(ApiError):
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
            await asyncio.to_thread(here.admin.delete, path, propagationPolicy="Background")


def controlled(wanted: Json, name: str, uid: str) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [owner]}}


async def test_a_forged_owner_gets_no_gpus_past_the_queue(here: Here) -> None:
    """Kueue does not queue a Job whose owner it has admitted (K8s F6)."""
    alice = Api.from_kubeconfig(here.cluster.pki.kubeconfig("alice"))
    jobs = "/apis/batch/v1/namespaces/nlp/jobs"

    async def tried(method: str, path: str, wanted: Json) -> str:
        try:
            if method == "PATCH":
                await asyncio.to_thread(alice.merge, path, wanted)
            else:
                await asyncio.to_thread(alice.call, method, path, wanted)
        except ApiError as error:
            return error.message
        return ""

    async def in_force() -> bool:
        return bool(await tried("POST", jobs, job("probe", gpus=1, schedulerName="mine")))

    await becomes(in_force, 20, "the policies bite")
    owner = await asyncio.to_thread(alice.call, "POST", jobs, job("owner", gpus=8))
    waiting = job("waiting", gpus=8, nodeSelector={"nvidia.com/gpu.product": "none"})
    try:
        uid = owner["metadata"]["uid"]
        words = "is set by the owner's own controller only"
        assert words in await tried("POST", jobs, controlled(job("f1", gpus=1), "owner", uid))
        assert not await tried("POST", jobs, waiting)
        later = {"metadata": controlled(waiting, "owner", uid)["metadata"]}
        assert words in await tried("PATCH", f"{jobs}/waiting", later)
        started = {"spec": {"suspend": False}}
        assert "started by Kueue only" in await tried("PATCH", f"{jobs}/waiting", started)
        assert not await tried("PATCH", f"{jobs}/waiting", {"metadata": {"annotations": {"mine": "1"}}})
    finally:
        for name in ("owner", "waiting", "f1"):
            with suppress(ApiError):
                await asyncio.to_thread(here.admin.delete, f"{jobs}/{name}", propagationPolicy="Background")


async def test_a_waiting_job_that_is_changed_still_asks_for_a_place(here: Here) -> None:
    """Without the request, Kueue finds no flavor for it until something else about it changes."""
    jobs, name = "/apis/batch/v1/namespaces/nlp/jobs", "resized"
    workloads = "/apis/kueue.x-k8s.io/v1beta2/namespaces/nlp/workloads"

    async def asks(gpus: int) -> bool:
        there = (await asyncio.to_thread(here.admin.get, workloads))["items"]
        pods = [w["spec"]["podSets"][0] for w in there if w["metadata"]["ownerReferences"][0]["name"] == name]
        limits = [p["template"]["spec"]["containers"][0]["resources"]["limits"] for p in pods]
        if limits != [{"nvidia.com/gpu": str(gpus)}]:
            return False
        assert pods[0]["topologyRequest"]["podSetSliceRequiredTopology"] == "kubernetes.io/hostname"
        return True

    async def in_force() -> bool:
        try:
            await asyncio.to_thread(here.admin.call, "POST", jobs, job("probe", gpus=1, schedulerName="mine"))
        except ApiError:
            return True
        await asyncio.to_thread(here.admin.delete, f"{jobs}/probe", propagationPolicy="Background")
        return False

    await becomes(in_force, 20, "the policies bite")
    waiting = job(name, gpus=8, nodeSelector={"nvidia.com/gpu.product": "none"})
    await asyncio.to_thread(here.admin.call, "POST", jobs, waiting)
    try:
        await becomes(lambda: asks(8), 20, "the job has a Workload")
        smaller = job(name, gpus=4)["spec"]["template"]["spec"]["containers"]
        patch = {"spec": {"template": {"spec": {"containers": smaller}}}}
        await asyncio.to_thread(here.admin.merge, f"{jobs}/{name}", patch)
        await becomes(lambda: asks(4), 20, "Kueue has changed the Workload")
    finally:
        await asyncio.to_thread(here.admin.delete, f"{jobs}/{name}", propagationPolicy="Background")


@pytest.mark.nightly("a CronJob makes its first Job after up to a minute")
async def test_a_cron_job_gets_no_gpus_past_the_queue(here: Here) -> None:
    """Kubernetes' own controllers make its Jobs, whose updates are not checked."""
    cron_jobs = "/apis/batch/v1/namespaces/nlp/cronjobs"
    jobs = "/apis/batch/v1/namespaces/nlp/jobs"

    def cron_job(made: Json) -> Json:
        template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
        return {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": made["metadata"]["name"]},
            "spec": {"schedule": "* * * * *", "jobTemplate": template},
        }

    refused = {
        "cron-node": (job("cron-node", gpus=1, nodeName="gpu-0000"), "nodeName and other schedulers"),
        "cron-large": (job("cron-large", gpus=9), "over the team's limit of GPUs a job"),
    }
    queued = job("cron-queued", gpus=1, labels={QUEUE: "nobodys"})
    for wanted in (queued, *(made for made, _ in refused.values())):
        await asyncio.to_thread(here.admin.call, "POST", cron_jobs, cron_job(wanted))

    async def made() -> bool:
        found = await asyncio.to_thread(here.admin.get, jobs)
        mine = [o["metadata"] for o in found["items"] if o["metadata"]["name"].startswith("cron-")]
        assert all(m["name"].startswith("cron-queued") and m["labels"][QUEUE] == "main" for m in mine)
        events = await asyncio.to_thread(here.admin.get, "/api/v1/namespaces/nlp/events")
        words = {(e["involvedObject"]["name"], e["message"]) for e in events["items"]}
        told = {n for n, (_, why) in refused.items() for name, m in words if n == name and why in m}
        return bool(mine) and told == set(refused)

    try:
        await becomes(made, 90, "one Job is queued, and the others are refused")
    finally:
        for name in ("cron-queued", *refused):
            await asyncio.to_thread(here.admin.delete, f"{cron_jobs}/{name}", propagationPolicy="Background")


async def test_a_deployment_from_before_comes_back_and_a_new_one_does_not(here: Here) -> None:
    """A policy leaves alone what ran in a namespace before it was a team's (K8s F1)."""
    apps, pods = "/apis/apps/v1/namespaces/{}/deployments", "/api/v1/namespaces/{}/pods"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}
    await asyncio.to_thread(here.admin.apply, namespace)
    labels = {"kubernetes.io/metadata.name": "serving"}
    template = job("x", gpus=1)["spec"]["template"]
    template["metadata"]["labels"] = labels
    template["spec"]["restartPolicy"] = "Always"

    def deployment(name: str) -> Json:
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}

    async def running(name: str) -> list[str]:
        found = await asyncio.to_thread(here.admin.get, pods.format("serving"))
        return [
            p["metadata"]["uid"]
            for p in found["items"]
            if p["metadata"]["name"].startswith(name) and p["status"]["phase"] == "Running"
        ]

    exempt = {"metadata": {"labels": {"fairway.dev/exempt": "true"}}}
    await here.patch("Namespace", "serving", exempt)
    try:
        await asyncio.to_thread(here.admin.call, "POST", apps.format("serving"), deployment("chat"))

        async def up() -> bool:
            return bool(await running("chat"))

        await becomes(up, 30, "the Deployment runs")
        # The policies are in force already: an administrator names what to leave alone.
        await here.patch(
            "Namespace",
            "serving",
            {
                "metadata": {
                    "labels": {"fairway.dev/exempt": None, "fairway.dev/team": "serving"},
                    "annotations": {"fairway.dev/existing": "Deployment/chat=1"},
                }
            },
        )
        (before,) = await running("chat")
        name = next(
            p["metadata"]["name"]
            for p in (await asyncio.to_thread(here.admin.get, pods.format("serving")))["items"]
        )
        await asyncio.to_thread(here.admin.delete, f"{pods.format('serving')}/{name}")

        async def back() -> bool:
            return bool(set(await running("chat")) - {before})

        await becomes(back, 30, "its pod comes back")
        with pytest.raises(ApiError) as refusal:
            await asyncio.to_thread(here.admin.call, "POST", apps.format("serving"), deployment("sneaky"))
        assert (refusal.value.status, "fairway-jobs" in refusal.value.message) == (403, True)
        assert not await running("sneaky")
    finally:
        with suppress(ApiError):
            await asyncio.to_thread(here.admin.delete, KINDS["Namespace"].path("serving"))


async def test_whoever_may_not_is_told_what_is_missing(here: Here) -> None:
    alice = KubernetesEngine(Cluster(here.fleet.clusters[0].name, _as(here, "alice")), here.fleet.pools)
    try:
        with pytest.raises(Refused) as refusal:
            await alice.find_policy()
        assert refusal.value.code == "Forbidden"
        assert "rights.yaml" in refusal.value.hint or "ClusterRole" in refusal.value.hint
    finally:
        await alice.close()


def _as(here: Here, user: str) -> KubernetesConnection:
    return KubernetesConnection(str(here.cluster.pki.kubeconfig(user)))
