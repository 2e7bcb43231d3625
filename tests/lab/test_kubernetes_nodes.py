"""Real nodes of the Kubernetes lab: pods are processes, and power cuts are power cuts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import mounts
from lab.instance import obtain
from lab.kubernetes import Cluster
from lab.kubernetes.images import PYTHON
from lab.kubernetes.kwok import ready_nodes
from lab.waiting import listeners
from tests.lab.kubernetes_jobs import PODS, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

NODE = "real-0000"
SAY = "import os; print('holds', os.environ['NVIDIA_VISIBLE_DEVICES'], *os.listdir('/dev'), flush=True)"
STAY = f"{SAY}; import time; time.sleep(3600)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    instance = obtain("kubernetes", f"test-{os.getpid()}-real", None, {"nodes": 1, "real_nodes": 1})
    try:
        instance.up()
        yield Cluster(instance)
    finally:
        instance.wipe()


def a_pod(cluster: Cluster, name: str, code: str) -> None:
    container = {
        "name": "main",
        "image": PYTHON,
        "command": ["python3", "-c", code],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"type": "real"},
        "containers": [container],
    }
    cluster.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def pod(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.api.get(f"{PODS}/{name}")


def in_phase(cluster: Cluster, name: str, phase: str) -> bool:
    return bool(pod(cluster, name)["status"]["phase"] == phase)


def log(cluster: Cluster, name: str) -> str:
    return cluster.api.text("GET", f"{PODS}/{name}/log")


def process_of(cluster: Cluster, code: str) -> int:
    """The machine's pid of a pod's process."""
    words = ["python3", "-c", code]
    for process in cluster.instance.processes():
        if Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:3] == words:
            return process.pid
    raise LookupError(code)


def test_a_pod_is_a_process_with_a_gpu_and_a_log(cluster: Cluster) -> None:
    a_pod(cluster, "says", SAY)
    until("it is done", lambda: in_phase(cluster, "says", "Succeeded"))
    said = log(cluster, "says")
    assert said.startswith("holds GPU-")
    number = said.split()[1].removeprefix("GPU-")
    assert f"nvidia{number}" in said.split()
    assert pod(cluster, "says")["spec"]["nodeName"] == NODE


def test_a_killed_kubelet_comes_back_and_its_pod_notices_nothing(cluster: Cluster) -> None:
    a_pod(cluster, "stays", STAY)
    until("it runs", lambda: "holds" in log(cluster, "stays"))
    process, kubelet = process_of(cluster, STAY), cluster.nodes.pid_inside(NODE, "kubelet")
    cluster.nodes.kill_inside(NODE, "kubelet")
    until("another kubelet", lambda: cluster.nodes.pid_inside(NODE, "kubelet") != kubelet)
    until("the log is back", lambda: "holds" in log(cluster, "stays"))
    assert process_of(cluster, STAY) == process
    assert pod(cluster, "stays")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert cluster.instance.dead == []


def test_a_sick_gpu_is_not_allocatable(cluster: Cluster) -> None:
    def gpus() -> tuple[str, str]:
        status = cluster.api.get(f"/api/v1/nodes/{NODE}")["status"]
        return status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]

    until("all are well", lambda: gpus() == ("8", "8"))
    cluster.set_sick_gpus(NODE, 2)
    until("two are sick", lambda: gpus() == ("8", "6"))
    cluster.set_sick_gpus(NODE, 0)
    until("all are well again", lambda: gpus() == ("8", "8"))


def test_a_power_cut_ends_everything_on_the_node_and_power_brings_it_back(cluster: Cluster) -> None:
    a_pod(cluster, "lost", STAY)
    until("it runs", lambda: "holds" in log(cluster, "lost"))
    process = process_of(cluster, STAY)
    cluster.nodes.power_off(NODE)
    assert not Path(f"/proc/{process}").exists()
    assert cluster.instance.dead == [NODE]
    cluster.instance.up()
    assert cluster.instance.dead == []
    assert NODE in ready_nodes(cluster.api)
    until("the pod's end is known", lambda: in_phase(cluster, "lost", "Failed"))
    a_pod(cluster, "anew", SAY)
    until("it works again", lambda: in_phase(cluster, "anew", "Succeeded"))


def test_down_leaves_nothing(cluster: Cluster) -> None:
    instance, bridge = cluster.instance, Path("/sys/class/net") / cluster.nodes.bridge
    a_pod(cluster, "running", STAY)
    until("it runs", lambda: "holds" in log(cluster, "running"))
    running = instance.processes()
    ports = {port for row in instance.rows.values() for port in row}
    assert process_of(cluster, STAY) in [process.pid for process in running]
    assert list(bridge.joinpath("brif").iterdir())
    assert cgroups(cluster)

    instance.down()
    assert [process for process in running if process.alive] == []
    assert ports.isdisjoint(listeners())
    assert mounts.below(instance.folder) == []
    assert cgroups(cluster) == []
    assert not bridge.exists()

    instance.up()
    a_pod(cluster, "later", SAY)
    until("it works again", lambda: in_phase(cluster, "later", "Succeeded"))


def cgroups(cluster: Cluster) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(f"*{cluster.nodes.key}*"))
