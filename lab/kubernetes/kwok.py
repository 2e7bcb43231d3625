"""KWOK plays nodes that exist for the API server only: pods on them start at once and do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from lab.kubernetes.api import TABLE, Api, ApiError, Json
from lab.kubernetes.control_plane import LOOPBACK, Words, flags
from lab.kubernetes.pki import Pki

OURS = "kwok.x-k8s.io/node"
MODEL = "NVIDIA-A100-SXM4-80GB"
NODES_A_RACK = 2  # so that four nodes, the default, have two racks to choose from
NODES_A_BLOCK = 64
SPOT_LABEL = {"fairway/capacity": "spot"}
SPOT_TAINT = {"key": "fairway/spot", "value": "true", "effect": "NoSchedule"}
RUN_FOR = "lab.fairway/run-for"  # a pod's annotation: how long it runs, "5s"; without it, it ends at once
RUN_FOR_ENV = "LAB_RUN_FOR"  # the same as a variable of its first container, for whoever makes no annotations
EXIT_ENV = "LAB_EXIT"  # with which code it ends
NOT_READY = "node-not-ready.stage.kwok.x-k8s.io"
STAGES = ("node/fast", "node/heartbeat-with-lease", "node/chaos", "pod/fast", "pod/chaos")
POD_LOG = "2026-01-01T00:00:00.000000000Z stdout F hello from the lab\n"
SLICES = {"nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "2"}


def command(program: Path, port: int, pki: Pki, config: Path) -> Words:
    return [
        str(program),
        *flags(
            kubeconfig=pki.client("kwok", "kwok", "system:masters"),
            manage_all_nodes=False,
            manage_nodes_with_annotation_selector=f"{OURS}=fake",
            config=config,
            node_ip=LOOPBACK,
            node_port=port,
            node_lease_duration_seconds=40,
            cidr="10.0.0.1/24",
            server_address=f"{LOOPBACK}:{port}",
            tls_cert_file=pki.crt("server"),
            tls_private_key_file=pki.key("server"),
        ),
    ]


def write_config(stages: Path, folder: Path) -> Path:
    """What KWOK does to nodes and pods, from its own stages; the file that says so."""
    log = folder / "pod.log"
    log.write_text(POD_LOG)
    every_pod = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "ClusterLogs",
        "metadata": {"name": "all"},
        "spec": {"logs": [{"logsFile": str(log)}]},
    }
    config = folder / "kwok.yaml"
    config.write_text(yaml.safe_dump_all([every_pod, *_stages(stages)]))
    return config


def _stages(folder: Path) -> Iterator[Json]:
    for path in [path for part in STAGES for path in sorted((folder / part).glob("*.yaml"))]:
        stage: Json = yaml.safe_load(path.read_text())
        if stage["kind"] != "Stage":
            continue
        if stage["metadata"]["name"] == "pod-complete":
            length = {"expressionFrom": f'.metadata.annotations["{RUN_FOR}"] // {_variable(RUN_FOR_ENV)}'}
            stage["spec"]["delay"] = {"durationMilliseconds": 0, "durationFrom": length}
            template = stage["spec"]["next"]["statusTemplate"]
            stage["spec"]["next"]["statusTemplate"] = _with_exit_code(template)
            yield _stopping(template)
        if stage["metadata"]["name"] == "pod-delete":
            stage["spec"]["selector"]["matchExpressions"].append({**_QUEUED_POD, "operator": "NotIn"})
        yield stage


_QUEUED_POD: Json = {"key": ".metadata.finalizers.[]", "values": ["kueue.x-k8s.io/managed"]}


def _stopping(template: str) -> Json:
    """How a kubelet ends a pod that stays, once deleted, for Kueue's finalizer: its containers end first."""
    template = template.replace("phase: Succeeded", "phase: Failed").replace("exitCode: 0", "exitCode: 143")
    conditions: list[Json] = [
        {"key": ".metadata.deletionTimestamp", "operator": "Exists"},
        {"key": ".status.phase", "operator": "In", "values": ["Running"]},
        {**_QUEUED_POD, "operator": "In"},
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": "pod-stop"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": conditions},
            "next": {
                "statusTemplate": template.replace("reason: Completed", "reason: Error").replace(
                    "startedAt: {{ $now | Quote }}", "startedAt: {{ $root.status.startTime | Quote }}"
                )
            },
        },
    }


def _variable(name: str) -> str:
    return f'([.spec.containers[0].env[]? | select(.name == "{name}") | .value] | .[0])'


def _with_exit_code(template: str) -> str:
    """KWOK's own way to end a pod, with a code that the pod's variable may say."""
    code = (
        '{{ $code := "0" }}{{ range (index .spec.containers 0).env }}'
        f'{{{{ if eq .name "{EXIT_ENV}" }}}}{{{{ $code = .value }}}}{{{{ end }}}}{{{{ end }}}}\n'
    )
    ended = '{{ if eq $code "0" }}%s{{ else }}%s{{ end }}'
    return code + (
        template.replace("exitCode: 0", "exitCode: {{ $code }}")
        # KWOK writes the end here; a kubelet keeps the start.
        .replace("startedAt: {{ $now | Quote }}", "startedAt: {{ $root.status.startTime | Quote }}")
        .replace("reason: Completed", f"reason: {ended % ('Completed', 'Error')}")
        .replace("phase: Succeeded", f"phase: {ended % ('Succeeded', 'Failed')}")
    )


