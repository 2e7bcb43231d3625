"""The real programs, built by Go from module sources and kept by version."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lab import apt, folders, versions
from lab.errors import LabError
from lab.kubernetes.api import Json
from lab.kubernetes.operators import CRDS, OPERATORS, RUNTIME, WEBHOOKS, Operator
from lab.progress import step

PLUGIN_SOURCE = Path(__file__).parent / "device_plugin" / "main.go"
STRIPPED = "-s -w"
STATIC = {"CGO_ENABLED": "0"}
BUILD_SECONDS = 3600  # everything cold, on two cores shared with other work
# An operator does not start without its kinds; of these two nobody in the lab makes any.
UNUSED_KINDS = ("DisaggregatedSet", "RayCronJob")
KUEUE_MODULE = "sigs.k8s.io/kueue"
# KubeRay v1.6 does not compile with Kueue's controller-runtime: its webhooks, off by default, stay out.
RAY_WEBHOOKS = "pkg/webhooks/v1"
NO_RAY_WEBHOOKS = """package v1

import ctrl "sigs.k8s.io/controller-runtime"

func SetupRayClusterWebhookWithManager(ctrl.Manager) error { return nil }
func SetupRayJobWebhookWithManager(ctrl.Manager) error     { return nil }
func SetupRayServiceWebhookWithManager(ctrl.Manager) error { return nil }
"""
CONTROL_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


@dataclass(frozen=True, slots=True)
class ControlBuilds:
    """Folders with what a cluster without real nodes needs."""

    kubernetes: Path
    etcd: Path
    kueue: Path
    kwok: Path


@dataclass(frozen=True, slots=True)
class NodeBuilds:
    """Folders with what a real node needs besides."""

    kubelet: Path
    containerd: Path
    runc: Path
    cni: Path

    @property
    def path(self) -> str:
        """For PATH: containerd finds its shim and runc there."""
        return ":".join(map(str, (self.kubelet, self.containerd, self.runc, self.cni)))


def control_builds() -> ControlBuilds:
    return ControlBuilds(
        kubernetes=_built("kubernetes", versions.KUBERNETES, _kubernetes),
        etcd=_built("etcd", versions.ETCD, _etcd),
        kueue=_built("kueue", versions.KUEUE, _kueue),
        kwok=_built("kwok", versions.KWOK, _kwok),
    )


def operator_build(operator: Operator) -> Path:
    """The folder with one operator: its program, its kinds, its webhooks."""
    return _built(operator.name, operator.version, partial(_operator, operator=operator))


def operator_builds() -> None:
    """Build every operator that `--with` knows."""
    for operator in OPERATORS.values():
        operator_build(operator)


def node_builds() -> NodeBuilds:
    plugin = hashlib.sha256(PLUGIN_SOURCE.read_bytes()).hexdigest()[:8]
    return NodeBuilds(
        kubelet=_built("kubelet", f"{versions.KUBERNETES}-{plugin}", _kubelet),
        containerd=_built("containerd", versions.CONTAINERD, _containerd),
        runc=_built("runc", versions.RUNC, _runc),
        cni=_built("cni-plugins", versions.CNI_PLUGINS, _cni),
    )


def module(path: str, version: str) -> Path:
    """The sources of a Go module."""
    answer = tool("go", "mod", "download", "-json", f"{path}@{version}")
    return Path(json.loads(answer)["Dir"])


def tool(*words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a build tool; what it printed."""
    argv = [str(word) for word in words]
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed", "the lab builds with it", _remedy(argv[0])) from None
    if done.returncode:
        why = "\n  ".join((done.stderr or done.stdout).splitlines()[-8:])
        raise LabError(f"{' '.join(argv[:3])} … failed (exit {done.returncode})", why)
    return done.stdout


def _remedy(program: str) -> str:
    return "install Go 1.26 or newer from go.dev" if program == "go" else f"apt-get install {program}"


