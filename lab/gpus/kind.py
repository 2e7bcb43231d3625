"""The kind `gpus`: the exporter, a Prometheus that scrapes it, Alertmanager, and a receiver of alerts."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lab import apt, folders, prometheus
from lab.errors import LabError
from lab.instance import Instance
from lab.kinds import Command
from lab.progress import step
from lab.versions import ALERTMANAGER_PACKAGE, PROMETHEUS_PACKAGE
from lab.waiting import wait_until

DAEMONS: Final = ("exporter", "receiver", "alertmanager", "prometheus")
ROOT: Final = Path(__file__).parents[2]
MAX_TIMEOUT_SECONDS: Final = 10
# Labels that differ between versions of dcgm-exporter become one, and what says nothing more is dropped.
# `honor_labels`: a pod that holds a GPU is meant, not the exporter's own.
SCRAPING: Final = """\
global:
  scrape_interval: {interval}s
  scrape_timeout: {timeout}s
  evaluation_interval: {interval}s
rule_files: ["rules/*.yml"]
alerting:
  alertmanagers:
    - static_configs:
        - targets: ["127.0.0.1:{alertmanager}"]
scrape_configs:
  - job_name: dcgm
    honor_labels: true
    http_sd_configs:
      - url: http://127.0.0.1:{exporter}/sd
        refresh_interval: {interval}s
    metric_relabel_configs:
      - source_labels: [Hostname, hostname]
        separator: ""
        regex: (.+)
        target_label: node
      - action: labeldrop
        regex: Hostname|hostname|device|pci_bus_id|DCGM_FI_DRIVER_VERSION
  - job_name: host
    honor_labels: true
    http_sd_configs:
      - url: http://127.0.0.1:{exporter}/sd/host
        refresh_interval: {interval}s
  - job_name: targets
    file_sd_configs:
      - files: ["targets/*.json", "targets/*.yml"]
        refresh_interval: 1s
"""
# Tests cannot wait half a minute for a notification.
ALERTING: Final = """\
route:
  receiver: lab
  group_by: ["..."]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: lab
    webhook_configs:
      - url: http://127.0.0.1:{receiver}/lab
        send_resolved: true
"""
# After a reload Prometheus knows no Alertmanager for up to 5 s; by default it sends again after a minute.
RESEND: Final = "--rules.alert.resend-delay=5s"
# Debian's reads its templates from here. In the unpacked one it is a relative path, of the same length.
TEMPLATES: Final = b"/usr/share/prometheus/alertmanager"
TEMPLATES_BELOW: Final = b"usr//share/prometheus/alertmanager"


class Gpus:
    """The kind `gpus`. Its version is that of Prometheus and that of Alertmanager."""

    options: Mapping[str, int] = {
        "nodes": 4,
        "gpus": 8,
        "mig_nodes": 1,
        "interval": 1,
        "new_names": 0,
        "lower_hostname": 0,
        "pods": 0,
        "no_hpc_job": 0,
    }
    variables: Mapping[str, str] = {
        "url": "PROMETHEUS_URL",
        "targets": "PROMETHEUS_TARGETS",
        "alertmanager": "ALERTMANAGER_URL",
        "exporter": "EXPORTER_URL",
        "webhook": "WEBHOOK_URL",
    }

    @property
    def versions(self) -> Sequence[str]:
        packages = (PROMETHEUS_PACKAGE, ALERTMANAGER_PACKAGE)
        return ("+".join(prometheus.upstream(apt.candidate(package)) for package in packages),)

    def up(self, instance: Instance) -> None:
        instance.reserve(http=1, alertmanager=1, exporter=1, receiver=1)
        unpacked(instance.version)
        interval = instance.options["interval"]
        ports = {what: instance.port(what) for what in ("alertmanager", "exporter", "receiver")}
        timeout = min(interval, MAX_TIMEOUT_SECONDS)
        prometheus.configure(instance, SCRAPING.format(interval=interval, timeout=timeout, **ports))
        own = instance.folder / "alertmanager-own.yml"
        text = own.read_text() if own.exists() else ALERTING.format(**ports)
        (instance.folder / "alertmanager.yml").write_text(text)
        for daemon in DAEMONS:
            if not instance.daemon(daemon):
                with step(f"{instance.name}: {daemon}"):
                    self.start(instance, daemon)

    def down(self, instance: Instance) -> None:
        instance.end("prometheus", patience=20)
        instance.end("alertmanager", "receiver", "exporter")

    def daemons(self, instance: Instance) -> Sequence[str]:
        return DAEMONS

    def start(self, instance: Instance, daemon: str) -> None:
        _, of_alertmanager = unpacked(instance.version)
        python: list[str | Path] = [sys.executable, "-m"]
        match daemon:
            case "prometheus":
                prometheus.serve(instance, instance.version.partition("+")[0], RESEND)
            case "alertmanager":
                command: list[str | Path] = [
                    of_alertmanager / "usr/bin/prometheus-alertmanager",
                    f"--config.file={instance.folder / 'alertmanager.yml'}",
                    f"--storage.path={instance.folder / 'alertmanager'}",
                    f"--web.listen-address=127.0.0.1:{instance.port('alertmanager')}",
                    "--cluster.listen-address=",
                ]
                ready = f"{_url(instance, 'alertmanager')}/-/ready"
                prometheus.launch(instance, daemon, command, ready, cwd=of_alertmanager)
            case "exporter":
                command = [*python, "lab.gpus.exporter", *_words(instance)]
                prometheus.launch(instance, daemon, command, f"{_url(instance, daemon)}/sd", cwd=ROOT)
            case "receiver":
                file = instance.folder / "received.jsonl"
                command = [*python, "lab.gpus.receiver", str(instance.port(daemon)), file]
                prometheus.launch(instance, daemon, command, f"{_url(instance, daemon)}/", cwd=ROOT)

    def facts(self, instance: Instance) -> dict[str, str]:
        return {
            "url": prometheus.url(instance),
            "targets": str(instance.folder / "targets"),
            "alertmanager": _url(instance, "alertmanager"),
            "exporter": _url(instance, "exporter"),
            "webhook": f"{_url(instance, 'receiver')}/",
        }

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        return prometheus.with_tools(instance, argv, [it / "usr/bin" for it in unpacked(instance.version)])


def build() -> None:
    """Fetch what instances need."""
    for version in Gpus().versions:
        unpacked(version)


def configure_alertmanager(instance: Instance, text: str | None) -> None:
    """Give Alertmanager another configuration, kept for good, and have it read; None: the lab's own again."""
    own = instance.folder / "alertmanager-own.yml"
    before = (instance.folder / "alertmanager.yml").read_text()
    (instance.folder / "alertmanager.yml").write_text(
        ALERTING.format(receiver=instance.port("receiver")) if text is None else text
    )
    try:
        _reload(_url(instance, "alertmanager"))
    except LabError:
        (instance.folder / "alertmanager.yml").write_text(before)
        raise
    if text is None:
        own.unlink(missing_ok=True)
    else:
        own.write_text(text)


