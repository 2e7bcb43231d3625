"""Kueue on loopback: its configuration, its objects, and a root folder for the paths it has built in."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import versions
from lab.errors import LabError
from lab.kubernetes.api import Json
from lab.kubernetes.pki import Pki

NAMESPACE = "kueue-system"
USER = "system:serviceaccount:kueue-system:kueue-controller-manager"
# Kueue 0.19 looks for certificates here and nowhere else. Each cluster's Kueue runs in a root folder of its
# own, so that the paths exist once a cluster and never on the machine.
BUILT_IN = ("etc/kueue/metrics/certs", "visibility", "webhook")
KINDS = frozenset(
    {
        "Workload",
        "ClusterQueue",
        "LocalQueue",
        "Cohort",
        "ResourceFlavor",
        "Topology",
        "WorkloadPriorityClass",
        "AdmissionCheck",
    }
)
API_ROOT = "/apis/kueue.x-k8s.io/v1beta2"


# What Kueue must be told for Fairway, and nothing else: the lab's own, where no site has another.
OWN: Json = {
    "integrations": {
        "frameworks": [  # one whose kinds are not installed costs nothing
            "batch/job",
            "pod",
            "deployment",
            "statefulset",
            "jobset.x-k8s.io/jobset",
            "leaderworkerset.x-k8s.io/leaderworkerset",
            "ray.io/rayjob",
            "ray.io/raycluster",
            "ray.io/rayservice",
            "trainer.kubeflow.org/trainjob",
            "kubeflow.org/mpijob",
            "kubeflow.org/pytorchjob",
            "workload.codeflare.dev/appwrapper",
        ]
    },
    "resources": {
        # Only GPUs have quota, and every GPU must have some.
        "excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage", "hugepages-"],
        "deviceClassMappings": [
            {"name": "gpu.example.com/gpu", "deviceClassNames": ["gpu.example.com"]},
            {"name": "mig-3g-40gb.example.com/gpu", "deviceClassNames": ["mig-3g-40gb.example.com"]},
            {"name": "mig-1g-10gb.example.com/gpu", "deviceClassNames": ["mig-1g-10gb.example.com"]},
            {
                "name": "gpu.example.com/memory",
                "deviceClassNames": ["mig.example.com"],
                "sources": [
                    {
                        "counter": {
                            "name": "memory",
                            "driver": "gpu.example.com",
                            "deviceSelector": {
                                "cel": {"expression": "device.attributes['gpu.example.com'].model == 'A100'"}
                            },
                        }
                    }
                ],
            },
        ],
    },
    "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
}

CONFIG = "kueue.yaml"  # in its root folder
EXTRA = "kueue-extra.yaml"  # in the instance's folder: top-level keys that replace the lab's own


@dataclass(frozen=True, slots=True)
class KueuePorts:
    webhook: int
    visibility: int
    metrics: int
    probe: int


def configuration(ports: KueuePorts, chosen: Mapping[str, Any]) -> Json:
    """Where the lab's Kueue listens, and what was chosen for it."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.probe}"},
        "metrics": {"bindAddress": f"127.0.0.1:{ports.metrics}", "enableClusterQueueResources": True},
        "webhook": {"host": "127.0.0.1", "port": ports.webhook, "certDir": "/webhook"},
        "visibilityServer": {"bindAddress": "127.0.0.1", "bindPort": ports.visibility},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "controller": {
            "groupKindConcurrency": {
                "Job.batch": 5,
                "Pod": 5,
                "Workload.kueue.x-k8s.io": 10,
                "LocalQueue.kueue.x-k8s.io": 5,
                "ClusterQueue.kueue.x-k8s.io": 5,
            }
        },
        **chosen,
    }


