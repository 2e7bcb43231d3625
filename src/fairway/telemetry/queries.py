"""Write the PromQL of one window: one query a metric, whatever the number of GPUs and jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fairway.model.gpu_use import Window

_BY: Final = (
    "node, Hostname, hostname, gpu, GPU_I_ID, GPU_I_PROFILE,"
    " hpc_job, namespace, pod, exported_namespace, exported_pod"
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


def means(names: Sequence[str], select: str, window: Window) -> str:
    """Return the query for the mean of a metric, by device and holder."""
    return _each("avg", "avg_over_time", names, select, window)


def counts(names: Sequence[str], select: str, window: Window) -> str:
    """Return the query for the number of samples, by device and holder."""
    return _each("sum", "count_over_time", names, select, window)


def peaks(names: Sequence[str], select: str, window: Window) -> str:
    """Return the query for the largest sample, by device and holder."""
    return _each("max", "max_over_time", names, select, window)


def samples(names: Sequence[str], select: str, host_label: str, hosts: Sequence[str], window: Window) -> str:
    """Return the query for every sample of some hosts; `host_label` is the label that names them."""
    return f"{_of_hosts(names, select, host_label, hosts)}[{_range(window)}]"


def names(among: Sequence[str], select: str, host_label: str, hosts: Sequence[str]) -> str:
    """Return the query for the names, of those given, that any of some hosts has."""
    return f"count by (__name__) ({_of_hosts(among, select, host_label, hosts)})"


def _of_hosts(names: Sequence[str], select: str, host_label: str, hosts: Sequence[str]) -> str:
    matchers = (f'__name__=~"{"|".join(names)}"', f'{host_label}=~"{_alternatives(hosts)}"')
    return f"{{{_matchers(select, *matchers)}}}"


def _each(how: str, over_time: str, names: Sequence[str], select: str, window: Window) -> str:
    parts = [f"{over_time}({name}{{{select}}}[{_range(window)}])" for name in names]
    marked = [f'label_replace({part}, "{_NAME}", "{number}", "", "")' for number, part in enumerate(parts)]
    # The first needs no mark, and marking costs Prometheus a fifth of such a query.
    return f"{how} by ({_BY}) ({' or '.join((parts[0], *marked[1:]))})"


def busy_cores(select: str, window: Window) -> str:
    """Return the query for the mean of CPU cores that are busy, by holder: a Slurm job's cgroup, or a pod."""
    cgroups = _cgroups("rate", "cgroup_cpu_total_seconds", select, window)
    matchers = _matchers(select, 'container!=""', 'container!="POD"')
    return _by_holder(cgroups, f"rate(container_cpu_usage_seconds_total{{{matchers}}}[{_range(window)}])")


def given_cores(select: str, window: Window) -> str:
    """Return the query for the number of CPU cores that a holder was given."""
    cgroups = _cgroups("avg_over_time", "cgroup_cpus", select, window)
    matchers = _matchers(select, 'resource="cpu"')
    requests = f"avg_over_time(kube_pod_container_resource_requests{{{matchers}}}[{_range(window)}])"
    return _by_holder(cgroups, requests)


def io_waits(select: str, window: Window) -> str:
    """Return the query for the ratio of time in which tasks of a node wait for storage."""
    waits = f"rate(node_pressure_io_waiting_seconds_total{{{_matchers(select)}}}[{_range(window)}])"
    return f"max by (node, Hostname, hostname, nodename, instance) ({waits})"


def _cgroups(over_time: str, name: str, select: str, window: Window) -> str:
    """Return the series of jobs' cgroups, without those of steps and tasks in them, by the job's id."""
    matchers = _matchers(select, 'step=""', 'task=""')
    series = f"{over_time}({name}{{{matchers}}}[{_range(window)}])"
    return f'label_replace({series}, "hpc_job", "$1", "cgroup", ".*/job_([0-9]+)")'


def _by_holder(*parts: str) -> str:
    return f"sum by (hpc_job, namespace, pod, exported_namespace, exported_pod) ({' or '.join(parts)})"


def _matchers(select: str, *more: str) -> str:
    return ", ".join(filter(None, (*more, select)))


def _alternatives(values: Sequence[str]) -> str:
    """Return a regular expression of RE2 in a string of PromQL."""
    return "|".join(re.escape(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
