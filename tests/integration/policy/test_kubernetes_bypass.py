"""Try to get GPUs that no queue counts, as a member with `admin` in the namespace, on real Kueue.

Each attempt is rejected, or what comes of it is counted: no GPU pod runs beyond what its Workload was given.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.kubernetes.policy.admission_policies import NEEDS_QUEUE
from fairway.files import parse_fleet
from fairway.services.plans import plan_cluster
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError, Json
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import governed
from tests.integration.policy.test_kubernetes_policy import FLEET, becomes
from tests.kinds.manifests import MANIFESTS, training_runtime
from tests.plans import apply_plan

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

TEAMS = """
teams:
  vault: { guarantee: { gpu: 24 }, priorities: [normal, low], members: [alice] }
"""
NAMESPACE = "vault"
KUEUE = "kueue.x-k8s.io"
QUEUE, WORKLOAD, GROUP = f"{KUEUE}/queue-name", f"{KUEUE}/workload", f"{KUEUE}/pod-group-name"
GPU = "nvidia.com/gpu"
RBAC = "rbac.authorization.k8s.io/v1"
WAY = "fairway.test/way"
"""A label of pods: the attempt that they come from."""
KINDS_OF_OPERATORS = ["jobsets", "trainjobs", "rayjobs", "rayclusters", "leaderworkersets", "pytorchjobs"]

ONLY_OWNER = "is set by the owner's own controller only"
ONLY_KUEUE = "only Kueue puts a pod into the Workload of another object"
NO_GRANT = "no grant on a pool with such devices"
NOT_COUNTED = "no queue counts this GPU pod"


def spec(gpus: int = 1, resource: str = GPU, **more: Any) -> Json:
    limits = {"limits": {resource: str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "none", "resources": limits}
    return {
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"type": "kwok"},
        "containers": [container],
        **more,
    }


def meta(name: str, labels: Json | None = None, annotations: Json | None = None, **more: Any) -> Json:
    return {
        "name": name,
        "labels": {WAY: name, **(labels or {})},
        "annotations": {kwok.RUN_FOR: "1h", **(annotations or {})},
        **more,
    }


def pod(name: str, labels: Json | None = None, annotations: Json | None = None, **more: Any) -> Json:
    owners = {"ownerReferences": more.pop("owners")} if "owners" in more else {}
    body = spec(**more)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, labels, annotations, **owners),
        "spec": {"restartPolicy": "Never", **body},
    }


def owned(
    kind: str, api_version: str, name: str, template: Json, labels: Json | None = None, **more: Any
) -> Json:
    template["metadata"].pop("name", None)
    template["metadata"]["labels"]["app"] = name
    owners = {"ownerReferences": more.pop("owners")} if "owners" in more else {}
    if kind in {"Job"}:
        template["spec"]["restartPolicy"] = "Never"
        body: Json = {"backoffLimit": 0, "template": template, **more}
    else:
        selector = {"app": name} if kind == "ReplicationController" else {"matchLabels": {"app": name}}
        body = {"selector": selector, "template": template, **more}
        if kind != "DaemonSet":
            body.setdefault("replicas", 1)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "labels": labels or {}, **owners},
        "spec": body,
    }


def template(name: str, labels: Json | None = None, annotations: Json | None = None, **more: Any) -> Json:
    return {"metadata": meta(name, labels, annotations), "spec": spec(**more)}


job = partial(owned, "Job", "batch/v1")
deployment = partial(owned, "Deployment", "apps/v1")
stateful_set = partial(owned, "StatefulSet", "apps/v1")
replica_set = partial(owned, "ReplicaSet", "apps/v1")


def ray_cluster(name: str, workers: Json, **metadata: Any) -> Json:
    head = {"rayStartParams": {}, "template": template(name, gpus=0)}
    group = {
        "groupName": "w", "replicas": 1, "minReplicas": 0, "maxReplicas": 8, "rayStartParams": {},
        "template": workers,
    }  # fmt: skip
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, **metadata},
        "spec": {"rayVersion": "2.46.0", "headGroupSpec": head, "workerGroupSpecs": [group]},
    }


@dataclass
class Here:
    """The namespace, its administrator, the member, and what honest work runs there."""

    admin: Api
    alice: Api
    operators: bool
    honest: dict[str, Json] = field(default_factory=dict)
    """Objects that run, by name."""

    def path(self, body: Json) -> str:
        inside = {**body["metadata"], "namespace": body["metadata"].get("namespace", NAMESPACE)}
        inside.setdefault("name", "generated")
        return self.admin.path_of({**body, "metadata": inside}).rpartition("/")[0]

    async def create(self, body: Json, who: Api | None = None) -> Json:
        return await asyncio.to_thread((who or self.alice).call, "POST", self.path(body), body)

    async def patch(self, body: Json, patch: Json | list[Json], subresource: str = "") -> Json:
        kind = "application/json-patch+json" if isinstance(patch, list) else "application/merge-patch+json"
        path = f"{self.path(body)}/{body['metadata']['name']}{subresource}"
        return await asyncio.to_thread(self.alice.call, "PATCH", path, patch, content=kind)  # type: ignore[arg-type]

    async def pods(self) -> list[Json]:
        found: list[Json] = (await asyncio.to_thread(self.admin.get, f"/api/v1/namespaces/{NAMESPACE}/pods"))[
            "items"
        ]
        return found

    async def workloads(self) -> dict[str, Json]:
        path = f"/apis/{KUEUE}/v1beta2/namespaces/{NAMESPACE}/workloads"
        return {w["metadata"]["name"]: w for w in (await asyncio.to_thread(self.admin.get, path))["items"]}

    async def give_rights(self) -> None:
        """Make the member an administrator of the namespace, with all kinds of operators."""
        rule = {
            "apiGroups": ["*"],
            "resources": [*KINDS_OF_OPERATORS, "pods/binding", "pods/ephemeralcontainers"],
            "verbs": ["*"],
        }
        role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "bypass"}, "rules": [rule]}
        await asyncio.to_thread(self.admin.apply, role)
        for name in ("admin", "bypass"):
            binding = {
                "apiVersion": RBAC,
                "kind": "RoleBinding",
                "metadata": {"name": f"bypass-{name}", "namespace": NAMESPACE},
                "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": RBAC.partition("/")[0], "kind": "User", "name": "alice"}],
            }
            await asyncio.to_thread(self.admin.apply, binding)

    async def created(self, body: Json) -> bool:
        """Create it. Before the policies are in force it gets no queue, and is tried again."""
        try:
            made = await self.create(body)
        except ApiError as error:
            # The one before is being deleted, or the policy that assigns queues is not in force yet.
            assert error.status == 409 or NEEDS_QUEUE in error.message, error
            return False
        name = body["metadata"]["name"]
        self.honest[name] = made
        if QUEUE in made["metadata"].get("labels", {}) or name == "cpu":
            return True
        path = f"{self.path(body)}/{name}"
        await asyncio.to_thread(self.admin.delete, path, propagationPolicy="Background", gracePeriodSeconds=0)
        return False

    async def until_run(self, names: Collection[str]) -> None:
        async def missing() -> set[str]:
            return set(names) - running(await self.pods())

        async def run() -> bool:
            return not await missing()

        try:
            await becomes(run, 60, "they run")
        except AssertionError:
            raise AssertionError(f"these do not run: {await missing()}") from None

    async def create_operated(self) -> None:
        """Create an honest workload of each operator, and wait until its pods run."""
        with suppress(ApiError):
            await asyncio.to_thread(self.admin.apply, training_runtime())
        for kind in OPERATED:
            for body in MANIFESTS[kind](f"h-{kind.lower()}", 1, 1):
                await self.create(body)

        async def run() -> bool:
            names = [p["metadata"]["name"] for p in await self.pods() if holds(p)]
            return all(any(n.startswith(f"h-{kind.lower()}") for n in names) for kind in OPERATED)

        await becomes(run, 60, "honest workloads of operators run")

    async def rejected(self) -> bool:
        """Whether controllers were told why they get no pods."""
        events = (await asyncio.to_thread(self.admin.get, f"/api/v1/namespaces/{NAMESPACE}/events"))["items"]
        said = [(e["involvedObject"]["name"], e.get("message", "")) for e in events]
        return all(any(n == name and words in m for n, m in said) for name, words in EVENTS.items())

    def owner(self, name: str) -> list[Json]:
        body = self.honest[name]
        return [
            {
                "apiVersion": body["apiVersion"],
                "kind": body["kind"],
                "name": body["metadata"]["name"],
                "uid": body["metadata"]["uid"],
                "controller": True,
            }
        ]


def gpus_of(pod: Json) -> int:
    parts = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return sum(int(c.get("resources", {}).get("limits", {}).get(GPU, 0)) for c in parts)


def holds(pod: Json) -> bool:
    """Whether a pod has GPUs now."""
    return bool(
        gpus_of(pod) and pod["spec"].get("nodeName") and pod["status"]["phase"] in {"Pending", "Running"}
    )


def uncounted(pods: list[Json], workloads: dict[str, Json]) -> list[str]:
    """GPU pods that hold more than Workloads were given."""
    held: Counter[str] = Counter()
    wrong = []
    for one in filter(holds, pods):
        name = one["metadata"].get("annotations", {}).get(WORKLOAD, "")
        admission = workloads.get(name, {}).get("status", {}).get("admission")
        if admission is None:
            wrong.append(one["metadata"]["name"])
        held[name] += gpus_of(one)
    for name, gpus in held.items():
        sets = (workloads.get(name, {}).get("status", {}).get("admission") or {}).get("podSetAssignments", ())
        given = sum(int(s.get("resourceUsage", {}).get(GPU, 0)) for s in sets)
        if gpus > given:
            wrong.append(f"{name}: {gpus} GPUs held, {given} given")
    return wrong


Try = Callable[[Here], Any]


@dataclass(frozen=True)
class Attempt:
    """One way past the queue."""

    name: str
    act: Try
    words: str = ""
    """Of the rejection. Empty: the API server accepts it, and what comes of it must be counted."""
    runs: bool = False
    """Whether what comes of it runs, counted."""
    operators: bool = False


def creates(body: Json, words: str = "", *, runs: bool = False, operators: bool = False) -> Attempt:
    return Attempt(
        body["metadata"].get("name", "generated"), lambda here: here.create(body), words, runs, operators
    )


def forged(
    name: str,
    make: Callable[[list[Json]], Json],
    owner: str,
    words: str = ONLY_OWNER,
    operators: bool = False,
) -> Attempt:
    return Attempt(name, lambda here: here.create(make(here.owner(owner))), words, operators=operators)


async def _patch(here: Here, name: str, patch: Any, subresource: str = "") -> None:
    await here.patch(here.honest[name], patch, subresource)


def patches(way: str, name: str, patch: Any, words: str = "", subresource: str = "", **more: bool) -> Attempt:
    """Change an honest object."""
    return Attempt(way, lambda here: _patch(here, name, patch, subresource), words, **more)


async def _group_of(here: Here, name: str) -> tuple[Json, str]:
    """The marks of Kueue on an admitted pod, and its Workload."""
    found = next(p for p in await here.pods() if p["metadata"]["name"] == name)
    marks = {k: v for k, v in found["metadata"]["annotations"].items() if KUEUE in k}
    return marks, marks[WORKLOAD]


async def _copy_group(here: Here) -> None:
    marks, _ = await _group_of(here, "shard-0")
    await here.create(pod("w-group", {QUEUE: "main"}, marks))


async def _label_group(here: Here) -> None:
    _, workload = await _group_of(here, "shard-0")
    await here.create(
        pod("w-grouplabel", {QUEUE: "main", GROUP: workload}, {f"{KUEUE}/pod-group-total-count": "1"})
    )


async def _template_group(here: Here) -> None:
    marks, _ = await _group_of(here, "shard-0")
    await here.create(stateful_set("w-stsgroup", template("w-stsgroup", None, marks, gpus=4)))


async def _prebuilt(here: Here) -> None:
    (name,) = [n for n in await here.workloads() if n.startswith("job-host-")]
    body = job("w-prebuilt", template("w-prebuilt", gpus=4), {f"{KUEUE}/prebuilt-workload-name": name})
    await here.create(body)


async def _bind(here: Here) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0000"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "stuck"}, "target": target}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/stuck/binding"
    await asyncio.to_thread(here.alice.call, "POST", path, binding)


async def _then_gpus(here: Here, body: Json, patch: Json) -> None:
    await here.create(body)
    await here.patch(body, patch)


async def _workload(here: Here) -> None:
    spec_ = {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template("w-wl")}]}
    body = {"apiVersion": f"{KUEUE}/v1beta2", "kind": "Workload", "metadata": {"name": "w-wl"}, "spec": spec_}
    await here.create(body)


async def _local_queue(here: Here) -> None:
    spec_ = {"clusterQueue": "vault"}
    body = {
        "apiVersion": f"{KUEUE}/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "mine"},
        "spec": spec_,
    }
    await here.create(body)


async def _namespace(here: Here, what: Json) -> None:
    await asyncio.to_thread(here.alice.merge, f"/api/v1/namespaces/{NAMESPACE}", {"metadata": what})


async def _outside(here: Here) -> None:
    await here.create(
        {**pod("w-outside"), "metadata": {**meta("w-outside"), "namespace": "default"}}, here.admin
    )


async def _someone(here: Here) -> None:
    body = deployment("w-user", template("w-user"))
    body["metadata"]["annotations"] = {"fairway.dev/user": "bob"}
    made = await here.create(body)
    assert made["metadata"]["annotations"]["fairway.dev/user"] == "alice"


FORGED = {WORKLOAD: "job-host"}
GPU_TEMPLATE = {"spec": {"template": {"spec": spec()}}}

ATTEMPTS = [
    # pods
    creates(pod("w-bare"), runs=True),
    creates({**pod("x"), "metadata": {"generateName": "w-generated-", "labels": {WAY: "w-generated"}}}),
    creates(
        pod(
            "w-init",
            gpus=0,
            initContainers=[{"name": "i", "image": "none", "resources": {"limits": {GPU: "1"}}}],
        ),
        runs=True,
    ),
    Attempt("w-outside", _outside, "team's namespace only"),
    creates(pod("w-node", nodeName="gpu-0000"), "nodeName"),
    creates(pod("w-nodequeue", {QUEUE: "main"}, nodeName="gpu-0000"), "nodeName"),
    creates(pod("w-scheduler", schedulerName="mine"), "other schedulers"),
    creates(pod("w-system", priorityClassName="system-node-critical"), "priority classes of the system"),
    creates(pod("w-labels", {f"{KUEUE}/managed": "true", f"{KUEUE}/podset": "main"}, FORGED), NOT_COUNTED),
    creates(pod("w-parent", None, {f"{KUEUE}/pod-suspending-parent": "deployment"})),
    creates(pod("w-stsparent", None, {f"{KUEUE}/pod-suspending-parent": "statefulset"})),
    creates(
        pod("w-mirror", None, {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}),
        "mirror pod",
    ),
    creates(pod("w-queue", {QUEUE: "nobodys"}), runs=True),
    creates(pod("w-urgent", {f"{KUEUE}/priority-class": "urgent"}), "may not use this priority class"),
    creates(pod("w-mig", resource="nvidia.com/mig-3g.40gb"), NO_GRANT),
    creates(pod("w-dra", resource="example.com/gpu"), NO_GRANT),
    forged("w-owner", lambda owners: pod("w-owner", {QUEUE: "main"}, owners=owners), "host", NOT_COUNTED),
    forged(
        "w-stsowner",
        lambda owners: pod(
            "w-stsowner", None, {f"{KUEUE}/pod-suspending-parent": "statefulset"}, owners=owners
        ),
        "shard",
    ),
    Attempt("w-group", _copy_group, ONLY_KUEUE),
    Attempt("w-grouplabel", _label_group, ONLY_KUEUE),
    creates(pod("w-joins", {GROUP: "honest-group"}, {f"{KUEUE}/pod-group-total-count": "1"}, gpus=4)),
    patches("w-gate", "stuck", [{"op": "remove", "path": "/spec/schedulingGates"}], "takes its gate off"),
    Attempt("w-bind", _bind, "schedulingGates"),
    patches("w-managed", "bare", {"metadata": {"labels": {f"{KUEUE}/managed": None}}}, "changes its marks"),
    patches("w-finalizer", "bare", {"metadata": {"finalizers": None}}),
    patches(
        "w-ephemeral",
        "cpu",
        {
            "spec": {
                "ephemeralContainers": [{"name": "e", "image": "none", "resources": {"limits": {GPU: "1"}}}]
            }
        },
        "resources",
        "/ephemeralcontainers",
    ),
    patches(
        "w-resize",
        "cpu",
        {"spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}]}},
        "resize",
        "/resize",
    ),
    # what makes pods
    creates(replica_set("w-rs", template("w-rs")), runs=True),
    creates(replica_set("w-rsforged", template("w-rsforged", None, FORGED))),
    creates(replica_set("w-rsurgent", template("w-rsurgent", {f"{KUEUE}/priority-class": "urgent"}))),
    creates(
        owned(
            "DaemonSet",
            "apps/v1",
            "w-ds",
            template("w-ds", nodeSelector={"kubernetes.io/hostname": "gpu-0001"}),
        ),
        runs=True,
    ),
    creates(owned("ReplicationController", "v1", "w-rc", template("w-rc")), runs=True),
    creates(deployment("w-depforged", template("w-depforged", {f"{KUEUE}/managed": "true"}, FORGED))),
    creates(deployment("w-depqueue", template("w-depqueue"), {QUEUE: "nobodys"}), runs=True),
    creates(
        deployment(
            "w-depclass",
            template("w-depclass", resource="deviceclass.resource.kubernetes.io/gpu.example.com"),
        ),
        NO_GRANT,
    ),
    creates(
        deployment("w-depprio", template("w-depprio"), {f"{KUEUE}/priority-class": "urgent"}),
        "may not use this priority class",
    ),
    Attempt(
        "w-deplater",
        lambda here: _then_gpus(here, deployment("w-deplater", template("w-deplater", gpus=0)), GPU_TEMPLATE),
        runs=True,
    ),
    Attempt("w-user", _someone, runs=True),
    patches("w-depunlabel", "serve", {"metadata": {"labels": {QUEUE: None}}}, "immutable"),
    patches("w-stsscale", "shard", {"spec": {"replicas": 3}}, subresource="/scale"),
    Attempt("w-stsgroup", _template_group),
    forged(
        "w-stsforged",
        lambda owners: stateful_set("w-stsforged", template("w-stsforged"), owners=owners),
        "host",
    ),
    # Jobs
    creates(job("w-job", template("w-job", {f"{KUEUE}/podset": "main"}, FORGED))),
    creates(job("w-jobqueue", template("w-jobqueue"), {QUEUE: "nobodys"}), runs=True),
    creates(job("w-jobnode", template("w-jobnode", nodeName="gpu-0000")), "nodeName"),
    creates(job("w-jobmig", template("w-jobmig", resource="nvidia.com/mig-3g.40gb")), NO_GRANT),
    forged("w-jobowner", lambda owners: job("w-jobowner", template("w-jobowner"), owners=owners), "host"),
    patches("w-parallel", "host", {"spec": {"parallelism": 3}}, "parallelism is fixed"),
    patches("w-jobqueueless", "host", {"metadata": {"labels": {QUEUE: None}}}, "queue"),
    patches("w-suspend", "waiting", {"spec": {"suspend": False}}, "started by Kueue only"),
    Attempt("w-prebuilt", _prebuilt),
    # objects of Kueue and the namespace
    Attempt("w-workload", _workload, "cannot create resource"),
    Attempt("w-localqueue", _local_queue, "cannot create resource"),
    Attempt(
        "w-exempt", lambda here: _namespace(here, {"labels": {"fairway.dev/exempt": "true"}}), "cannot patch"
    ),
    Attempt(
        "w-existing",
        lambda here: _namespace(here, {"annotations": {"fairway.dev/existing": "Pod/w=8"}}),
        "cannot patch",
    ),
    # operators
    creates(ray_cluster("w-ray", template("w-ray", None, FORGED)), operators=True),
    forged(
        "w-rayowner",
        lambda owners: ray_cluster("w-rayowner", template("w-rayowner"), ownerReferences=owners),
        "host",
        operators=True,
    ),
    Attempt(
        "w-raylater",
        lambda here: _then_gpus(
            here,
            ray_cluster("w-raylater", template("w-raylater", gpus=0)),
            {"spec": ray_cluster("w-raylater", template("w-raylater", None, FORGED))["spec"]},
        ),
        "needs a queue",
        operators=True,
    ),
]

LAST = [patches("w-depscale", "serve", {"spec": {"replicas": 40}}, subresource="/scale")]
"""It takes all the quota that is left."""
EVENTS = {
    "w-rsforged": NOT_COUNTED,
    "w-rsurgent": "may not use this priority class",
    "w-stsgroup": ONLY_KUEUE,
    "shard": "keeps the replicas that it was created with",
}
"""What is accepted and gets no pods, with what the API server tells its controller."""


def honest_objects() -> list[Json]:
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}
    return [
        job("host", template("host")),
        job("waiting", template("waiting", **nowhere)),
        stateful_set("shard", template("shard")),
        deployment("serve", template("serve")),
        pod("bare"),
        pod("cpu", gpus=0),
        pod("stuck", **nowhere),
        pod("grouped", {GROUP: "honest-group"}, {f"{KUEUE}/pod-group-total-count": "1"}),
    ]


RUNNING = ("host", "shard", "serve", "bare", "cpu", "grouped")
OPERATED = ("JobSet", "TrainJob", "RayJob", "RayCluster", "LeaderWorkerSet")


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    lab = governed("kubernetes")
    cluster = LabKubernetes(lab.instance)
    kubeconfig = lab.instance.facts()["fairway_kubeconfig"]
    fleet = parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL) + TEAMS, "vault.yaml")
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    try:
        plan = await plan_cluster(engine, fleet, fleet.clusters[0].name)
        assert (await apply_plan(engine, plan, force=True)).refusal is None
        alice = Api.from_kubeconfig(cluster.pki.kubeconfig("alice"))
        own = Here(cluster.api, alice, operators=bool(cluster.operators))
        await own.give_rights()
        yield own
    finally:
        await engine.close()
        await lab.clear()
        # The pods of a group stay until their Workload is deleted.
        await asyncio.to_thread(cluster.api.delete, f"/api/v1/namespaces/{NAMESPACE}")
        path = f"/apis/{KUEUE}/v1beta2/namespaces/{NAMESPACE}/workloads"
        await asyncio.to_thread(cluster.api.delete, path)


async def reply(attempt: Attempt, here: Here) -> str:
    try:
        await attempt.act(here)
    except ApiError as error:
        return error.message
    return ""


def running(pods: list[Json]) -> set[str]:
    """The attempts with a pod that runs."""
    return {p["metadata"].get("labels", {}).get(WAY, "") for p in pods if p["status"]["phase"] == "Running"}


async def test_no_member_gets_gpus_that_no_queue_counts(here: Here) -> None:
    for body in honest_objects():
        await becomes(partial(here.created, body), 20, "the policies are in force")
    await here.until_run(RUNNING)

    attempts = [a for a in ATTEMPTS if here.operators or not a.operators]
    replies = await asyncio.gather(*(reply(a, here) for a in attempts))
    wrong = [
        f"{a.name}: {said or 'accepted'!r} instead of {a.words or 'accepted'!r}"
        for a, said in zip(attempts, replies, strict=True)
        if (a.words not in said if a.words else said)
    ]
    assert not wrong, "\n".join(wrong)
    await here.until_run([a.name for a in attempts if a.runs])
    if here.operators:
        await here.create_operated()
    for attempt in LAST:
        assert not await reply(attempt, here)
    await becomes(here.rejected, 60, "the controllers were told why")
    assert not uncounted(await here.pods(), await here.workloads())
    assert len(attempts) + len(LAST) >= 30
