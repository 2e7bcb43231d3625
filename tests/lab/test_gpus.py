"""GPU telemetry in the lab: the exporter through real Prometheus, its faults through real Alertmanager."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from lab import Instance, LabError
from lab.gpus import Exporter, Receiver, Truth, configure_alertmanager, write_rules
from tests.lab.driving import LOOPBACK, addresses_of, assert_nothing_is_left, lab, ports, status, up
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
RULES = """\
groups:
  - name: gpus
    interval: 1s
    rules:
      - alert: GpuGone
        expr: max by (cluster, node, gpu) (DCGM_FI_DEV_XID_ERRORS) == 79
        labels: { severity: page }
"""


@pytest.fixture(scope="module")
def gpus() -> Iterator[Instance]:
    instance = up("gpus", "gpus", "--nodes", "3")
    until(lambda: value(instance, "count(up == 1)") == 8, 40, "every node is scraped")  # metrics and hosts
    yield instance
    instance.wipe()
    assert_nothing_is_left(instance)


@pytest.fixture
def exporter(gpus: Instance) -> Iterator[Exporter]:
    exporter = Exporter(gpus.env()["EXPORTER_URL"])
    yield exporter
    exporter.forget()
    exporter.silence(0)
    exporter.configure(dcgm="4.5", host_label="Hostname", hpc_job=True, pods=False, host=True)


def value(instance: Instance, expression: str) -> float:
    """The only value of an answer; NaN if there is none."""
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{instance.facts()['url']}/api/v1/query?{words}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    assert len(found) < 2, found
    return float(found[0]["value"][1]) if found else float("nan")


def measured(exporter: Exporter, samples: int, *jobs: str) -> list[Truth]:
    """The truth of jobs that were served so many times on each GPU, and then ended."""

    def served() -> bool:
        return all(hold.samples >= samples for job in jobs for hold in exporter.truth(job).holds)

    until(served, 30, f"{samples} samples")
    for job in jobs:
        exporter.end(job)
    return [exporter.truth(job) for job in jobs]


def same(instance: Instance, expression: str, wanted: float) -> None:
    """Prometheus has stored what was served: exactly, as soon as its last scrape is done."""
    until(
        lambda: value(instance, expression) == pytest.approx(wanted, abs=1e-4),
        10,
        f"{expression} = {wanted}",
    )


def test_everything_is_on_loopback(gpus: Instance) -> None:
    assert addresses_of(gpus) == dict.fromkeys(ports(gpus), LOOPBACK)
    assert {"PROMETHEUS_URL", "ALERTMANAGER_URL", "EXPORTER_URL", "WEBHOOK_URL"} <= gpus.env().keys()


def test_sums_in_prometheus_are_the_truth(gpus: Instance, exporter: Exporter) -> None:
    exporter.hold("17", "gpu001", [0, 1])
    exporter.hold("17", "gpu002", [0, 1])
    exporter.hold("18", "gpu001", [1], "small")  # on a GPU of 17's
    exporter.hold("19", "mig001", ["0.1", "1.2"], "loader")
    for truth in measured(exporter, 4, "17", "18", "19"):
        job = truth.holds[0].job
        for code, name in (
            ("engine", ENGINE),
            ("memory", "DCGM_FI_DEV_FB_USED"),
            ("power", "DCGM_FI_DEV_POWER_USAGE"),
        ):
            same(gpus, f'sum(sum_over_time({name}{{cluster="lab",hpc_job="{job}"}}[1m]))', truth.sum(code))
        same(gpus, f'sum(count_over_time({ENGINE}{{hpc_job="{job}"}}[1m]))', truth.samples)
        assert truth.share - len(truth.holds) <= truth.measured <= truth.share
    same(
        gpus,
        f'sum_over_time({ENGINE}{{GPU_I_ID="2",hpc_job="19"}}[1m])',
        exporter.truth("19").holds[1].figures["engine"].sum,
    )


@pytest.mark.parametrize(
    ("options", "name", "labels"),
    [
        ({"dcgm": "4.6", "host_label": "hostname"}, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 'hpc_job="21"'),
        ({"hpc_job": False}, ENGINE, 'node="gpu003",gpu="5"'),
        ({"hpc_job": False, "pods": True}, ENGINE, 'namespace="team",pod="train-0"'),
    ],
)
def test_every_form_has_the_same_sums(
    gpus: Instance, exporter: Exporter, options: dict[str, object], name: str, labels: str
) -> None:
    exporter.configure(**options)
    began = time.time()
    exporter.hold("21", "gpu003", [5], namespace="team", pod="train-0")
    (truth,) = measured(exporter, 3, "21")
    ended = exporter.truth("21").holds[0].end
    assert ended is not None
    window = f"[{max(1, round((ended - began) * 1000))}ms] @ {ended:.3f}"
    same(gpus, f'sum(sum_over_time({name}{{node="gpu003",{labels}}}{window}))', truth.sum("engine"))


def test_a_silent_exporter_is_down_and_not_measured(gpus: Instance, exporter: Exporter) -> None:
    exporter.hold("31", "gpu001", [0])
    exporter.hold("32", "gpu002", [0])
    until(lambda: exporter.truth().samples >= 4, 20)
    exporter.silence(60, "gpu001")
    until(lambda: value(gpus, 'up{job="dcgm",instance="gpu001"}') == 0, 20, "silent")
    before, other = exporter.truth("31"), exporter.truth("32")
    until(lambda: exporter.truth("32").samples >= other.samples + 3, 20)
    assert exporter.truth("31").measured == before.measured
    exporter.silence(0)
    (after,) = measured(exporter, before.samples + 1, "31")
    assert after.measured < after.held - 2
    same(gpus, f'sum(sum_over_time({ENGINE}{{hpc_job="31"}}[2m]))', after.sum("engine"))


def test_an_answer_that_comes_too_late_is_not_measured(gpus: Instance, exporter: Exporter) -> None:
    exporter.hold("41", "gpu002", [0])
    until(lambda: exporter.truth("41").samples >= 1, 20)
    exporter.slow(30, 1.2, "gpu002")
    until(lambda: value(gpus, 'up{job="dcgm",instance="gpu002"}') == 0, 20, "too slow")
    exporter.slow(0, 0, "gpu002")
    until(lambda: value(gpus, 'up{job="dcgm",instance="gpu002"}') == 1, 20, "quick again")
    (truth,) = measured(exporter, 2, "41")
    same(gpus, f'sum(count_over_time({ENGINE}{{hpc_job="41"}}[2m]))', truth.samples)


def test_host_figures_tell_a_busy_cpu_from_a_slow_disk(gpus: Instance, exporter: Exporter) -> None:
    exporter.hold("51", "gpu001", [0, 1], "loader", noise=0)
    exporter.hold("52", "gpu002", [0], "io", noise=0)
    cpu = (
        "sum(rate(cgroup_cpu_total_seconds[5s]) / cgroup_cpus"
        ' * on (node, cgroup) group_left (jobid) cgroup_info{jobid="%s"})'
    )
    until(lambda: value(gpus, cpu % "51") == pytest.approx(0.98, abs=0.05), 20, "busy")
    until(lambda: value(gpus, cpu % "52") == pytest.approx(0.12, abs=0.05), 20, "not busy")
    io = 'rate(node_pressure_io_waiting_seconds_total{node="gpu002"}[5s])'
    until(lambda: value(gpus, io) == pytest.approx(0.45, abs=0.05), 20, "waits")
    exporter.configure(host=False)
    until(lambda: not value(gpus, 'count(up{job="host"} == 1)') > 0, 20, "nothing tells of hosts")


def test_a_fault_reaches_the_receiver_and_so_does_its_repair(gpus: Instance, exporter: Exporter) -> None:
    receiver = Receiver(gpus.env()["WEBHOOK_URL"])
    write_rules(gpus, "gone", RULES)
    exporter.fault("gpu002", 3, xid=79, temperature=91, ecc=2)
    until(lambda: value(gpus, 'DCGM_FI_DEV_GPU_TEMP{node="gpu002",gpu="3"}') == 91, 20)
    assert value(gpus, 'DCGM_EXP_XID_ERRORS_COUNT{node="gpu002",gpu="3",xid="79"}') == 1
    firing = until(receiver.received, 20, "a notification")[0]
    assert (firing.path, firing.status) == ("/lab", "firing")
    labels = {"alertname": "GpuGone", "cluster": "lab", "gpu": "3", "node": "gpu002", "severity": "page"}
    assert [alert["labels"] for alert in firing.alerts] == [labels]

    exporter.fault("gpu002", 3, xid=0, temperature=None, ecc=None)
    until(lambda: [one.status for one in receiver.received()] == ["firing", "resolved"], 30, "resolved")

    own = f"""
