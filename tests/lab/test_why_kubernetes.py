"""`fairway why` in every situation of the Kubernetes review, on a real Kubernetes that Fairway governs.

Fairway has only the rights of deploy/kubernetes/rights.yaml here, and every answer goes through the server.
Rows 5 and 17 (a resource claim) never wait: they are refused at once, with the reason.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairway import Client, JobSpec
from fairway.client.contexts import Target
from fairway.client.http import ServerRefused
from fairway.model.job import JobState
from fairway.wire.jobs import After, GpuRequest, Job, WhyReason
from lab import Instance
from lab.kubernetes import kwok
from lab.kubernetes.api import Api, ApiError, Json
from tests.integration.server_process import Home, temporary_home
from tests.lab.driving import up
from tests.waiting import Deadline, until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.nightly("a Kubernetes and a server of its own; unit tests have the recorded messages in CI"),
]
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: why
currency: USD
clusters: {{ k8s: {{ engine: kubernetes, kubeconfig: {fairway_kubeconfig} }} }}
pools:
  a100:
    cluster: k8s
    gpu: A100-80GB
    capacity: owned
    price: 36000
    topology: [topology.fairway/rack]
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, type: kwok }} }}
  real:
    cluster: k8s
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ type: real }} }}
teams:
  vision: {{ guarantee: {{ a100: 16 }}, borrow: {{ a100: 16, real: 8 }}, members: [alice] }}
  nlp: {{ guarantee: {{ a100: 8 }}, borrow: {{ a100: 24 }}, members: [carol] }}
  capped: {{ guarantee: {{ a100: 8 }}, borrow: {{ a100: 0 }}, members: [bob] }}
  broke:
    borrow: {{ a100: 8 }}
    members: [carol]
    budget: {{ amount: 0.001, every: month, at_limit: stop }}
users:
  alice: {{ default_team: vision }}
  bob: {{ default_team: capped }}
  carol: {{ default_team: nlp }}
"""
_log = logging.getLogger(__name__)
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
SECONDS = 30.0
"""No wait stays unexplained for longer."""
RAW = {"EngineSays", ""}
GPU = "nvidia.com/gpu"
PYTHON = "localhost/python:3"
DRA = "/apis/resource.k8s.io/v1"
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}
CLAIM_TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpus"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}]
            }
        }
    },
}
CLAIMS = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]}
PEOPLE = {"vision": "alice", "nlp": "carol", "capped": "bob", "broke": "carol"}


@dataclass
class Clock:
    """Since when a job waits, and until when it may stay unexplained."""

    began: float = field(default_factory=time.monotonic)
    deadline: Deadline = field(default_factory=lambda: Deadline(SECONDS))


