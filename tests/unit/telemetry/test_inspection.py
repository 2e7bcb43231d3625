"""What the metrics of GPUs lack is found and said with what to change, also if Prometheus does not answer."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairway.cli.commands.check import check
from fairway.cli.commands.render import render
from fairway.control.loops.telemetry import ReadTelemetry
from fairway.engines.virtual import VirtualEngine
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.model.condition import ConditionType
from fairway.model.fleet import Cluster
from fairway.services.fleets import Fleets, LastApplied
from fairway.services.plans import Planner
from fairway.telemetry import counters, health
from fairway.telemetry.inspection import findings, inspect
from fairway.telemetry.metrics import METRICS
from fairway.telemetry.prometheus import Labels, MatrixRow, Point, TelemetryUnreachable, VectorRow

FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc: {{ engine: {engine}, {connection}, telemetry: {{ prometheus: "{url}", select: 'cluster="hpc"' }} }}
"""
CONNECTIONS = {
    "slurm": "url: http://127.0.0.1:6820, credentials: { user: fairway, jwt_key_file: /etc/key }",
    "kubernetes": "kubeconfig: /etc/kube",
    "virtual": "nodes: []",
}
ALL = {counter.names[0] for counter in (*counters.USE, *counters.HEALTH)}
ENGINE = counters.USE[0].names[0]


def fleet_text(engine: str, url: str = "http://127.0.0.1:9") -> str:
    text = FLEET.format(engine=engine, connection=CONNECTIONS[engine], url=url)
    return text.replace(", nodes: []", "")


def cluster(engine: str, url: str = "http://127.0.0.1:9") -> Cluster:
    return parse_fleet(fleet_text(engine, url), "fleet.yaml").clusters[0]


def device(**labels: str) -> VectorRow:
    return VectorRow(Labels(**{"host": "n1", "gpu": "0", **labels}), Point(0.0, "20"))


def samples(*values: float, interval: float = 15.0) -> MatrixRow:
    rows = tuple((number * interval, str(value)) for number, value in enumerate(values))
    return MatrixRow(Labels(host="n1", gpu="0"), rows)


NAMED = device(hpc_job="17")
POD = device(namespace="ml", pod="train-0")
STEADY = samples(*(0.5 + 0.01 * n for n in range(20)))


def codes(engine: str, served: set[str], devices: list[VectorRow], **more: Any) -> list[str]:
    given = {"samples": [STEADY], **more}
    return [finding.code for finding in findings(cluster(engine), served, devices, **given)]


def test_nothing_is_missing() -> None:
    assert codes("slurm", ALL, [device()], nodes={"n1"}) == []
    assert codes("kubernetes", ALL, [POD]) == []
    new = {counter.names[-1] for counter in (*counters.USE, *counters.HEALTH)}
    assert codes("slurm", new, [NAMED]) == []