route: {{ receiver: own, group_by: [node], group_wait: 0s, group_interval: 1s }}
receivers: [{{ name: own, webhook_configs: [{{ url: "{receiver.url}own" }}] }}]
"""
    configure_alertmanager(gpus, own)
    with pytest.raises(LabError, match="undefined receiver"):
        configure_alertmanager(gpus, "route: { receiver: nobody }")
    receiver.forget()
    receiver.answer(500)
    exporter.fault("gpu001", 0, xid=79)
    exporter.fault("gpu001", 1, xid=79)
    until(lambda: value(gpus, "count(ALERTS)") == 2, 20, "both fire")
    assert receiver.received() == []
    receiver.answer(200)
    until(lambda: any(len(one.alerts) == 2 for one in receiver.received()), 30, "both at once, by node")
    assert {one.path for one in receiver.received()} == {"/own"}
    for gpu in (0, 1):
        exporter.fault("gpu001", gpu, xid=0)
    configure_alertmanager(gpus, None)


def test_tools_are_at_hand(gpus: Instance) -> None:
    assert "SUCCESS" in lab("run", "gpus", "amtool", "check-config", "alertmanager.yml")
    assert "SUCCESS" in lab("run", "gpus", "promtool", "check", "config", "prometheus.yml")


def test_killed_daemons_come_back(gpus: Instance) -> None:
    for daemon in ("exporter", "alertmanager", "receiver"):
        lab("kill", "gpus", daemon)
    assert status("gpus")["state"] == "degraded"
    up("gpus", "gpus")
    assert status("gpus")["state"] == "up"


def test_options_are_those_of_up(gpus: Instance) -> None:
    lab("down", "gpus")
    assert_nothing_is_left(gpus)
    up(
        "gpus",
        "gpus",
        "--nodes",
        "1",
        "--mig-nodes",
        "0",
        "--gpus",
        "2",
        "--new-names",
        "--lower-hostname",
        "--pods",
    )
    url = gpus.env()["EXPORTER_URL"]
    Exporter(url).hold("61", "gpu001", [1], pod="train-0")
    with urllib.request.urlopen(f"{url}/n/gpu001/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if "FI_PROF_SM_UTIL_RATIO{" in line]
    assert len(lines) == 2
    assert 'hostname="gpu001"' in lines[1]
    assert 'pod="train-0"' in lines[1]
    assert "hpc_job" not in lines[1]
    with pytest.raises(LabError, match="there is no node gpu002"):
        Exporter(url).hold("62", "gpu002", [0])
