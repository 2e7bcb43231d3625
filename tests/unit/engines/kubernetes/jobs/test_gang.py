"""Jobs on several nodes: as a JobSet or as a Job, and how their pods find each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.jobs import gang
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner, order_objects
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.model.job import JobSpec, Order, format_job_id
from fairway.model.workload_kinds import JOB, JOB_SET
from tests.kinds import manifests
from tests.kinds.manifests import Json
from tests.unit.engines.kubernetes.jobs import test_manifest as plain
from tests.unit.engines.kubernetes.jobs import test_user_manifest as user

GANG = replace(plain.SPEC, nodes=4)


def made(spec: JobSpec = GANG, *, job_sets: bool = True, **more: Any) -> Json:
    return order_objects(plain.order(spec, **more), plain.FLEET, plain.CLUSTER, job_sets=job_sets).body


def job_of(body: Json) -> Json:
    """The Job, or the one in a JobSet."""
    if body["kind"] == "Job":
        return body
    (part,) = body["spec"]["replicatedJobs"]
    inner: Json = part["template"]
    return inner


def test_a_job_on_one_node_is_a_job_as_before() -> None:
    body = made(plain.SPEC)
    assert body["kind"] == "Job"
    assert "subdomain" not in body["spec"]["template"]["spec"]
    assert "fairway.dev/gang" not in body["spec"]["template"]["metadata"]["labels"]
    assert not {"MASTER_ADDR", "RANK"} & {e["name"] for e in plain.container(body)["env"]}


def test_a_job_on_several_nodes_is_a_job_set() -> None:
    body, job = made(), made(job_sets=False)
    assert (body["apiVersion"], body["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert body["metadata"] == job["metadata"]
    assert body["spec"]["suspend"] is True
    assert body["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert body["spec"]["ttlSecondsAfterFinished"] == 86_400
    inner = job_of(body)["spec"]
    assert (inner["parallelism"], inner["completions"], inner["completionMode"]) == (4, 4, "Indexed")
    assert inner["podFailurePolicy"] == job["spec"]["podFailurePolicy"]
    assert inner["activeDeadlineSeconds"] == 3600
    assert not {"suspend", "ttlSecondsAfterFinished"} & inner.keys()
    together = made(replace(GANG, together=True))
    notes = job_of(together)["spec"]["template"]["metadata"]["annotations"]
    assert notes["kueue.x-k8s.io/podset-required-topology"] == "topology.fairway/rack"


@pytest.mark.parametrize("job_sets", [True, False])
def test_variables_for_torchrun(job_sets: bool) -> None:
    job = job_of(made(job_sets=job_sets))
    name = plain.order(GANG).engine_name
    host = f"{name}-n-0-0.{name}" if job_sets else f"{name}-0.fairway-gangs"
    told = plain.variables(job)
    assert told["MASTER_ADDR"] == told["PET_MASTER_ADDR"] == host
    assert told["MASTER_PORT"] == told["PET_MASTER_PORT"] == "29500"
    assert told["WORLD_SIZE"] == told["PET_NNODES"] == told["FAIRWAY_NODES"] == "4"
    assert told["NPROC_PER_NODE"] == told["PET_NPROC_PER_NODE"] == "4"
    own = {
        e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"]
        for e in plain.container(job)["env"]
        if "valueFrom" in e
    }
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert {own[n] for n in ("RANK", "NODE_RANK", "PET_NODE_RANK", "FAIRWAY_NODE_INDEX")} == {index}


def test_the_users_own_variables_come_first() -> None:
    spec = replace(GANG, env={"MASTER_PORT": "1234", "RANK": "mine", "WORLD_SIZE": "32"})
    env = plain.container(job_of(made(spec)))["env"]
    names = [e["name"] for e in env]
    assert len(names) == len(set(names)), "none is there twice"
    told = plain.variables(job_of(made(spec)))
    assert (told["MASTER_PORT"], told["PET_MASTER_PORT"], told["RANK"], told["WORLD_SIZE"]) == (
        "1234", "1234", "mine", "32",
    )  # fmt: skip


def test_the_pods_of_a_job_are_in_the_service_and_have_names() -> None:
    job, service = made(job_sets=False), gang.service("research")
    pod = job["spec"]["template"]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    inner = job_of(made())["spec"]["template"]
    assert "subdomain" not in inner["spec"], "JobSet sets its own"
    assert not service["spec"]["selector"].items() <= inner["metadata"]["labels"].items()


@pytest.mark.parametrize("name", ["3d-train", "x" * 40])
def test_names_that_job_set_would_not_accept(name: str) -> None:
    assert made(replace(GANG, name=name))["kind"] == "Job"


class FakeApi:
    """An API server that stores what is created."""

    def __init__(
        self, *, job_sets: bool = True, frameworks: str = "batch/job, jobset.x-k8s.io/jobset"
    ) -> None:
        self.groups = {"batch/v1": ["jobs"], "apps/v1": ["deployments"]}
        if job_sets:
            self.groups["jobset.x-k8s.io/v1alpha2"] = ["jobsets"]
        self.frameworks = frameworks
        self.objects: dict[str, Json] = {}
        self.reads: list[str] = []

    def call(self, verb: str, resource: str) -> ApiCall:
        return ApiCall("http://127.0.0.1", verb, resource)

    async def send(self, call: ApiCall, path: str, **more: Any) -> tuple[int, bytes]:
        body = more["body"]
        at = f"{path}/{body['metadata']['name']}"
        if at in self.objects:
            return 409, b'{"kind": "Status", "message": "exists"}'
        if path.startswith("/apis/") and "/".join(path.split("/")[2:4]) not in self.groups:
            return 404, b'{"kind": "Status", "message": "the server could not find the requested resource"}'
        self.objects[at] = body
        return 201, b"{}"

    async def get(self, path: str, resource: str, type_: Any, accept: str = "") -> Any:
        self.reads.append(path)
        found: Json | None = self.objects.get(path)
        if path.endswith("/configmaps/kueue-manager-config"):
            config = f"integrations: {{ frameworks: [{self.frameworks}] }}"
            found = {"data": {"controller_manager_config.yaml": config}}
        if (served := self.groups.get(path.removeprefix("/apis/"))) is not None:
            found = {"resources": [{"name": n, "kind": n, "namespaced": True} for n in served]}
        return None if found is None else msgspec.convert(found, type_, strict=False)

    def made(self) -> set[str]:
        return {path.split("/")[-2] for path in self.objects}


async def create(api: FakeApi, order: Order, runner: KubernetesRunner | None = None) -> str:
    runner = runner or KubernetesRunner(ApiConnection(plain.CLUSTER, 1), plain.FLEET.pools)
    return await runner._create(api, order, plain.FLEET)  # type: ignore[arg-type]


async def test_created_as_job_set_where_kueue_queues_them() -> None:
    api, order = FakeApi(), plain.order(GANG)
    assert await create(api, order) == f"research/{order.engine_name}"
    assert await create(api, order) == f"research/{order.engine_name}", "found, not doubled"
    assert api.made() == {"jobsets"}


@pytest.mark.parametrize("api", [FakeApi(job_sets=False), FakeApi(frameworks="batch/job")])
async def test_created_as_job_with_a_service_elsewhere(api: FakeApi) -> None:
    order = plain.order(GANG)
    await create(api, order)
    await create(api, order)
    assert api.made() == {"jobs", "services"}
    assert len(api.objects) == 2


async def test_a_job_that_was_sent_is_not_doubled_when_job_set_is_installed() -> None:
    api, order = FakeApi(job_sets=False), plain.order(GANG)
    await create(api, order)
    api.groups["jobset.x-k8s.io/v1alpha2"] = ["jobsets"]
    await create(api, order)
    assert "jobsets" not in api.made()
    away, back = FakeApi(), plain.order(GANG)
    await create(away, back)
    away.frameworks = "batch/job"
    await create(away, back)
    assert away.made() == {"jobsets"}


async def test_what_the_cluster_has_is_read_once_a_minute() -> None:
    api, runner = FakeApi(), KubernetesRunner(ApiConnection(plain.CLUSTER, 1), plain.FLEET.pools)
    for submission in range(20):
        order = replace(plain.order(GANG), submission=submission, engine_name=f"a-fwmark-00ab-{submission}")  # type: ignore[arg-type]
        await create(api, order, runner)
    assert sum("configmaps" in path for path in api.reads) == 1
    assert sum(path.count("/") == 3 for path in api.reads) == 2, "two groups"


async def test_a_manifest_is_created_once_and_others_names_are_left_alone() -> None:
    api, order = FakeApi(), user.order(user.deployment())
    assert await create(api, order) == f"research/{order.engine_name}"
    assert await create(api, order) == f"research/{order.engine_name}"
    (body,) = api.objects.values()
    assert body["metadata"]["labels"]["fairway.dev/job"] == format_job_id(order.job)
    body["metadata"]["labels"] = {"fairway.dev/job": "zzzz"}
    with pytest.raises(Refused) as caught:
        await create(api, order)
    assert caught.value.code == "NameTaken"


async def test_a_kind_that_is_not_installed() -> None:
    with pytest.raises(Refused) as caught:
        await create(FakeApi(), user.order(manifests.ray_cluster("a", 1, 1)[0]))
    assert caught.value.code == "KindNotInstalled"
    assert "RayCluster of ray.io/v1" in caught.value.message


async def test_one_that_was_deleted_meanwhile_is_tried_again() -> None:
    class Forgetful(FakeApi):
        async def send(self, call: ApiCall, path: str, **more: Any) -> tuple[int, bytes]:
            return 409, b'{"kind": "Status", "message": "exists"}'

    with pytest.raises(Unreachable):
        await create(Forgetful(), user.order(user.deployment()))


def test_the_registry_names_both_kinds() -> None:
    order = plain.order(GANG)
    assert order_objects(order, plain.FLEET, plain.CLUSTER, job_sets=True).kind is JOB_SET
    assert order_objects(order, plain.FLEET, plain.CLUSTER).kind is JOB
