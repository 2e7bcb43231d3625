"""Real Prometheus: Debian's, unpacked but not installed."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import apt, folders
from lab.errors import LabError
from lab.instance import Instance
from lab.kinds import Command
from lab.progress import step
from lab.versions import PROMETHEUS_PACKAGE
from lab.waiting import wait_until

# Tests cannot wait a minute for a sample.
CONFIGURATION = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files: ["rules/*.yml"]
scrape_configs:
  - job_name: prometheus
    static_configs:
      - targets: ["127.0.0.1:{port}"]
  - job_name: targets
    file_sd_configs:
      - files: ["targets/*.json", "targets/*.yml"]
        refresh_interval: 1s
"""


class Prometheus:
    """The kind `prometheus`."""

    options: Mapping[str, int] = {}
    variables: Mapping[str, str] = {"url": "PROMETHEUS_URL", "targets": "PROMETHEUS_TARGETS"}

    @property
    def versions(self) -> Sequence[str]:
        return (_upstream(apt.candidate(PROMETHEUS_PACKAGE)),)

    def up(self, instance: Instance) -> None:
        instance.reserve(http=1)
        _unpacked(instance)
        for name in ("targets", "rules", "data"):
            (instance.folder / name).mkdir(exist_ok=True)
        (instance.folder / "prometheus.yml").write_text(CONFIGURATION.format(port=instance.port("http")))
        if not instance.daemon("prometheus"):
            with step(f"{instance.name}: prometheus"):
                self.start(instance, "prometheus")

    def down(self, instance: Instance) -> None:
        instance.end("prometheus", patience=20)

    def daemons(self, instance: Instance) -> Sequence[str]:
        return ("prometheus",)

    def start(self, instance: Instance, daemon: str) -> None:
        command: list[str | Path] = [
            _unpacked(instance) / "usr/bin/prometheus",
            f"--config.file={instance.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={instance.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{instance.port('http')}",
            "--web.enable-lifecycle",
            "--web.enable-remote-write-receiver",
        ]
        instance.launch(daemon, command, env={"PATH": os.defpath}, cwd=instance.folder)

        def ready() -> bool:
            if not instance.daemon(daemon):
                raise LabError("prometheus ended at once", instance.last_words(daemon))
            return _ready(instance)

        wait_until(ready, 60, "prometheus does not answer", why=lambda: instance.last_words(daemon))

    def facts(self, instance: Instance) -> dict[str, str]:
        return {"url": _url(instance), "targets": str(instance.folder / "targets")}

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        tools = _unpacked(instance) / "usr/bin"
        path = f"{tools}:{os.environ.get('PATH', os.defpath)}"
        own = tools / argv[0]
        return Command(
            [str(own) if own.exists() else argv[0], *argv[1:]],
            {**os.environ, "PATH": path, "PROMETHEUS_URL": _url(instance)},
            instance.folder,
        )


def _unpacked(instance: Instance) -> Path:
    def make(folder: Path) -> None:
        with step(f"Fetch Prometheus {instance.version} (Debian)"):
            apt.unpack([PROMETHEUS_PACKAGE], folder)

    return folders.built("prometheus", instance.version, make)


def _upstream(version: str) -> str:
    """2.42.0 of 2.42.0+ds-5+deb12u1."""
    return version.partition("+")[0].partition("-")[0]


def _url(instance: Instance) -> str:
    return f"http://127.0.0.1:{instance.port('http')}"


def _ready(instance: Instance) -> bool:
    try:
        with urllib.request.urlopen(f"{_url(instance)}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


KIND = Prometheus()
