"""Diagnose how a running job uses its GPUs: a table of rules, the first that holds is the diagnosis. Pure.

A rule compares figures with thresholds, and the comparisons that hold are its evidence. A figure that is not
exported holds no comparison, so a rule never fires on what was not measured: no diagnosis rather than a
guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Literal

from fairway.advise.request import request_text, smallest_request
from fairway.model.diagnosis import DEFAULT_THRESHOLDS, Thresholds
from fairway.model.gpu import GpuType
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.telemetry import GpuFigures, JobFigures
from fairway.model.text import first_few, span

_GB: Final = 1e9


class Confidence(IntEnum):
    """How sure a diagnosis is: from the distance to its thresholds, and from how much was measured."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def word(self) -> Literal["low", "medium", "high"]:
        return _CONFIDENCES[self]


_CONFIDENCES: Final[Mapping[Confidence, Literal["low", "medium", "high"]]] = MappingProxyType(
    {Confidence.LOW: "low", Confidence.MEDIUM: "medium", Confidence.HIGH: "high"}
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a job's use of its GPUs, with the figures that show it and what to change."""

    code: str
    means: str
    evidence: tuple[str, ...]
    """The comparisons that hold, as text: `GPU engine busy 22 % of the time (threshold 50 %)`."""
    confidence: Confidence
    remedy: str
    """What to change, with flags and numbers of this job; `JOB` is the job's id."""

    def remedy_for(self, job: str, *, over: bool = False) -> str:
        """Return the remedy with the job's id filled in; of a job that is over, what helps the next one."""
        parts = self.remedy.split("; ")
        kept = [part for part in parts if "fairway cancel" not in part] if over else parts
        return "; ".join(kept or parts).replace("JOB", job)


@dataclass(frozen=True, slots=True)
class _Condition:
    """A comparison of a figure with its threshold."""

    evidence: str
    holds: bool
    margin: float
    """The distance to the threshold: 0 at it, 1 as far away as can be."""


_UNKNOWN: Final = _Condition("", holds=False, margin=0.0)
"""The comparison of a figure that is not known."""


@dataclass(frozen=True, slots=True)
class _Case:
    """The figures of a job, their mean, and what to compare them with."""

    figures: JobFigures
    limits: Thresholds
    gpu: GpuType | None
    mean: GpuFigures

    @property
    def busy_cores(self) -> float | None:
        host = self.figures.host
        if host.cpu_ratio is None or host.cpus is None:
            return None
        return host.cpu_ratio * host.cpus * self.figures.nodes

    @property
    def engine_lately(self) -> float | None:
        """The engine ratio over the last windows; over the span where none of them was measured."""
        windows = [w for w in self.figures.last_windows(self.limits.lately_seconds) if w is not None]
        return sum(windows) / len(windows) if windows and self.mean.engine is not None else self.mean.engine

    def engine_below(self, limit: float) -> _Condition:
        """Compare the engine ratio over the span, and also over the last windows, with `limit`."""
        if self.mean.engine is None or self.engine_lately is None:
            return _UNKNOWN
        highest = max(self.mean.engine, self.engine_lately)
        return _below(_engine_text(self.mean.engine), highest, limit, _percent(limit))

    def engine_at_least(self, limit: float) -> _Condition:
        return _at_least(_engine_text(self.mean.engine), self.mean.engine, limit, _percent(limit))

    def sm_below(self, limit: float) -> _Condition:
        return _below(_sm_text(self.mean.sm), self.mean.sm, limit, _percent(limit))

    def tensor_below(self, limit: float) -> _Condition:
        what = f"tensor cores active {_percent(self.mean.tensor)}"
        return _below(what, self.mean.tensor, limit, _percent(limit))

    def dram_at_least(self, limit: float) -> _Condition:
        return _at_least(_dram_text(self.mean.dram), self.mean.dram, limit, _percent(limit))

    def pcie_at_least(self, limit: float) -> _Condition:
        rate = self.mean.pcie_bytes_per_second
        return _at_least(f"PCIe traffic {_rate(rate)} per GPU", rate, limit, _rate(limit), most=4 * limit)

    def span_at_least(self, seconds: float) -> _Condition:
        return _Condition("", self.figures.span_seconds >= seconds, margin=1.0)


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """A row of the decision table. In the remedy, words in capitals are filled in for each job."""

    code: str
    means: str
    remedy: str
    conditions: Callable[[_Case], Iterator[_Condition]]
    for_services: bool = True
    """Whether it also applies to services, which may be idle because nobody asks them anything."""
    most: Confidence = Confidence.HIGH
    """The most confidence it can have, whatever the figures: they do not tell a cause, or not the purpose."""


def diagnose(
    figures: JobFigures, thresholds: Thresholds = DEFAULT_THRESHOLDS, gpu: GpuType | None = None
) -> Diagnosis | None:
    """Return what limits a job's use of its GPUs. Returns None for a healthy job and for one too young.

    A job that was measured too little gets `NotMeasured`, which says nothing of the job. `gpu`: the type of
    its GPUs, for the name of a slice in the remedy.
    """
    return next(diagnoses(figures, thresholds, gpu), None)


def diagnoses(
    figures: JobFigures, thresholds: Thresholds = DEFAULT_THRESHOLDS, gpu: GpuType | None = None
) -> Iterator[Diagnosis]:
    """Yield the diagnosis of every rule that holds, in the order of the table."""
    if figures.span_seconds < thresholds.min_span_seconds or figures.held_gpu_seconds <= 0:
        return
    # GPUs that are not used at all say nothing about those that are.
    used = tuple(g for g in figures.gpus if (g.figures.engine or 0.0) >= thresholds.idle_engine)
    case = _Case(figures, thresholds, gpu, replace(figures, gpus=used or figures.gpus).mean())
    if figures.coverage < thresholds.min_coverage:
        yield _diagnosis(_NOT_MEASURED, tuple(_NOT_MEASURED.conditions(case)), case)
        return
    for rule in _RULES:
        if figures.is_service and not rule.for_services:
            continue
        conditions = tuple(rule.conditions(case))
        if conditions and all(condition.holds for condition in conditions):
            yield _diagnosis(rule, conditions, case)


def _diagnosis(rule: DiagnosisRule, conditions: tuple[_Condition, ...], case: _Case) -> Diagnosis:
    evidence = tuple(condition.evidence for condition in conditions if condition.evidence)
    margin = min(condition.margin for condition in conditions)
    coverage = 1.0 if rule is _NOT_MEASURED else case.figures.coverage
    confidence = min(rule.most, _confidence(margin, coverage))
    return Diagnosis(rule.code, rule.means, evidence, confidence, _filled_in(rule.remedy, case))


def _confidence(margin: float, coverage: float) -> Confidence:
    if margin >= 0.25 and coverage >= 0.95:
        return Confidence.HIGH
    return Confidence.MEDIUM if margin >= 0.1 and coverage >= 0.9 else Confidence.LOW


def _below(what: str, value: float | None, limit: float, limit_text: str) -> _Condition:
    if value is None:
        return _UNKNOWN
    margin = (limit - value) / limit if limit > 0 else 0.0
    return _Condition(f"{what} (threshold {limit_text})", value < limit, margin)


def _at_least(what: str, value: float | None, limit: float, limit_text: str, most: float = 1.0) -> _Condition:
    if value is None:
        return _UNKNOWN
    margin = (min(value, most) - limit) / (most - limit) if most > limit else 1.0
    return _Condition(f"{what} (threshold {limit_text})", value >= limit, margin)


def _percent(ratio: float | None) -> str:
    if ratio is None:
        return "?"
    return f"{ratio * 100:.1f} %" if 0 < ratio < 0.01 else f"{ratio * 100:.0f} %"


def _rate(bytes_per_second: float | None) -> str:
    return "?" if bytes_per_second is None else f"{bytes_per_second / _GB:.1f} GB/s"


def _memory(mib: float | None) -> str:
    if mib is None:
        return "?"
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _engine_text(engine: float | None) -> str:
    return f"GPU engine busy {_percent(engine)} of the time"


def _sm_text(sm: float | None) -> str:
    return f"multiprocessors (SM) busy {_percent(sm)}"


def _dram_text(dram: float | None) -> str:
    return f"GPU memory interface busy {_percent(dram)}"


def _max_of_all(values: list[float | None]) -> float | None:
    """Return the maximum if every value is known."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _memory_peak(figures: GpuFigures) -> float | None:
    return figures.memory_used_mib if figures.memory_peak_mib is None else figures.memory_peak_mib


def _never_opened(case: _Case) -> Iterator[_Condition]:
    limits, gpus = case.limits, [gpu.figures for gpu in case.figures.gpus]
    peak = _max_of_all([_memory_peak(figures) for figures in gpus])
    limit = limits.opened_memory_mib
    yield _below(f"GPU memory at most {_memory(peak)} on every GPU", peak, limit, _memory(limit))
    engine = _max_of_all([figures.engine for figures in gpus])
    yield _below(_engine_text(engine), engine, limits.idle_engine, _percent(limits.idle_engine))


def _some_unused(case: _Case) -> Iterator[_Condition]:
    limits, gpus, seconds = case.limits, case.figures.gpus, case.figures.span_seconds
    limit, measured = limits.idle_engine, limits.min_coverage * seconds
    known = [
        (gpu, gpu.figures.engine)
        for gpu in gpus
        if gpu.figures.engine is not None and gpu.figures.measured_seconds >= measured
    ]
    unused = [(gpu, engine) for gpu, engine in known if engine < limit]
    highest = max((engine for _, engine in unused), default=None)
    where = first_few([f"{gpu.node}:{gpu.index}" for gpu, _ in unused], most=8)
    what = f"{len(unused)} of {len(gpus)} GPUs busy at most {_percent(highest)} for {span(seconds)}: {where}"
    yield case.span_at_least(limits.idle_seconds)
    yield _below(what, highest, limit, _percent(limit))
    # A GPU that is barely above the threshold itself does not prove that the job uses some and not others.
    busiest = max((engine for _, engine in known), default=0.0)
    what = f"the busiest GPU busy {_percent(busiest)} of the time"
    yield _at_least(what, busiest, limit, _percent(limit), most=10 * limit)


def _abandoned(case: _Case) -> Iterator[_Condition]:
    limits, host = case.limits, case.figures.host
    windows = case.figures.last_windows(limits.idle_seconds)
    measured = [window for window in windows if window is not None]
    enough = len(measured) >= limits.min_coverage * limits.idle_seconds / WINDOW_SECONDS
    engine = max(measured) if measured and enough else None
    what = f"GPU engine busy at most {_percent(engine)} in any window of the last {span(limits.idle_seconds)}"
    yield _below(what, engine, limits.idle_engine, _percent(limits.idle_engine))
    held = [g.figures.memory_used_mib for g in case.figures.gpus if g.figures.memory_used_mib is not None]
    used, limit = max(held, default=None), limits.opened_memory_mib
    yield _at_least(f"{_memory(used)} of GPU memory held", used, limit, _memory(limit), most=2 * limit)
    what = f"CPU cores busy {_percent(host.cpu_ratio)}"
    yield _below(what, host.cpu_ratio, limits.abandoned_cpu, _percent(limits.abandoned_cpu))


def _cpu_bound(case: _Case) -> Iterator[_Condition]:
    limits, cpu = case.limits, case.figures.host.cpu_ratio
    yield case.engine_below(limits.waiting_engine)
    yield _at_least(f"CPU cores busy {_percent(cpu)}", cpu, limits.cpu_busy, _percent(limits.cpu_busy))


def _io_bound(case: _Case) -> Iterator[_Condition]:
    limits, host = case.limits, case.figures.host
    yield case.engine_below(limits.waiting_engine)
    what = f"CPU cores busy {_percent(host.cpu_ratio)}"
    yield _below(what, host.cpu_ratio, limits.cpu_free, _percent(limits.cpu_free))
    what = f"tasks waited for storage {_percent(host.io_pressure)} of the time"
    limit = limits.io_explains * (1 - (case.mean.engine or 0.0))
    yield _at_least(what, host.io_pressure, limit, _percent(limit))


def _copy_bound(case: _Case) -> Iterator[_Condition]:
    limits = case.limits
    yield case.pcie_at_least(limits.copy_bytes_per_second * (1 - (case.mean.engine or 0.0)))
    yield case.sm_below(limits.copy_sm)
    yield case.engine_below(limits.copy_engine)


def _communication_bound(case: _Case) -> Iterator[_Condition]:
    """Collectives keep the engine busy and compute nothing.

    SM alone is no criterion: a collective's kernel takes 16 to 32 multiprocessors of 108 to 132, so the mean
    lies anywhere between those and the ratio of the computing part.
    """
    limits, mean = case.limits, case.mean
    if len(case.figures.gpus) < 2:
        return
    if all(condition.holds for condition in _no_tensor_cores(case)):  # it computes, in FP32
        return
    spinning = tuple(_spinning(case))
    if all(condition.holds for condition in spinning):
        yield from spinning
        return
    yield case.engine_at_least(limits.communication_engine)
    yield case.tensor_below(limits.communication_tensor)
    limit = limits.communication_dram
    yield _below(_dram_text(mean.dram), mean.dram, limit, _percent(limit))
    rate, limit = mean.nvlink_bytes_per_second, limits.nvlink_bytes_per_second
    nvlink = _at_least(f"NVLink traffic {_rate(rate)} per GPU", rate, limit, _rate(limit), most=4 * limit)
    yield nvlink if nvlink.holds else case.pcie_at_least(limits.network_bytes_per_second)


def _spinning(case: _Case) -> Iterator[_Condition]:
    """A collective that hangs keeps the engine busy, and no data moves at all."""
    limits, engine, dram = case.limits, case.engine_lately, case.mean.dram
    limit = limits.communication_engine
    yield _at_least(f"GPU engine busy {_percent(engine)} of the time lately", engine, limit, _percent(limit))
    yield case.tensor_below(limits.no_tensor)
    yield _below(_dram_text(dram), dram, limits.spinning_dram, _percent(limits.spinning_dram))


def _small_kernels(case: _Case) -> Iterator[_Condition]:
    engine, sm, limit = case.mean.engine, case.mean.sm, case.limits.small_kernel_sm
    yield case.engine_at_least(case.limits.small_kernel_engine)
    filled = sm / engine if sm is not None and engine else None
    what = f"kernels fill {_percent(filled)} of the multiprocessors (SM) while they run"
    yield _below(what, filled, limit, _percent(limit))


def _large_gpu(case: _Case) -> Iterator[_Condition]:
    limits, figures = case.limits, case.figures
    if len(figures.gpus) != 1 or figures.is_slice:
        return
    yield case.span_at_least(limits.low_seconds)
    yield case.engine_below(limits.large_gpu_engine)
    peak, total, limit = _memory_peak(case.mean), case.mean.memory_total_mib, limits.large_gpu_memory_mib
    if total is not None:
        limit = min(limit, limits.large_gpu_memory_ratio * total)
    yield _below(f"at most {_memory(peak)} of GPU memory used", peak, limit, _memory(limit))
    cores = case.busy_cores
    what = "" if cores is None else f"{cores:.1f} CPU cores busy"
    yield _below(what, cores, limits.large_gpu_cores, f"{limits.large_gpu_cores:g}")


def _memory_bound(case: _Case) -> Iterator[_Condition]:
    """A multiprocessor that waits for memory counts as busy, so few busy tensor cores show it as well."""
    limits = case.limits
    yield case.dram_at_least(limits.memory_bound_dram)
    sm = case.sm_below(limits.memory_bound_sm)
    yield sm if sm.holds else case.tensor_below(limits.memory_bound_tensor)


def _no_tensor_cores(case: _Case) -> Iterator[_Condition]:
    limits, sm = case.limits, case.mean.sm
    yield _at_least(_sm_text(sm), sm, limits.no_tensor_sm, _percent(limits.no_tensor_sm))
    yield case.tensor_below(limits.no_tensor)


def _low_utilisation(case: _Case) -> Iterator[_Condition]:
    yield case.span_at_least(case.limits.low_seconds)
    yield case.engine_below(case.limits.low_engine)


def _not_measured(case: _Case) -> Iterator[_Condition]:
    least, coverage = case.limits.min_coverage, case.figures.coverage
    yield _below(f"{_percent(coverage)} of its GPU time was measured", coverage, least, _percent(least))


_NOT_MEASURED: Final = DiagnosisRule(
    "NotMeasured",
    "Too little of the job's GPU time was measured to say anything about it: an exporter was silent.",
    "nothing for its owner; whoever runs the cluster looks for exporters that Prometheus cannot scrape:  "
    "up == 0",
    _not_measured,
)

# First match wins: what is certain comes before what is likely, causes outside the GPU before those in it.
_RULES: Final = (
    DiagnosisRule(
        "GpuNeverOpened",
        "The program has not opened a GPU: it may not be built for one, not find it, or still prepare data.",
        "check that it sees a GPU:  python -c 'import torch; print(torch.cuda.is_available())'; prepare data "
        "before, on nodes without GPUs",
        _never_opened,
    ),
    DiagnosisRule(
        "SomeGpusUnused",
        "The job computes on some of its GPUs and leaves the others idle.",
        "start one process per GPU:  torchrun --nproc-per-node=GPUS; or request what it uses:  USED",
        _some_unused,
        for_services=False,
    ),
    DiagnosisRule(
        "Abandoned",
        "Neither the GPUs nor the CPUs have done anything for hours, and the job still holds GPU memory: "
        "a notebook or shell that was left open, or a program that hangs.",
        "save what you need and end it:  fairway cancel JOB",
        _abandoned,
        for_services=False,
    ),
    DiagnosisRule(
        "CpuBound",
        "The GPUs wait for data that the CPU prepares.",
        "more cores and as many loader workers:  --cpus CPUS  and  DataLoader(num_workers=WORKERS, "
        "persistent_workers=True); or decode and augment on the GPU",
        _cpu_bound,
    ),
    DiagnosisRule(
        "IoBound",
        "The GPUs wait for data from storage.",
        "copy the data to a local disk first, pack small files into shards (WebDataset, Parquet), and read "
        "ahead:  DataLoader(num_workers=CORES, prefetch_factor=4)",
        _io_bound,
        for_services=False,
    ),
    DiagnosisRule(
        "CopyBound",
        "Copies between host memory and the GPUs take most of the time.",
        "DataLoader(pin_memory=True)  and  tensor.to('cuda', non_blocking=True); keep on the GPU what every "
        "step uses",
        _copy_bound,
    ),
    DiagnosisRule(
        "CommunicationBound",
        "The GPUs look busy, but mostly wait for each other in collectives such as all-reduce.",
        "a larger batch per GPU, gradient accumulation with  model.no_sync(), or fewer GPUs:  FEWER; if  "
        "fairway logs JOB  stands still, it hangs:  fairway cancel JOB",
        _communication_bound,
    ),
    DiagnosisRule(
        "KernelsTooSmall",
        "Kernels run all the time, but each uses a small part of the GPU.",
        "a larger batch, or  torch.compile(model, mode='reduce-overhead'); or hold less:  SMALLER",
        _small_kernels,
    ),
    DiagnosisRule(
        "GpuTooLarge",
        "The job needs a small part of the GPU's memory and time. A slice or a smaller GPU would do, and "
        "start sooner.",
        "request less:  SMALLER",
        _large_gpu,
        for_services=False,
    ),
    DiagnosisRule(
        "MemoryBound",
        "The bandwidth of the GPU's memory limits the job. Nothing is wasted, but it may run faster.",
        "move fewer bytes: fused attention (torch.nn.functional.scaled_dot_product_attention), "
        "torch.compile(model), a lower precision",
        _memory_bound,
    ),
    DiagnosisRule(
        "NoTensorCores",
        "The GPUs are busy, but without their tensor cores: the job computes in FP32 or FP64.",
        "if it trains a model:  torch.autocast('cuda', dtype=torch.bfloat16)  or  "
        "torch.set_float32_matmul_precision('high')",
        _no_tensor_cores,
        for_services=False,
        most=Confidence.MEDIUM,
    ),
    DiagnosisRule(
        "LowUtilisation",
        "The GPUs are idle most of the time, and the figures do not show why.",
        "profile one step:  nsys profile python train.py; try more loader workers:  "
        "DataLoader(num_workers=CORES); if nobody needs the job:  fairway cancel JOB",
        _low_utilisation,
        for_services=False,
    ),
)

DIAGNOSES: Final[Mapping[str, DiagnosisRule]] = MappingProxyType(
    {rule.code: rule for rule in (_NOT_MEASURED, *_RULES)}
)
"""Every diagnosis by its code."""


def _filled_in(remedy: str, case: _Case) -> str:
    """Replace the words in capitals of a remedy by numbers and flags for this job."""
    for word, fill in _WORDS.items():
        if word in remedy:
            remedy = remedy.replace(word, fill(case))
    return remedy


def _used(case: _Case) -> str:
    """Return the flags that request only the GPUs that the job uses."""
    limit = case.limits.idle_engine
    used: dict[str, int] = {}
    for gpu in case.figures.gpus:
        if gpu.figures.engine is None or gpu.figures.engine >= limit:
            used[gpu.node] = used.get(gpu.node, 0) + 1
    return request_text(max(used.values(), default=1), nodes=len(used) or 1)


def _fewer(case: _Case) -> str:
    """Return the flags that request half: fewer nodes before fewer GPUs on each."""
    nodes, gpus = case.figures.nodes, case.figures.gpus_per_node
    return request_text(gpus, nodes=nodes // 2) if nodes > 1 else request_text(max(1, gpus // 2))


def _smaller(case: _Case) -> str:
    """Return the flags of the smallest request that holds the job's memory."""
    if len(case.figures.gpus) > 1:
        return _fewer(case)
    peak = _memory_peak(case.mean)
    return "a slice or a smaller GPU" if peak is None else smallest_request(peak, case.gpu)


def _cpus(case: _Case) -> int | None:
    """Return the cores per node that would keep the GPUs busy: in proportion, at most four times as many."""
    cpus, engine = case.figures.host.cpus, case.mean.engine
    if cpus is None or engine is None:
        return None
    wanted = cpus * min(4.0, 0.9 / max(engine, 0.01))
    return max(cpus + 1, -4 * int(-wanted // 4))  # in fours, rounded up


def _cpus_text(case: _Case) -> str:
    return str(_cpus(case) or "N")


def _workers(case: _Case) -> str:
    cpus = _cpus(case)
    return "N" if cpus is None else str(max(1, cpus // max(1, case.figures.gpus_per_node)))


def _cores(case: _Case) -> str:
    """Return the cores per GPU that the job has now."""
    cpus = case.figures.host.cpus
    return "N" if cpus is None else str(max(1, cpus // max(1, case.figures.gpus_per_node)))


_WORDS: Final[Mapping[str, Callable[[_Case], str]]] = MappingProxyType(
    {
        "GPUS": lambda case: str(case.figures.gpus_per_node),
        "CPUS": _cpus_text,
        "WORKERS": _workers,
        "CORES": _cores,
        "USED": _used,
        "FEWER": _fewer,
        "SMALLER": _smaller,
    }
)