def gpu_node(number: int, gpus: int) -> Json:
    return _node(
        f"gpu-{number:04d}", number, {"nvidia.com/gpu.product": MODEL}, {"nvidia.com/gpu": str(gpus)}
    )


def mig_node(number: int) -> Json:
    """GPUs cut into slices. The suffix keeps it out of a pool that selects whole GPUs by their product."""
    labels = {"nvidia.com/gpu.product": f"{MODEL}-MIG", "nvidia.com/mig.strategy": "mixed"}
    return _node(f"mig-{number:04d}", number, labels, SLICES)


def spot_node(number: int, gpus: int) -> Json:
    """Capacity that may vanish. Without a product label it stays out of pools that select by product."""
    node = _node(f"spot-{number:04d}", number, SPOT_LABEL, {"nvidia.com/gpu": str(gpus)})
    return {**node, "spec": {"taints": [SPOT_TAINT]}}


def whole_node(name: str, number: int, labels: dict[str, str]) -> Json:
    """A node of the lab without devices of its own."""
    return _node(name, number, labels, {})


def site_node(name: str, row: Json) -> Json:
    """A node as a site describes it: its labels, devices and taints, and nothing of the lab's."""
    size = {"cpu": "128", "memory": "2Ti", "pods": "110"}
    size |= {device: str(count) for device, count in row.get("devices", {}).items()}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {OURS: "fake"}, "labels": {**labels, **row["labels"]}},
        "spec": {"taints": row.get("taints", [])},
        "status": {"allocatable": size, "capacity": size},
    }


def _node(name: str, number: int, labels: dict[str, str], devices: dict[str, str]) -> Json:
    size = {"cpu": "128", "memory": "2Ti", "pods": "110", **devices}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {OURS: "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                "topology.fairway/rack": f"rack-{number // NODES_A_RACK:03d}",
                "topology.fairway/block": f"block-{number // NODES_A_BLOCK:03d}",
                **labels,
            },
        },
        "status": {"allocatable": size, "capacity": size},
    }


def wanted_nodes(count: int, gpus: int, spot: int = 0) -> list[Json]:
    whole = [gpu_node(number, gpus) for number in range(count)]
    return [*whole, mig_node(0), *(spot_node(number, gpus) for number in range(spot))]


def keep_nodes(api: Api, wanted: list[Json]) -> None:
    """Make the cluster's KWOK nodes these: create the missing, remove the others, mend the rest."""
    names = {node["metadata"]["name"] for node in wanted}
    present = {node["metadata"]["name"]: node for node in api.get("/api/v1/nodes")["items"] if is_ours(node)}
    api.each(lambda node: api.delete(f"/api/v1/nodes/{node['metadata']['name']}"), _without(present, names))

    def keep(node: Json) -> None:
        name = node["metadata"]["name"]
        if name not in present:
            api.create("/api/v1/nodes", node)
            return
        if present[name]["status"].get("capacity") != node["status"]["capacity"]:
            api.merge(f"/api/v1/nodes/{name}/status", {"status": node["status"]})
        if not node["metadata"]["labels"].items() <= present[name]["metadata"].get("labels", {}).items():
            api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": node["metadata"]["labels"]}})

    api.each(keep, wanted)


def _without(present: dict[str, Json], names: set[str]) -> list[Json]:
    return [node for name, node in present.items() if name not in names]


def free_leases(api: Api, real_nodes: list[str]) -> None:
    """Let a new KWOK take the nodes of one that died at once, not when their leases of 40 s have run out."""
    others = ",".join(f"metadata.name!={name}" for name in real_nodes)
    api.delete(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?fieldSelector={others}")


def is_ours(node: Json) -> bool:
    return OURS in node["metadata"].get("annotations", {})


def is_ready(node: Json) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def ready_nodes(api: Api) -> set[str]:
    """Their names, from the server's own table: a tenth of the bytes, since thousands are asked for often."""
    table = api.get("/api/v1/nodes?includeObject=None", accept=TABLE)
    columns = [column["name"] for column in table["columnDefinitions"]]
    name, status = columns.index("Name"), columns.index("Status")
    return {row["cells"][name] for row in table["rows"] if "Ready" in row["cells"][status].split(",")}


def set_ready(api: Api, name: str, ready: bool) -> None:
    """Make a KWOK node NotReady, or Ready again; it takes KWOK a second or two."""
    _known(api, name)
    api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {NOT_READY: None if ready else "true"}}})


def set_sick_gpus(api: Api, name: str, sick: int) -> None:
    """So many GPUs of a KWOK node count as unhealthy: there, but not to be had."""
    total = int(_known(api, name)["status"]["capacity"]["nvidia.com/gpu"])
    if not 0 <= sick <= total:
        raise ValueError(f"{name} has {total} GPUs, not {sick}")
    left = {"nvidia.com/gpu": str(total - sick)}
    api.merge(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": left}})


def _known(api: Api, name: str) -> Json:
    node = api.get(f"/api/v1/nodes/{name}")
    if not is_ours(node):
        raise ApiError(409, "NotKwok", f"{name} is a real node")
    return node
