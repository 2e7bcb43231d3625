"""A cluster with 40 workloads of nine kinds that people made by hand, and two of a kind that nobody knows.

Import, plan, adopt and apply: none of them is stopped, also when Kueue restarts with what the plan advises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from lab import Instance
from lab.kubernetes import Cluster
from lab.kubernetes.api import Api, Json
from lab.kubernetes.site import Site
from tests.integration.server_process import Home, temporary_home
from tests.lab.driving import up
from tests.lab.kubernetes_jobs import a_job, holds
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"
HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: many
currency: USD
clusters: {{ site: {{ engine: kubernetes, kubeconfig: {fairway_kubeconfig} }} }}
"""
WITHOUT_QUEUES = {
    "serving": {"guarantee": {"a100": 24}, "members": ["bob"]},
    "notebooks": {"guarantee": {"a100": 8}, "members": ["carol"]},
    "platform": {"guarantee": {"a100": 16}, "members": ["dave"]},
}
"""The teams of namespaces that no queue serves: import cannot know what they are to get."""
KINDS = {
    "Job",
    "CronJob",
    "JobSet",
    "TrainJob",
    "Deployment",
    "StatefulSet",
    "LeaderWorkerSet",
    "RayCluster",
    "Pod",
    "Cruncher",
}
GPU_PODS = 70
AFTER = "after"
"""A Job that somebody makes in the end."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a person made, under the name that it is charged by: a CronJob's Job has a name of its own."""

    kind: str
    namespace: str
    name: str
    queued: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def workloads() -> list[Workload]:
    """The 40 of the site, and its two Crunchers, to which pods belong."""
    found = []
    for wanted in Site("many").objects:
        meta, kind = wanted["metadata"], wanted["kind"]
        owners = {owner["kind"] for owner in meta.get("ownerReferences", ())}
        if kind in KINDS - {"CronJob"} and "Cruncher" not in owners:
            found.append(Workload(kind, meta["namespace"], meta["name"], QUEUE in meta.get("labels", {})))
    return found


@dataclass
class Many:
    """The site, and the server that governs it."""

    instance: Instance
    home: Home
    before: dict[str, tuple[str, int]]
    plan: Json = field(default_factory=dict)
    strict: Json = field(default_factory=dict)
    """The plan of a fleet that leaves nothing alone and has no teams for namespaces without queues."""

    @property
    def api(self) -> Api:
        return Api.from_kubeconfig(Path(self.instance.facts()["kubeconfig"]))

    @property
    def fleet(self) -> Path:
        return self.home.folder / "fleet.yaml"

    def fairway(self, *words: str) -> str:
        done = self.home.fairway(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def unharmed(self) -> bool:
        """Whether every GPU pod of before runs on, and has not restarted."""
        return gpu_pods(self.api) == self.before

    def govern(self) -> None:
        """What an administrator does, step by step; no step ends anything."""
        self.fairway("import", "site", "--out", str(self.fleet))
        fleet = yaml.safe_load(self.fleet.read_text())
        fleet["clusters"]["site"]["existing_workloads"] = "refuse"
        self.strict = self._plan(fleet)
        del fleet["clusters"]["site"]["existing_workloads"]
        fleet["pools"]["a100"]["price"] = 2
        fleet["teams"] = WITHOUT_QUEUES | fleet["teams"]
        fleet["users"] = {"carol": {"default_team": "speech"}}
        self.plan = self._plan(fleet)
        self.fairway("adopt", "site", "--all-in-the-way", "-f", str(self.fleet))
        assert self.unharmed(), "an adoption marks objects, and does nothing else"
        self.fairway("apply", "-f", str(self.fleet), "--yes", "--force")
        assert self.unharmed(), "an apply ends nothing"
        advised: Json = {}
        for advice in self.plan["advice"]:
            advised |= yaml.safe_load(advice["line"])
        Cluster(self.instance).configure_kueue(advised)
        self._wait_for_kueue()
        assert self.unharmed(), "Kueue's new configuration ends nothing"

    def _plan(self, fleet: Json) -> Json:
        self.fleet.write_text(yaml.safe_dump(fleet))
        planned = json.loads(self.fairway("plan", "-f", str(self.fleet), "-o", "json"))
        assert self.unharmed(), "a plan changes nothing"
        found: Json = planned["clusters"][0]
        return found

    def _wait_for_kueue(self) -> None:
        """Wait until a Job has passed through Kueue: by then it has looked at all that was there before."""
        job = a_job(AFTER, gpus=1, queue="gpus")
        job["metadata"]["namespace"] = "research"
        path = self.api.path_of(job)
        self.api.apply(job)
        until(lambda: holds(self.api, path, "Complete"), 60, "the end of a new Job", pause=0.5)


def gpu_pods(api: Api) -> dict[str, tuple[str, int]]:
    """The GPU pods that run: name and restarts by uid."""
    running: list[Json] = api.get("/api/v1/pods?fieldSelector=status.phase=Running")["items"]
    return {
        pod["metadata"]["uid"]: (
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}",
            sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ())),
        )
        for pod in running
        if any(GPU in container["resources"].get("limits", {}) for container in pod["spec"]["containers"])
    }