def _built(what: str, version: str, make: Callable[[Path], None]) -> Path:
    def shown(folder: Path) -> None:
        with step(f"build {what} {version}"):
            make(folder)

    return folders.built(what, version, shown)


def _go_build(out: Path, packages: Sequence[str], *, cwd: Path, flags: str = STRIPPED) -> None:
    tool("go", "build", "-mod=mod", "-o", f"{out}/", "-ldflags", flags, *packages, cwd=cwd, env=STATIC)


def _kubernetes_sources(folder: Path) -> None:
    """A module that stands on Kubernetes: its staging modules must be pinned to the same release."""
    own = (module("k8s.io/kubernetes", versions.KUBERNETES) / "go.mod").read_text()
    staged = [line.split()[0] for line in own.splitlines() if "=> ./staging" in line]
    pins = "".join(f"\t{name} => {name} {versions.KUBERNETES_STAGING}\n" for name in staged)
    (folder / "go.mod").write_text(
        f"module lab\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes {versions.KUBERNETES}\n\nreplace (\n{pins})\n"
    )


def _kubernetes_flags() -> str:
    """Without these a program believes it is v0.0.0 and refuses what is younger."""
    place = "k8s.io/component-base/version."
    major, minor, _ = versions.KUBERNETES.lstrip("v").split(".")
    said = {"gitVersion": versions.KUBERNETES, "gitMajor": major, "gitMinor": minor}
    return " ".join([STRIPPED, *(f"-X {place}{name}={value}" for name, value in said.items())])


def _kubernetes(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        _kubernetes_sources(sources)
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in CONTROL_PROGRAMS]
        _go_build(out, packages, cwd=sources, flags=_kubernetes_flags())


