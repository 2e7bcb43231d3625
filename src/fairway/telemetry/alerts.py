"""Write Prometheus rules for the GPUs of a cluster, and the Alertmanager configuration of a fleet.

Both names of a metric are read, and every label that may name the host. A slow rule delays its whole group,
so groups differ in how often they are evaluated: errors each 15 s, states each minute, what reads a day each
10 minutes. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.model.fleet import Cluster, Fleet
from fairway.model.gpu_health import HOT_CELSIUS

SOURCE: Final = "gpu"
"""The value of the label `fairway` on all alerts that are written here: they go to Fairway."""
GONE_XIDS: Final = (79, 119, 120)
MEMORY_XIDS: Final = (48, 64, 95)
CONTAINED_XIDS: Final = (63, 94)
NVLINK_XIDS: Final = (74,)
PROGRAM_XIDS: Final = (13, 31, 43, 45)
OVERHEATED_CELSIUS: Final = (("A100", 93), ("H100|H200|GH200", 95))
"""The temperature above which a model is about to stop, by a part of its name."""
OVERHEATED_OTHERS: Final = 90
IDLE_BELOW: Final = 0.1
_DAY_SAMPLES: Final = 24 * 12
_MEASURED_SAMPLES: Final = round(0.95 * _DAY_SAMPLES)
_MAX_ALERTS: Final = 200

_DEV: Final = "DCGM_FI_DEV_"
_XID: Final = (f"{_DEV}XID_ERRORS", f"{_DEV}XID_ERROR")
_XID_COUNT: Final = "DCGM_EXP_XID_ERRORS_COUNT"
_TEMPERATURE: Final = (f"{_DEV}GPU_TEMP", f"{_DEV}GPU_TEMP_CELSIUS")
_REMAP: Final = (f"{_DEV}ROW_REMAP_FAILURE", f"{_DEV}ROW_REMAP_FAILED")
_NVLINK: Final = (f"{_DEV}NVLINK_RECOVERY_ERROR_COUNT_TOTAL", f"{_DEV}NVLINK_RECOVERY_ERROR_TOTAL")
_THROTTLE: Final = (f"{_DEV}CLOCK_THROTTLE_REASONS", f"{_DEV}CLOCKS_EVENT_REASONS")
_ENGINE: Final = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
_XID_NAMED: Final = 'xid!=""'
"""A GPU without an error has the counter of XIDs too, without this label."""

_GPU: Final = "node, gpu, UUID"
_HOLDER: Final = "hpc_job, namespace, pod, exported_namespace, exported_pod"
_NOBODY: Final = 'hpc_job="",exported_pod="",pod=~"(.*dcgm-exporter.*)?"'
"""Matches series of GPUs that no job holds: without labels of one, or with those of the exporter itself."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule."""

    name: str
    expr: str
    severity: str
    """page: somebody must look now. ticket: somebody should look today. team: for the owners of the job."""
    summary: str
    description: str
    lasting: str = ""
    """How long it must be so."""
    action: str = ""
    """What an operator does with the node: drain, or reset once it is free."""


@dataclass(frozen=True, slots=True)
class Record:
    """One recording rule."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after another."""

    name: str
    interval: str
    rules: Sequence[Alert | Record]


def rules_text(cluster: Cluster) -> str:
    """Write the rules of a cluster's GPUs, for the Prometheus that has their metrics."""
    select = cluster.telemetry.select if cluster.telemetry is not None else ""
    lines = [
        f"# Alerts on the GPUs of cluster {cluster.name}, written by `fairway render alerts`.",
        "# page: somebody must look now. ticket: somebody should look today. team: for the job's owners.",
        "groups:",
    ]
    for group in groups_of(cluster.name, select):
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            lines += _rule(rule, cluster.name)
    return "\n".join(lines) + "\n"


def groups_of(cluster: str, select: str) -> tuple[Group, ...]:
    """Return the rules of a cluster whose series have the matchers `select`."""
    queries = _Queries(cluster, select)
    return (
        Group(f"fairway-gpu-errors-{cluster}", "15s", tuple(queries.errors())),
        Group(f"fairway-gpu-health-{cluster}", "1m", tuple(queries.health())),
        Group(f"fairway-gpu-use-{cluster}", "5m", tuple(queries.use())),
        Group(f"fairway-gpu-idle-{cluster}", "10m", tuple(queries.idle())),
    )


