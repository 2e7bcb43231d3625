"""Write the PromQL of one window: one query a metric, whatever the number of GPUs and jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fairway.model.gpu_use import Window
from fairway.telemetry.metrics import GpuMetric

_BY: Final = (
    "node, Hostname, hostname, gpu, UUID, uuid, GPU_I_ID, GPU_I_PROFILE, modelName, hpc_job,"
    " namespace, pod, exported_namespace, exported_pod"
)
CODE: Final = "fairway_code"
"""A label that says which of several queries a row answers."""
_NAME: Final = "fairway_name"
"""A label that keeps metrics of two names apart until they are put together."""


def moment(window: Window) -> float:
    """Return the time to ask for."""
    return window.end - 0.001


def _range(window: Window) -> str:
    """Return the range of a selector: a millisecond short, since Prometheus 2 counts samples at both ends."""
    return f"{window.seconds * 1000 - 1}ms"


def means(metric: GpuMetric, select: str, window: Window) -> str:
    """Return the query for the mean of a metric, by device and holder; parts of a whole are added up."""
    how = "sum" if metric.parts else "avg"
    return _each(how, "avg_over_time", metric.names, select, window)


def counts(names: Sequence[str], select: str, window: Window) -> str:
    """Return the query for the number of samples, by device and holder."""
    return _each("sum", "count_over_time", names, select, window)


def mean_of(name: str, select: str, window: Window) -> str:
    """Return the query for the mean of a metric by its name, by device and holder."""
    return _each("avg", "avg_over_time", (name,), select, window)


def peaks(metric: GpuMetric, select: str, window: Window) -> str:
    """Return the query for the largest sample, by device and holder."""
    return _each("max", "max_over_time", metric.names, select, window)


def samples(names: Sequence[str], select: str, host_label: str, hosts: Sequence[str], window: Window) -> str:
    """Return the query for every sample of some hosts; `host_label` is the label that names them."""
    matchers = [f'__name__=~"{"|".join(names)}"', f'{host_label}=~"{_alternatives(hosts)}"']
    return f"{{{', '.join([*matchers, *filter(None, [select])])}}}[{_range(window)}]"


def _each(how: str, over_time: str, names: Sequence[str], select: str, window: Window) -> str:
    parts = [
        f'label_replace({over_time}({name}{{{select}}}[{_range(window)}]), "{_NAME}", "{number}", "", "")'
        for number, name in enumerate(names)
    ]
    return f"{how} by ({_BY}) ({' or '.join(parts)})"


def _alternatives(values: Sequence[str]) -> str:
    """Return a regular expression of RE2 in a string of PromQL."""
    return "|".join(re.escape(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
