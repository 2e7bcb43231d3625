"""Why a Job waits on a real Kubernetes with queues made by hand: the situations of the Kubernetes review."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.explain.findings import WaitFacts
from fairway.files import parse_fleet
from fairway.model.job import EngineId
from lab import Instance
from lab.kubernetes.api import Api
from tests.lab.driving import up
from tests.waiting import Deadline

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.nightly("a Kubernetes of its own; unit tests have the recorded messages in CI"),
]
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: why
currency: USD
clusters: {{ k8s: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  a100:
    cluster: k8s
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB }} }}
"""
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
SECONDS = 30.0


@dataclass
class Cluster:
    """A cluster, and the engine that explains its Jobs."""

    api: Api
    kubeconfig: str
    made: int = 0

    def create(
        self,
        namespace: str,
        queue: str | None,
        gpus: int = 1,
        selector: dict[str, str] | None = None,
        **more: Any,
    ) -> str:
        """Create a Job as kubectl does; gives its engine id."""
        self.made += 1
        name = f"job-{self.made}"
        labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        devices = {"nvidia.com/gpu": str(gpus)}
        container = {"name": "c", "image": "none.example/none", "resources": {"limits": devices}}
        pod = {"restartPolicy": "Never", "containers": [container], "nodeSelector": selector or {}}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels} | more.pop("metadata", {}),
            "spec": {"template": {"spec": pod}, **more},
        }
        made = self.api.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
        return f"{namespace}/{name}/{made['metadata']['uid'][:8]}"

    def why(self, engine_id: str, code: str) -> WaitFacts:
        """Ask until the answer has this code; fails with the last answer."""
        return asyncio.run(self._why(engine_id, code))

    async def _why(self, engine_id: str, code: str) -> WaitFacts:
        fleet = parse_fleet(FLEET.format(kubeconfig=self.kubeconfig), "fleet.yaml")
        engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
        deadline = Deadline(SECONDS)
        try:
            while True:
                facts = await engine.explain(EngineId(engine_id), fleet)
                if facts is not None and facts.code == code:
                    return facts
                assert not deadline.passed, f"expected {code}, got {facts}"
                await asyncio.sleep(0.3)
        finally:
            await engine.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    instance: Instance = up("kubernetes", "why-queues", "--site", "queues")
    try:
        kubeconfig = instance.facts()["kubeconfig"]
        yield Cluster(Api.from_kubeconfig(Path(kubeconfig)), kubeconfig)
    finally:
        instance.wipe()


def test_queues_that_give_nothing(cluster: Cluster) -> None:
    """Rows 6, 13, 14 and 15, and a queue that does not exist."""
    cluster.why(cluster.create("interns", "batch", 16), "AboveQuota")
    assert "none of that name" in str(cluster.why(cluster.create("interns", "absent"), "QueueMissing"))
    foreign = {"metadata": {"name": "foreign", "namespace": "default"}, "spec": {"clusterQueue": "shared-cq"}}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
    cluster.api.call("POST", f"{KUEUE}/namespaces/default/localqueues", kind | foreign)
    assert "default" in str(cluster.why(cluster.create("default", "foreign"), "NamespaceNotAllowed"))
    stop = {"spec": {"stopPolicy": "Hold"}}
    cluster.api.merge(f"{KUEUE}/clusterqueues/shared-cq", stop)
    stopped = cluster.why(cluster.create("interns", "batch"), "QueueStopped")
    assert "ClusterQueue shared-cq was set by" in stopped.findings[0].text
    cluster.api.merge(f"{KUEUE}/clusterqueues/shared-cq", {"spec": {"stopPolicy": "None"}})
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": "gone", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}],
    }
    broken = {"metadata": {"name": "broken"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue"}
    cluster.api.call("POST", f"{KUEUE}/clusterqueues", kind | broken)
    local = {"metadata": {"name": "broken", "namespace": "nlp"}, "spec": {"clusterQueue": "broken"}}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
    cluster.api.call("POST", f"{KUEUE}/namespaces/nlp/localqueues", kind | local)
    assert "FlavorNotFound" in str(cluster.why(cluster.create("nlp", "broken"), "QueueBroken"))


def test_pods_that_are_refused_or_fit_nowhere(cluster: Cluster) -> None:
    """Rows 8, 10, 16 and 17."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few-gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    cluster.api.call("POST", "/api/v1/namespaces/default/resourcequotas", quota)
    refused = cluster.why(cluster.create("default", None), "NamespaceQuota")
    assert "few-gpus" in refused.reason
    cluster.api.delete("/api/v1/namespaces/default/resourcequotas/few-gpus")
    cluster.why(cluster.create("default", None, selector={"no": "such-node"}), "NoNodeFits")
    cluster.why(cluster.create("interns", "batch", selector={"nvidia.com/gpu.product": "T4"}), "NoNodeFits")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gang", "controller": True}
    configured = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gang"}}
    made = cluster.api.call("POST", "/api/v1/namespaces/default/configmaps", configured)
    owned = {"ownerReferences": [owner | {"uid": made["metadata"]["uid"]}]}
    child = cluster.create("default", None, metadata=owned, suspend=True)
    assert "ConfigMap/gang made it" in str(cluster.why(child, "OwnerHoldsIt"))
