"""The hand on a real Kubernetes + Kueue of the lab: users with their own tokens, nodes of KWOK."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import yaml

from fairway.engines.kubernetes.engine import KubernetesEngine
from lab import find
from lab.kubernetes import kueue, kwok
from lab.kubernetes.api import Api, ApiError
from lab.kubernetes.cluster import Cluster as LabCluster
from lab.kubernetes.pki import FAIRWAY
from tests.contract.driver import absent
from tests.scenarios.hand import Denied, JobSeen, Order
from tests.scenarios.stages.kubernetes_eye import Eye, conditions_of
from tests.scenarios.stages.kubernetes_orders import LAB, PRODUCT, SITE, WAYS, job_manifest, smuggled
from tests.waiting import eventually

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.model.fleet import Fleet
    from fairway.policy.objects import Translation
    from lab.instance import Instance
    from lab.kubernetes.api import Json

CLEAR_SECONDS = 60
NODE_SECONDS = 60
IN_FORCE_SECONDS = 10
ASK_AGAIN = 5.0  # seconds, for what was told to go and is still there
QUOTA_PATHS = tuple(f"{kueue.API_ROOT}/{plural}" for plural in ("clusterqueues", "cohorts"))
USED = "fairway.dev/used"
NOBODYS_NAMESPACE = "default"
HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: scenarios
currency: USD
clusters:
  lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }}
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    kubernetes: {{ node_labels: {{ {product}: {model}, type: kwok }} }} # not real ones
    topology: [{block}, {rack}]
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    kubernetes: {{ node_labels: {{ {product}: {model}-MIG }} }}
  spot:
    cluster: lab
    gpu: A100-80GB
    capacity: spot
    price: 0.60
    kubernetes: {{ node_labels: {{ {spot}/capacity: spot }}, taints: [{spot}/spot] }}
"""


