"""The Kubernetes lab proves itself: up, used, broken, healed, beside another one, gone without a trace."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab import mounts
from lab.cli import lab
from lab.errors import LabError
from lab.instance import Instance, obtain
from lab.kubernetes import Api, Cluster
from lab.kubernetes.api import Json
from lab.kubernetes.kwok import SLICES, SPOT_TAINT, ready_nodes
from lab.kubernetes.site import Site, site_names
from lab.waiting import listeners
from tests.lab.kubernetes_jobs import JOBS, PODS, a_job, a_queue, holds, status_of, until
from tests.tier import sized

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

BUILT_IN_KUEUE = [Path("/etc/kueue"), Path("/visibility")]


def _instance(letter: str, **options: int) -> Instance:
    return obtain("kubernetes", f"test-{os.getpid()}-{letter}", None, options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    instance = _instance("a", nodes=3, spot_nodes=1)
    try:
        instance.up()
        a_queue(Cluster(instance).api, gpus=16)
        yield Cluster(instance)
    finally:
        instance.wipe()


def test_nodes_are_what_was_asked_for(cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in cluster.api.get("/api/v1/nodes")["items"]}
    assert sorted(nodes) == ["gpu-0000", "gpu-0001", "gpu-0002", "mig-0000", "spot-0000"]
    assert nodes["gpu-0002"]["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert nodes["gpu-0002"]["metadata"]["labels"]["topology.fairway/rack"] == "rack-001"
    assert SLICES.items() <= nodes["mig-0000"]["status"]["allocatable"].items()
    assert "nvidia.com/gpu" not in nodes["mig-0000"]["status"]["allocatable"]
    assert SPOT_TAINT in nodes["spot-0000"]["spec"]["taints"]
    assert "nvidia.com/gpu.product" not in nodes["spot-0000"]["metadata"]["labels"]


def test_a_job_waits_for_quota_and_then_runs_to_completion(cluster: Cluster) -> None:
    def runs(name: str) -> bool:
        return bool(cluster.api.get(f"{JOBS}/{name}")["status"].get("active") == 1)

    # Kueue does not keep the order of jobs that come within one second: the third comes once two run.
    for name in ("first", "second"):
        cluster.api.apply(a_job(name, gpus=8, run_for="6s"))
    until("two run", lambda: runs("first") and runs("second"))
    cluster.api.apply(a_job("third", gpus=8))
    workloads = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
    until("the third has no quota", lambda: "insufficient unused quota" in str(cluster.api.get(workloads)))
    assert cluster.api.get(f"{JOBS}/third")["spec"]["suspend"] is True
    until("the third is done", lambda: holds(cluster.api, f"{JOBS}/third", "Complete"))
    pods = cluster.api.get(f"{PODS}?labelSelector=job-name=third")["items"]
    assert pods[0]["spec"]["nodeName"].startswith("gpu-")
    log = cluster.api.text("GET", f"{PODS}/{pods[0]['metadata']['name']}/log")
    assert log.strip() == "hello from the lab"


def test_fairway_may_observe_govern_and_run_and_nothing_more(cluster: Cluster) -> None:
    fairway = Api.from_kubeconfig(cluster.pki.kubeconfig("fairway"))
    assert len(fairway.get("/api/v1/nodes")["items"]) == 5
    for path in ("/api/v1/pods", "/apis/kueue.x-k8s.io/v1beta2/workloads"):
        assert fairway.get(f"{path}?limit=1")["kind"].endswith("List")
    assert status_of(lambda: fairway.get("/api/v1/secrets")) == 403
    assert status_of(lambda: fairway.delete("/api/v1/nodes/gpu-0000")) == 403
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": "default"}}
    assert status_of(lambda: fairway.apply({**pod, "spec": {"containers": []}})) == 403  # jobs, no bare pods
    fairway.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a-team"}})
    binding: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "members", "namespace": "a-team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairway-member"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}],
    }
    fairway.apply(binding)
    more = {**binding, "metadata": {"name": "more", "namespace": "a-team"}}
    more["roleRef"] = {**more["roleRef"], "name": "cluster-admin"}
    assert status_of(lambda: fairway.apply(more)) == 403
    read = fairway.get("/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config")
    assert "preemptionStrategies" in read["data"]["controller_manager_config.yaml"]
    assert status_of(lambda: fairway.delete("/api/v1/namespaces/a-team")) == 403  # people's files are in it
    cluster.api.delete("/api/v1/namespaces/a-team")
    alice = Api.from_kubeconfig(cluster.pki.kubeconfig("alice"))
    assert status_of(lambda: alice.get("/api/v1/nodes")) == 403
    nobody = Api(alice.host, alice.port, alice.tls, token=None)
    assert status_of(lambda: nobody.get("/api/v1/nodes")) == 401


def test_secrets_are_for_their_owner_only(cluster: Cluster) -> None:
    secret = [path for path in cluster.pki.folder.iterdir() if path.suffix in (".key", ".kubeconfig", ".csv")]
    assert len(secret) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_the_command_line_gives_kubectl_and_each_user(cluster: Cluster) -> None:
    instance = cluster.instance
    assert "gpu-0001" in instance.run("kubectl", "get", "nodes", "-o", "name").stdout
    said = instance.run("kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}", user="carol")
    assert "vision" in said.stdout
    assert Path(instance.env()["FAIRWAY_KUBECONFIG"]).exists()
    assert "KUBERNETES_TOKEN" not in instance.env()


def test_a_node_becomes_not_ready_and_ready_again(cluster: Cluster) -> None:
    cluster.set_node_ready("gpu-0001", False)
    until("not ready", lambda: "gpu-0001" not in ready_nodes(cluster.api))
    cluster.set_node_ready("gpu-0001", True)
    until("ready", lambda: "gpu-0001" in ready_nodes(cluster.api))


def test_gpus_fall_sick_and_get_well(cluster: Cluster) -> None:
    def allocatable() -> str:
        return str(cluster.api.get("/api/v1/nodes/gpu-0002")["status"]["allocatable"]["nvidia.com/gpu"])

    cluster.set_sick_gpus("gpu-0002", 3)
    assert allocatable() == "5"
    cluster.set_sick_gpus("gpu-0002", 0)
    assert allocatable() == "8"


def test_kueue_takes_another_configuration(cluster: Cluster, tmp_path: Path) -> None:
    extra = tmp_path / "kueue.yaml"
    extra.write_text("manageJobsWithoutQueueName: true\n")
    words = ["up", "kubernetes", "--name", cluster.instance.name, "--kueue", str(extra)]
    told = CliRunner().invoke(lab, words)
    assert told.exit_code == 0, told.output
    cluster.api.apply(a_job("unqueued", gpus=1, queue=None))
    until("held", lambda: cluster.api.get(f"{JOBS}/unqueued")["spec"].get("suspend") is True)
    cluster.configure_kueue({})
    cluster.api.apply(a_job("free", gpus=1, queue=None))
    until("done", lambda: holds(cluster.api, f"{JOBS}/free", "Complete"))


def test_compaction_makes_old_versions_expire(cluster: Cluster) -> None:
    path = "/apis/batch/v1/namespaces/default/jobs?limit=1&resourceVersionMatch=Exact&resourceVersion="
    old = cluster.api.get(JOBS)["metadata"]["resourceVersion"]
    assert status_of(lambda: cluster.api.get(path + old)) == 200
    cluster.api.apply(a_job("later", gpus=1))
    assert cluster.compact_etcd() > int(old)
    cluster.instance.restart("kueue")
    cluster.instance.restart("kube-apiserver")  # which still remembers what etcd has forgotten
    assert status_of(lambda: cluster.api.get(path + old)) == 410
    assert cluster.instance.dead == []  # a Kueue that has just started outlives its API server


@pytest.mark.parametrize("daemon", ["kube-apiserver", "etcd", "kueue", "kwok"])
def test_a_killed_daemon_is_healed(cluster: Cluster, daemon: str) -> None:
    instance = cluster.instance
    before = {name: instance.daemon(name) for name in instance.alive}
    instance.kill(daemon)
    assert instance.dead == [daemon]
    instance.up()
    assert instance.dead == []
    assert instance.daemon(daemon) != before[daemon]
    name = f"after-{daemon}"
    until("a job is taken", lambda: bool(cluster.api.apply(a_job(name, gpus=1))))
    until("it runs", lambda: holds(cluster.api, f"{JOBS}/{name}", "Complete"))
    # Nobody else died of it, except etcd's clients, which may lose patience.
    if daemon != "etcd":
        after = {name: instance.daemon(name) for name in instance.alive}
        assert {name for name in after if after[name] != before[name]} == {daemon}


def test_another_one_beside_it_goes_without_a_trace(cluster: Cluster) -> None:
    existed = [path for path in BUILT_IN_KUEUE if path.exists()]
    beside = Cluster(_instance("b", nodes=1))
    try:
        beside.instance.up()
        a_queue(beside.api, gpus=8)
        beside.api.apply(a_job("here", gpus=8))
        until("a job of the second", lambda: holds(beside.api, f"{JOBS}/here", "Complete"))
        assert status_of(lambda: cluster.api.get(f"{JOBS}/here")) == 404
        positions = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/a/pendingworkloads"
        assert cluster.api.get(positions)["items"] == beside.api.get(positions)["items"] == []

        ports = {port for row in beside.instance.rows.values() for port in row}
        assert ports.isdisjoint({port for row in cluster.instance.rows.values() for port in row})
        stranger = Api(beside.api.host, beside.api.port, beside.api.tls, token=cluster.api.token)
        assert status_of(lambda: stranger.get("/api/v1/nodes")) == 401

        assert ports <= listeners()
        beside.instance.down()
        assert ports.isdisjoint(listeners())
        assert beside.instance.processes() == []
        assert mounts.below(beside.instance.folder) == []
        assert [path for path in BUILT_IN_KUEUE if path.exists()] == existed
        assert cluster.api.ready()

        beside.instance.up()
        assert holds(beside.api, f"{JOBS}/here", "Complete")
    finally:
        beside.instance.wipe()
    assert not beside.instance.folder.exists()


@pytest.mark.parametrize("site", sized(ci=["plain"], nightly=site_names()))
def test_a_cluster_as_a_site_has_it(site: str) -> None:
    """Its own nodes and objects, its own Kueue or none; a second `up` changes nothing."""
    instance = _instance(site)
    try:
        instance.choose_site(site)
        instance.up()
        cluster = Cluster(instance)
        wanted = {node["metadata"]["name"] for node in Site(site).nodes}
        assert {node["metadata"]["name"] for node in cluster.api.get("/api/v1/nodes")["items"]} == wanted
        jobs = cluster.api.get("/apis/batch/v1/jobs")["items"]
        assert {job["metadata"]["name"] for job in jobs if not _of_a_jobset(job)} == {
            wanted["metadata"]["name"] for wanted in Site(site).objects if wanted["kind"] == "Job"
        }
        assert ("kueue" in instance.alive) == (Site(site).kueue is not None)
        before = [(job["metadata"]["uid"], job["metadata"]["generation"]) for job in jobs]
        instance.up()
        jobs = cluster.api.get("/apis/batch/v1/jobs")["items"]
        if Site(site).kueue is None:  # Kueue starts and stops its jobs all the time
            assert [(job["metadata"]["uid"], job["metadata"]["generation"]) for job in jobs] == before
        with pytest.raises(LabError, match="exists already"):
            instance.choose_site("another")
    finally:
        instance.wipe()


def _of_a_jobset(job: Json) -> bool:
    return any(owner["kind"] == "JobSet" for owner in job["metadata"].get("ownerReferences", ()))
