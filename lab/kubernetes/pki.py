"""The certificates, tokens and kubeconfigs of one cluster, readable by their owner only."""

from __future__ import annotations

import base64
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

OPENSSL_SECONDS = 30
DAYS = "3650"
# The names under which the cluster's servers are asked for; the aggregation layer asks for services by name.
SERVER_NAMES = (
    "IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc,DNS:kueue-visibility-server.kueue-system.svc"
)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who speaks to the API with a token."""

    name: str
    groups: tuple[str, ...]


ADMIN = Person("lab-admin", ("system:masters",))
FAIRWAY = Person("fairway", ("fairway",))
TESTERS = (
    Person("alice", ("research", "nlp")),
    Person("bob", ("product",)),
    Person("carol", ("research", "vision")),
    Person("dave", ()),  # in nobody's team
)
PEOPLE = (ADMIN, FAIRWAY, *TESTERS)


@dataclass(frozen=True, slots=True)
class Pki:
    """One folder of secrets with its own certificate authority."""

    folder: Path
    server: str

    def make(self) -> None:
        """Make what is missing; a cluster keeps its identity over restarts."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.ca.exists():
            self._authority()
        self.certificate("server", "/CN=localhost")
        self.certificate("front-proxy", "/CN=front-proxy")
        self.certificate("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        if not self.key("service-account").exists():
            self._new_key("service-account")
        self._write_tokens()
        for person, token in self._tokens():  # each time: the server's port may be another than before
            self._write_kubeconfig(person, {"token": token})

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.kubeconfig(ADMIN.name)

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def certificate(self, name: str, subject: str) -> None:
        """A key and a certificate that serve as either end of a connection."""
        if self.crt(name).exists():
            return
        self._new_key(name)
        request = self.folder / f"{name}.csr"
        self._openssl("req", "-new", "-key", self.key(name), "-subj", subject, "-out", request)
        names = self.folder / "names"
        names.write_text(f"subjectAltName={SERVER_NAMES}\n")
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.key("ca"), "-CAcreateserial"),
            *("-days", DAYS, "-extfile", names, "-out", self.crt(name)),
        )
        request.unlink()

    def client(self, name: str, user: str, group: str | None = None) -> Path:
        """The kubeconfig of a component that shows a certificate."""
        self.certificate(name, f"/O={group}/CN={user}" if group else f"/CN={user}")
        shown = {
            "client-certificate-data": _encoded(self.crt(name)),
            "client-key-data": _encoded(self.key(name)),
        }
        self._write_kubeconfig(name, shown)
        return self.kubeconfig(name)

    def account(self, name: str, user: str) -> Path:
        """The kubeconfig of a component that acts as a service account; openssl takes no such long name."""
        self.client(name, f"lab-{name}", "system:masters")
        config = yaml.safe_load(self.kubeconfig(name).read_text())
        config["users"][0]["user"] |= {"as": user, "as-groups": ["system:masters"]}
        _write_private(self.kubeconfig(name), yaml.safe_dump(config, sort_keys=False))
        return self.kubeconfig(name)

    def token(self, person: str) -> str:
        return dict(self._tokens())[person]

    def _authority(self) -> None:
        self._new_key("ca")
        self._openssl(
            *("req", "-x509", "-new", "-key", self.key("ca"), "-days", DAYS, "-subj", "/CN=fairway-lab"),
            *("-out", self.ca),
        )

    def _new_key(self, name: str) -> None:
        # In the older of openssl's two forms: the API server reads no other for service accounts.
        text = self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        _write_private(self.key(name), text)

    def _write_tokens(self) -> None:
        """A token for whoever has none yet."""
        text = self.tokens.read_text() if self.tokens.exists() else ""
        known = {name for name, _ in self._tokens()} if text else set()
        for number, person in enumerate(PEOPLE):
            if person.name not in known:
                groups = f',"{",".join(person.groups)}"' if person.groups else ""
                text += f"{secrets.token_urlsafe(32)},{person.name},{number}{groups}\n"
        _write_private(self.tokens, text)

    def _tokens(self) -> list[tuple[str, str]]:
        rows = [line.split(",") for line in self.tokens.read_text().splitlines()]
        return [(row[1], row[0]) for row in rows]

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> None:
        cluster = {"server": self.server, "certificate-authority-data": _encoded(self.ca)}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
            "current-context": "lab",
        }
        _write_private(self.kubeconfig(name), yaml.safe_dump(config, sort_keys=False))

    def _openssl(self, *words: object) -> str:
        argv = ["openssl", *map(str, words)]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=OPENSSL_SECONDS)
        return done.stdout


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    making = path.with_name(f".{path.name}")
    making.touch(mode=0o600)
    making.write_text(text)
    making.rename(path)
