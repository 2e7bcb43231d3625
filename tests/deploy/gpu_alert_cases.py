"""Series that make each alert on GPUs fire, and series that must not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GPU: Final = 'cluster="hpc",gpu="2",UUID="GPU-2"'
OLD: Final = f'{GPU},Hostname="n1",modelName="NVIDIA A100-SXM4-80GB"'
NEW: Final = f'{GPU},hostname="n1",modelName="NVIDIA H100 80GB HBM3"'
FOLDED: Final = f'{GPU},node="n1",Hostname="exporter-x7",modelName="NVIDIA L40S"'
OTHER_CLUSTER: Final = OLD.replace('"hpc"', '"k8s"')
AT: Final = {"cluster": "hpc", "node": "n1", "gpu": "2", "UUID": "GPU-2"}
JOB: Final = 'hpc_job="17"'
DEV: Final = "DCGM_FI_DEV_"
XID: Final = f"{DEV}XID_ERRORS"
COUNT: Final = "DCGM_EXP_XID_ERRORS_COUNT"
ENGINE: Final = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


@dataclass(frozen=True)
class Case:
    """What is exported, as series and values in promtool's notation, and whether the alert fires."""

    alert: str
    says: str
    series: dict[str, str]
    fires: dict[str, str] | None = None
    """Its labels, but for those that the rule sets."""
    value: str = ""
    at: str = "30m"


def xid(code: int, labels: str = OLD, name: str = XID) -> str:
    return f'{name}{{{labels},err_code="{code}"}}'