def write_rules(instance: Instance, name: str, text: str) -> None:
    """Give Prometheus a file of rules, in place of one of the same name, and have it read."""
    file = instance.folder / "rules" / f"{name}.yml"
    file.write_text(text)
    try:
        _reload(prometheus.url(instance))
    except LabError:
        file.unlink()
        raise
    # After a reload it sends nothing until it has found its Alertmanager anew, which takes some seconds.
    url = prometheus.url(instance)
    wait_until(lambda: _knows_alertmanager(url), 30, f"{url} does not find its Alertmanager")


def _knows_alertmanager(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/api/v1/alertmanagers", timeout=10) as answer:
        return bool(json.load(answer)["data"]["activeAlertmanagers"])


def _reload(url: str) -> None:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/-/reload", method="POST"), timeout=30):
            pass
    except urllib.error.HTTPError as error:
        raise LabError(f"{url} does not take the configuration", error.read().decode()) from None


def _words(instance: Instance) -> list[str]:
    """The exporter's command line."""
    options = instance.options
    told = {
        "dcgm": "4.6" if options["new_names"] else "4.5",
        "host_label": "hostname" if options["lower_hostname"] else "Hostname",
        "hpc_job": not options["no_hpc_job"] and not options["pods"],
        "pods": bool(options["pods"]),
        "interval": options["interval"],
    }
    counts = [f"--{what.replace('_', '-')}={options[what]}" for what in ("nodes", "mig_nodes", "gpus")]
    return [f"--port={instance.port('exporter')}", *counts, f"--options={json.dumps(told)}"]


def _url(instance: Instance, daemon: str) -> str:
    return f"http://127.0.0.1:{instance.port(daemon)}"


def unpacked(version: str) -> tuple[Path, Path]:
    """The folders of Prometheus and Alertmanager."""
    of_prometheus, _, of_alertmanager = version.partition("+")

    def make(folder: Path) -> None:
        with step(f"Fetch Alertmanager {of_alertmanager} (Debian)"):
            apt.unpack([ALERTMANAGER_PACKAGE], folder)
        program = folder / "usr/bin/prometheus-alertmanager"
        if TEMPLATES not in (code := program.read_bytes()):
            raise LabError(
                f"Alertmanager {of_alertmanager} is not what the lab knows", f"nothing of {TEMPLATES!r}"
            )
        program.write_bytes(code.replace(TEMPLATES, TEMPLATES_BELOW))

    return prometheus.unpacked(of_prometheus), folders.built("alertmanager", of_alertmanager, make)