class _Queries:
    def __init__(self, cluster: str, select: str) -> None:
        self._select = select
        self._own = f'cluster="{cluster}"'
        self._cluster = cluster

    def errors(self) -> Iterator[Alert | Record]:
        last = self._folded(f"({self._any(_XID)}) != 0")
        counted = self._folded(self._of(_XID_COUNT, _XID_NAMED) + " > 0")
        # The gauge keeps the last XID until a reset, and what follows a 79 (45) hides it; the counter has
        # each for five minutes.
        yield Record(
            "fairway:gpu_xid",
            f'count_values by ({_GPU}, {_HOLDER}) ("xid", {last})'
            f" or (max by ({_GPU}, {_HOLDER}, xid) ({counted}) > bool 0)",
        )
        yield Alert(
            "FairwayGpuGone",
            self._xids(GONE_XIDS),
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} is gone (XID {{ $labels.xid }})",
            "79: it fell off the bus. 119, 120: its firmware does not answer. The job on it cannot continue. "
            "Drain the node, then reset or reboot it; if it comes back, replace the board.",
            action="drain",
        )
        yield Alert(
            "FairwayGpuMemoryBroken",
            self._xids(MEMORY_XIDS),
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} has a memory error (XID {{ $labels.xid }})",
            "48: a double-bit error. 64: a bad row could not be remapped. 95: an error that was not "
            "contained: results of other jobs on this GPU may be wrong. Drain the node and reset the GPU.",
            action="drain",
        )
        yield Alert(
            "FairwayGpuMemoryContained",
            self._xids(CONTAINED_XIDS),
            "ticket",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} contained a memory error (XID {{ $labels.xid }})",
            "63: a row was remapped, which takes effect with the next reset. 94: one job was ended and the "
            "others were protected. Reset the GPU when the node is free.",
            action="reset",
        )
        known = (*GONE_XIDS, *MEMORY_XIDS, *CONTAINED_XIDS, *NVLINK_XIDS, *PROGRAM_XIDS)
        yield Alert(
            "FairwayGpuXidOther",
            f'max by ({_GPU}, xid) (fairway:gpu_xid{{{self._own},xid!~"{_alternatives(known)}"}}) > 0',
            "ticket",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} reports XID {{ $labels.xid }}",
            "NVIDIA's catalogue says what it means: docs.nvidia.com/deploy/xid-errors",
        )
        former = self._folded(f"({self._any(_XID, offset='5m')}) != 0")
        before = f'count_values by (node, gpu) ("xid", {former})'
        programs = f'xid=~"{_alternatives(PROGRAM_XIDS)}"'
        new = self._folded(self._of(_XID_COUNT, programs) + " > 0")
        fresh = f"max by ({_GPU}, {_HOLDER}, xid) ({new}) > bool 0"
        # Only while it is new: the gauge keeps it, and the next job on the GPU is not to blame.
        yield Alert(
            "FairwayGpuJobFault",
            f'label_replace({fresh}, "cluster", "{self._cluster}", "", "")'
            f" or (fairway:gpu_xid{{{self._own},{programs}}} unless on (node, gpu, xid) {before})",
            "team",
            "A program faulted on GPU {{ $labels.gpu }} of {{ $labels.node }} (XID {{ $labels.xid }})",
            "13, 31, 43 and 45 are mostly the program's own fault: an invalid access to memory, or the "
            "clean-up after one. Look at the GPU only if several programs have it there.",
        )

    def health(self) -> Iterator[Alert]:
        links = f"max by ({_GPU}) ({self._folded(self._any(_NVLINK))})"
        earlier = f"max by ({_GPU}) ({self._folded(self._any(_NVLINK, offset='15m'))})"
        yield Alert(
            "FairwayGpuNvlinkErrors",
            f'max by ({_GPU}) (fairway:gpu_xid{{{self._own},xid="{_alternatives(NVLINK_XIDS)}"}}) > 0'
            f" or ({links} - {earlier}) > 0",
            "ticket",
            "NVLink of GPU {{ $labels.gpu }} of {{ $labels.node }} has errors",
            "Jobs over several GPUs are slow there, or hang. Drain the node; reseat or replace the board if "
            "it comes back.",
            action="drain",
        )
        yield Alert(
            "FairwayGpuEccDoubleBit",
            self._positive(f"{_DEV}ECC_DBE_VOL_TOTAL"),
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} has uncorrectable memory errors",
            "{{ $value }} double-bit errors since its last reset. Drain the node and reset the GPU.",
            action="drain",
        )
        yield Alert(
            "FairwayGpuRowRemapFailed",
            self._positive(*_REMAP),
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} cannot remap bad memory any more",
            "Drain the node and replace the board.",
            action="drain",
        )
        yield Alert(
            "FairwayGpuRowRemapPending",
            self._positive(f"{_DEV}ROW_REMAP_PENDING"),
            "ticket",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} has a bad row of memory to remap",
            "It is remapped with the next reset. Reset the GPU when the node is free.",
            action="reset",
        )
        yield from self._hot()
        # Of bits 8 to 128 only 16 (synchronised boost) is normal: 2, divided by 8.
        reasons = self._positive(*_THROTTLE, above=7)
        yield Alert(
            "FairwayGpuThrottled",
            f"count by (node) (floor({reasons} / 8) % 32 != 0 != 2)",
            "ticket",
            "{{ $value }} GPUs of {{ $labels.node }} are slowed down by heat or power",
            "Bits 8, 32, 64 and 128 of the clocks' event reasons: hardware slowdown, thermal by software or "
            "hardware, power brake. The slowest GPU holds up a whole job. Idle (1) and power cap (4) are "
            "normal.",
            lasting="10m",
        )
        yield from self._silent()

    def _hot(self) -> Iterator[Alert]:
        yield Alert(
            "FairwayGpuHot",
            self._positive(*_TEMPERATURE, above=HOT_CELSIUS),
            "ticket",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} is at {{ $value }} °C",
            f"Above {HOT_CELSIUS} °C it slows down. Look at fans, airflow and the rack's inlet temperature.",
            lasting="10m",
        )
        named = "|".join(model for model, _ in OVERHEATED_CELSIUS)
        limits = [(f'modelName=~".*({model}).*"', celsius) for model, celsius in OVERHEATED_CELSIUS]
        limits.append((f'modelName!~".*({named}).*"', OVERHEATED_OTHERS))
        above = " or ".join(f"({self._any(_TEMPERATURE, match)}) > {celsius}" for match, celsius in limits)
        table = ", ".join(f"{model.replace('|', ', ')} {celsius}" for model, celsius in OVERHEATED_CELSIUS)
        yield Alert(
            "FairwayGpuOverheated",
            f"max by ({_GPU}, modelName) ({self._folded(above)})",
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} is at {{ $value }} °C, near its limit",
            f"Limits in °C: {table}, others {OVERHEATED_OTHERS}. It stops soon. Drain the node and look at "
            "its cooling.",
            lasting="1m",
            action="drain",
        )

    def _silent(self) -> Iterator[Alert]:
        memory = f"{_DEV}FB_USED"
        now = self._folded(self._of(memory))
        earlier = " or ".join(self._of(memory, offset=offset) for offset in ("10m", "1h", "6h", "1d"))
        before = self._folded(earlier)
        yield Alert(
            "FairwayGpuMissing",
            f"(max by ({_GPU}) ({before}) unless on (node, UUID) {now}) and on (node) {now}",
            "page",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} is no longer reported, while others of the node are",
            "It fell off the bus, or was taken out. Look at the kernel log of the node: dmesg | grep -i xid",
            lasting="2m",
            action="drain",
        )
        yield Alert(
            "FairwayExporterSilent",
            f"max by (node) ({before}) unless on (node) {now}",
            "ticket",
            "No GPU metrics from {{ $labels.node }}",
            "dcgm-exporter or the node is down. What runs there is not measured, which does not mean idle.",
            lasting="10m",
        )
        yield Alert(
            "FairwayNoGpuMetrics",
            f"absent({self._of(memory)})",
            "page",
            f"Prometheus has no GPU metrics of cluster {self._cluster}",
            "No exporter is scraped, or telemetry.select of the fleet file matches nothing. No job of the "
            "cluster is measured.",
            lasting="15m",
        )

    def use(self) -> Iterator[Record]:
        ratios = self._any(_ENGINE)
        engine = f"({ratios} or {self._of(f'{_DEV}GPU_UTIL')} * 0.01)"
        yield Record("fairway:job_engine:sum", f"sum by ({_HOLDER}) ({engine})")
        yield Record("fairway:job_gpus:count", f"count by ({_HOLDER}) ({engine})")

    def idle(self) -> Iterator[Alert]:
        held = f"fairway:job_gpus:count{{{self._own}}}"
        busy = f"fairway:job_engine:sum{{{self._own}}}"
        yield Alert(
            "FairwayJobIdle",
            f"sum_over_time({busy}[24h]) / sum_over_time({held}[24h]) < {IDLE_BELOW:g}"
            f" and count_over_time({held}[24h]) >= {_MEASURED_SAMPLES}"
            f" and {held} unless fairway:job_gpus:count{{{self._own},{_NOBODY}}}",
            "team",
            "Job {{ $labels.hpc_job }}{{ or $labels.exported_pod $labels.pod }} used "
            "{{ $value | humanizePercentage }} of its GPUs in 24 hours",
            "`fairway why JOB` says what it waits for. End it if nobody needs it, or request fewer GPUs.",
        )

    def _of(self, name: str, *matchers: str, offset: str = "") -> str:
        given = ",".join(filter(None, (self._select, *matchers)))
        return f"{name}{{{given}}}" + (f" offset {offset}" if offset else "")

    def _any(self, names: Sequence[str], *matchers: str, offset: str = "") -> str:
        return " or ".join(self._of(name, *matchers, offset=offset) for name in names)

    def _positive(self, *names: str, above: int = 0) -> str:
        """Return the GPUs of which one of the metrics is above a bound."""
        return f"max by ({_GPU}) ({self._folded(f'({self._any(names)}) > {above}')})"

    def _folded(self, expr: str) -> str:
        """Return the expression with the name of the host in `node`, whichever label has it."""
        joined = f'label_join({expr}, "host", "/", "node", "Hostname", "hostname")'
        return f'label_replace({joined}, "node", "$1", "host", "/*([^/]+)(/.*)?")'

    def _xids(self, xids: Sequence[int]) -> str:
        """Return the GPUs with one of these XIDs, whoever held them: it stays until a reset.

        And for two minutes more, while alerts on states that it explains end: they are evaluated each minute,
        and would be sent as soon as nothing explains them any more.
        """
        which = f'fairway:gpu_xid{{{self._own},xid=~"{_alternatives(xids)}"}}'
        return f"max by ({_GPU}, xid) (max_over_time({which}[2m])) > 0"


