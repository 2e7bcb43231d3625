"""A real OpenID Connect provider: panva's oidc-provider, certified, from npm. Needs Node.

No kind of the lab: it keeps nothing, and lives as long as the test that asks for it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joserfc.jwk import RSAKey

from lab import folders, ports
from lab.errors import LabError
from lab.programs import output_of
from lab.progress import step
from lab.versions import OIDC_PROVIDER
from lab.waiting import wait_until

SCRIPT = Path(__file__).with_name("oidc_provider.mjs")
START_SECONDS = 60


def has_node() -> bool:
    """Whether there is a Node to run it."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def program() -> Path:
    """The folder with the package and what it needs."""
    return folders.built("oidc-provider", OIDC_PROVIDER, _install)


def _install(out: Path) -> None:
    with step(f"Fetch oidc-provider {OIDC_PROVIDER} (npm)"):
        quiet = ("--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")
        output_of("npm", "install", *quiet, f"oidc-provider@{OIDC_PROVIDER}", cwd=out)


@dataclass(frozen=True, slots=True)
class Setting:
    """Who may ask it, and whom it knows."""

    clients: Sequence[Mapping[str, Any]]
    people: Mapping[str, Mapping[str, Any]]
    """Claims by login; any password will do."""
    claims_in_user_info_only: bool = True
    """As the specification has it; False: in the ID token too, as most providers do."""


@dataclass
class OidcProvider:
    """One that runs, can be stopped, and comes back with other keys at the same address."""

    setting: Setting
    folder: Path
    port: int = field(default_factory=lambda: ports.spare()[0])
    _process: subprocess.Popen[bytes] | None = None

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, with keys of its own; somebody who signed in before has to do so again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, private=True, auto_kid=True)
        told = {
            "issuer": self.issuer,
            "port": self.port,
            "clients": list(self.setting.clients),
            "people": dict(self.setting.people),
            "claims_in_user_info_only": self.setting.claims_in_user_info_only,
            "keys": [key.as_dict(private=True)],
        }
        (self.folder / "setting.json").write_text(json.dumps(told))
        command: list[str | Path] = ["node", SCRIPT, program(), self.folder / "setting.json"]
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_until(self._answers, START_SECONDS, "oidc-provider does not answer", why=self._last_words)

    def stop(self) -> None:
        """End it. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise LabError("oidc-provider ended at once", self._last_words())
        try:
            with urllib.request.urlopen(
                f"{self.issuer}/.well-known/openid-configuration", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _last_words(self) -> str:
        return (self.folder / "log").read_text()[-800:]
