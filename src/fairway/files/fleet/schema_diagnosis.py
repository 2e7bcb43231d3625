"""Define the keys of `diagnosis` in a fleet file: thresholds of GPU use, and which jobs are services."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from fairway.files.schema.containers import Key, ListOf, Record, Section
from fairway.files.schema.values import DurationValue, Integer, Percent, Text, percent_text
from fairway.model.diagnosis import DEFAULT_DIAGNOSIS, DEFAULT_THRESHOLDS, DiagnosisSettings, Thresholds
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.text import duration_text

_LONGEST: Final = 7200
"""Figures of a running job are about its last two to three hours."""


@dataclass(frozen=True, slots=True)
class ThresholdKey:
    """A threshold: its field of `Thresholds`, its key, and the factor to the field's unit."""

    field: str
    key: Key[Any]
    scale: float = 1.0

    def written(self, thresholds: Thresholds) -> str | int:
        """Return a threshold as the file has it."""
        value = getattr(thresholds, self.field)
        if isinstance(self.key.shape, Percent):
            return percent_text(Decimal(str(value)))
        number = round(value / self.scale)
        return duration_text(number) if isinstance(self.key.shape, DurationValue) else number


def _time(field: str, text: str) -> ThresholdKey:
    default = duration_text(round(getattr(DEFAULT_THRESHOLDS, field)))
    name = field.removesuffix("_seconds")
    return ThresholdKey(field, Key(name, DurationValue(WINDOW_SECONDS, _LONGEST), text, default=default))


def _ratio(field: str, text: str) -> ThresholdKey:
    default = percent_text(Decimal(str(getattr(DEFAULT_THRESHOLDS, field))))
    return ThresholdKey(field, Key(field, Percent(0, 100), text, default=default))


def _number(field: str, name: str, text: str, scale: float = 1.0) -> ThresholdKey:
    default = round(getattr(DEFAULT_THRESHOLDS, field) / scale)
    return ThresholdKey(field, Key(name, Integer(0, 1_000_000), text, default=default), scale)


def _rate(field: str, text: str) -> ThresholdKey:
    name = field.replace("_bytes_per_second", "_mb_per_second")
    return _number(field, name, text, scale=1e6)


THRESHOLDS: Final = (
    _time("min_span_seconds", "No diagnosis of a job that is younger."),
    _ratio("min_coverage", "The least part of the held GPU time that must have been measured."),
    _time("lately_seconds", "A low engine ratio counts only if it is also low in this last time."),
    _number("opened_memory_mib", "opened_memory_mib", "A GPU with less memory in use was never opened."),
    _ratio("idle_engine", "A GPU whose engine is busy less does nothing."),
    _time("idle_seconds", "How long GPUs must do nothing to be unused or abandoned."),
    _ratio("abandoned_cpu", "Abandoned: CPU cores are busy less."),
    _ratio("waiting_engine", "A GPU whose engine is busy less waits for something."),
    _ratio("cpu_busy", "CpuBound: CPU cores are busy at least so much."),
    _ratio("cpu_free", "IoBound: CPU cores are busy less."),
    _ratio("io_explains", "IoBound: the least part of the GPUs' waiting in which tasks wait for storage."),
    _rate("copy_bytes_per_second", "CopyBound: the least PCIe traffic while the engine waits."),
    _ratio("copy_sm", "CopyBound: multiprocessors are busy less."),
    _ratio("copy_engine", "CopyBound: the engine is busy less."),
    _ratio("communication_engine", "CommunicationBound: the engine is busy at least so much."),
    _ratio("communication_tensor", "CommunicationBound: tensor cores are active less."),
    _ratio("communication_dram", "CommunicationBound: the memory interface is busy less."),
    _rate("nvlink_bytes_per_second", "CommunicationBound: the least NVLink traffic of a GPU."),
    _rate("network_bytes_per_second", "CommunicationBound: or the least PCIe traffic of a GPU."),
    _ratio("spinning_dram", "CommunicationBound: a collective hangs if the memory interface is busy less."),
    _ratio("small_kernel_engine", "KernelsTooSmall: the engine is busy at least so much."),
    _ratio("small_kernel_sm", "KernelsTooSmall: while kernels run, fewer multiprocessors have work."),
    _ratio("large_gpu_engine", "GpuTooLarge: the engine is busy less."),
    _number("large_gpu_memory_mib", "large_gpu_memory_mib", "GpuTooLarge: less GPU memory is used."),
    _ratio("large_gpu_memory_ratio", "GpuTooLarge: less of the GPU's memory is used."),
    _number("large_gpu_cores", "large_gpu_millicores", "GpuTooLarge: fewer CPU cores are busy.", 0.001),
    _ratio("memory_bound_dram", "MemoryBound: the memory interface is busy at least so much."),
    _ratio("memory_bound_sm", "MemoryBound: multiprocessors are busy less."),
    _ratio("memory_bound_tensor", "MemoryBound: or tensor cores are active less."),
    _ratio("no_tensor_sm", "NoTensorCores: multiprocessors are busy at least so much."),
    _ratio("no_tensor", "NoTensorCores: tensor cores are active less."),
    _ratio("low_engine", "LowUtilisation: the engine is busy less."),
    _time("low_seconds", "LowUtilisation and GpuTooLarge: the least age of a job."),
)
SERVICES: Final = Key(
    "services",
    ListOf(
        Text("a job's name, with * for any letters", r"[^\s\x00-\x1f]+", 253, examples=("serve-*",)), "names"
    ),
    "Names of jobs that serve requests and may be idle. GPU pods without a Job always count as services.",
    example="[serve-*]",
)
DIAGNOSIS: Final = Key(
    "diagnosis",
    Record("Diagnosis of GPU utilization", (SERVICES, *(threshold.key for threshold in THRESHOLDS))),
    "Thresholds for the diagnosis of GPU utilization; requires `telemetry` of the cluster.",
    example="{ services: [serve-*], idle_engine: 2% }",
)


def diagnosis_of(file: Section) -> DiagnosisSettings:
    """Return how the fleet diagnoses jobs, or the defaults."""
    section = file.get(DIAGNOSIS)
    if section is None:
        return DEFAULT_DIAGNOSIS
    given = {t.field: float(value) * t.scale for t in THRESHOLDS if (value := section.get(t.key)) is not None}
    names = tuple(found.value for found in section.get(SERVICES) or ())
    return DiagnosisSettings(Thresholds(**given), names)


def written_thresholds(settings: DiagnosisSettings) -> dict[str, str | int]:
    """Return the thresholds that differ from the defaults, by their keys in the file."""
    return {
        t.key.name: t.written(settings.thresholds)
        for t in THRESHOLDS
        if getattr(settings.thresholds, t.field) != getattr(DEFAULT_THRESHOLDS, t.field)
    }
