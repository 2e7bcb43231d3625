"""Find out what a cluster's GPU metrics lack: three bounded queries, and findings with what to change."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, EngineKind, Telemetry
from fairway.model.gpu_use import Window
from fairway.model.text import first_few
from fairway.telemetry import counters, queries
from fairway.telemetry.prometheus import MatrixRow, Prometheus, VectorRow
from fairway.telemetry.reader import INTERVAL_SECONDS, NodeNames, usual_gap

INSPECT_SECONDS: Final = 5.0
"""How long one query may take: people wait for the answer."""
RECENT_SECONDS: Final = 300
SAMPLED_HOSTS: Final = 20
"""Of how many hosts to ask which metrics they have: all metrics of 8,000 GPUs cost Prometheus a second."""
RARE_SECONDS: Final = 60
"""Scraped less often than this, short jobs are hardly measured."""
_ENGINE: Final = (*counters.USE[0].names, counters.USE[1].names[0])
_ENOUGH_VALUES: Final = 6
_REPEATED: Final = 0.4


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the metrics lack, in the form of an error."""

    code: str
    message: str
    hint: str


async def inspect(
    cluster: Cluster, nodes: Collection[str] = (), *, timeout_seconds: float = INSPECT_SECONDS
) -> tuple[Finding, ...]:
    """Ask the Prometheus of a cluster what it has of its GPUs; `nodes` are the engine's, if they are known.

    Nothing is raised if it cannot be asked: that is a finding, too.
    """
    if cluster.telemetry is None:
        return ()
    prometheus = Prometheus(cluster.telemetry, timeout_seconds=timeout_seconds)
    try:
        return tuple(await _ask(prometheus, cluster, cluster.telemetry, nodes))
    except FairwayError as error:
        return (Finding(error.code, error.message, error.hint),)
    finally:
        await prometheus.close()


async def _ask(
    prometheus: Prometheus, cluster: Cluster, source: Telemetry, nodes: Collection[str]
) -> list[Finding]:
    now = time.time()
    end = math.ceil(now)
    window = Window(end - RECENT_SECONDS, end)
    names = [name for counter in (*counters.USE, *counters.HEALTH) for name in counter.names]
    devices = await prometheus.vector(queries.counts(_ENGINE, source.select, window), window.end)
    if not devices:
        return list(findings(cluster, (), devices, (), nodes))
    most = max(devices, key=lambda row: row.number).metric
    longer = Window(window.end - INTERVAL_SECONDS, window.end)
    query = queries.samples(_ENGINE, source.select, most.host_label, (most.host_name,), longer)
    samples = await prometheus.matrix(query, window.end)
    label = most.host_label
    hosts = sorted({row.metric.host_name for row in devices if row.metric.host_label == label})
    some = hosts[:: -(-len(hosts) // SAMPLED_HOSTS)]
    served = await prometheus.vector(queries.names(names, source.select, label, some), now)
    return list(findings(cluster, {row.metric.name for row in served}, devices, samples, nodes))


def findings(
    cluster: Cluster,
    served: Collection[str],
    devices: Sequence[VectorRow],
    samples: Sequence[MatrixRow],
    nodes: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield what is missing. Pure.

    `served` are names of metrics, `devices` the GPUs with the labels of the last minutes, `samples` those of
    one host.
    """
    if not devices:
        chosen = cluster.telemetry.select if cluster.telemetry else ""
        yield Finding(
            "NoGpuMetrics",
            f"the Prometheus of {cluster.name} has no metric of a GPU"
            + (f" with {{{chosen}}}" if chosen else "")
            + f": neither {' nor '.join(_ENGINE)}",
            "let Prometheus scrape dcgm-exporter on every GPU node, or correct  telemetry: { select: … }",
        )
        return
    if lacking := counters.missing(served):
        yield Finding(
            "GpuMetricsMissing",
            f"{cluster.name} does not show "
            + first_few([f"{c.use} ({c.names[0]})" for c in lacking], len(lacking)),
            f"install this file as dcgm-exporter's --collectors:  fairway render counters --out {_OUT}",
        )
    yield from _labels(cluster, devices, nodes)
    yield from _times(cluster, samples)


_OUT: Final = "/etc/dcgm-exporter"


def _labels(cluster: Cluster, devices: Sequence[VectorRow], nodes: Collection[str]) -> Iterator[Finding]:
    hosts = {row.metric.host_name for row in devices}
    if "" in hosts:
        yield Finding(
            "GpuHostsMissing",
            f"metrics of GPUs of {cluster.name} do not say on which host they are",
            "keep the label Hostname (or hostname) in metric_relabel_configs, or set  node  from it",
        )
    elif nodes and not any(NodeNames(nodes).node(host) in nodes for host in hosts):
        yield Finding(
            "GpuHostsUnknown",
            f"GPUs are on {first_few(sorted(hosts), 3)}; {cluster.name} has no node of these names",
            "set the label node to the engine's name of the node in Prometheus' metric_relabel_configs",
        )
    if cluster.engine is EngineKind.KUBERNETES and not any("/" in row.metric.holder for row in devices):
        yield Finding(
            "GpuHoldersMissing",
            f"no GPU of {cluster.name} is shown with the pod that holds it: if one runs, it is not measured",
            "start dcgm-exporter with DCGM_EXPORTER_KUBERNETES=true, and scrape it with  honor_labels: true",
        )
    sliced = any(row.metric.instance_id for row in devices)
    if cluster.engine is EngineKind.SLURM and sliced and not any(row.metric.hpc_job for row in devices):
        yield Finding(
            "GpuHoldersMissing",
            f"no MIG instance of {cluster.name} is shown with its job: they are not measured",
            "let Slurm's Prolog name them for dcgm-exporter's --hpc-job-mapping-dir:  deploy/slurm",
        )


def _times(cluster: Cluster, samples: Sequence[MatrixRow]) -> Iterator[Finding]:
    interval = usual_gap(samples)
    if interval is None:
        return
    if interval > RARE_SECONDS:
        yield Finding(
            "GpusScrapedRarely",
            f"GPUs of {cluster.name} are scraped each {interval:.0f} s: jobs shorter than some minutes are "
            "hardly measured",
            "set scrape_interval to 15s or 30s for dcgm-exporter",
        )
    pairs = [
        (earlier[1], later[1])
        for row in samples
        if len({text for _, text in row.values}) >= _ENOUGH_VALUES
        for earlier, later in pairwise(row.values)
    ]
    if pairs and sum(one == other for one, other in pairs) / len(pairs) >= _REPEATED:
        yield Finding(
            "GpusScrapedTwice",
            f"GPUs of {cluster.name} are scraped each {interval:.0f} s, but have new values less often",
            f"start dcgm-exporter with  --collect-interval {interval * 1000:.0f}",
        )