CASES: Final = [
    Case("FairwayGpuGone", "old name", {xid(79): "0x5 79x60"}, AT | {"xid": "79"}),
    Case("FairwayGpuGone", "new name", {xid(119, NEW, f"{DEV}XID_ERROR"): "119x60"}, AT | {"xid": "119"}),
    Case("FairwayGpuGone", "label node before Hostname", {xid(120, FOLDED): "120x60"}, AT | {"xid": "120"}),
    Case(
        "FairwayGpuGone",
        "the clean-up after it came last",
        {xid(45): "_x28 45x60", f'{COUNT}{{{OLD},{JOB},xid="79"}}': "_x28 1x4"},
        AT | {"xid": "79"},
    ),
    Case(
        "FairwayGpuGone",
        "once, whoever held it since",
        {f'{XID}{{{OLD},hpc_job="17"}}': "79x20 stale", f'{XID}{{{OLD},hpc_job="18"}}': "_x21 79x40"},
        AT | {"xid": "79"},
    ),
    Case("FairwayGpuGone", "reset a minute ago", {xid(79): "79x28 0x31"}, AT | {"xid": "79"}),
    Case("FairwayGpuGone", "reset three minutes ago", {xid(79): "79x26 0x33"}),
    Case("FairwayGpuGone", "no error", {xid(0): "0x60", f"{COUNT}{{{OLD}}}": "0x60"}),
    Case("FairwayGpuGone", "another XID", {xid(31): "31x60", xid(74): "74x60"}),
    Case("FairwayGpuGone", "another cluster", {xid(79, OTHER_CLUSTER): "79x60"}),
    Case("FairwayGpuMemoryBroken", "", {xid(48): "48x60"}, AT | {"xid": "48"}),
    Case("FairwayGpuMemoryBroken", "contained", {xid(94): "94x60"}),
    Case("FairwayGpuMemoryContained", "", {xid(94): "94x60"}, AT | {"xid": "94"}),
    Case("FairwayGpuMemoryContained", "not contained", {xid(95): "95x60"}),
    Case("FairwayGpuXidOther", "", {xid(140): "140x60"}, AT | {"xid": "140"}),
    Case(
        "FairwayGpuXidOther",
        "known ones",
        {
            xid(code, OLD.replace("2", str(code))): f"{code}x60"
            for code in (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120)
        },
    ),
    Case(
        "FairwayGpuJobFault",
        "by Slurm job",
        {f"{XID}{{{OLD},{JOB}}}": "0x28 31x30"},
        AT | {"xid": "31", "hpc_job": "17"},
    ),
    Case(
        "FairwayGpuJobFault",
        "by pod, seen by the counter alone",
        {f'{COUNT}{{{NEW},namespace="nlp",pod="train-0",xid="13"}}': "_x27 1x4"},
        AT | {"xid": "13", "namespace": "nlp", "pod": "train-0"},
    ),
    Case(
        "FairwayGpuJobFault",
        "both tell: once",
        {f"{XID}{{{OLD},{JOB}}}": "0x28 31x30", f'{COUNT}{{{OLD},{JOB},xid="31"}}': "_x28 1x4"},
        AT | {"xid": "31", "hpc_job": "17"},
    ),
    Case(
        "FairwayGpuJobFault",
        "the gauge keeps it: the next job is not to blame",
        {f'{XID}{{{OLD},hpc_job="17"}}': "31x27 stale", f'{XID}{{{OLD},hpc_job="18"}}': "_x28 31x30"},
    ),
    Case("FairwayGpuJobFault", "hardware", {f"{XID}{{{OLD},{JOB}}}": "0x28 79x30"}),
    Case("FairwayGpuNvlinkErrors", "by XID", {xid(74): "74x60"}, AT),
    Case(
        "FairwayGpuNvlinkErrors",
        "by the counter",
        {f"{DEV}NVLINK_RECOVERY_ERROR_COUNT_TOTAL{{{OLD}}}": "3x20 4x60"},
        AT,
    ),
    Case(
        "FairwayGpuNvlinkErrors",
        "between two jobs",
        {
            f'{DEV}NVLINK_RECOVERY_ERROR_TOTAL{{{NEW},hpc_job="17"}}': "3x20 stale",
            f'{DEV}NVLINK_RECOVERY_ERROR_TOTAL{{{NEW},hpc_job="18"}}': "_x21 5x60",
        },
        AT,
    ),
    Case("FairwayGpuNvlinkErrors", "old ones", {f"{DEV}NVLINK_RECOVERY_ERROR_TOTAL{{{NEW}}}": "3x60"}),
    Case("FairwayGpuEccDoubleBit", "", {f"{DEV}ECC_DBE_VOL_TOTAL{{{OLD},{JOB}}}": "0x5 2x60"}, AT, "2"),
    Case("FairwayGpuEccDoubleBit", "none", {f"{DEV}ECC_DBE_VOL_TOTAL{{{OLD}}}": "2x5 0x60"}),
    Case("FairwayGpuRowRemapFailed", "old name", {f"{DEV}ROW_REMAP_FAILURE{{{OLD}}}": "1x60"}, AT),
    Case("FairwayGpuRowRemapFailed", "new name", {f"{DEV}ROW_REMAP_FAILED{{{NEW}}}": "1x60"}, AT),
    Case("FairwayGpuRowRemapFailed", "none", {f"{DEV}ROW_REMAP_FAILED{{{NEW}}}": "0x60"}),
    Case("FairwayGpuRowRemapPending", "", {f"{DEV}ROW_REMAP_PENDING{{{OLD}}}": "1x60"}, AT),
    Case("FairwayGpuRowRemapPending", "none", {f"{DEV}ROW_REMAP_PENDING{{{OLD}}}": "0x60"}),
    Case("FairwayGpuHot", "old name", {f"{DEV}GPU_TEMP{{{OLD}}}": "40x15 86x60"}, AT, "86"),
    Case("FairwayGpuHot", "new name", {f"{DEV}GPU_TEMP_CELSIUS{{{NEW}}}": "91x60"}, AT, "91"),
    Case(
        "FairwayGpuHot",
        "while jobs change",
        {
            f'{DEV}GPU_TEMP{{{OLD},hpc_job="17"}}': "90x24 stale",
            f'{DEV}GPU_TEMP{{{OLD},hpc_job="18"}}': "_x25 90x60",
        },
        AT,
        "90",
    ),
    Case("FairwayGpuHot", "at the limit, or for a moment", {f"{DEV}GPU_TEMP{{{OLD}}}": "85x22 86x2 85x60"}),
    Case(
        "FairwayGpuOverheated",
        "A100",
        {f"{DEV}GPU_TEMP{{{OLD}}}": "94x60"},
        AT | {"modelName": "NVIDIA A100-SXM4-80GB"},
        "94",
    ),
    Case(
        "FairwayGpuOverheated",
        "of a model that is not in the table",
        {f"{DEV}GPU_TEMP{{{FOLDED}}}": "91x60"},
        AT | {"modelName": "NVIDIA L40S"},
        "91",
    ),
    Case(
        "FairwayGpuOverheated",
        "an H100 may be hotter",
        {f"{DEV}GPU_TEMP_CELSIUS{{{NEW}}}": "94x60", f"{DEV}GPU_TEMP{{{OLD}}}": "92x60"},
    ),
    Case(
        "FairwayGpuThrottled",
        "old name",
        {f"{DEV}CLOCK_THROTTLE_REASONS{{{OLD}}}": "68x60"},
        {"cluster": "hpc", "node": "n1"},
        "1",
    ),
    Case(
        "FairwayGpuThrottled",
        "new name",
        {f"{DEV}CLOCKS_EVENT_REASONS{{{NEW}}}": "24x60"},
        {"cluster": "hpc", "node": "n1"},
        "1",
    ),
    Case(
        "FairwayGpuThrottled",
        "idle, power cap, boost",
        {
            f"{DEV}CLOCK_THROTTLE_REASONS{{{OLD}}}": "1x20 4x40",
            f"{DEV}CLOCKS_EVENT_REASONS{{{NEW.replace('2', '3')}}}": "16x60",
            f"{DEV}CLOCKS_EVENT_REASONS{{{NEW.replace('2', '4')}}}": "277x60",
        },
    ),
    Case(
        "FairwayGpuMissing",
        "",
        {f"{DEV}FB_USED{{{OLD}}}": "5x25 stale", f"{DEV}FB_USED{{{OLD.replace('2', '3')}}}": "5x60"},
        AT,
    ),
    Case("FairwayGpuMissing", "the whole node is silent", {f"{DEV}FB_USED{{{OLD}}}": "5x25 stale"}),
    Case(
        "FairwayGpuMissing",
        "another job holds it",
        {
            f'{DEV}FB_USED{{{OLD},hpc_job="17"}}': "5x25 stale",
            f'{DEV}FB_USED{{{OLD},hpc_job="18"}}': "_x26 5x60",
        },
    ),
    Case(
        "FairwayExporterSilent",
        "",
        {
            f"{DEV}FB_USED{{{OLD}}}": "5x60 stale",
            f'{DEV}FB_USED{{cluster="hpc",Hostname="n2",gpu="0"}}': "5x99",
        },
        {"cluster": "hpc", "node": "n1"},
        at="90m",
    ),
    Case("FairwayExporterSilent", "it went on", {f"{DEV}FB_USED{{{OLD}}}": "5x60 stale _x6 5x60"}, at="90m"),
    Case("FairwayNoGpuMetrics", "", {f"{DEV}FB_USED{{{OTHER_CLUSTER}}}": "5x60"}, {"cluster": "hpc"}),
    Case("FairwayNoGpuMetrics", "there are some", {f"{DEV}FB_USED{{{OLD}}}": "5x60"}),
]