def _alternatives(xids: Sequence[int]) -> str:
    return "|".join(str(xid) for xid in xids)


def _rule(rule: Alert | Record, cluster: str) -> Iterator[str]:
    if isinstance(rule, Record):
        yield f"      - record: {rule.name}"
        yield from _expression(rule.expr)
        yield f"        labels: {{ cluster: {cluster} }}"
        return
    yield f"      - alert: {rule.name}"
    yield from _expression(rule.expr)
    if rule.lasting:
        yield f"        for: {rule.lasting}"
    action = f", action: {rule.action}" if rule.action else ""
    yield f"        labels: {{ severity: {rule.severity}{action}, cluster: {cluster}, fairway: {SOURCE} }}"
    yield "        annotations:"
    yield f"          summary: {_quoted(rule.summary)}"
    yield f"          description: {_quoted(rule.description)}"


def _expression(expr: str) -> Iterator[str]:
    yield "        expr: >-"
    yield f"          {expr}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_INHIBITED: Final = (
    (
        "a GPU that is gone explains what else is wrong with it",
        "FairwayGpuGone|FairwayGpuMissing",
        "FairwayGpu(JobFault|NvlinkErrors|Memory.*|Ecc.*|RowRemap.*|Hot|Overheated|XidOther|Missing)",
        "cluster, node, gpu",
    ),
    (
        "an XID of memory says it already",
        "FairwayGpuMemoryBroken",
        "FairwayGpuEccDoubleBit|FairwayGpuRowRemap.*",
        "cluster, node, gpu",
    ),
    ("the worse of two temperatures", "FairwayGpuOverheated", "FairwayGpuHot", "cluster, node, gpu"),
    ("no metrics at all", "FairwayNoGpuMetrics", "FairwayExporterSilent", "cluster"),
)


