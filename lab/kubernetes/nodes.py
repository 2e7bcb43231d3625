"""Real nodes: kubelet, containerd, runc and a device plugin, each node in namespaces of its own.

A node is one process tree below `unshare`. Killing that is a power cut: the kernel ends everything in it at
once and takes its mounts and network along.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import apt
from lab.errors import LabError
from lab.kubernetes import builds, images, kwok, node_files
from lab.kubernetes.api import NOT_NOW, Api, Json
from lab.kubernetes.control_plane import LOOPBACK
from lab.kubernetes.pki import Pki
from lab.programs import output_of
from lab.progress import step
from lab.waiting import listening, wait_until

if TYPE_CHECKING:
    from lab.instance import Instance

CGROUPS = Path("/sys/fs/cgroup")
NETWORK = Path("/sys/class/net")
PROC = Path("/proc")
INIT = Path(__file__).parent / "node_init.sh"
COVERED = tuple(map(Path, ("/var/lib", "/var/log", "/run")))  # a node has its own, see node_init.sh
READY_SECONDS = 120
END_SECONDS = 30
MODEL = "LAB-REAL"


@dataclass(frozen=True, slots=True)
class RealNodes:
    """The real nodes of one cluster."""

    instance: Instance
    pki: Pki

    @staticmethod
    def named(count: int) -> list[str]:
        return [f"real-{number:04d}" for number in range(count)]

    @property
    def names(self) -> list[str]:
        return self.named(self.instance.options["real_nodes"])

    # what tests do to them

    def power_off(self, name: str) -> None:
        """A power cut."""
        self.instance.kill(name)
        self._sweep(name)

    def power_on(self, name: str) -> None:
        """Return when the node is ready again."""
        self.start(name)

    def kill_inside(self, name: str, program: str) -> None:
        """kill -9 of the node's kubelet, containerd or device_plugin; the node starts it anew by itself."""
        os.kill(self.pid_inside(name, program), signal.SIGKILL)

    def pid_inside(self, name: str, program: str) -> int:
        """The machine's pid of one of the node's own programs."""
        pids = [pid for pid in self._own_pids(name) if _program(pid) == program]
        if not pids:
            raise LabError(f"{program} does not run on {name} of {self.instance.name}")
        return pids[0]

    def set_sick_gpus(self, name: str, numbers: Iterable[int]) -> None:
        """These GPUs are unhealthy from now on; the device plugin tells the kubelet within a second."""
        if name not in self.names:
            raise LabError(
                f"{self.instance.name} has no real node {name}", hint=f"known: {', '.join(self.names)}"
            )
        (self._folder(name) / "sick-gpus").write_text(" ".join(map(str, numbers)))

    def load_image(self, name: str, archive: Path) -> None:
        """Give a node an image: it can pull none."""
        inside = ["nsenter", "--mount", "--pid", "--target", str(self.pid_inside(name, "containerd"))]
        ctr = builds.node_builds().containerd / "ctr"
        output_of(*inside, ctr, "-n", "k8s.io", "images", "import", "--local", archive)

    # how they start

    def build(self) -> None:
        for folder in (self.instance.folder, INIT.parent):
            if any(covered in folder.resolve().parents for covered in COVERED):
                raise LabError(
                    f"real nodes cannot live in {folder}",
                    f"a node covers {', '.join(map(str, COVERED))} with its own",
                    "set XDG_CACHE_HOME to somewhere else",
                )
        apt.require("ip", "iproute2")
        builds.node_builds()
        images.images()

    def up(self) -> None:
        api = Api.from_kubeconfig(self.pki.admin_kubeconfig)
        self._forget_others(api)
        if not self.names:
            return
        with step(f"{self.instance.name}: {_counted(len(self.names))}"):
            for name in self.names:
                self._launch(api, name)
            for name in self.names:
                self._until_ready(api, name)

    def start(self, name: str) -> None:
        api = Api.from_kubeconfig(self.pki.admin_kubeconfig)
        self._launch(api, name)
        self._until_ready(api, name)

    def _launch(self, api: Api, name: str) -> None:
        if self.instance.daemon(name):
            return
        self._sweep(name)
        place, programs = self._place(name), builds.node_builds()
        api.create("/api/v1/nodes", _node(name))
        node_files.write_files(place, programs, self.pki)
        kubeconfig = self.pki.client(name, f"system:node:{name}", "system:nodes")
        self._keep_bridge()
        for root in _cgroup_roots():
            (root / place.cgroup).mkdir(exist_ok=True)
        words = [str(word) for word in (INIT, place.folder, name, self.instance.options["gpus"], kubeconfig)]
        env = {"PATH": f"{programs.path}:{os.environ.get('PATH', os.defpath)}", "HOME": str(place.folder)}
        self.instance.launch(
            name,
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", *words, *images.images()],
            env=env,
        )

    def _until_ready(self, api: Api, name: str) -> None:
        gpus = str(self.instance.options["gpus"] - len(self._sick(name)))

        def ready() -> bool:
            if not self.instance.daemon(name):
                raise LabError(f"{name} ended at once", self.instance.last_words(name))
            try:
                node = api.get(f"/api/v1/nodes/{name}")
            except NOT_NOW:
                return False
            # Conditions may be those from before the node went off, so its kubelet must answer too.
            has_gpus = node["status"].get("allocatable", {}).get("nvidia.com/gpu") == gpus
            return listening(self._port(name)) and kwok.is_ready(node) and has_gpus

        wait_until(
            ready,
            READY_SECONDS,
            f"{name} of {self.instance.name} is not ready",
            hint=f"its logs: {self._folder(name)}/*.log",
        )

    def _forget_others(self, api: Api) -> None:
        """Nodes of an earlier `up` with more of them would stay as NotReady for ever."""
        for node in api.get("/api/v1/nodes?labelSelector=type=real")["items"]:
            name = node["metadata"]["name"]
            if name not in self.names:
                for pod in api.get(f"/api/v1/pods?fieldSelector=spec.nodeName={name}")["items"]:
                    meta = pod["metadata"]
                    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                    api.delete(path, gracePeriodSeconds=0)
                api.delete(f"/api/v1/nodes/{name}")

    # how they end

    def down(self) -> None:
        """Switch all off; no process, mount, cgroup or network link of theirs stays."""
        for name in self.names:
            if process := self.instance.daemon(name):
                process.send(signal.SIGKILL)
        for name in self.names:
            self._sweep(name)
        self._remove_bridge()

    def _sweep(self, name: str) -> None:
        """Wait until everything of a node that is off has gone, then remove its cgroups."""
        wait_until(
            lambda: not self.instance.daemon(name) and not listening(self._port(name)),
            END_SECONDS,
            f"{name} of {self.instance.name} does not end",
        )
        cgroup = self._cgroup(name)
        wait_until(lambda: _remove_cgroup(cgroup), END_SECONDS, f"the cgroup {cgroup} cannot be removed")

    # where they are

    @property
    def key(self) -> str:
        """Tells this cluster's bridge and cgroups from another's; a link's name has at most 15 characters."""
        return hashlib.sha256(str(self.instance.folder).encode()).hexdigest()[:8]

    @property
    def bridge(self) -> str:
        return f"fwlab{self.key}"

    def _cgroup(self, name: str) -> str:
        return f"fairway-lab-{self.key}-{name}"

    def _folder(self, name: str) -> Path:
        return self.instance.folder / "nodes" / name

    def _port(self, name: str) -> int:
        return self.instance.rows["kubelets"][_number(name)]

    def _place(self, name: str) -> node_files.NodePlace:
        return node_files.NodePlace(
            number=_number(name),
            folder=self._folder(name),
            port=self._port(name),
            bridge=self.bridge,
            cgroup=self._cgroup(name),
        )

    def _sick(self, name: str) -> list[str]:
        path = self._folder(name) / "sick-gpus"
        return path.read_text().split() if path.exists() else []

    def _own_pids(self, name: str) -> list[int]:
        """What runs in the node's own PID namespace, which leaves containers out."""
        process = self.instance.daemon(name)
        if process is None:
            return []
        children = (PROC / f"{process.pid}/task/{process.pid}/children").read_text().split()
        if not children:
            return []
        own = _pid_namespace(int(children[0]))
        pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
        return [pid for pid in pids if own and _pid_namespace(pid) == own]

    def _keep_bridge(self) -> None:
        if not (NETWORK / self.bridge).exists():
            _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "addrgenmode", "none", "up")

    def _remove_bridge(self) -> None:
        if (NETWORK / self.bridge).exists():
            ports = NETWORK / self.bridge / "brif"
            wait_until(lambda: not any(ports.iterdir()), END_SECONDS, f"{self.bridge} still has links")
            _ip("link", "delete", self.bridge)


def _counted(nodes: int) -> str:
    return "1 real node" if nodes == 1 else f"{nodes} real nodes"


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _node(name: str) -> Json:
    """Made before its kubelet comes: that keeps a loopback address it finds, but would not choose one."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": images.architecture(),
                "type": "real",
                "nvidia.com/gpu.product": MODEL,
                "topology.fairway/rack": "rack-real",
                "topology.fairway/block": "block-real",
            },
        },
        "status": {"addresses": [{"type": "InternalIP", "address": LOOPBACK}]},
    }


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise LabError(f"ip {' '.join(words)} failed", done.stderr)


def _cgroup_roots() -> list[Path]:
    """The one of cgroup v2, or one for each controller of v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]


def _remove_cgroup(name: str) -> bool:
    """Remove what is empty, the deepest first; whether all of it is gone."""
    tops = [top for root in _cgroup_roots() if (top := root / name).exists()]
    for top in tops:
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
    return not any(top.exists() for top in tops)


def _pid_namespace(pid: int) -> str:
    try:
        return str((PROC / str(pid) / "ns/pid").readlink())
    except OSError:
        return ""


def _program(pid: int) -> str:
    try:
        return (PROC / str(pid) / "exe").readlink().name
    except OSError:
        return ""