@dataclass
class Site:
    """A governed cluster, the server that governs it, and a client of an operator."""

    instance: Instance
    api: Api
    client: Client
    took: dict[str, float] = field(default_factory=dict)
    """Seconds until each situation was explained."""
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Of jobs that wait from their submission on."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # what people submit

    def submit(self, team: str, gpus: int = 8, *, hold: bool = False, **more: Any) -> str:
        """`fairway run` of a member; gives the job's id."""
        words = {"pool": "a100", "image": PYTHON, "env": {kwok.RUN_FOR_ENV: "1h"}, **more}
        name = f"job-{next(self._numbers)}"
        spec = JobSpec(name=name, team=team, command=["sleep", "600"], gpus=GpuRequest(count=gpus), **words)
        clock = Clock()
        job = self.client.submit(spec, as_user=PEOPLE[team], hold=hold)[0].id
        self.clocks[job] = clock
        return job

    def run(self, team: str, gpus: int = 8, **more: Any) -> Job:
        """Submit one that starts, and wait until it runs."""
        job = self.submit(team, gpus, **more)
        return self.started(job)

    def started(self, job: str) -> Job:
        until(lambda: self.client.job(job).state == JobState.RUNNING, 90, f"the start of {job}", pause=0.5)
        del self.clocks[job]
        return self.client.job(job)

    def native(
        self, namespace: str, gpus: int = 1, selector: dict[str, str] | None = None, **more: Any
    ) -> str:
        """`kubectl create job`, as a member where the namespace is a team's; gives the job's id."""
        name = f"native-{next(self._numbers)}"
        limits = {"resources": {"limits": {GPU: str(gpus)}}} if gpus else {}
        pod = {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "some/image:1", **limits}],
            "nodeSelector": selector or {},
            **more.pop("pod", {}),
        }
        template = {"metadata": {"annotations": {kwok.RUN_FOR: "1h"}}, "spec": pod}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, **more.pop("metadata", {})},
            "spec": {"template": template, **more},
        }
        api = self.member(PEOPLE[namespace]) if namespace in PEOPLE else self.api
        clock = Clock()
        made = api.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
        engine_id = f"{namespace}/{name}/{made['metadata']['uid'][:8]}"
        job = str(until(lambda: self.mirrored(engine_id), SECONDS, f"{engine_id} in the mirror"))
        self.clocks[job] = clock
        return job

    def mirrored(self, engine_id: str) -> str | None:
        return next((j.id for j in self.client.jobs(most=200) if j.engine_id == engine_id), None)

    def member(self, name: str) -> Api:
        return Api.from_kubeconfig(Path(self.instance.facts()[f"{name}_kubeconfig"]))

    # what Fairway says

    def why(self, job: str, code: str, row: str) -> WhyReason:
        """Ask until the answer is the expected one; fails with the last answer, or if one is raw."""
        clock = self.clocks.get(job) or Clock()
        while True:
            found = self.client.why(job)
            codes = [reason.code for reason in found.reasons]
            assert not RAW & set(codes), found
            if codes[:1] == [code]:  # tests/situations has the order of the rest
                break
            assert not clock.deadline.passed, f"expected {code}, got {found}"
            time.sleep(0.3)
        self.took[row] = time.monotonic() - clock.began
        reason = found.reasons[0]
        assert reason.hint, found
        _log.info("row %s, %.1f s: %s; %s", row, self.took[row], found.summary, reason)
        return reason

    # what happens on the cluster

    def node_of(self, job: Job) -> str:
        return self.client.job(job.id).attempts[-1].nodes[0]

    def hog(self, node: str, gpus: int = 8) -> None:
        """A pod of the site's own, which no queue knows, takes GPUs of a node."""
        self.api.create(
            "/api/v1/namespaces", {"metadata": {"name": "site", "labels": {"fairway.dev/exempt": "true"}}}
        )
        container = {"name": "c", "image": "some/image:1", "resources": {"limits": {GPU: str(gpus)}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "hog-", "annotations": {kwok.RUN_FOR: "1h"}},
            "spec": {"nodeName": node, "containers": [container]},
        }
        self.api.call("POST", "/api/v1/namespaces/site/pods", pod)

    def queue(self, namespace: str, name: str, cluster_queue: str) -> None:
        """A LocalQueue made by hand."""
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": name}}
        spec = {"clusterQueue": cluster_queue}
        self.api.call("POST", f"{KUEUE}/namespaces/{namespace}/localqueues", {**kind, "spec": spec})

    def pods_of(self, namespace: str) -> list[Json]:
        pods: list[Json] = self.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return pods

    def assigned(self, namespace: str) -> list[str]:
        """The nodes that Kueue has assigned to pods."""
        selectors = [pod["spec"].get("nodeSelector", {}) for pod in self.pods_of(namespace)]
        return [s["kubernetes.io/hostname"] for s in selectors if "kubernetes.io/hostname" in s]

    def clear(self) -> None:
        """Cancel everything, and wait until it is over for the cluster and for the mirror."""
        self.api.delete("/api/v1/namespaces/site/pods")
        for namespace in (*PEOPLE, "default"):
            self.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs?propagationPolicy=Background")

        def over() -> bool:
            left = [job.id for job in self.client.jobs(states=["open"], most=200)]
            if left:
                self.client.cancel(left)
            return not left and not any(self.pods_of(namespace) for namespace in (*PEOPLE, "default", "site"))

        until(over, 120, "all jobs' end", pause=0.5)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    instance = up("kubernetes", "why-kubernetes", "--real-nodes", "1")
    try:
        with temporary_home() as home:
            yield from _served(instance, home)
    finally:
        instance.wipe()