def alertmanager_text(fleet: Fleet, fairway: str, token_file: str) -> str:
    """Write an Alertmanager configuration that sends alerts on GPUs to Fairway, and others to the operators.

    Fairway knows whose job it is and where its team is reached; it tells the operators too. What is wrong
    with Fairway itself goes to the operators directly.
    """
    slack = fleet.notify.slack if fleet.notify is not None else None
    operators = (
        [
            "    slack_configs:",
            f"      - api_url_file: {_quoted(slack.url_file)}",
            "        send_resolved: true",
        ]
        if slack is not None
        else ["    # Add how the operators are reached when Fairway itself is down, e.g. slack_configs."]
    )
    url = f"{fairway.rstrip('/')}/v1/alerts"
    inhibited = [
        line
        for why, source, target, equal in _INHIBITED
        for line in (
            f"  # {why}",
            f"  - source_matchers: [ {_matcher(source)} ]",
            f"    target_matchers: [ {_matcher(target)} ]",
            f"    equal: [{equal}]",
        )
    ]
    return "\n".join(
        [
            "# Written by `fairway render alerts`. Copy what you need into a configuration that you have.",
            "route:",
            "  receiver: operators",
            "  group_by: [alertname, cluster]",
            "  group_wait: 30s",
            "  group_interval: 5m",
            "  repeat_interval: 12h",
            "  routes:",
            f"    - matchers: [ 'fairway=\"{SOURCE}\"' ]",
            "      receiver: fairway",
            "      group_by: [cluster, alertname]",
            "      group_wait: 10s",
            "      group_interval: 1m",
            "      repeat_interval: 24h",
            "inhibit_rules:",
            *inhibited,
            "receivers:",
            "  - name: operators",
            *operators,
            "  - name: fairway",
            "    webhook_configs:",
            f"      - url: {_quoted(url)}",
            "        send_resolved: true",
            f"        max_alerts: {_MAX_ALERTS}",
            "        http_config:",
            f"          authorization: {{ credentials_file: {_quoted(token_file)} }}",
            "",
        ]
    )


def _matcher(names: str) -> str:
    return f"'alertname=~\"{names}\"'"
