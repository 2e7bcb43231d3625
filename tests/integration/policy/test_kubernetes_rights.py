"""The documented rights as they are, on a real API server: who may write, who may only read, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Unreachable
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, KubernetesConnection
from fairway.model.job import GpuRequest, JobId, JobSpec, Order, engine_name
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from fairway.services.plans import plan_cluster
from lab.kubernetes import Api, kwok
from lab.kubernetes.access import MANIFEST
from lab.kubernetes.api import Json
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import governed
from tests.integration.policy.test_kubernetes_policy import FLEET
from tests.plans import apply_plan
from tests.waiting import Deadline

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

TEAMS = "teams: { rights: { guarantee: { gpu: 8 }, members: [alice] } }\n"
ACCOUNTS = "/api/v1/namespaces/fairway/serviceaccounts"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(slots=True)
class Rights:
    """A cluster with the manifest, and an engine for each of its two accounts."""

    admin: Api
    fleet: Fleet
    loops: KubernetesEngine
    api: KubernetesEngine

    def may(self, account: str, verb: str, resource: str, namespace: str = "", group: str = "") -> bool:
        plain, _, part = resource.partition("/")
        asked = {"verb": verb, "resource": plain, "subresource": part, "namespace": namespace, "group": group}
        user = f"system:serviceaccount:fairway:{account}"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": asked},
        }
        return bool(self.admin.call("POST", REVIEWS, review)["status"]["allowed"])


def _kubeconfig(admin: Api, shown: Path, account: str, folder: Path) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = admin.call("POST", f"{ACCOUNTS}/{account}/token", body)["status"]["token"]
    config: Json = yaml.safe_load(shown.read_text())
    config["users"][0]["user"] = {"token": token}
    file = folder / f"{account}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return str(file)


@pytest.fixture
async def rights(tmp_path: Path) -> AsyncIterator[Rights]:
    lab = governed("kubernetes")
    cluster = LabKubernetes(lab.instance)
    admin, manifest = cluster.api, list(yaml.safe_load_all(MANIFEST.read_text()))
    for wanted in manifest:
        await asyncio.to_thread(admin.apply, wanted)
    shown = Path(lab.instance.facts()["fairway_kubeconfig"])
    fleet = parse_fleet(FLEET.format(kubeconfig=shown, model=kwok.MODEL) + TEAMS, "rights.yaml")
    engines = []
    for account in ("fairway", "fairway-api"):
        connection = KubernetesConnection(_kubeconfig(admin, shown, account, tmp_path))
        engines.append(KubernetesEngine(replace(fleet.clusters[0], connection=connection), fleet.pools))
    yield Rights(admin, fleet, *engines)
    for engine in engines:
        await engine.close()
    await lab.clear()
    for wanted in manifest:
        if "annotations" in wanted["metadata"]:  # the lab's own account may make jobs everywhere
            gone = {"metadata": {"annotations": {"fairway.dev/bind-to": None}}}
            await asyncio.to_thread(admin.merge, admin.path_of(wanted), gone)
        elif "subjects" in wanted:
            await asyncio.to_thread(admin.delete, admin.path_of(wanted))
    await asyncio.to_thread(admin.delete, "/api/v1/namespaces/rights")


async def test_jobs_are_made_in_namespaces_of_teams_and_servers_only_read(rights: Rights) -> None:
    name = rights.fleet.clusters[0].name
    assert not rights.may("fairway", "create", "jobs", "rights", "batch")  # before the first apply
    read = await plan_cluster(rights.api, rights.fleet, name)
    plan = await plan_cluster(rights.loops, rights.fleet, name)
    assert read.fingerprint == plan.fingerprint  # a plan of one account is applied by the other
    applied = await apply_plan(rights.loops, plan, force=True)
    assert applied.refusal is None, applied.refusal
    assert not (await plan_cluster(rights.loops, rights.fleet, name)).changes

    assert rights.may("fairway", "create", "jobs", "rights", "batch")
    assert rights.may("fairway-api", "get", "pods/log", "rights")
    assert rights.may("fairway-api", "list", "jobs", "", "batch")
    submitted = (("jobs", "batch"), ("pods", ""), ("deployments", "apps"), ("jobsets", "jobset.x-k8s.io"))
    for resource, group in submitted:
        assert rights.may("fairway", "create", resource, "rights", group), resource
        assert not rights.may("fairway-api", "create", resource, "rights", group), resource
    for namespace in ("kube-system", "kueue-system", "default"):
        for resource, group in (*submitted, ("services", "")):
            assert not rights.may("fairway", "create", resource, namespace, group), resource
        assert not rights.may("fairway", "get", "pods/log", namespace)
        assert not rights.may("fairway-api", "get", "pods/log", namespace)
    for account in ("fairway", "fairway-api"):
        for resource in ("secrets", "serviceaccounts/token", "pods/exec"):
            assert not rights.may(account, "create", resource, "rights")
            assert not rights.may(account, "get", "secrets", "rights")
    policies = ("mutatingadmissionpolicies", "", "admissionregistration.k8s.io")
    queues = ("clusterqueues", "", "kueue.x-k8s.io")
    written = (("jobs", "rights", "batch"), ("rolebindings", "rights", "rbac.authorization.k8s.io"))
    for resource, namespace, group in (*written, policies, queues, ("namespaces", "", "")):
        for verb in ("create", "patch", "update", "delete"):
            assert not rights.may("fairway-api", verb, resource, namespace, group), (verb, resource)


async def test_the_loops_run_a_job_and_a_server_cannot(rights: Rights) -> None:
    plan = await plan_cluster(rights.loops, rights.fleet, rights.fleet.clusters[0].name)
    applied = await apply_plan(rights.loops, plan, force=True)
    assert applied.refusal is None, applied.refusal
    spec = JobSpec(name="train", gpus=GpuRequest(1), command=("true",), image="localhost/pause:1")
    order = Order(
        JobId(7),
        1,
        engine_name("rights", JobId(7), 1, spec.name),
        spec,
        UserName("alice"),
        TeamName("rights"),
        PriorityName("normal"),
        Supply(PoolName("gpu")),
    )
    with pytest.raises(Refused) as refused:
        _ = [sent async for sent in rights.api.submit([order], rights.fleet)]
    assert refused.value.code == "Forbidden"
    deadline = Deadline(20)
    while True:
        try:
            (sent,) = [sent async for sent in rights.loops.submit([order], rights.fleet)]
            break
        except Unreachable as error:  # an API server puts a policy in force some seconds after it is made
            assert error.code == "QueuesNotAssigned"
            assert not deadline.passed
            await asyncio.sleep(0.2)
    assert (sent.refusal, sent.engine_id) == (None, f"rights/{order.engine_name}")
    assert sent.engine_id is not None
    assert not await rights.loops.cancel([sent.engine_id])