@pytest.mark.parametrize(
    ("engine", "served", "devices", "more", "code"),
    [
        ("slurm", set(), [], {"samples": []}, "NoGpuMetrics"),
        ("slurm", ALL - {"DCGM_FI_PROF_SM_ACTIVE"}, [NAMED], {}, "GpuMetricsMissing"),
        ("slurm", ALL, [device(host="")], {}, "GpuHostsMissing"),
        ("slurm", ALL, [device(host="other.site")], {"nodes": {"n1"}}, "GpuHostsUnknown"),
        ("kubernetes", ALL, [device()], {}, "GpuHoldersMissing"),
        ("slurm", ALL, [device(instance_id="1")], {}, "GpuHoldersMissing"),
        ("slurm", ALL, [NAMED], {"samples": [samples(*range(20), interval=120.0)]}, "GpusScrapedRarely"),
        ("slurm", ALL, [NAMED], {"samples": [samples(*(n // 2 for n in range(30)))]}, "GpusScrapedTwice"),
    ],
)
def test_what_is_missing(
    engine: str, served: set[str], devices: list[VectorRow], more: dict[str, Any], code: str
) -> None:
    assert codes(engine, served, devices, **more) == [code]


def test_an_idle_gpu_has_the_same_value_again_and_again() -> None:
    assert codes("slurm", ALL, [NAMED], samples=[samples(*[0.0] * 30)]) == []


def test_the_counters_file_has_every_metric_that_is_read() -> None:
    rows = [line.split(", ", 2) for line in counters.counters_text().splitlines() if line[0] != "#"]
    assert all(len(row) == 3 and row[1] in ("gauge", "counter", "label") for row in rows)
    listed = [row[0] for row in rows]
    assert len(listed) == len(set(listed))
    known = [c.names for c in (*counters.USE, *counters.HEALTH)]
    assert not any(len(set(names) & set(listed)) != 1 for names in known)  # never both names of a field
    for metric in METRICS:
        assert set(metric.names) & set(listed)
    for name in health._NAMES:
        assert any(name in names for names in (*known, (listed[-1],)))


def test_render_counters(tmp_path: Path) -> None:
    done = CliRunner().invoke(render, ["counters", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (tmp_path / counters.FILE_NAME).read_text() == counters.counters_text()


Answer = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def prometheus() -> Iterator[tuple[str, dict[str, Any]]]:
    """An address that answers as Prometheus does: each query with what `state["answer"]` gives."""
    state: dict[str, Any] = {"answer": lambda query: [], "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            body = {"status": "success", "data": {"result": state["answer"](form["query"][0])}}
            data = json.dumps(body).encode()
            self.send_response(state["status"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", state
    server.shutdown()
    server.server_close()


def answering(query: str) -> list[dict[str, Any]]:
    """All but SM utilisation."""
    labels = {"Hostname": "n1", "gpu": "0", "namespace": "ml", "pod": "p"}
    if query.startswith("count by (__name__)"):
        assert 'cluster="hpc"' in query
        names = sorted(ALL - {"DCGM_FI_PROF_SM_ACTIVE"})
        return [{"metric": {"__name__": name}, "value": [0, "8"]} for name in names]
    if query.endswith("]"):
        return [{"metric": labels, "values": [[15 * n, str(n)] for n in range(20)]}]
    return [{"metric": labels, "value": [0, "20"]}]


async def test_prometheus_is_asked(prometheus: tuple[str, dict[str, Any]]) -> None:
    url, state = prometheus
    assert [f.code for f in await inspect(cluster("kubernetes", url))] == ["NoGpuMetrics"]
    state["answer"] = answering
    (finding,) = await inspect(cluster("kubernetes", url))
    assert (
        finding.message
        == "hpc does not show SM utilisation, and whether kernels are too small (DCGM_FI_PROF_SM_ACTIVE)"
    )
    assert "fairway render counters" in finding.hint


async def test_no_answer_is_a_finding() -> None:
    (finding,) = await inspect(cluster("slurm"))
    assert finding.code == "TelemetryUnreachable"


def test_check_reports_it(tmp_path: Path, prometheus: tuple[str, dict[str, Any]]) -> None:
    url, state = prometheus
    state["answer"] = answering
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet_text("kubernetes", url))
    done = CliRunner().invoke(check, ["-f", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "warning: hpc does not show SM utilisation" in done.stderr
    assert "hint: install this file as dcgm-exporter's --collectors:  fairway render counters" in done.stderr
    done = CliRunner().invoke(check, ["-f", str(file), "-o", "json"], catch_exceptions=False)
    assert [found["code"] for found in json.loads(done.stdout)["telemetry"]] == ["GpuMetricsMissing"]
    done = CliRunner().invoke(check, ["-f", str(file), "--offline"], catch_exceptions=False)
    assert done.stderr == ""


async def test_the_loop_records_it_as_a_condition(
    ledger: Ledger, prometheus: tuple[str, dict[str, Any]]
) -> None:
    url, state = prometheus
    fleet = parse_fleet(fleet_text("virtual", url), "fleet.yaml")
    name, source = fleet.clusters[0].name, fleet.clusters[0].telemetry
    assert source is not None
    await ledger.revisions.add("fleet", "digest", "test")
    applied = LastApplied(name, ledger, Fleets(ledger, lambda _: fleet))
    now = [1_200_000.0]
    step = ReadTelemetry(name, source, ledger, applied, clock=lambda: now[0])
    lease = await ledger.leases.take("telemetry", name, "test", 60)
    assert lease is not None
    await step(lease)
    (stored,) = await ledger.conditions.all()
    assert stored.condition.type is ConditionType.GPUS_NOT_MEASURED
    assert stored.condition.code == "NoGpuMetrics"
    state["status"] = 503
    now[0] += 600
    with pytest.raises(TelemetryUnreachable):
        await step(lease)
    assert [s.condition.code for s in await ledger.conditions.all()] == ["TelemetryUnreachable"]
    state["status"] = 200
    state["answer"] = lambda query: (
        answering(query)
        + (
            [{"metric": {"__name__": "DCGM_FI_PROF_SM_ACTIVE"}, "value": [0, "8"]}]
            if query.startswith("count by (__name__)")
            else []
        )
    )
    await step(lease)
    assert await ledger.conditions.all() == ()
    await step.close()


async def test_a_plan_says_it(prometheus: tuple[str, dict[str, Any]]) -> None:
    url, _ = prometheus
    fleet = parse_fleet(fleet_text("virtual", url), "fleet.yaml")
    planner = Planner(VirtualEngine)
    (planned,) = (await planner.plan(fleet)).clusters
    assert [notice.code for notice in planned.notices] == ["NoGpuMetrics"]
