"""Each rule of the diagnosis fires on its figures, not just beside them, and never on what is not known."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.advise.diagnosis import DIAGNOSES, Confidence, diagnose, diagnoses
from fairway.model.diagnosis import DEFAULT_THRESHOLDS, Thresholds
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import NodeName
from fairway.model.telemetry import GpuFigures, HeldGpu, HostFigures, JobFigures
from tests.unit.advise.figures import GOOD, HOUR, gpu, job

IDLE = gpu(engine=0.0, sm=0.0, tensor=0.0, dram=0.0, pcie_bytes_per_second=0.0, nvlink_bytes_per_second=0.0)
UNOPENED = replace(IDLE, memory_used_mib=4.0, memory_peak_mib=4.0)
WAITING = gpu(engine=0.25, sm=0.21, tensor=0.1, dram=0.12)
COPYING = gpu(engine=0.45, sm=0.18, tensor=0.06, dram=0.15, pcie_bytes_per_second=4e9)
COLLECTIVE = gpu(engine=0.97, sm=0.35, tensor=0.06, dram=0.09, nvlink_bytes_per_second=4e10)
HUNG = replace(IDLE, engine=1.0, sm=0.2)
SMALL = gpu(engine=0.93, sm=0.14, tensor=0.03, dram=0.06)
LARGE = gpu(engine=0.09, sm=0.05, tensor=0.01, dram=0.02, memory_used_mib=4_000, memory_peak_mib=4_200)
BANDWIDTH = gpu(engine=0.92, sm=0.38, tensor=0.05, dram=0.75)
STALLED = replace(BANDWIDTH, sm=0.9)
FP32 = gpu(tensor=0.0, dram=0.4)

CASES = [
    # A rule, a job for which it fires, and jobs just beside its thresholds for which it does not.
    (
        "NotMeasured",
        job(WAITING, coverage=0.79),
        [job(coverage=0.8), job(WAITING, coverage=0.79, seconds=1700)],
    ),
    (
        "GpuNeverOpened",
        job(UNOPENED, UNOPENED),
        [
            job(UNOPENED, replace(UNOPENED, memory_peak_mib=601.0)),
            job(UNOPENED, replace(UNOPENED, engine=0.011)),
            job(UNOPENED, seconds=1700),
        ],
    ),
    (
        "SomeGpusUnused",
        job(GOOD, IDLE, UNOPENED, IDLE),
        [
            job(GOOD, gpu(engine=0.011)),
            job(GOOD, IDLE, seconds=7100),
            job(*[GOOD] * 7, replace(IDLE, measured_seconds=5700), coverage=0.97),
            job(GOOD, IDLE, is_service=True),
            job(IDLE, IDLE),
        ],
    ),
    (
        "Abandoned",
        job(IDLE, cpu=0.01),
        [
            job(IDLE, cpu=0.051),
            job(IDLE, cpu=0.01, recent=(0.0,) * 23 + (0.02,)),
            job(IDLE, cpu=0.01, recent=(0.0,) * 19),
            job(IDLE, cpu=0.01, is_service=True),
            job(UNOPENED, cpu=0.01),
        ],
    ),
    (
        "CpuBound",
        job(WAITING, WAITING, cpu=0.97),
        [
            job(WAITING, WAITING, cpu=0.69),
            job(gpu(engine=0.51), cpu=0.97),
            job(WAITING, cpu=0.97, recent=(0.0,) * 18 + (0.7,) * 6),  # it has begun to compute
        ],
    ),
    (
        "IoBound",
        job(WAITING, cpu=0.1, io=0.6),
        [
            job(WAITING, cpu=0.51, io=0.6),
            job(WAITING, cpu=0.1, io=0.29),  # less than 40 % of its waiting time
            job(gpu(engine=0.51), cpu=0.1, io=0.6),
            job(WAITING, cpu=0.1, io=0.6, is_service=True),
        ],
    ),
    (
        "CopyBound",
        job(COPYING),
        [
            job(replace(COPYING, pcie_bytes_per_second=1.0e9)),
            job(replace(COPYING, sm=0.31)),
            job(replace(COPYING, engine=0.71, sm=0.29)),
        ],
    ),
    (
        "CommunicationBound",
        job(*[COLLECTIVE] * 8),
        [
            job(COLLECTIVE),  # alone it waits for nobody
            job(*[replace(COLLECTIVE, engine=0.79)] * 8),
            job(*[replace(COLLECTIVE, tensor=0.11)] * 8),
            job(*[replace(COLLECTIVE, dram=0.21)] * 8),
            job(*[replace(COLLECTIVE, nvlink_bytes_per_second=9.9e9, pcie_bytes_per_second=2.9e8)] * 8),
            job(*[replace(COLLECTIVE, sm=0.8, tensor=0.0)] * 8),  # it computes, in FP32
        ],
    ),
    ("CommunicationBound", job(*[HUNG] * 8), [job(HUNG), job(*[replace(HUNG, dram=0.011)] * 8)]),
    (
        "KernelsTooSmall",
        job(SMALL),
        [job(replace(SMALL, sm=0.29)), job(replace(SMALL, engine=0.39, sm=0.05))],
    ),
    (
        "GpuTooLarge",
        job(LARGE, cpu=0.12),
        [
            job(replace(LARGE, engine=0.16), cpu=0.12),
            job(replace(LARGE, memory_peak_mib=10_300), cpu=0.12),
            job(replace(LARGE, memory_total_mib=16_384), cpu=0.12),  # 4.2 of 16 GB is no small part
            job(LARGE, cpu=0.2),
            job(LARGE, LARGE, cpu=0.06),
            job(LARGE, cpu=0.12, is_slice=True),
            job(LARGE, cpu=0.12, seconds=3500),
        ],
    ),
    (
        "MemoryBound",
        job(BANDWIDTH),
        [job(replace(BANDWIDTH, dram=0.49)), job(replace(STALLED, sm=0.51, tensor=0.11))],
    ),
    ("MemoryBound", job(STALLED), [job(replace(STALLED, dram=0.49))]),
    (
        "NoTensorCores",
        job(FP32),
        [job(replace(FP32, tensor=0.011)), job(replace(FP32, sm=0.49)), job(FP32, is_service=True)],
    ),
    (
        "LowUtilisation",
        job(gpu(engine=0.2)),
        [
            job(gpu(engine=0.26)),
            job(gpu(engine=0.2), seconds=3500),
            job(gpu(engine=0.2), recent=(0.0,) * 18 + (0.5,) * 6),
            job(gpu(engine=0.2), is_service=True),
        ],
    ),
]


@pytest.mark.parametrize(("code", "figures"), [(code, figures) for code, figures, _ in CASES])
def test_a_rule_fires_on_its_figures(code: str, figures: JobFigures) -> None:
    diagnosis = diagnose(figures)

    assert diagnosis is not None
    assert diagnosis.code == code
    assert diagnosis.means == DIAGNOSES[code].means
    assert all(re.search(r"\d", part) and "?" not in part for part in diagnosis.evidence)
    assert diagnosis.evidence


JUST = [
    # Jobs just on the other side of a threshold than those beside it above.
    ("NotMeasured", job(coverage=0.79)),
    ("GpuNeverOpened", job(replace(UNOPENED, memory_peak_mib=599.0, engine=0.009), seconds=1810)),
    ("SomeGpusUnused", job(gpu(engine=0.011), gpu(engine=0.009))),
    ("Abandoned", job(replace(IDLE, memory_used_mib=610.0), cpu=0.049, recent=(0.009,) * 20)),
    ("CpuBound", job(gpu(engine=0.49), cpu=0.71)),
    ("CpuBound", job(WAITING, cpu=0.71, recent=(0.9,) * 18 + (0.49,) * 6)),
    ("IoBound", job(WAITING, cpu=0.49, io=0.31)),
    ("CopyBound", job(replace(COPYING, engine=0.69, sm=0.29, pcie_bytes_per_second=0.65e9))),
    (
        "CommunicationBound",
        job(*[replace(COLLECTIVE, engine=0.81, tensor=0.09, dram=0.19, nvlink_bytes_per_second=1.01e10)] * 2),
    ),
    (
        "CommunicationBound",
        job(*[replace(COLLECTIVE, nvlink_bytes_per_second=0.0, pcie_bytes_per_second=3.1e8)] * 2),
    ),
    ("CommunicationBound", job(*[replace(HUNG, engine=0.81, dram=0.009, tensor=0.009)] * 2)),
    ("KernelsTooSmall", job(replace(SMALL, engine=0.41, sm=0.12))),
    ("GpuTooLarge", job(replace(LARGE, engine=0.149, memory_peak_mib=10_200), cpu=0.185, seconds=3610)),
    (
        "GpuTooLarge",
        job(replace(LARGE, memory_peak_mib=4_000, memory_total_mib=16_384), cpu=0.12),
    ),
    ("MemoryBound", job(replace(BANDWIDTH, dram=0.51, sm=0.49, tensor=0.3))),
    ("MemoryBound", job(replace(STALLED, dram=0.51, tensor=0.099))),
    ("NoTensorCores", job(replace(FP32, sm=0.51, tensor=0.0099))),
    ("LowUtilisation", job(gpu(engine=0.249), seconds=3610)),
]


@pytest.mark.parametrize(("code", "figures"), JUST)
def test_a_rule_fires_just_beyond_its_thresholds(code: str, figures: JobFigures) -> None:
    assert code in {diagnosis.code for diagnosis in diagnoses(figures)}


@pytest.mark.parametrize(
    ("code", "figures"), [(code, figures) for code, _, beside in CASES for figures in beside]
)
def test_a_rule_does_not_fire_beside_its_thresholds(code: str, figures: JobFigures) -> None:
    assert code not in {diagnosis.code for diagnosis in diagnoses(figures)}


def test_every_rule_has_a_case() -> None:
    assert {code for code, *_ in CASES} == set(DIAGNOSES)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_healthy_job_gets_no_diagnosis(gpus: int) -> None:
    assert diagnose(job(*[GOOD] * gpus)) is None


@pytest.mark.parametrize("figures", [figures for _, figures, _ in CASES])
def test_a_young_job_gets_no_diagnosis(figures: JobFigures) -> None:
    assert diagnose(replace(figures, span_seconds=1790)) is None


# What the lab's exporter serves for each shape.
LAB = {
    "CpuBound": job(gpu(engine=0.25, sm=0.21, tensor=0.1, dram=0.12), cpu=0.98),
    "IoBound": job(gpu(engine=0.2, sm=0.17, tensor=0.08, dram=0.1), cpu=0.12, io=0.45),
    "CopyBound": job(gpu(engine=0.55, sm=0.18, tensor=0.06, dram=0.15, pcie_bytes_per_second=1.2e10)),
    "KernelsTooSmall": job(gpu(engine=0.93, sm=0.14, tensor=0.03, dram=0.06), cpu=0.13),
    "CommunicationBound": job(
        *[gpu(engine=0.97, sm=0.78, tensor=0.06, dram=0.09, nvlink_bytes_per_second=4e10)] * 4, cpu=0.13
    ),
    "MemoryBound": job(gpu(engine=0.92, sm=0.38, tensor=0.05, dram=0.75), cpu=0.13),
    "NoTensorCores": job(*[gpu(engine=0.95, sm=0.78, tensor=0.0, dram=0.4)] * 4, cpu=0.13),
    "GpuTooLarge": job(LARGE, cpu=0.5, cpus=1),
}


@pytest.mark.parametrize("code", LAB)
@pytest.mark.parametrize("noise", [0.9, 1.0, 1.1])
def test_the_shapes_of_the_lab_get_their_diagnosis(code: str, noise: float) -> None:
    figures = LAB[code]
    noisy = tuple(
        replace(
            held,
            figures=replace(
                held.figures,
                engine=min(1.0, (held.figures.engine or 0) * noise),
                sm=(held.figures.sm or 0) * noise,
            ),
        )
        for held in figures.gpus
    )
    diagnosis = diagnose(replace(figures, gpus=noisy, recent=()))
    assert diagnosis is not None
    assert diagnosis.code == code


@pytest.mark.parametrize(
    ("figures", "remedy"),
    [
        (job(GOOD, IDLE, IDLE, IDLE), "torchrun --nproc-per-node=4; or request what it uses:  --gpus 1"),
        (job(GOOD, GOOD, IDLE, IDLE, nodes=2), "request what it uses:  --gpus 2"),
        (job(GOOD, IDLE, GOOD, IDLE, nodes=2), "request what it uses:  --nodes 2 --gpus 1"),
        (job(WAITING, cpu=0.97, cpus=4), "--cpus 16  and  DataLoader(num_workers=16"),
        (job(WAITING, WAITING, cpu=0.97, cpus=8), "--cpus 32  and  DataLoader(num_workers=16"),
        (job(WAITING, cpu=0.97, cpus=None), "--cpus N  and  DataLoader(num_workers=N"),
        (job(WAITING, cpu=0.1, io=0.6), "DataLoader(num_workers=8, prefetch_factor=4)"),
        (job(COPYING), "DataLoader(pin_memory=True)"),
        (job(*[COLLECTIVE] * 8, nodes=2), "fewer GPUs:  --gpus 4"),
        (job(*[COLLECTIVE] * 8), "fewer GPUs:  --gpus 4"),
        (job(LARGE, cpu=0.12), "request less:  --gpus 1g.10gb"),
        (job(replace(SMALL, memory_peak_mib=15_000)), "or hold less:  --gpus 1g.20gb"),
        (job(IDLE, cpu=0.01), "fairway cancel 8f3k"),
    ],
)
def test_a_remedy_has_the_flags_of_this_job(figures: JobFigures, remedy: str) -> None:
    diagnosis = diagnose(figures, gpu=CATALOGUE["A100-80GB"])
    assert diagnosis is not None
    assert remedy in diagnosis.remedy_for("8f3k")


def test_a_gpu_without_slices_is_replaced_by_a_smaller_one() -> None:
    figures = job(LARGE, cpu=0.12)
    small = {name: diagnose(figures, gpu=CATALOGUE[name]) for name in ("L40S", "MI300X")}
    assert {name: d.remedy for name, d in small.items() if d} == {
        "L40S": "request less:  --gpus 5GB..24GB",
        "MI300X": "request less:  --gpus 5GB..96GB",
    }
    unknown = diagnose(figures)
    assert unknown is not None
    assert unknown.remedy == "request less:  --gpus 5GB.."


def test_no_word_in_capitals_is_left_in_a_remedy() -> None:
    for _, figures, _ in CASES:
        diagnosis = diagnose(figures)
        assert diagnosis is not None
        assert not re.search(r"\b(GPUS|CPUS|WORKERS|CORES|USED|FEWER|SMALLER)\b", diagnosis.remedy)


def test_evidence_has_the_figures_and_the_thresholds() -> None:
    diagnosis = diagnose(job(WAITING, cpu=0.97))
    assert diagnosis is not None
    assert diagnosis.evidence == (
        "GPU engine busy 25 % of the time (threshold 50 %)",
        "CPU cores busy 97 % (threshold 70 %)",
    )
    diagnosis = diagnose(job(GOOD, IDLE, IDLE))
    assert diagnosis is not None
    assert diagnosis.evidence[0] == "2 of 3 GPUs busy at most 0 % for 2 h: n1:1, n1:2 (threshold 1 %)"


@pytest.mark.parametrize(
    ("figures", "confidence"),
    [
        (job(WAITING, cpu=0.97), Confidence.HIGH),
        (job(WAITING, cpu=0.97, coverage=0.92), Confidence.MEDIUM),
        (job(WAITING, cpu=0.97, coverage=0.85), Confidence.LOW),
        (job(gpu(engine=0.42), cpu=0.97), Confidence.MEDIUM),
        (job(gpu(engine=0.49), cpu=0.97), Confidence.LOW),
        (job(FP32), Confidence.MEDIUM),  # figures do not tell a simulation from a training
    ],
)
def test_confidence_falls_with_margin_and_coverage(figures: JobFigures, confidence: Confidence) -> None:
    diagnosis = diagnose(figures)
    assert diagnosis is not None
    assert diagnosis.confidence is confidence


RATIO = st.one_of(st.none(), st.floats(0, 1))
RATE = st.one_of(st.none(), st.floats(0, 1e11))
GPUS = st.builds(
    GpuFigures,
    measured_seconds=st.floats(0, 7200),
    engine=RATIO,
    sm=RATIO,
    tensor=RATIO,
    dram=RATIO,
    memory_used_mib=st.one_of(st.none(), st.floats(0, 81_920)),
    memory_peak_mib=st.one_of(st.none(), st.floats(0, 81_920)),
    memory_total_mib=st.one_of(st.none(), st.just(81_920.0)),
    power_watts=st.none(),
    pcie_bytes_per_second=RATE,
    nvlink_bytes_per_second=RATE,
)


@st.composite
def jobs(draw: st.DrawFn) -> JobFigures:
    gpus = draw(st.lists(GPUS, min_size=1, max_size=4))
    span = draw(st.floats(0, 4 * HOUR))
    return JobFigures(
        span_seconds=span,
        held_gpu_seconds=span * len(gpus),
        measured_gpu_seconds=span * len(gpus) * draw(st.floats(0, 1)),
        gpus=tuple(HeldGpu(NodeName("n1"), i, one) for i, one in enumerate(gpus)),
        gpus_per_node=len(gpus),
        host=HostFigures(draw(RATIO), draw(RATIO), draw(st.one_of(st.none(), st.integers(1, 128)))),
        is_service=draw(st.booleans()),
        is_slice=draw(st.booleans()),
        recent=tuple(draw(st.lists(RATIO, max_size=36))),
    )


def codes(figures: JobFigures, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> set[str]:
    return {diagnosis.code for diagnosis in diagnoses(figures, thresholds)}


NEEDS = {
    # The figures that each rule is about: without any one of them it is silent.
    "GpuNeverOpened": ({"engine"}, {"memory_used_mib", "memory_peak_mib"}),
    "SomeGpusUnused": ({"engine"},),
    "Abandoned": ({"recent"}, {"memory_used_mib"}, {"cpu_ratio"}),
    "CpuBound": ({"engine"}, {"cpu_ratio"}),
    "IoBound": ({"engine"}, {"cpu_ratio"}, {"io_pressure"}),
    "CopyBound": ({"engine"}, {"sm"}, {"pcie_bytes_per_second"}),
    "CommunicationBound": ({"engine"}, {"tensor"}, {"dram"}),
    "KernelsTooSmall": ({"engine"}, {"sm"}),
    "GpuTooLarge": ({"engine"}, {"memory_used_mib", "memory_peak_mib"}, {"cpu_ratio"}, {"cpus"}),
    "MemoryBound": ({"dram"}, {"sm", "tensor"}),
    "NoTensorCores": ({"sm"}, {"tensor"}),
    "LowUtilisation": ({"engine"},),
}


def without(figures: JobFigures, missing: set[str]) -> JobFigures:
    """Return the figures as if the exporters did not export some of them."""
    of_gpu: dict[str, Any] = {f.name: None for f in fields(GpuFigures) if f.name in missing}
    of_host: dict[str, Any] = {f.name: None for f in fields(HostFigures) if f.name in missing}
    return replace(
        figures,
        gpus=tuple(replace(held, figures=replace(held.figures, **of_gpu)) for held in figures.gpus),
        host=replace(figures.host, **of_host),
        recent=(None,) * len(figures.recent) if "recent" in missing else figures.recent,
    )


@pytest.mark.parametrize(("code", "missing"), [(code, one) for code, all_ in NEEDS.items() for one in all_])
@given(figures=jobs())
def test_a_rule_is_silent_without_its_figures(code: str, missing: set[str], figures: JobFigures) -> None:
    assert code not in codes(without(figures, missing))


@pytest.mark.parametrize(("code", "missing"), [(code, one) for code, all_ in NEEDS.items() for one in all_])
def test_a_firing_rule_falls_silent_without_its_figures(code: str, missing: set[str]) -> None:
    for firing, figures, _ in CASES:
        assert firing != code or code not in codes(without(figures, missing))


@given(figures=jobs())
def test_nothing_is_said_of_a_job_without_figures(figures: JobFigures) -> None:
    every = {field.name for kind in (GpuFigures, HostFigures) for field in fields(kind)} - {
        "measured_seconds"
    }
    assert codes(without(figures, every | {"recent"})) <= {"NotMeasured"}


@given(figures=jobs())
def test_services_are_never_abandoned_or_underused(figures: JobFigures) -> None:
    said = codes(replace(figures, is_service=True))
    assert not said & {"Abandoned", "SomeGpusUnused", "LowUtilisation", "GpuTooLarge", "IoBound"}


LOOSER = [
    # A threshold, the direction in which its rule fires more often, and the rule.
    ("opened_memory_mib", +1, "GpuNeverOpened"),
    ("abandoned_cpu", +1, "Abandoned"),
    ("idle_engine", +1, "Abandoned"),
    ("waiting_engine", +1, "CpuBound"),
    ("cpu_busy", -1, "CpuBound"),
    ("waiting_engine", +1, "IoBound"),
    ("cpu_free", +1, "IoBound"),
    ("io_explains", -1, "IoBound"),
    ("copy_bytes_per_second", -1, "CopyBound"),
    ("copy_sm", +1, "CopyBound"),
    ("copy_engine", +1, "CopyBound"),
    ("communication_engine", -1, "CommunicationBound"),
    ("communication_tensor", +1, "CommunicationBound"),
    ("communication_dram", +1, "CommunicationBound"),
    ("nvlink_bytes_per_second", -1, "CommunicationBound"),
    ("network_bytes_per_second", -1, "CommunicationBound"),
    ("spinning_dram", +1, "CommunicationBound"),
    ("small_kernel_engine", -1, "KernelsTooSmall"),
    ("small_kernel_sm", +1, "KernelsTooSmall"),
    ("large_gpu_engine", +1, "GpuTooLarge"),
    ("large_gpu_memory_mib", +1, "GpuTooLarge"),
    ("large_gpu_memory_ratio", +1, "GpuTooLarge"),
    ("large_gpu_cores", +1, "GpuTooLarge"),
    ("memory_bound_dram", -1, "MemoryBound"),
    ("memory_bound_sm", +1, "MemoryBound"),
    ("memory_bound_tensor", +1, "MemoryBound"),
    ("no_tensor_sm", -1, "NoTensorCores"),
    ("no_tensor", +1, "NoTensorCores"),
    ("low_engine", +1, "LowUtilisation"),
    ("low_seconds", -1, "LowUtilisation"),
]


@pytest.mark.parametrize(("threshold", "direction", "code"), LOOSER)
@given(
    figures=st.one_of(jobs(), st.sampled_from([f for _, f, beside in CASES for f in (f, *beside)])),
    by=st.floats(0, 1),
)
def test_a_looser_threshold_never_silences_its_rule(
    threshold: str, direction: int, code: str, figures: JobFigures, by: float
) -> None:
    value = getattr(DEFAULT_THRESHOLDS, threshold)
    changed: dict[str, float] = {threshold: value * (1 + by if direction > 0 else 1 - by)}
    looser = replace(DEFAULT_THRESHOLDS, **changed)
    if code in codes(figures):
        assert code in codes(figures, looser)


@given(figures=jobs())
def test_confidence_and_evidence_are_always_there(figures: JobFigures) -> None:
    for diagnosis in diagnoses(figures):
        assert diagnosis.confidence in Confidence
        assert diagnosis.evidence
        assert diagnosis.remedy
