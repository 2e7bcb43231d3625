"""Writes the dashboards beside it. Run it after a change:  python deploy/grafana/generate.py

A dashboard is rows of panels, a panel a few queries and a unit: plain values, so that this file is the whole
story. Grafana's own SDK would bring a thousand generated classes for what a page of Python does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24
HEIGHT = 8
CLUSTER = 'cluster=~"$cluster"'


@dataclass(frozen=True, slots=True)
class Query:
    """One question, and what to call each line of the answer."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what it shows in words, its queries, its unit."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False
    bad_from: float | None = None
    """From this value on it is drawn as bad; Grafana also shows the line itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side under a heading."""

    title: str
    panels: tuple[Panel, ...]


def panel(title: str, description: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Queries as (expression, legend)."""
    return Panel(title, description, tuple(Query(*query) for query in queries), **more)


FLEET = (
    Row(
        "Fleet",
        (
            panel(
                "GPUs by pool",
                "All GPUs, or slices, that a pool has.",
                (f'sum by (pool) (fairway_capacity_devices{{{CLUSTER},state="total"}})', "{{pool}}"),
                kind="stat",
            ),
            panel(
                "GPUs nobody can use",
                "Drained, down, or free on nodes where nothing that waits fits.",
                (
                    f'sum by (pool, state) (fairway_capacity_devices{{{CLUSTER},state!="total"}})',
                    "{{pool}} {{state}}",
                ),
                stacked=True,
            ),
            panel(
                "Clusters last seen",
                "Seconds since Fairway last looked at each cluster.",
                (
                    f'max by (cluster) (fairway_loop_last_success_age_seconds{{{CLUSTER},loop="observe"}})',
                    "{{cluster}}",
                ),
                unit="s",
                bad_from=120,
            ),
        ),
    ),
    Row(
        "Use",
        (
            panel(
                "GPUs in use by team",
                "GPU-seconds that were metered per second, less what was taken back: GPUs, on average.",
                (
                    f"sum by (team) (rate(fairway_used_device_seconds_total{{{CLUSTER}}}[1h]))"
                    f" - (sum by (team) (rate(fairway_taken_back_device_seconds_total{{{CLUSTER}}}[1h]))"
                    f" or sum by (team) (rate(fairway_used_device_seconds_total{{{CLUSTER}}}[1h])) * 0)",
                    "{{team}}",
                ),
                stacked=True,
            ),
            panel(
                "GPU-hours of the last day by team",
                "What was metered in 24 hours.",
                (
                    f"sum by (team) (increase(fairway_used_device_seconds_total{{{CLUSTER}}}[24h])) / 3600",
                    "{{team}}",
                ),
                kind="bargauge",
                unit="h",
            ),
            panel(
                "Pools in use",
                "Part of each pool's GPUs that was held, on average over the last hour.",
                (
                    f"sum by (pool) (rate(fairway_used_device_seconds_total{{{CLUSTER}}}[1h]))"
                    f' / sum by (pool) (fairway_capacity_devices{{{CLUSTER},state="total"}})',
                    "{{pool}}",
                ),
                unit="percentunit",
            ),
        ),
    ),
    Row(
        "Budgets",
        (
            panel(
                "Budgets spent",
                "Part of its budget that each team, with those inside it, has spent in its period.",
                ("max by (team) (fairway_budget_spent / fairway_budget_limit)", "{{team}}"),
                kind="bargauge",
                unit="percentunit",
                bad_from=1,
            ),
            panel(
                "Spent a day",
                "At the current rate, in the fleet's currency, on the mean weekday.",
                ("max by (team) (fairway_budget_spent_per_day)", "{{team}}"),
            ),
            panel(
                "Days until a budget is spent",
                "At the present rate. Empty: none will be within its month or quarter.",
                (
                    "max by (team)"
                    " (clamp_min((fairway_budget_runs_out_timestamp_seconds - time()) / 86400, 0))",
                    "{{team}}",
                ),
                unit="d",
            ),
            panel(
                "Teams by how their budgets stand",
                "ok; warned: the part at which it says so is spent; spent: what its at_limit says holds.",
                ("sum by (state) (max by (team, state) (fairway_budget_state))", "{{state}}"),
                kind="stat",
            ),
        ),
    ),
    Row(
        "Jobs and policy",
        (
            panel(
                "Jobs sent and refused",
                "Jobs that went to each cluster, and those its engine would not take, per minute.",
                (
                    f"sum by (cluster) (rate(fairway_jobs_sent_total{{{CLUSTER}}}[5m])) * 60",
                    "{{cluster}} sent",
                ),
                (
                    f"sum by (cluster) (rate(fairway_jobs_refused_total{{{CLUSTER}}}[5m])) * 60",
                    "{{cluster}} refused",
                ),
            ),
            panel(
                "Drift",
                "Objects that differ from what was last applied.",
                (f"max by (cluster) (fairway_drift_objects{{{CLUSTER}}})", "{{cluster}}"),
                bad_from=1,
            ),
            panel(
                "Applies and interventions",
                "Applies by how they ended, and times an engine was helped, in the last hour.",
                (
                    f"sum by (cluster, state) (increase(fairway_applies_total{{{CLUSTER}}}[1h]))",
                    "{{cluster}} {{state}}",
                ),
                (
                    f"sum by (cluster, promise) (increase(fairway_interventions_total{{{CLUSTER}}}[1h]))",
                    "{{cluster}} intervention {{promise}}",
                ),
            ),
        ),
    ),
)

INSIDE = (
    Row(
        "Loops",
        (
            panel(
                "Last success",
                "Seconds since each loop last did its work.",
                (
                    f"max by (loop, cluster) (fairway_loop_last_success_age_seconds{{{CLUSTER}}})",
                    "{{loop}} {{cluster}}",
                ),
                unit="s",
                bad_from=300,
            ),
            panel(
                "A round takes",
                "95th percentile of the time that one round of a loop takes.",
                (
                    "histogram_quantile(0.95, sum by (le, loop)"
                    f" (rate(fairway_loop_duration_seconds_bucket{{{CLUSTER}}}[5m])))",
                    "{{loop}}",
                ),
                unit="s",
            ),
            panel(
                "Failed rounds",
                "Rounds of a loop that failed, by code, per minute.",
                (
                    f"sum by (loop, code) (rate(fairway_loop_errors_total{{{CLUSTER}}}[5m])) * 60",
                    "{{loop}} {{code}}",
                ),
            ),
        ),
    ),
    Row(
        "Leases and mirror",
        (
            panel(
                "Who holds how many leases",
                "Loops that each control looks after.",
                (f"sum by (instance) (fairway_loop_lease_held{{{CLUSTER}}})", "{{instance}}"),
                stacked=True,
            ),
            panel(
                "Mirror lag",
                "How old the jobs are that people see.",
                (f"max by (cluster) (fairway_mirror_lag_seconds{{{CLUSTER}}})", "{{cluster}}"),
                unit="s",
                bad_from=60,
            ),
            panel(
                "Jobs mirrored",
                "Changed jobs that engines told of, per second; second copies of a job should stay at none.",
                (f"sum by (cluster) (rate(fairway_mirror_jobs_total{{{CLUSTER}}}[5m]))", "{{cluster}}"),
                (
                    f"sum by (cluster) (increase(fairway_mirror_doubles_total{{{CLUSTER}}}[1h]))",
                    "{{cluster}} twice",
                ),
            ),
        ),
    ),
    Row(
        "API and process",
        (
            panel(
                "Requests",
                "Requests per second, by status.",
                ("sum by (status) (rate(fairway_api_request_seconds_count[5m]))", "{{status}}"),
                unit="reqps",
                stacked=True,
            ),
            panel(
                "Slowest routes",
                "95th percentile of the time an answer takes, the ten slowest routes.",
                (
                    "topk(10, histogram_quantile(0.95, sum by (le, route)"
                    " (rate(fairway_api_request_seconds_bucket[5m]))))",
                    "{{route}}",
                ),
                unit="s",
                bad_from=1,
            ),
            panel(
                "Memory",
                "Of each server and control.",
                (
                    "process_resident_memory_bytes and on (instance) fairway_api_request_seconds_count",
                    "{{instance}}",
                ),
                unit="bytes",
            ),
        ),
    ),
)


ENGINE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
SM = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")
TENSOR = ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO")
DRAM = ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO")
MEMORY = ("DCGM_FI_DEV_FB_USED",)
POWER = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")
TEMPERATURE = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")
HOST = "node, Hostname, hostname, gpu, GPU_I_ID"
HOST_LEGEND = "{{node}}{{Hostname}}{{hostname}} {{gpu}} {{GPU_I_ID}}"
JOB = 'cluster=~"$cluster",hpc_job=~"$job",pod=~"$pod"'
NAMESPACE = 'cluster=~"$cluster",namespace=~"$team"'


def metric(names: tuple[str, ...], matchers: str = CLUSTER) -> str:
    """A metric by its old and its new name: an exporter has one of them."""
    each = " or ".join(f"{name}{{{matchers}}}" for name in names)
    return f"({each})" if len(names) > 1 else each


GPUS = (
    Row(
        "Use",
        (
            panel(
                "GPUs busy",
                "Mean of the time in which the engines of all GPUs had work, held ones and free ones.",
                (f"avg by (cluster) ({metric(ENGINE)})", "{{cluster}}"),
                unit="percentunit",
            ),
            panel(
                "GPUs that are reported",
                "GPUs and MIG slices with metrics. What is not reported is not measured.",
                (f"count by (cluster) ({metric(MEMORY)})", "{{cluster}}"),
                kind="stat",
            ),
            panel(
                "Power",
                "Draw of all boards.",
                (f"sum by (cluster) ({metric(POWER)})", "{{cluster}}"),
                unit="watt",
            ),
        ),
    ),
    Row(
        "Health",
        (
            panel(
                "Alerts on GPUs",
                "By name; empty if all is well. The rules are those of `fairway render alerts`.",
                (
                    f'count by (alertname) (ALERTS{{{CLUSTER},fairway="gpu",alertstate="firing"}})',
                    "{{alertname}}",
                ),
                stacked=True,
            ),
            panel(
                "XIDs",
                "GPUs with an XID since their last reset, by XID.",
                (f"count by (xid) (fairway:gpu_xid{{{CLUSTER}}})", "XID {{xid}}"),
                stacked=True,
            ),
            panel(
                "Hottest GPUs",
                "The ten hottest.",
                (f"topk(10, max by ({HOST}) ({metric(TEMPERATURE)}))", HOST_LEGEND),
                unit="celsius",
                bad_from=85,
            ),
        ),
    ),
    Row(
        "Jobs",
        (
            panel(
                "GPUs by job",
                "The ten largest jobs and pods, by GPUs.",
                (
                    f"topk(10, sum by (hpc_job, namespace, pod) (fairway:job_gpus:count{{{CLUSTER}}}))",
                    "{{hpc_job}} {{namespace}} {{pod}}",
                ),
                kind="bargauge",
            ),
            panel(
                "Idle GPUs by job",
                "The ten jobs with most GPUs without work, over an hour; without a name: free GPUs.",
                (
                    "topk(10, avg_over_time(fairway:job_gpus:count{" + CLUSTER + "}[1h])"
                    " - avg_over_time(fairway:job_engine:sum{" + CLUSTER + "}[1h]))",
                    "{{hpc_job}} {{namespace}} {{pod}}",
                ),
                kind="bargauge",
            ),
        ),
    ),
)

TEAM = (
    Row(
        "What the team holds",
        (
            panel(
                "GPUs in use",
                "GPU-seconds that were metered per second: GPUs, on average.",
                (
                    f'sum by (pool) (rate(fairway_used_device_seconds_total{{{CLUSTER},team=~"$team"}}[1h]))',
                    "{{pool}}",
                ),
                stacked=True,
            ),
            panel(
                "GPU-hours of the last day",
                "What was metered in 24 hours.",
                (
                    "sum by (team)"
                    f' (increase(fairway_used_device_seconds_total{{{CLUSTER},team=~"$team"}}[24h])) / 3600',
                    "{{team}}",
                ),
                kind="stat",
                unit="h",
            ),
            panel(
                "Budget spent",
                "Part of its budget that the team, with those inside it, has spent in its period.",
                ('max by (team) (fairway_budget_spent{team=~"$team"} / fairway_budget_limit)', "{{team}}"),
                kind="bargauge",
                unit="percentunit",
                bad_from=1,
            ),
        ),
    ),
    Row(
        "What its pods do, on Kubernetes: on Slurm see the team's page of Fairway",
        (
            panel(
                "Pods busy",
                "Mean of the time in which the engines of a pod's GPUs had work.",
                (f"avg by (namespace, pod) ({metric(ENGINE, NAMESPACE)})", "{{namespace}} {{pod}}"),
                unit="percentunit",
            ),
            panel(
                "GPUs of pods",
                "GPUs and MIG slices that each pod holds.",
                (f"count by (namespace, pod) ({metric(MEMORY, NAMESPACE)})", "{{namespace}} {{pod}}"),
                stacked=True,
            ),
        ),
    ),
)


def by_gpu(title: str, description: str, names: tuple[str, ...], **more: Any) -> Panel:
    """A metric of each GPU of a job, side by side: one that lags behind the others is seen."""
    return panel(title, description, (f"max by ({HOST}) ({metric(names, JOB)})", HOST_LEGEND), **more)


SINGLE_JOB = (
    Row(
        "Work",
        (
            by_gpu("Engine", "Time in which any kernel ran.", ENGINE, unit="percentunit"),
            by_gpu("SM", "Multiprocessors with work, on average.", SM, unit="percentunit"),
            by_gpu("Tensor cores", "Time in which the tensor cores had work.", TENSOR, unit="percentunit"),
        ),
    ),
    Row(
        "Memory and data",
        (
            by_gpu("Memory used", "Of the GPU or slice.", MEMORY, unit="decmbytes"),
            by_gpu("Memory interface", "Time in which it moved data.", DRAM, unit="percentunit"),
            panel(
                "PCIe and NVLink",
                "Data moved, of all GPUs of the job.",
                (f"sum (DCGM_FI_PROF_PCIE_RX_BYTES{{{JOB}}} + DCGM_FI_PROF_PCIE_TX_BYTES{{{JOB}}})", "PCIe"),
                (f"sum (DCGM_FI_PROF_NVLINK_TX_BYTES{{{JOB}}})", "NVLink, sent"),
                unit="Bps",
            ),
        ),
    ),
    Row(
        "Board",
        (
            by_gpu("Power", "Draw of the board; MIG slices of one GPU show the same.", POWER, unit="watt"),
            by_gpu("Temperature", "Of the GPU.", TEMPERATURE, unit="celsius", bad_from=85),
        ),
    ),
)


def dashboard(
    uid: str, title: str, rows: tuple[Row, ...], variables: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """As Grafana imports it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["fairway"],
        "timezone": "browser",
        "schemaVersion": 41,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), *(variables or (_variable("cluster", "Cluster", _CLUSTERS),))]},
        "panels": _placed(rows),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


