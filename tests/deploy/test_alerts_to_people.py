"""A GPU fails; real Prometheus, Alertmanager and a server tell the team and the operators, once each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairway.files import parse_fleet
from fairway.model.job import format_job_id
from fairway.telemetry.alerts import alertmanager_text, rules_text
from lab.gpus import Exporter, configure_alertmanager, write_rules
from lab.instance import Instance, obtain
from tests.deploy.test_monitoring import asked, metrics_of, panels
from tests.integration.server_process import Home, temporary_home
from tests.unit.control.loops.receivers import Hooks, hooks
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  lab: {{ engine: virtual }}
pools:
  lab-a100: {{ cluster: lab, gpu: A100-80GB, capacity: owned, price: 1.9, virtual: {{ nodes: 1 }} }}
teams:
  research:
    guarantee: {{ lab-a100: 8 }}
    members: [alice]
    notify: {{ webhook: {{ url: "{hooks}/research" }} }}
notify:
  webhook: {{ url: "{hooks}/operators" }}
"""


@dataclass
class Site:
    """What a test drives."""

    exporter: Exporter
    received: Hooks
    node: str
    job: str

    def told(self, to: str) -> list[str]:
        return [body["subject"] for path, _, body in self.received.got if path == f"/{to}"]

    def told_of(self, alert: str) -> list[Any]:
        return [body for _, _, body in self.received.got if alert in body["subject"]]


def quick(text: str) -> str:
    """Rules and routes as they are written, evaluated and sent each second."""
    for slow in ("interval: 15s", "interval: 1m", "interval: 5m", "interval: 10m", "interval: 24h"):
        text = text.replace(slow, "interval: 1s")
    return text.replace("group_wait: 10s", "group_wait: 3s").replace("[2m]", "[5s]")


@pytest.fixture(scope="module")
def gpus() -> Iterator[Instance]:
    instance = obtain("gpus", f"test-{os.getpid()}-alerts", None, {"nodes": 1, "mig_nodes": 0})
    try:
        instance.up()
        yield instance
    finally:
        instance.wipe()


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.fixture
def site(gpus: Instance, home: Home, database_url: str) -> Iterator[Site]:
    with hooks() as received:
        fleet = home.folder / "fleet.yaml"
        fleet.write_text(FLEET.format(hooks=received.url))
        server = home.start("-f", str(fleet), "--listen", "127.0.0.1:0", FAIRWAY_DATABASE_URL=database_url)
        try:
            yield started(gpus, home, server.url, fleet, database_url, received)
        finally:
            server.stop()


def started(gpus: Instance, home: Home, url: str, fleet: Path, database_url: str, received: Hooks) -> Site:
    def fairway(*words: str) -> str:
        done = home.fairway(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    fairway("apply", "-f", str(fleet), "--yes")
    token = home.folder / "alertmanager.token"
    token.write_text(fairway("token", "create", "alertmanager", "--role", "alerts"))
    fairway("run", "--as", "alice", "--team", "research", "--gpus", "1", "--", "sleep", "600")
    with psycopg.connect(database_url, autocommit=True) as db:
        running = "SELECT job, number, nodes[1] FROM attempt WHERE ended_at IS NULL"
        row = until(lambda: db.execute(running).fetchone(), 30, "the job runs")
        assert row is not None
        number, attempt, node = row
        # As an engine tells that knows which GPUs it gave.
        db.execute(
            "INSERT INTO attempt_gpu (job, attempt, node, cluster, gpus, holders)"
            " VALUES (%s, %s, %s, 'lab', '{3}', '{}') ON CONFLICT (job, attempt, node)"
            " DO UPDATE SET gpus = excluded.gpus",
            (number, attempt, node),
        )
    exporter = Exporter(gpus.env()["EXPORTER_URL"])
    exporter.nodes({"name": node, "gpus": 8})
    # The server itself does not read this Prometheus: alerts alone tell it.
    measured = f"{{ engine: virtual, telemetry: {{ prometheus: {gpus.env()['PROMETHEUS_URL']} }} }}"
    parsed = parse_fleet(fleet.read_text().replace("{ engine: virtual }", measured), "fleet.yaml")
    write_rules(gpus, "gpus", quick(rules_text(parsed.clusters[0])))
    configure_alertmanager(gpus, quick(alertmanager_text(parsed, url, str(token))))
    return Site(exporter, received, node, format_job_id(number))


def test_a_real_prometheus_answers_every_panel_on_gpus(gpus: Instance, site: Site) -> None:
    site.exporter.hold("17", site.node, [0])
    site.exporter.hold("18", site.node, [1], namespace="research", pod="train-0")
    asked_for = [(title, expr) for title, expr in panels() if not metrics_of(expr)]
    assert len(asked_for) > 15
    site.exporter.fault(site.node, 7, xid=63)
    for options in ({}, {"pods": True, "hpc_job": False}, {"dcgm": "4.6", "host_label": "hostname"}):
        site.exporter.configure(**options)
        for title, expr in asked_for:
            if "namespace" in expr and "by (namespace" in expr and not options.get("pods"):
                continue  # only pods have one
            until(partial(asked, gpus, expr), 20, title)


def test_a_gpu_that_fails_is_told_once_to_each_and_so_is_its_repair(site: Site) -> None:
    gone = f"GPU 3 of {site.node} is gone (XID 79)"
    site.exporter.fault(site.node, 3, xid=79, ecc=2)
    until(lambda: gone in site.told("research") and gone in site.told("operators"), 40, "both are told")
    first = next(body for body in site.told_of(gone) if body["team"] == "research")
    assert (first["user"], first["job"]) == ("alice", site.job)

    site.exporter.fault(site.node, 5, temperature=94)  # Alertmanager sends everything again each second
    hot = f"GPU 5 of {site.node} is at 94 °C, near its limit"
    site.exporter.fault(site.node, 3, xid=0, ecc=None)
    until(lambda: f"resolved: {gone}" in site.told("operators"), 40, "its end is told")
    for to in ("research", "operators"):
        assert site.told(to).count(gone) == 1
        assert not any("uncorrectable" in subject for subject in site.told(to))  # explained by the other
    assert hot not in site.told("research")  # nobody of them holds it