def _kubelet(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        _kubernetes_sources(sources)
        plugin = sources / PLUGIN_SOURCE.parent.name
        plugin.mkdir()
        shutil.copy(PLUGIN_SOURCE, plugin)
        packages = ["k8s.io/kubernetes/cmd/kubelet", f"./{plugin.name}"]
        _go_build(out, packages, cwd=sources, flags=_kubernetes_flags())


def _etcd(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        path = "go.etcd.io/etcd/server/v3"
        (sources / "go.mod").write_text(f"module lab\n\ngo 1.26.0\n\nrequire {path} {versions.ETCD}\n")
        _go_build(out, [path], cwd=sources)
    (out / "server").rename(out / "etcd")


def _in_own_module(
    out: Path, path: str, version: str, packages: Sequence[str], flags: str = STRIPPED
) -> Path:
    """Build in the module's own folder: its own go.sum vouches for what it needs."""
    sources = module(path, version)
    tool("go", "build", "-o", f"{out}/", "-ldflags", flags, *packages, cwd=sources, env=STATIC)
    return sources


def _kueue(out: Path) -> None:
    sources = _in_own_module(out, KUEUE_MODULE, versions.KUEUE, ["./cmd/kueue"])
    _copy_yaml(sources / "config/components", out / "manifests", ("crd", "webhook"))


def _operator(out: Path, operator: Operator) -> None:
    """Build with Kueue's pins, not the operator's own: what Kueue's build compiled serves again."""
    sources = module(operator.module, operator.version)
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(module(KUEUE_MODULE, versions.KUEUE) / name, here / name)
        words: list[object] = ["-module=lab", f"-require={operator.module}@{operator.version}"]
        if operator.name == "kuberay":
            words.append(f"-replace={operator.module}={_without_webhooks(sources, here / 'sources')}")
        tool("go", "mod", "edit", *words, cwd=here)
        program = out / operator.name
        words = ["-o", program, "-ldflags", STRIPPED, operator.package]
        tool("go", "build", "-mod=mod", *words, cwd=here, env=STATIC)
    crds = [_slim(path) for path in sorted((sources / operator.crds).glob("*_*.yaml"))]
    (out / CRDS).write_text(json.dumps(crds))
    if operator.webhooks:
        shutil.copyfile(sources / operator.webhooks, out / WEBHOOKS)
    if operator.runtime:
        shutil.copyfile(sources / operator.runtime, out / RUNTIME)


def _without_webhooks(sources: Path, copy: Path) -> Path:
    shutil.copytree(sources, copy, copy_function=shutil.copyfile)
    webhooks = copy / RAY_WEBHOOKS
    webhooks.chmod(0o755)  # read-only, as all of Go's module cache
    for path in webhooks.glob("*.go"):
        path.unlink()
    (webhooks / "none.go").write_text(NO_RAY_WEBHOOKS)
    return copy


def _slim(path: Path) -> Json:
    """A kind with less to read: in full, all of them took the API server from 0.7 GB to 2.6 GB of memory."""
    crd: Json = yaml.load(path.read_text(), yaml.CSafeLoader)
    spec = crd["spec"]
    spec["versions"] = [version for version in spec["versions"] if version["storage"]]
    if spec["names"]["kind"] in UNUSED_KINDS:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        spec["versions"][0]["schema"] = {"openAPIV3Schema": anything}
    slim: Json = _without_descriptions(crd)
    return slim


def _without_descriptions(schema: Any) -> Any:
    """Nothing but `kubectl explain` reads them."""
    match schema:
        case dict():
            kept = {
                key: value
                for key, value in schema.items()
                if not (key == "description" and isinstance(value, str))
            }
            return {key: _without_descriptions(value) for key, value in kept.items()}
        case list():
            return [_without_descriptions(value) for value in schema]
    return schema


def _kwok(out: Path) -> None:
    sources = _in_own_module(out, "sigs.k8s.io/kwok", versions.KWOK, ["./cmd/kwok"])
    _copy_yaml(sources / "kustomize/stage", out / "stages", ("node", "pod"))


def _containerd(out: Path) -> None:
    path = "github.com/containerd/containerd/v2"
    packages = ["./cmd/containerd", "./cmd/containerd-shim-runc-v2", "./cmd/ctr"]
    flags = f"{STRIPPED} -X {path}/version.Version={versions.CONTAINERD}"
    _in_own_module(out, path, versions.CONTAINERD, packages, flags)


def _cni(out: Path) -> None:
    packages = ["./plugins/main/bridge", "./plugins/main/loopback", "./plugins/ipam/host-local"]
    path = "github.com/containernetworking/plugins"
    flags = f"{STRIPPED} -X {path}/version.Version={versions.CNI_PLUGINS}"
    _in_own_module(out, path, versions.CNI_PLUGINS, packages, flags)


def _runc(out: Path) -> None:
    """The one program that needs C: libseccomp is linked in from its package, unpacked and not installed."""
    with tempfile.TemporaryDirectory() as scratch:
        seccomp = Path(scratch)
        for program, package in (("gcc", "gcc"), ("pkg-config", "pkg-config")):
            apt.require(program, package)
        apt.unpack(["libseccomp-dev"], seccomp)
        env = {
            "CGO_ENABLED": "1",
            "PKG_CONFIG_SYSROOT_DIR": str(seccomp),
            "PKG_CONFIG_LIBDIR": str(next(seccomp.glob("usr/lib/*/pkgconfig"))),
        }
        flags = f"{STRIPPED} -X main.version={versions.RUNC.lstrip('v')}"
        sources = module("github.com/opencontainers/runc", versions.RUNC)
        words = ["-o", out / "runc", "-tags", "seccomp urfave_cli_no_docs", "-ldflags", flags, "."]
        tool("go", "build", *words, cwd=sources, env=env)


def _copy_yaml(source: Path, target: Path, parts: Sequence[str]) -> None:
    """Manifests come along, so that a cluster starts without Go."""
    for part in parts:
        for path in sorted((source / part).rglob("*.yaml")):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
