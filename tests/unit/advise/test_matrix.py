"""Simulated jobs get the right diagnosis, healthy ones none, and real services are not called abandoned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairway.advise.diagnosis import Confidence, diagnose
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.names import NodeName
from fairway.model.telemetry import GpuFigures, HeldGpu, HostFigures, JobFigures
from tests.unit.advise.matrix import ACME, SHARED, AcmeKernels, Kernels, Matrix, matrix

SEED = 20261117
"""Not one of the seeds (1 to 4) read while thresholds, simulation and right answers were revised."""
GENTD26 = SHARED / "gentd26" / "gentd26-pods.csv.zst"
HOUR = 3600


@pytest.fixture(scope="module", params=["ranges", "acme"])
def simulated(request: pytest.FixtureRequest) -> Matrix:
    if request.param == "acme" and not ACME.exists():
        pytest.skip("AcmeTrace's distributions are not here (../shared/data/acme): kernels from ranges only")
    return matrix(SEED, AcmeKernels(ACME) if request.param == "acme" else Kernels())


def test_at_least_nine_of_ten_jobs_get_the_right_diagnosis(simulated: Matrix) -> None:
    assert len(simulated.said) >= 600
    assert simulated.correct() >= 0.9, simulated.text()
    assert simulated.correct(seeing_only=True) >= 0.9, simulated.text()
    assert simulated.decided() >= 0.9, simulated.text()
    assert simulated.found() >= 0.9, simulated.text()


def test_fewer_than_two_in_a_hundred_healthy_jobs_get_one(simulated: Matrix) -> None:
    assert sum(job.is_healthy for job, _ in simulated.said) >= 200
    assert simulated.false_alarms() < 0.02, simulated.text()


def test_high_confidence_means_right(simulated: Matrix) -> None:
    high = [(job, d) for job, d in simulated.said if d is not None and d.confidence is Confidence.HIGH]
    assert len(high) >= 100
    assert sum(d.code in job.right for job, d in high) / len(high) >= 0.95, simulated.text()


def pods() -> Iterator[list[tuple[float, float]]]:
    """Yield (duty 0 to 1, memory in MiB) of each real inference pod, a sample every 57 s."""
    polars = pytest.importorskip("polars")
    if not GENTD26.exists():
        pytest.skip("the trace of inference pods is not here (../shared/data/gentd26): nothing to replay")
    rows = polars.read_csv(GENTD26).sort("pod", "second")
    for pod in rows.partition_by("pod", maintain_order=True):
        memory = pod["memory_mib"].fill_null(0).to_list()
        yield [(duty / 100, mib) for duty, mib in zip(pod["duty"].to_list(), memory, strict=True)]


def replayed(samples: list[tuple[float, float]], end: int, cpu: float | None) -> JobFigures:
    """Return the figures of the two hours before sample `end`."""
    per_hour, per_window = HOUR // 57, WINDOW_SECONDS // 57
    last = samples[max(0, end - 2 * per_hour) : end]
    duty = [busy for busy, _ in last]
    memory = [mib for _, mib in last]
    mean = sum(duty) / len(duty)
    gpu = GpuFigures(
        measured_seconds=57 * len(last),
        engine=mean,
        memory_used_mib=sum(memory) / len(memory),
        memory_peak_mib=max(memory),
    )
    windows = [duty[i : i + per_window] for i in range(0, len(duty), per_window)]
    return JobFigures(
        span_seconds=57 * len(last),
        held_gpu_seconds=57 * len(last),
        measured_gpu_seconds=57 * len(last),
        gpus=(HeldGpu(NodeName("n1"), 0, gpu),),
        host=HostFigures(cpu_ratio=cpu, cpus=8),
        recent=tuple(sum(window) / len(window) for window in windows),
    )


def test_inference_pods_are_not_abandoned_when_they_are_services() -> None:
    """With CPUs as idle as those of a server that waits; of the trace only duty and memory are known."""
    per_hour = HOUR // 57
    counted, as_service = 0, set()
    abandoned: set[int] = set()
    low: set[int] = set()
    for number, samples in enumerate(pods()):
        counted += 1
        for end in range(2 * per_hour + 1, len(samples) + 1, per_hour):
            figures = replayed(samples, end, cpu=0.02)
            if said := diagnose(replace(figures, is_service=True)):
                as_service.add((number, said.code))
            said = diagnose(figures)
            if said and said.code == "Abandoned":
                abandoned.add(number)
            if said and said.code == "LowUtilisation":
                low.add(number)
            unseen = diagnose(replace(figures, host=HostFigures()))
            assert unseen is None or unseen.code != "Abandoned"
    assert counted == 143
    assert as_service == set()
    # At some hour, if nobody had said that they are services: the reason why services are exempt.
    assert (len(abandoned), len(low)) == (67, 128)
