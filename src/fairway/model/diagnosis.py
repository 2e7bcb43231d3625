"""Define the thresholds by which the GPU use of a job is diagnosed."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from fairway.model.job import EngineId


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of the diagnosis. Ratios are 0 to 1.

    Defaults follow Princeton's jobstats and job_defense_shield, KempnerPulse, ClusterCockpit and NVIDIA's
    advice; those without a published source were tuned on simulated training loops (tests/unit/advise).
    """

    min_span_seconds: float = 1800
    """No diagnosis of a job that is younger."""
    min_coverage: float = 0.8
    """The least ratio of held GPU-seconds that must have been measured."""
    lately_seconds: float = 1800
    """A low engine ratio counts only if it is still low in the last windows: a warm-up is no diagnosis."""
    opened_memory_mib: float = 600
    """A CUDA context takes this much: a GPU with less was never opened."""
    idle_engine: float = 0.01
    idle_seconds: float = 7200
    """How long GPUs must have been idle to be unused or abandoned."""
    abandoned_cpu: float = 0.05
    waiting_engine: float = 0.5
    """A GPU that is busy less than this waits for something."""
    cpu_busy: float = 0.7
    """Less than all: the loaders of a gang wait for the slowest of them, which lowers their mean."""
    cpu_free: float = 0.5
    io_explains: float = 0.4
    """The least part of the GPUs' waiting time that waiting for storage must account for.

    Pressure is measured per node, so it may be that of other jobs.
    """
    copy_bytes_per_second: float = 2e9
    """The rate of copies while the engine is not busy: the least with which pageable memory is copied."""
    copy_sm: float = 0.3
    copy_engine: float = 0.7
    """Copies do not keep the engine busy. Above this ratio they are not what limits the job."""
    communication_engine: float = 0.8
    communication_tensor: float = 0.1
    communication_dram: float = 0.2
    nvlink_bytes_per_second: float = 10e9
    network_bytes_per_second: float = 0.3e9
    spinning_dram: float = 0.01
    """Below this the kernels move no data at all: they wait for GPUs that never come."""
    small_kernel_engine: float = 0.4
    small_kernel_sm: float = 0.3
    """The part of the multiprocessors with work while kernels run, that is SM divided by engine."""
    large_gpu_engine: float = 0.15
    large_gpu_memory_mib: float = 10_240
    large_gpu_memory_ratio: float = 0.25
    large_gpu_cores: float = 1.5
    """More busy cores than this, and something else than the size of the GPU is likely."""
    memory_bound_dram: float = 0.5
    memory_bound_sm: float = 0.5
    memory_bound_tensor: float = 0.1
    no_tensor_sm: float = 0.5
    no_tensor: float = 0.01
    low_engine: float = 0.25
    low_seconds: float = 3600


DEFAULT_THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """How a fleet diagnoses its jobs."""

    thresholds: Thresholds = DEFAULT_THRESHOLDS
    services: tuple[str, ...] = ()
    """Patterns of the names of jobs that answer requests, and may wait for them: `serve-*`."""

    def is_service(self, name: str, engine_id: EngineId | None) -> bool:
        """Return whether a job answers requests, and may wait for them without being idle.

        Kubernetes' pods that no Job created have no end either: those of Deployments and the like.
        """
        parts = (engine_id or "").split("/")
        pod = len(parts) == 4 and parts[1] == "pod"
        return pod or any(fnmatchcase(name, pattern) for pattern in self.services)


DEFAULT_DIAGNOSIS: Final = DiagnosisSettings()