def _served(instance: Instance, home: Home) -> Iterator[Site]:
    api = Api.from_kubeconfig(Path(instance.facts()["kubeconfig"]))
    api.create(f"{DRA}/deviceclasses", DEVICE_CLASS)
    fleet = home.folder / "fleet.yaml"
    fleet.write_text(FLEET.format(**instance.facts()))
    server = home.start("-f", str(fleet), "--listen", "127.0.0.1:0")
    with Client(Target(server.url, home.token_file.read_text().strip())) as client:
        done = home.fairway("apply", "-f", str(fleet), "--yes", "--force")
        assert done.returncode == 0, done.stdout + done.stderr
        found = Site(instance, api, client)
        yield found
        _log.info("explained after seconds: %s", found.took)
    server.stop()
    assert "Traceback" not in server.log, server.log[-5000:]


@pytest.fixture(autouse=True)
def cleared(site: Site) -> Iterator[None]:
    yield
    site.clear()


def test_what_the_ledger_knows(site: Site) -> None:
    """Rows 2, 3 and 5: a dependency, a hold, and more than any node has."""
    before = site.run("vision", 1)
    after = site.why(site.submit("vision", 1, after=[After(job=before.id)]), "AfterAnother", "2")
    assert f"{before.name} ({before.id}, running)" in after.text
    assert "alice" not in after.text
    held = site.why(site.submit("vision", 1, hold=True), "Held", "3")
    assert "fairway release" in held.hint
    with pytest.raises(ServerRefused) as refused:
        site.submit("vision", 16)
    assert refused.value.code == "NoPoolFits" and "8" in refused.value.hint, refused.value


def test_a_spent_budget(site: Site) -> None:
    """Row 1."""
    site.run("broke", 1)
    until(lambda: any(b.level == "spent" for b in site.client.budgets().budgets), 90, "the budget", pause=0.5)
    found = site.why(site.submit("broke", 1), "BudgetSpent", "1")
    assert "broke has spent" in found.text and "budget.amount" in found.hint


def test_quota(site: Site) -> None:
    """Rows 4, 6 and 8: quota that others borrow, more than a queue ever has, and our own ceiling."""
    for _ in range(3):
        site.run("nlp")
    site.run("vision")
    site.why(site.submit("nlp"), "QuotaInUse", "4")
    site.clear()
    above = site.why(site.native("capped", 16), "AboveQuota", "6")
    assert "can never start as it is" in above.text
    site.why(site.native("vision", 16, {"type": "kwok"}), "NoNodeFits", "6, by nodes")
    site.clear()
    # Kueue has quota for it, and a ResourceQuota as ours, where it queues no pods, rejects its pod.
    site.run("capped", 4)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "fairway-ceiling", "namespace": "capped"},
        "spec": {"hard": {f"requests.{GPU}": "4"}},
    }
    site.api.apply(quota)
    try:
        refused = site.why(site.submit("capped", 4), "TeamAtCeiling", "8")
        assert "use 4 of 4 GPUs, and the next needs 4" in refused.text
        assert "exceeded quota: fairway-ceiling" in refused.engine
    finally:
        site.api.delete("/api/v1/namespaces/capped/resourcequotas/fairway-ceiling")