DAY: Final = [
    Case(
        "FairwayJobIdle",
        "a Slurm job with two GPUs, one of them without profiling metrics",
        {f"{ENGINE}{{{OLD},{JOB}}}": "0.05x300", f"{DEV}GPU_UTIL{{{OLD.replace('2', '3')},{JOB}}}": "1x300"},
        {"cluster": "hpc", "hpc_job": "17"},
        "3%",
        "24h10m",
    ),
    Case(
        "FairwayJobIdle",
        "a pod, with a new name",
        {f'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{NEW},namespace="nlp",pod="train-0"}}': "0.05x300"},
        {"cluster": "hpc", "namespace": "nlp", "pod": "train-0"},
        "5%",
        "24h10m",
    ),
    Case(
        "FairwayJobIdle",
        "a pod where Prometheus does not honour labels",
        {
            f'{ENGINE}{{{NEW},namespace="gpus",pod="dcgm-exporter-1",exported_namespace="nlp",'
            'exported_pod="train-0"}': "0.05x300"
        },
        {
            "cluster": "hpc",
            "namespace": "gpus",
            "pod": "dcgm-exporter-1",
            "exported_namespace": "nlp",
            "exported_pod": "train-0",
        },
        "5%",
        "24h10m",
    ),
    Case("FairwayJobIdle", "it works", {f"{ENGINE}{{{OLD},{JOB}}}": "0.1x300"}, at="24h10m"),
    Case("FairwayJobIdle", "younger than a day", {f"{ENGINE}{{{OLD},{JOB}}}": "_x20 0x300"}, at="24h10m"),
    Case("FairwayJobIdle", "it has ended", {f"{ENGINE}{{{OLD},{JOB}}}": "0x286 stale"}, at="24h10m"),
    Case("FairwayJobIdle", "nobody holds it", {f"{ENGINE}{{{OLD}}}": "0x300"}, at="24h10m"),
    Case(
        "FairwayJobIdle",
        "nobody holds it, and the exporter's own pod is named",
        {f'{ENGINE}{{{OLD},namespace="gpus",pod="nvidia-dcgm-exporter-x7"}}': "0x300"},
        at="24h10m",
    ),
    Case(
        "FairwayJobIdle",
        "it was not measured for two hours of the day",
        {f"{ENGINE}{{{OLD},{JOB}}}": "0x100 _x24 0x300"},
        at="24h10m",
    ),
]
