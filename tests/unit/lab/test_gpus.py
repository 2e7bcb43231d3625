"""The lab's exporter: the form of its text, what it counts, and what its shapes look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from lab.gpus import points
from lab.gpus.dcgm import METRICS, Options, Refused
from lab.gpus.fleet import Fleet, Node
from lab.gpus.shapes import SHAPE_NAMES, Load, blur, load

GOLDEN = Path(__file__).parent / "data" / "dcgm-exporter.txt"
"""What dcgm-exporter 4.8.2 served of four GPUs: free, shared by 18 and 19, held by 33 with XID 79, MIG."""
NOW = 1_000_000.0


def fleet(gpus: int = 4, **options: Any) -> Fleet:
    return Fleet([Node("gpu001", gpus, mig={"3": ["3g.40gb", "3g.40gb"]})], Options().changed(options))


def hold(fleet: Fleet, job: str, *gpus: int | str, at: float = NOW, **more: Any) -> None:
    fleet.hold({"job": job, "node": "gpu001", "gpus": list(gpus), **more}, at)


def text(fleet: Fleet, at: float = NOW) -> str:
    return fleet.metrics(fleet.nodes["gpu001"], at)[0]


def served(fleet: Fleet, at: float) -> None:
    node = fleet.nodes["gpu001"]
    fleet.count(node, fleet.metrics(node, at)[1], at)


def truth(fleet: Fleet, job: str, at: float) -> dict[str, Any]:
    (found,) = [one for one in fleet.truth(at) if one["job"] == job]
    return found


def series(text: str, name: str) -> list[str]:
    """The labels of each series of a metric."""
    return re.findall(rf"^{name}{{(.*)}} ", text, re.MULTILINE)


def forms(text: str) -> set[str]:
    """Every line without what differs from machine to machine: UUIDs, and values but for their form."""
    found = set()
    for line in text.splitlines():
        start, _, value = line.rpartition(" ")
        number = value if line.startswith("#") else re.sub(r"\d+", "N", value)
        found.add(" ".join([re.sub(r'UUID="[^"]+"', "UUID", start), number]))
    return found


def test_the_text_is_that_of_dcgm_exporter() -> None:
    like_golden = fleet(host_label="hostname")
    for job, gpu in (("18", 1), ("19", 1), ("33", 2), ("20", "3.1")):
        hold(like_golden, job, gpu)
    like_golden.nodes["gpu001"].faults[2].change({"xid": 79}, NOW)
    assert forms(text(like_golden)) == forms(GOLDEN.read_text())


def test_dcgm_4_6_has_other_names() -> None:
    old, new = text(fleet()), text(fleet(dcgm="4.6"))
    assert set(re.findall(r"^# TYPE (\w+)", old, re.MULTILINE)) == {metric["old"] for metric in METRICS}
    assert set(re.findall(r"^# TYPE (\w+)", new, re.MULTILINE)) == {metric["new"] for metric in METRICS}


@pytest.mark.parametrize(("dcgm", "value"), [("4.6", "96"), ("4.7", "0.960000")])
def test_the_ratio_is_in_percent_until_dcgm_4_7(dcgm: str, value: str) -> None:
    busy = fleet(dcgm=dcgm)
    hold(busy, "17", 0, noise=0)
    (line,) = [line for line in text(busy).splitlines() if "GPU_UTIL_RATIO{" in line and 'job="17"' in line]
    assert line.endswith(f" {value}")


def test_labels_are_as_the_options_say() -> None:
    held = fleet(hpc_job=False)
    hold(held, "17", 0, 1, namespace="team", pod="train-0")
    hold(held, "18", 1, namespace="team", pod="other-0")
    engine = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    assert len(series(text(held), engine)) == 5  # GPU 1 once, and the two instances of GPU 3
    assert 'Hostname="gpu001"' in text(held)
    held.options = held.options.changed({"pods": True, "serial": True})
    first, *shared = series(text(held), engine)[:3]
    assert first.endswith(',container="main",namespace="team",pod="train-0"')
    assert [labels.rpartition("pod=")[2] for labels in shared] == ['"train-0"', '"other-0"']
    assert re.search(r'DCGM_FI_DEV_SERIAL="13\d{11}",DCGM_FI_DRIVER_VERSION=', first)
    held.options = held.options.changed({"lacks": ["sm"]})
    assert "SM_ACTIVE" not in text(held)


def test_host_figures_come_in_three_forms() -> None:
    held = fleet()
    hold(held, "17", 0, "3.1", shape="loader", noise=0, cpus=4, pod="train-0")
    node = held.nodes["gpu001"]
    held.host(node, NOW)
    told = held.host(node, NOW + 10)
    cgroup = 'cgroup="/system.slice/slurmstepd.scope/job_17"'
    assert f"cgroup_cpu_total_seconds{{{cgroup}}} 39.200000\n" in told  # 98 % of 4 cores
    assert f"cgroup_cpus{{{cgroup}}} 4\n" in told
    assert f'cgroup_info{{{cgroup},jobid="17"' in told
    held.options = held.options.changed({"cgroups": "jobstats"})
    assert f'cgroup_cpus{{{cgroup},jobid="17",step="",task=""}} 4\n' in held.host(node, NOW + 10)
    held.options = held.options.changed({"pods": True})
    pod = 'container="main",namespace="default",pod="train-0"'
    assert f'container_cpu_usage_seconds_total{{cpu="total",{pod}}} 39.2' in held.host(node, NOW + 10)


def test_waits_for_storage_are_those_of_the_node() -> None:
    held = fleet()
    hold(held, "17", 0, shape="io", noise=0)
    hold(held, "18", 1)
    node = held.nodes["gpu001"]
    held.host(node, NOW)
    assert "node_pressure_io_waiting_seconds_total 4.500000\n" in held.host(node, NOW + 10)


def test_truth_is_what_was_served() -> None:
    held = fleet()
    hold(held, "17", 0, noise=0)
    for second in (0.5, 1.5, 2.5):
        served(held, NOW + second)
    held.end("17", NOW + 3)
    served(held, NOW + 3.5)
    found = truth(held, "17", NOW + 9)
    assert (found["held"], found["share"], found["samples"], found["measured"]) == (3, 3, 3, 2.5)
    assert found["figures"]["engine"] == pytest.approx({"sum": 3 * 0.96, "integral": 2.5 * 0.96, "max": 0.96})


def test_a_gap_is_not_measured() -> None:
    held = fleet(interval=1)
    hold(held, "17", 0)
    for second in (1, 2, 12, 13):
        served(held, NOW + second)
    assert truth(held, "17", NOW + 13)["measured"] == 4


def test_jobs_share_the_time_of_a_shared_gpu() -> None:
    held = fleet()
    hold(held, "17", 1, shape="small", noise=0)
    hold(held, "18", 1, shape="too-large", noise=0, at=NOW + 2, end=NOW + 6)
    for second in range(1, 11):
        served(held, NOW + second)
    long, short = truth(held, "17", NOW + 10), truth(held, "18", NOW + 10)
    assert (long["held"], long["share"], short["held"], short["share"]) == (10, 8, 4, 2)
    # At 2 the second has just begun, and at 6 it has ended: samples at 2 to 5 have both.
    assert (long["samples"], short["samples"]) == (10, 4)
    assert long["measured"] + short["measured"] == 10 - 0.5  # the sample at 2 stands for the second before it
    assert long["figures"]["engine"]["max"] == 1  # both together


def test_jobs_begin_and_end_as_scheduled() -> None:
    held = fleet()
    hold(held, "17", 0, start=NOW + 10, end=NOW + 20)
    assert [('hpc_job="17"' in text(held, NOW + at)) for at in (9, 10, 19, 20)] == [False, True, True, False]


def test_a_requeued_job_has_held_twice() -> None:
    held = fleet()
    hold(held, "17", 0)
    held.end("17", NOW + 5)
    hold(held, "17", 1, at=NOW + 7)
    assert [(one["gpu"], one["held"]) for one in held.truth(NOW + 10, "17")] == [("0", 5), ("1", 3)]


def test_a_job_goes_on_in_another_shape() -> None:
    held = fleet()
    hold(held, "17", 0, noise=0)
    served(held, NOW + 1)
    hold(held, "17", 0, shape="idle", at=NOW + 1)
    served(held, NOW + 2)
    found = truth(held, "17", NOW + 2)
    assert (found["held"], found["samples"], found["figures"]["engine"]["sum"]) == (2, 2, 0.96)


def test_energy_is_the_integral_of_power() -> None:
    held = fleet(gpus=1)
    hold(held, "17", 0, noise=0)
    text(held, NOW)
    values = held.metrics(held.nodes["gpu001"], NOW + 10)[1]["0"]
    assert values["energy"] == pytest.approx(values["power"] * 10 * 1000, abs=1)


def test_an_xid_counts_after_the_next_one() -> None:
    broken = fleet(xid_window=60)
    fault = broken.nodes["gpu001"].faults[2]
    fault.change({"xid": 79}, NOW)
    fault.change({"xid": 45, "temperature": 91}, NOW + 30)

    def counted(at: float) -> list[str]:
        lines = [line for line in series(text(broken, at), "DCGM_EXP_XID_ERRORS_COUNT") if 'gpu="2"' in line]
        return [found[1] for line in lines if (found := re.search(r'xid="(\d+)"', line))]

    assert 'err_code="45",err_msg="Preemptive cleanup, due to previous errors"} 45' in text(broken)
    assert (counted(NOW + 31), counted(NOW + 80), counted(NOW + 91)) == (["45", "79"], ["45"], [])
    assert re.search(r'DCGM_FI_DEV_GPU_TEMP{gpu="2".* 91\n', text(broken))
    fault.change({"xid": 0, "temperature": None, "gone": True}, NOW + 31)
    assert 'gpu="2"' not in text(broken)
    fault.change({"gone": None}, NOW + 32)
    assert counted(NOW + 32) == []


def test_a_replay_starts_again_at_its_end() -> None:
    recorded = [(0, 10.0, 1000.0), (60, 90.0, 2000.0)]
    engines = [load("replay", 0, second, recorded, 10_000).engine for second in (0, 59, 60, 119, 120)]
    assert engines == [0.1, 0.1, 0.9, 0.9, 0.1]
    assert load("replay", 0, 60, recorded, 10_000).memory == 0.2


def test_a_series_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("pod,second,duty,memory_mib\n0,0,1,2\n1,0,3.5,\n1,57,4,20618\n")
    assert points(tmp_path / "pods.csv", pod="1") == [(0, 3.5, 0), (57, 4, 20618)]


# What diagnoses each shape: the decision table of the telemetry facts.
DIAGNOSED: dict[str, Callable[[Load], bool]] = {
    "good": lambda mean: mean.sm >= 0.7 and mean.tensor >= 0.3,
    "loader": lambda mean: mean.engine < 0.5 and mean.cpu >= 0.85,
    "io": lambda mean: mean.engine < 0.5 and mean.cpu < 0.5 and mean.io >= 0.1,
    "copy": lambda mean: mean.pcie >= 1e9 and mean.sm < 0.3 and mean.cpu < 0.85 and mean.io < 0.1,
    "comm": lambda mean: mean.engine >= 0.8 and mean.sm >= 0.5 and mean.tensor < 0.1 and mean.dram < 0.2,
    "small": lambda mean: mean.engine >= 0.4 and mean.sm < 0.25 and mean.pcie < 1e9,
    "idle": lambda mean: mean.engine < 0.01 and mean.memory > 0.1 and mean.cpu < 0.05,
    "unused": lambda mean: mean.engine < 0.01 and mean.memory == 0,
    "memory-bound": lambda mean: mean.dram >= 0.5 and 0.25 <= mean.sm < 0.5,
    "no-tensor": lambda mean: mean.sm >= 0.5 and mean.tensor < 0.01 and mean.dram >= 0.2,
    "too-large": lambda mean: mean.engine <= 0.15 and mean.memory * 80 < 10 and mean.cpu < 0.85,
}


@pytest.mark.parametrize("shape", DIAGNOSED)
def test_a_noisy_shape_keeps_what_it_is_diagnosed_by(shape: str) -> None:
    for job in range(50):
        rows = [astuple(blur(load(shape, 0, 0, (), 1), 0.1, (job,), (second,))) for second in range(30)]
        assert DIAGNOSED[shape](Load(*(sum(column) / 30 for column in zip(*rows, strict=True)))), job
    assert set(SHAPE_NAMES) - DIAGNOSED.keys() == {"some-unused", "replay"}


def test_some_unused_uses_its_first_gpu() -> None:
    assert [load("some-unused", rank, 0, (), 1).engine for rank in range(3)] == [0.96, 0, 0]


def test_noise_is_seeded() -> None:
    def told(seed: int) -> str:
        held = fleet(seed=seed)
        hold(held, "17", 0)
        return text(held)

    assert told(1) == told(1) != told(2)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda it: it.hold({"job": "1", "node": "gpu9", "gpus": [0]}, NOW), "no node gpu9"),
        (lambda it: hold(it, "1", 9), "no GPU 9; it has 0, 1, 2, 3.1, 3.2"),
        (lambda it: hold(it, "1", 0, shape="round"), "no shape round"),
        (lambda it: hold(it, "1", 0, shape="replay"), "needs points"),
        (lambda it: it.end("1", NOW), "no job 1"),
        (lambda it: it.options.changed({"dcgm": "9"}), "dcgm is one of"),
        (lambda it: it.options.changed({"lacks": ["smm"]}), "no metric has the code smm"),
        (lambda it: it.nodes["gpu001"].faults[0].change({"fire": 1}, NOW), "no fault fire"),
    ],
)
def test_nonsense_is_refused(act: Callable[[Fleet], None], why: str) -> None:
    with pytest.raises(Refused, match=why):
        act(fleet())
