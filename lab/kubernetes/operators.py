"""Operators on loopback, on request: JobSet, LeaderWorkerSet, Kubeflow Trainer, KubeRay.

Each is the real program under the real name of its service account, with its own kinds and webhooks.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab import versions
from lab.errors import LabError
from lab.kubernetes.api import Json
from lab.kubernetes.control_plane import LOOPBACK, Words, flags
from lab.kubernetes.pki import Pki

# Files of a build, beside the program.
CRDS = "crds.json"
WEBHOOKS = "webhooks.yaml"
RUNTIME = "runtime.yaml"

CERTIFICATES = "k8s-webhook-server/serving-certs"  # below TMPDIR, where Trainer looks and nowhere else
PORTS = 2  # of each: webhooks, probes


@dataclass(frozen=True, slots=True)
class Operator:
    """Where an operator comes from and how it runs."""

    name: str
    version: str
    module: str
    package: str
    namespace: str
    account: str
    crds: str  # a folder in the module
    webhooks: str = ""  # a file in the module; none if it has none
    config: str = ""  # apiVersion of the file it reads; none if it takes flags
    certificates: str = ""  # the key of that file that switches its own certificates off
    cert_dir: bool = False  # whether that file says where its certificates are
    pods: str = ""  # the label of the pods that its webhooks see
    runtime: str = ""  # a file in the module: what its kinds refer to
    needs: str = ""  # another operator

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.account}"


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            name="jobset",
            version=versions.JOBSET,
            module="sigs.k8s.io/jobset",
            package="sigs.k8s.io/jobset",
            namespace="jobset-system",
            account="jobset-controller-manager",
            crds="config/components/crd/bases",
            webhooks="config/components/webhook/manifests.yaml",
            config="config.jobset.x-k8s.io/v1alpha1",
            certificates="internalCertManagement",
            cert_dir=True,
            pods="jobset.sigs.k8s.io/jobset-name",
        ),
        Operator(
            name="lws",
            version=versions.LWS,
            module="sigs.k8s.io/lws",
            package="sigs.k8s.io/lws/cmd",
            namespace="lws-system",
            account="lws-controller-manager",
            crds="config/crd/bases",
            webhooks="config/webhook/manifests.yaml",
            config="config.lws.x-k8s.io/v1alpha1",
            certificates="internalCertManagement",
            cert_dir=True,
            pods="leaderworkerset.sigs.k8s.io/name",
        ),
        Operator(
            name="trainer",
            version=versions.TRAINER,
            module="github.com/kubeflow/trainer/v2",
            package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            namespace="kubeflow-system",
            account="kubeflow-trainer-controller-manager",
            crds="manifests/base/crds",
            webhooks="manifests/base/webhook/manifests.yaml",
            config="config.trainer.kubeflow.org/v1alpha1",
            certificates="certManagement",
            runtime="manifests/base/runtimes/torch_distributed.yaml",
            needs="jobset",
        ),
        Operator(
            name="kuberay",
            version=versions.KUBERAY,
            module="github.com/ray-project/kuberay/ray-operator",
            package="github.com/ray-project/kuberay/ray-operator",
            namespace="ray-system",
            account="kuberay-operator",
            crds="config/crd/bases",
        ),
    )
}


def chosen(names: Iterable[str]) -> list[str]:
    """These operators and those that they need, in the order in which they start."""
    wanted = set(names)
    if unknown := wanted - OPERATORS.keys():
        raise LabError(f"there is no operator {min(unknown)}", hint=f"some of: {', '.join(OPERATORS)}")
    needed = {OPERATORS[name].needs for name in wanted}
    return [name for name in OPERATORS if name in wanted | needed]


@dataclass(frozen=True, slots=True)
class Running:
    """One operator of one cluster."""

    operator: Operator
    build: Path
    folder: Path
    ports: range
    pki: Pki

    @property
    def webhook_port(self) -> int:
        return self.ports[0]

    @property
    def probe_port(self) -> int:
        return self.ports[1]

    @property
    def definitions(self) -> list[Json]:
        """Its kinds. Each has one version: none is converted."""
        found: list[Json] = json.loads((self.build / CRDS).read_text())
        return found

    @property
    def env(self) -> dict[str, str]:
        return {"TMPDIR": str(self.folder)}

    def prepare(self) -> Words:
        """Fill its folder; the command that runs it."""
        certificates = self.folder / CERTIFICATES
        certificates.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(self.pki.crt("server"), certificates / "tls.crt")
        (certificates / "tls.key").touch(mode=0o600)
        shutil.copyfile(self.pki.key("server"), certificates / "tls.key")
        name, probe = self.operator.name, f"{LOOPBACK}:{self.probe_port}"
        words = [
            str(self.build / name),
            *flags(kubeconfig=self.pki.account(name, self.operator.user)),
        ]
        if not self.operator.config:
            return [
                *words,
                *flags(enable_leader_election=False, metrics_addr="0", health_probe_bind_address=probe),
            ]
        where = {"certDir": str(certificates)} if self.operator.cert_dir else {}
        config = {
            "apiVersion": self.operator.config,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": probe},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOOPBACK, "port": self.webhook_port, **where},
            "leaderElection": {"leaderElect": False},
            self.operator.certificates: {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
        }
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        return [*words, *flags(config=file)]

    def webhooks(self) -> Iterator[Json]:
        """They fail closed, so they go in only once the operator answers."""
        if not self.operator.webhooks:
            return
        bundle = base64.b64encode(self.pki.ca.read_bytes()).decode()
        for hook in yaml.safe_load_all((self.build / WEBHOOKS).read_text()):
            hook["metadata"]["name"] = f"{self.operator.name}-{hook['metadata']['name']}"
            for rule in hook["webhooks"]:
                url = f"https://{LOOPBACK}:{self.webhook_port}{rule['clientConfig']['service']['path']}"
                rule["clientConfig"] = {"url": url, "caBundle": bundle}
                if "pods" in rule["rules"][0]["resources"]:  # as its own kustomization has it
                    exists = {"key": self.operator.pods, "operator": "Exists"}
                    rule["objectSelector"] = {"matchExpressions": [exists]}
            yield hook

    def objects(self) -> Iterator[Json]:
        """What people expect to find beside it."""
        if self.operator.runtime:
            yield from yaml.safe_load_all((self.build / RUNTIME).read_text())
