"""What a real node reads: the configuration of its kubelet, of containerd and of the pod network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.kubernetes.builds import NodeBuilds
from lab.kubernetes.control_plane import LOOPBACK
from lab.kubernetes.images import PAUSE
from lab.kubernetes.pki import Pki

# Never evict: the disk and memory belong to the machine, which other things fill too.
NO_EVICTION = dict.fromkeys(
    (
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
    ),
    "0%",
)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where one node stands."""

    number: int
    folder: Path
    port: int
    bridge: str
    cgroup: str


def write_files(place: NodePlace, builds: NodeBuilds, pki: Pki) -> None:
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "sick-gpus").touch()
    (place.folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet(place, pki)))
    (place.folder / "containerd.toml").write_text(containerd(place, builds))
    network = place.folder / "cni"
    network.mkdir(exist_ok=True)
    (network / "10-lab.conflist").write_text(json.dumps(pod_network(place)))
    registry = place.folder / "registry" / "_default"
    registry.mkdir(parents=True, exist_ok=True)
    # A pull fails at once and never leaves the machine.
    (registry / "hosts.toml").write_text('server = "http://127.0.0.1:9"\n')


def kubelet(place: NodePlace, pki: Pki) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": LOOPBACK,
        "port": place.port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": str(pki.crt("server")),
        "tlsPrivateKeyFile": str(pki.key("server")),
        # Only who holds a certificate of this cluster's authority may ask, in practice its API server.
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(pki.ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{place.cgroup}",
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": NO_EVICTION,
        "clusterDNS": [],
        "resolvConf": "",
        "maxPods": 110,
        "nodeStatusUpdateFrequency": "2s",
    }


def containerd(place: NodePlace, builds: NodeBuilds) -> str:
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{place.folder}/registry"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true  # root in a container or a small machine may lack CAP_SYS_RESOURCE
  netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{builds.cni}"]
  conf_dir = "{place.folder}/cni"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{builds.runc}/runc"
  SystemdCgroup = false
"""


def pod_network(place: NodePlace) -> dict[str, object]:
    """One switch for all nodes of a cluster: no address on the machine, no route out."""
    addresses = {
        "subnet": "10.253.0.0/16",
        "rangeStart": f"10.253.{place.number}.2",
        "rangeEnd": f"10.253.{place.number}.254",
    }
    bridge = {
        "type": "bridge",
        "bridge": place.bridge,
        "isGateway": False,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[addresses]]},
    }
    return {"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge]}