def config_map(config: Json) -> Json:
    """Kueue's configuration where an installed Kueue mounts it from, so that clients can read it as there.

    The process here reads the same text from a file. The labels are those of Kueue's own Helm chart.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "kueue-manager-config",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "kueue", "app.kubernetes.io/version": versions.KUEUE},
        },
        "data": {"controller_manager_config.yaml": yaml.safe_dump(config)},
    }


def keep_extra(folder: Path, text: str) -> None:
    """Keep a piece of Kueue configuration for this and every later start of Kueue."""
    try:
        extra = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise LabError("the extra Kueue configuration is no YAML", str(error)) from None
    if not isinstance(extra, dict):
        raise LabError(
            "the extra Kueue configuration is no mapping", hint="featureGates: {PriorityBoost: true}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EXTRA).write_text(yaml.safe_dump(extra))


def extra_of(folder: Path) -> dict[str, Any]:
    path = folder / EXTRA
    return yaml.safe_load(path.read_text()) or {} if path.exists() else {}


def has_config(root: Path, config: Json) -> bool:
    """Whether Kueue was last started with this configuration."""
    path = root / CONFIG
    return path.exists() and yaml.safe_load(path.read_text()) == config


def prepare_root(root: Path, program: Path, pki: Pki, config: Json) -> list[str]:
    """Fill Kueue's root folder; the command that runs it there. It is one static file and needs no more."""
    for place in BUILT_IN:
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(pki.crt("server"), folder / "tls.crt")
        _copy_private(pki.key("server"), folder / "tls.key")
    (root / "tmp").mkdir(exist_ok=True)
    _copy_private(pki.client("kueue", USER, "system:masters"), root / "kubeconfig")
    (root / CONFIG).write_text(yaml.safe_dump(config))
    inside = root / program.name
    inside.unlink(missing_ok=True)
    try:
        os.link(program, inside)
    except OSError:  # the build cache may be on another file system
        shutil.copy2(program, inside)
    return ["chroot", str(root), f"/{program.name}", "--config", f"/{CONFIG}", "--kubeconfig", "/kubeconfig"]


def _copy_private(source: Path, target: Path) -> None:
    target.touch(mode=0o600)
    target.write_bytes(source.read_bytes())


def definitions(manifests: Path, ports: KueuePorts, pki: Pki) -> Iterator[Json]:
    """Kueue's namespace and kinds; those with several versions are converted by the process on loopback."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    converted = _converted(manifests / "crd")
    for path in sorted((manifests / "crd/bases").glob("*.yaml")):
        definition: Json = yaml.load(
            path.read_text(), yaml.CSafeLoader
        )  # a megabyte: in C, or it takes seconds
        if definition["metadata"]["name"] in converted:
            definition["spec"]["conversion"] = {
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": _hook(ports, pki, "/convert"),
                    "conversionReviewVersions": ["v1"],
                },
            }
        yield definition
    yield from _visibility(ports, pki)


def webhooks(manifests: Path, ports: KueuePorts, pki: Pki) -> Iterator[Json]:
    """Kueue's admission webhooks: they fail closed, so they go in only once Kueue answers."""
    for hook in yaml.load_all((manifests / "webhook/manifests.yaml").read_text(), yaml.CSafeLoader):
        if not hook:
            continue
        hook["metadata"]["name"] = f"kueue-{hook['metadata']['name']}"
        for rule in hook["webhooks"]:
            rule["clientConfig"] = _hook(ports, pki, rule["clientConfig"]["service"]["path"])
        yield hook


def _converted(crd: Path) -> set[str]:
    """The kinds for which Kueue's own kustomization switches the conversion webhook on."""
    patches = yaml.safe_load((crd / "kustomization.yaml").read_text())["patches"]
    paths = [crd / patch["path"] for patch in patches if "webhook_in_" in patch["path"]]
    return {yaml.safe_load(path.read_text())["metadata"]["name"] for path in paths}


def _hook(ports: KueuePorts, pki: Pki, path: str) -> Json:
    bundle = base64.b64encode(pki.ca.read_bytes()).decode()
    return {"url": f"https://127.0.0.1:{ports.webhook}{path}", "caBundle": bundle}


def _visibility(ports: KueuePorts, pki: Pki) -> Iterator[Json]:
    """The API of pending positions; the aggregation layer follows an ExternalName service to loopback."""
    name = "kueue-visibility-server"
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"port": ports.visibility, "protocol": "TCP"}],
        },
    }
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta2.visibility.kueue.x-k8s.io"},
        "spec": {
            "group": "visibility.kueue.x-k8s.io",
            "version": "v1beta2",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(pki.ca.read_bytes()).decode(),
            "service": {"name": name, "namespace": NAMESPACE, "port": ports.visibility},
        },
    }