class KubernetesHand:
    ways: Sequence[str] = WAYS
    stranger = "dave"

    def __init__(self, instance: Instance) -> None:
        self._lab = LabCluster(instance)
        self._instance = instance
        self.name = f"kueue-{instance.site}" if instance.site else "kueue"
        self._users: dict[str, Api] = {}
        self._numbers = itertools.count(1)
        self._lost: set[str] = set()
        self._kubeconfig = str(self._lab.pki.kubeconfig(FAIRWAY.name))
        self.labels = SITE if instance.site else LAB
        self.head = HEAD.format(
            kubeconfig=self._kubeconfig,
            product=PRODUCT,
            model=kwok.MODEL,
            block=self.labels.block,
            rack=self.labels.rack,
            spot=self.labels.spot,
        )
        made = self._lab.site.objects if self._lab.site else []
        self.eye = Eye(self._lab.api, {o["metadata"]["name"] for o in made if o["kind"] == "Namespace"})
        nodes = self._lab.api.get("/api/v1/nodes")["items"]
        self._labels: dict[str, dict[str, str]] = {
            n["metadata"]["name"]: n["metadata"]["labels"] for n in nodes
        }

    # the policy

    def engine(self, fleet: Fleet) -> Governs:
        cluster = fleet.clusters[0]
        return KubernetesEngine(cluster, fleet.pools_of(cluster.name))

    async def configure(self, fleet: Fleet, wanted: Translation) -> None:
        """Put what the plan advises into Kueue's configuration; it is restarted only if that changes it."""
        extra = kueue.extra_of(self._instance.folder)
        advised: dict[str, Any] = dict(extra)
        for advice in wanted.advice:
            advised.update(yaml.safe_load(advice.line))
        if advised != extra:
            await asyncio.to_thread(self._lab.configure_kueue, advised)

    # users

    async def submit(self, order: Order) -> str:
        """An API server puts the policy that gives a job its queue in force some seconds after it is made,
        and the one that asks for a queue at times before it."""
        deadline = time.monotonic() + IN_FORCE_SECONDS
        while True:
            try:
                return await self._make(
                    order.user, namespace_of(order), job_manifest(self._name(), order, self.labels)
                )
            except Denied as error:
                if "needs a queue" not in str(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.5)

    def _name(self) -> str:
        return f"job-{next(self._numbers):04d}"

    async def _make(self, user: str, namespace: str, wanted: Json) -> str:
        root = "/api/v1" if wanted["kind"] == "Pod" else "/apis/batch/v1"
        plural = f"{wanted['kind'].lower()}s"
        path = f"{root}/namespaces/{namespace}/{plural}"
        await self._as(user, lambda api: api.call("POST", path, wanted))
        return f"{namespace}/{wanted['metadata']['name']}"

    async def _as(self, user: str, act: Callable[[Api], Any]) -> Any:
        api = self._users.setdefault(user, Api.from_kubeconfig(self._lab.pki.kubeconfig(user)))
        try:
            return await asyncio.to_thread(act, api)
        except ApiError as error:
            raise Denied(error.message) from error

    async def cancel(self, job: str, user: str) -> str:
        try:
            path = _job_path(job)
            await self._as(user, lambda api: api.call("DELETE", path, {"propagationPolicy": "Background"}))
        except Denied as refusal:
            if isinstance(refusal.__cause__, ApiError) and refusal.__cause__.status == 404:  # it was quicker
                return "not found"
            raise
        return "deleted"

    async def read(self, job: str, user: str) -> str:
        known = self.eye.known(job)
        pods = [p["metadata"]["name"] for p in known.pods.values()] if known else []
        namespace = job.partition("/")[0]
        told = [await self._text(user, _job_path(job))]
        for pod in pods:
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
            told.append(await self._text(user, path))
        return "\n".join(told)

    async def _text(self, user: str, path: str) -> str:
        return str(await self._as(user, lambda api: api.text("GET", path)))

    async def change(self, job: str, user: str) -> str:
        longer = {"spec": {"activeDeadlineSeconds": 7200}}
        await self._as(user, lambda api: api.merge(_job_path(job), longer))
        return "patched"

    async def smuggle(self, order: Order) -> Mapping[str, str]:
        came: dict[str, str] = {}
        for way, wanted in smuggled(order, self._name, self._node_of(order.pool), self.labels):
            namespace = wanted["metadata"].pop("namespace", namespace_of(order))
            try:
                came[way] = await self._make(order.user, namespace, wanted)
            except Denied as refusal:
                came[way] = f"refused: {refusal}"
        return came

    def _node_of(self, pool: str) -> str:
        """A node of the pool."""
        wanted = self.labels.of(pool)
        return next(name for name, labels in self._labels.items() if wanted.items() <= labels.items())

    # eyes

    async def look(self) -> Sequence[Mapping[str, JobSeen]]:
        return [*self.eye.missed(), self.eye.look()]

    async def words(self, job: str) -> str:
        known = self.eye.known(job)
        if known is None:
            return "not there"
        told = [
            f"{c['type']}={c['status']} {c['reason']}: {c.get('message', '')}"
            for c in conditions_of(known.workload).values()
            if c["type"] in ("QuotaReserved", "Evicted", "Preempted", "Finished")
        ]
        path = f"/api/v1/namespaces/{job.partition('/')[0]}/events?fieldSelector=involvedObject.name%3D"
        events = await asyncio.to_thread(self._lab.api.get, path + job.partition("/")[2])
        told += [f"{e['reason']}: {e['message']}" for e in events["items"] if e["type"] == "Warning"][-1:]
        return f"{known.seen.reason or known.seen.state} [{'; '.join(told)}]"

    # nodes

    def rack(self, node: str) -> str:
        return self._labels[node].get(self.labels.rack, "")

    async def lose(self, node: str) -> None:
        self._lost.add(node)
        await asyncio.to_thread(self._lab.set_node_ready, node, False)

    async def restore(self, node: str) -> None:
        await asyncio.to_thread(self._lab.set_node_ready, node, True)
        path = f"/api/v1/nodes/{node}"
        await eventually(lambda: _takes_work(self._lab.api.get(path)), NODE_SECONDS, f"{node} is ready again")
        self._lost.discard(node)

    async def clear(self) -> None:
        for node in tuple(self._lost):
            await self.restore(node)

        asked: dict[str, float] = {}

        def ended() -> bool:
            left, now = self.eye.left(), self.now()
            again = [{"name": name} for name in left if now - asked.get(name, -ASK_AGAIN) >= ASK_AGAIN]
            asked.update({one["name"]: now for one in again})
            self._lab.api.each(lambda one: self._delete(one["name"]), again)
            return not left

        await eventually(ended, CLEAR_SECONDS, "every job is gone")
        await asyncio.to_thread(self._forget_use)
        self.eye.forget()

    def _forget_use(self) -> None:
        """What teams used is kept on their objects, for a server that starts anew."""
        forget = {"metadata": {"annotations": {USED: None}}}
        for path in QUOTA_PATHS:
            for thing in self._lab.api.get(path)["items"]:
                if USED in thing["metadata"].get("annotations", {}):
                    self._lab.api.merge(f"{path}/{thing['metadata']['name']}", forget)

    def _delete(self, name: str) -> None:
        known = self.eye.known(name)
        if known and known.job and not known.gone:
            self._lab.api.delete(_job_path(name), propagationPolicy="Background")
        elif known and not known.job:
            namespace, _, pod = name.partition("/")
            self._lab.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod}", gracePeriodSeconds=0)

    def now(self) -> float:
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def namespace_of(order: Order) -> str:
    """A team is named by its namespace; whoever names none is in the one kubectl takes then."""
    return order.team or NOBODYS_NAMESPACE


def _takes_work(node: Json) -> bool:
    """Ready, and no longer marked as lost, which takes the node controller a moment more."""
    keys = {taint["key"] for taint in node["spec"].get("taints", [])}
    return kwok.is_ready(node) and not any(key.startswith("node.kubernetes.io/") for key in keys)


def _job_path(job: str) -> str:
    namespace, _, name = job.partition("/")
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


@asynccontextmanager
async def open_hand(name: str) -> AsyncIterator[KubernetesHand]:
    """The hand on the lab's instance `name`."""
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up kubernetes --name {name} --spot-nodes 2")
    hand = KubernetesHand(instance)
    hand.eye.open()
    try:
        await hand.clear()
        yield hand
    finally:
        hand.eye.close()