def test_queues_that_give_nothing(site: Site) -> None:
    """Rows 13, 14 and 15, and a queue that does not exist."""
    absent = site.native("vision", metadata={"labels": {QUEUE_NAME: "absent"}})
    assert "does not have" in site.why(absent, "QueueMissing", "15, no queue").text
    site.queue("default", "foreign", "vision")
    foreign = site.native("default", metadata={"labels": {QUEUE_NAME: "foreign"}})
    assert "the job's namespace default" in site.why(foreign, "NamespaceNotAllowed", "15").text
    site.api.merge(f"{KUEUE}/clusterqueues/nlp", {"spec": {"stopPolicy": "Hold"}})
    stopped = site.why(site.native("nlp"), "QueueStopped", "13")
    assert "ClusterQueue nlp was set by" in stopped.text and "fairway get drift" in stopped.hint
    site.api.merge(f"{KUEUE}/clusterqueues/nlp", {"spec": {"stopPolicy": "None"}})
    quota = {"name": "gone", "resources": [{"name": GPU, "nominalQuota": "8"}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue"}
    site.api.call("POST", f"{KUEUE}/clusterqueues", {**kind, "metadata": {"name": "broken"}, "spec": spec})
    site.queue("vision", "broken", "broken")
    broken = site.native("vision", metadata={"labels": {QUEUE_NAME: "broken"}})
    assert "FlavorNotFound" in site.why(broken, "QueueBroken", "14").text


def test_jobs_that_no_queue_has(site: Site) -> None:
    """Rows 16 and 17: no queue, resource claims; and a quota of the site's own."""
    stray = site.why(site.native("default"), "NotQueued", "16")
    assert "in namespace default" in stray.text and "fairway get teams" in stray.hint
    site.clear()
    site.api.call("POST", f"{DRA}/namespaces/vision/resourceclaimtemplates", CLAIM_TEMPLATE)
    with pytest.raises(ApiError, match="resource claims can hold GPUs that no queue counts"):
        site.native("vision", 0, pod=CLAIMS)  # the answer comes at once: it never waits
    site.clear()
    quota = {"metadata": {"name": "few-pods"}, "spec": {"hard": {"pods": "0"}}}
    site.api.call("POST", "/api/v1/namespaces/vision/resourcequotas", quota)
    assert "few-pods" in site.why(site.submit("vision"), "NamespaceQuota", "8, the site's").text
    site.api.delete("/api/v1/namespaces/vision/resourcequotas/few-pods")


def test_pods_that_do_not_start(site: Site) -> None:
    """Rows 9 and 10: an image that cannot be pulled, and a taint."""
    nowhere = site.submit("vision", 1, pool="real", image="127.0.0.1:9/none/such:1")
    assert "127.0.0.1:9/none/such" in site.why(nowhere, "ImagePullFailed", "9").engine
    assert site.client.job(nowhere).state == JobState.WAITING
    assert not site.client.job(nowhere).attempts, "it has not run, so it is not charged"
    site.clear()
    taint = {"key": "site.example/repair", "value": "yes", "effect": "NoSchedule"}
    site.api.merge("/api/v1/nodes/real-0000", {"spec": {"taints": [taint]}})
    tainted = site.why(site.submit("vision", 1, pool="real"), "NoNodeFits", "10")
    assert "1 with the taint site.example/repair=yes:NoSchedule" in tainted.text
    site.api.merge("/api/v1/nodes/real-0000", {"spec": {"taints": []}})


def test_room(site: Site) -> None:
    """Rows 7, 11 and 12: a pinned pod without room, a lost node, a gang whose rack is taken."""
    site.instance.kill("kube-scheduler")
    try:
        gang = site.submit("vision", 7, nodes=2, together=True)
        pinned = site.submit("vision", 8)
        until(lambda: len(site.assigned("vision")) == 3, 60, "the pods that Kueue admitted")
        nodes = set(site.assigned("vision"))
        for node in nodes:
            site.hog(node)
    finally:
        site.instance.start("kube-scheduler")
    site.clocks.clear()  # until now no scheduler could say anything
    for job, row in ((pinned, "7"), (gang, "12")):
        text = site.why(job, "NotEnoughFree", row).text
        assert any(f"Kueue assigned it to node {node}" in text for node in nodes)
    site.clear()
    jobs = [site.run("vision"), site.run("vision"), site.run("vision"), site.run("nlp")]
    node = site.node_of(jobs[0])
    site.api.delete(f"/api/v1/nodes/{node}")
    try:
        until(
            lambda: site.client.job(jobs[0].id).state == JobState.WAITING,
            150,
            "the loss of its node",
            pause=0.5,
        )
        assert "with too few free" in site.why(jobs[0].id, "NotEnoughFree", "11").text
    finally:
        site.api.create("/api/v1/nodes", kwok.gpu_node(int(node[-4:]), 8))