@pytest.fixture(scope="module")
def many() -> Iterator[Many]:
    instance = up("kubernetes", "many", "--site", "many")
    try:
        api = Api.from_kubeconfig(Path(instance.facts()["kubeconfig"]))
        until(lambda: len(gpu_pods(api)) == GPU_PODS, 90, "all GPU pods", pause=0.5)
        with temporary_home() as home:
            head = home.folder / "head.yaml"
            head.write_text(HEAD.format(**instance.facts()))
            server = home.start("-f", str(head), "--listen", "127.0.0.1:0")
            found = Many(instance, home, gpu_pods(api))
            found.govern()
            yield found
            server.stop()
            assert "Traceback" not in server.log, server.log[-5000:]
    finally:
        instance.wipe()


def test_none_is_stopped(many: Many) -> None:
    assert len(workloads()) == 42
    assert {workload.kind for workload in workloads()} == KINDS - {"CronJob"}
    assert many.unharmed()


def test_the_plan_names_what_no_queue_counts(many: Many) -> None:
    (said,) = (n["message"] for n in many.plan["notices"] if n["code"] == "ExistingWorkloadsStay")
    for workload in workloads():
        assert (f"{workload} (" in said) == (not workload.queued), (workload, said)


def test_a_plan_that_would_reject_some_names_them_and_needs_force(many: Many) -> None:
    (objection,) = (o for o in many.strict["objections"] if o["code"] == "ExistingWorkloadsRefused")
    assert objection["forceable"]
    said = objection["message"]
    for workload in workloads():
        assert (f"{workload} (" in said) == (workload.namespace in WITHOUT_QUEUES), (workload, said)


def test_each_is_charged_to_its_team(many: Many) -> None:
    wanted = {(workload.namespace, workload.name) for workload in workloads()}

    def charged() -> set[tuple[str, ...]]:
        rows = json.loads(many.fairway("report", "usage", "--by", "team,name", "-o", "json"))["rows"]
        return {tuple(row["labels"]) for row in rows if row["device_seconds"]} - {("research", AFTER)}

    until(
        lambda: charged() == wanted,
        60,
        "charges of every workload, and of nothing else",
        pause=0.5,
        why=lambda: sorted(charged() ^ wanted),
    )
    jobs = json.loads(many.fairway("get", "jobs", "--all", "-o", "json"))
    kinds = {(job["team"], job["name"]): job["kind"] or "Job" for job in jobs if job["name"] != AFTER}
    assert kinds == {(workload.namespace, workload.name): workload.kind for workload in workloads()}


def test_pods_of_services_come_back(many: Many) -> None:
    """As they did before: no queue counts them, and the guard lets them pass."""
    api = many.api
    for namespace, prefix in (("serving", "chat-"), ("serving", "embed-0"), ("research", "rollout-gpus-")):
        pods = f"/api/v1/namespaces/{namespace}/pods"
        one = next(name for name, _ in many.before.values() if name.startswith(f"{namespace}/{prefix}"))
        api.delete(f"{pods}/{one.partition('/')[2]}")
    until(lambda: len(gpu_pods(api).keys() - many.before.keys()) == 3, 60, "three new pods", pause=0.5)
    assert len(gpu_pods(api)) == GPU_PODS
