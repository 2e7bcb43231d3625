"""Real Prometheus: Debian's, unpacked but not installed."""

from __future__ import annotations

import os
import shutil
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
        return (upstream(apt.candidate(PROMETHEUS_PACKAGE)),)

    def up(self, instance: Instance) -> None:
        instance.reserve(http=1)
        unpacked(instance.version)
        configure(instance, CONFIGURATION.format(port=instance.port("http")))
        if not instance.daemon("prometheus"):
            with step(f"{instance.name}: prometheus"):
                self.start(instance, "prometheus")

    def down(self, instance: Instance) -> None:
        instance.end("prometheus", patience=20)

    def daemons(self, instance: Instance) -> Sequence[str]:
        return ("prometheus",)

    def start(self, instance: Instance, daemon: str) -> None:
        serve(instance, instance.version)

    def facts(self, instance: Instance) -> dict[str, str]:
        return {"url": url(instance), "targets": str(instance.folder / "targets")}

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        return with_tools(instance, argv, [unpacked(instance.version) / "usr/bin"])


def configure(instance: Instance, text: str) -> None:
    """Write what Prometheus reads at its start."""
    for name in ("targets", "rules", "data"):
        (instance.folder / name).mkdir(exist_ok=True)
    (instance.folder / "prometheus.yml").write_text(text)


def serve(instance: Instance, version: str, *more: str) -> None:
    """Start an instance's Prometheus and return when it answers."""
    command: list[str | Path] = [
        unpacked(version) / "usr/bin/prometheus",
        f"--config.file={instance.folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={instance.folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{instance.port('http')}",
        "--web.enable-lifecycle",
        "--web.enable-remote-write-receiver",
        *more,
    ]
    launch(instance, "prometheus", command, f"{url(instance)}/-/ready")


def launch(
    instance: Instance, daemon: str, command: Sequence[str | Path], ready: str, cwd: Path | None = None
) -> None:
    """Start a daemon and return when the URL `ready` answers."""
    instance.launch(daemon, command, env={"PATH": os.defpath}, cwd=cwd or instance.folder)

    def answers() -> bool:
        if not instance.daemon(daemon):
            raise LabError(f"{daemon} ended at once", instance.last_words(daemon))
        try:
            with urllib.request.urlopen(ready, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(answers, 60, f"{daemon} does not answer", why=lambda: instance.last_words(daemon))


def with_tools(instance: Instance, argv: Sequence[str], tools: Sequence[Path]) -> Command:
    """A command that finds programs in the folders `tools` first."""
    path = ":".join([*map(str, tools), os.environ.get("PATH", os.defpath)])
    program = shutil.which(argv[0], path=path) or argv[0]
    return Command(
        [program, *argv[1:]], {**os.environ, "PATH": path, "PROMETHEUS_URL": url(instance)}, instance.folder
    )


def unpacked(version: str) -> Path:
    def make(folder: Path) -> None:
        with step(f"Fetch Prometheus {version} (Debian)"):
            apt.unpack([PROMETHEUS_PACKAGE], folder)

    return folders.built("prometheus", version, make)


def upstream(version: str) -> str:
    """2.42.0 of 2.42.0+ds-5+deb12u1."""
    return version.partition("+")[0].partition("-")[0]


def url(instance: Instance) -> str:
    return f"http://127.0.0.1:{instance.port('http')}"


KIND = Prometheus()