_CLUSTERS = "label_values(fairway_loop_lease_held, cluster)"
_OF_GPUS = "label_values(DCGM_FI_DEV_FB_USED, cluster)"


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"{name}s"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        placed.append(
            {"id": len(placed) + 1, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        )
        width = COLUMNS // len(row.panels)
        for number, one in enumerate(row.panels):
            place = {"x": number * width, "y": top + 1, "w": width, "h": HEIGHT}
            placed.append({"id": len(placed) + 1, "gridPos": place, **_panel(one)})
        top += 1 + HEIGHT
    return placed


def _panel(one: Panel) -> dict[str, Any]:
    return {
        "type": one.kind,
        "title": one.title,
        "description": one.description,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for n, query in enumerate(one.queries)
        ],
        "fieldConfig": {"defaults": _defaults(one), "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if one.kind != "timeseries" else {},
    }


def _defaults(one: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if one.bad_from is not None:
        steps.append({"color": "red", "value": one.bad_from})
    custom: dict[str, Any] = {"thresholdsStyle": {"mode": "off" if one.bad_from is None else "line"}}
    if one.stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    return {
        "unit": one.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        **({"custom": custom} if one.kind == "timeseries" else {}),
    }


DASHBOARDS = {
    "fairway-fleet.json": dashboard("fairway-fleet", "Fairway: the fleet", FLEET),
    "fairway-inside.json": dashboard("fairway-inside", "Fairway: inside", INSIDE),
    "gpus-operators.json": dashboard(
        "fairway-gpus", "Fairway: GPUs", GPUS, (_variable("cluster", "Cluster", _OF_GPUS),)
    ),
    "gpus-team.json": dashboard(
        "fairway-gpus-team",
        "Fairway: GPUs of a team",
        TEAM,
        (
            _variable("cluster", "Cluster", _OF_GPUS),
            _variable("team", "Team", "label_values(fairway_used_device_seconds_total, team)"),
        ),
    ),
    "gpus-job.json": dashboard(
        "fairway-gpus-job",
        "Fairway: GPUs of a job",
        SINGLE_JOB,
        (
            _variable("cluster", "Cluster", _OF_GPUS),
            _variable("job", "Slurm job", 'label_values(DCGM_FI_DEV_FB_USED{cluster=~"$cluster"}, hpc_job)'),
            _variable("pod", "Pod", 'label_values(DCGM_FI_DEV_FB_USED{cluster=~"$cluster"}, pod)'),
        ),
    ),
}


def text(name: str) -> str:
    """One file, as it is committed."""
    return json.dumps(DASHBOARDS[name], indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in DASHBOARDS:
        (HERE / file).write_text(text(file), encoding="utf-8")
