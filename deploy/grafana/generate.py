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
                "At this rate, in the fleet's currency, over the last seven days.",
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
                "Applies and nudges",
                "Applies by how they ended, and times an engine was helped, in the last hour.",
                (
                    f"sum by (cluster, state) (increase(fairway_applies_total{{{CLUSTER}}}[1h]))",
                    "{{cluster}} {{state}}",
                ),
                (
                    f"sum by (cluster, promise) (increase(fairway_nudges_total{{{CLUSTER}}}[1h]))",
                    "{{cluster}} nudge {{promise}}",
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


def dashboard(uid: str, title: str, rows: tuple[Row, ...]) -> dict[str, Any]:
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
        "templating": {"list": [_source(), _clusters()]},
        "panels": _placed(rows),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _clusters() -> dict[str, Any]:
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(fairway_loop_lease_held, cluster)", "refId": "clusters"},
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
}


def text(name: str) -> str:
    """One file, as it is committed."""
    return json.dumps(DASHBOARDS[name], indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in DASHBOARDS:
        (HERE / file).write_text(text(file), encoding="utf-8")
