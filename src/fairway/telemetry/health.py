"""Read what is wrong with a cluster's GPUs now: two queries, and one more for hosts with something new.

The last XID hides the ones before it, so the exporter's count of XIDs in its window is read too. A GPU that
vanishes while others of its host stay has fallen off the bus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.model.gpu_health import (
    HELD_BEFORE_SECONDS,
    HOT_CELSIUS,
    SAME_EVENT_SECONDS,
    EventCode,
    GpuSighting,
    throttle_words,
    xid_code,
)
from fairway.model.gpu_use import Window
from fairway.telemetry import queries
from fairway.telemetry.prometheus import Labels, MatrixRow, Prometheus, VectorRow, parse_number
from fairway.telemetry.reader import HOSTS_A_QUERY, NodeNames

LOOK_BACK_SECONDS: Final = SAME_EVENT_SECONDS
"""How far back the beginning of an event is looked for, and for how long a vanished GPU is missed."""
_XID_COUNT: Final = "xid-count"
_XID_LAST: Final = "xid-last"
_DEV: Final = "DCGM_FI_DEV_"


@dataclass(frozen=True, slots=True)
class _HealthMetric:
    """A metric of which values above a bound say that something is wrong."""

    code: str
    names: tuple[str, ...]
    above: int = 0


_METRICS: Final = (
    _HealthMetric(_XID_COUNT, ("DCGM_EXP_XID_ERRORS_COUNT",)),
    _HealthMetric(_XID_LAST, (f"{_DEV}XID_ERRORS", f"{_DEV}XID_ERROR")),
    _HealthMetric(EventCode.ECC, (f"{_DEV}ECC_DBE_VOL_TOTAL",)),
    _HealthMetric(EventCode.ROW_REMAP, (f"{_DEV}ROW_REMAP_FAILURE", f"{_DEV}ROW_REMAP_FAILED")),
    _HealthMetric(EventCode.ROW_PENDING, (f"{_DEV}ROW_REMAP_PENDING",)),
    _HealthMetric(
        EventCode.NVLINK,
        (f"{_DEV}NVLINK_RECOVERY_ERROR_COUNT_TOTAL", f"{_DEV}NVLINK_RECOVERY_ERROR_TOTAL"),
    ),
    _HealthMetric(
        EventCode.THROTTLE, (f"{_DEV}CLOCK_THROTTLE_REASONS", f"{_DEV}CLOCKS_EVENT_REASONS"), above=7
    ),
    _HealthMetric(EventCode.HOT, (f"{_DEV}GPU_TEMP", f"{_DEV}GPU_TEMP_CELSIUS"), above=HOT_CELSIUS),
)
_BY_NAME: Final = {name: metric for metric in _METRICS for name in metric.names}
_BY_CODE: Final = {metric.code: metric for metric in _METRICS}
_PRESENT: Final = f"{_DEV}FB_USED"
"""The metric that every GPU has under one name, by which a GPU is seen to be there."""
_HOST: Final = "node, Hostname, hostname"
_NAMES: Final = (*_BY_NAME, _PRESENT)


def wrong_query(select: str) -> str:
    """Return the query for everything that is wrong now; a label says with which metric."""
    parts = [
        f'label_replace({name}{{{select}}} > {metric.above}, "{queries.CODE}", "{metric.code}", "", "")'
        for name, metric in _BY_NAME.items()
    ]
    return " or ".join(parts)


def gone_query(select: str) -> str:
    """Return the query for GPUs that were there and are not, on hosts whose other GPUs are."""
    now = f"{_PRESENT}{{{select}}}"
    before = f"last_over_time({now}[{LOOK_BACK_SECONDS}s])"
    missing = (
        f"(max by ({_HOST}, gpu, UUID, uuid, modelName, DCGM_FI_DEV_SERIAL) ({before})"
        f" unless on ({_HOST}, UUID, uuid) {now}) and on ({_HOST}) {now}"
    )
    return f'label_replace({missing}, "{queries.CODE}", "{EventCode.GONE}", "", "")'


class HealthReader:
    """Reads the health of one cluster's GPUs."""

    def __init__(self, prometheus: Prometheus, select: str, nodes: NodeNames) -> None:
        self._prometheus = prometheus
        self._select = select
        self._nodes = nodes

    async def read(self, now: float, known: Collection[tuple[str, str, str]]) -> tuple[GpuSighting, ...]:
        """Return what is wrong at `now`. When it began is looked up for events that are not `known`."""
        found: dict[tuple[str, str, str], GpuSighting] = {}
        hosts: dict[str, Labels] = {}
        for query in (wrong_query(self._select), gone_query(self._select)):
            for row in await self._prometheus.vector(query, now):
                sighting = self._sighting(row, now)
                if sighting is None or sighting.key in found:
                    continue
                found[sighting.key] = sighting
                if sighting.key not in known:
                    hosts[row.metric.host_name] = row.metric
        rows = await self._samples(hosts, now)
        return tuple(
            sighting if key in known else onset(sighting, rows.get(sighting.node, ()))
            for key, sighting in found.items()
        )

    def _sighting(self, row: VectorRow, now: float) -> GpuSighting | None:
        labels = row.metric
        coded = event_code(labels.code, labels, row.number)
        if coded is None:
            return None
        code, detail = coded
        return GpuSighting(
            node=self._nodes.node(labels.host_name),
            gpu=labels.gpu or "?",
            code=code,
            at=now,
            seen_at=now,
            uuid=labels.gpu_uuid,
            serial=labels.serial,
            model=labels.model,
            detail=detail,
        )

    async def _samples(self, hosts: Mapping[str, Labels], now: float) -> dict[str, list[MatrixRow]]:
        """Return the samples of these hosts since some minutes, by node."""
        window = Window(int(now) - LOOK_BACK_SECONDS, int(now) + 1)
        found: dict[str, list[MatrixRow]] = {}
        names = sorted(hosts)
        for start in range(0, len(names), HOSTS_A_QUERY):
            some = names[start : start + HOSTS_A_QUERY]
            for label in sorted({hosts[name].host_label for name in some}):
                query = queries.samples(_NAMES, self._select, label, some, window)
                for row in await self._prometheus.matrix(query, now):
                    found.setdefault(self._nodes.node(row.metric.host_name), []).append(row)
        return found


def event_code(metric: str, labels: Labels, value: float) -> tuple[str, str] | None:
    """Return the code and the detail of an event. Returns None if a value says nothing is wrong."""
    if metric == EventCode.GONE:
        return metric, ""
    if metric not in _BY_CODE or not value > _BY_CODE[metric].above:
        return None
    if metric == _XID_COUNT:
        return (xid_code(int(labels.xid)), "") if labels.xid.isdecimal() else None
    if metric == _XID_LAST:
        return xid_code(int(value)), ""
    if metric == EventCode.THROTTLE:
        words = throttle_words(int(value))
        return (metric, words) if words else None
    return metric, f"{value:g} °C" if metric == EventCode.HOT else ""


def onset(sighting: GpuSighting, rows: Sequence[MatrixRow]) -> GpuSighting:
    """Return a sighting with when it began and who held the GPU then, by the samples of its host."""
    own = [row for row in rows if row.values and _is_of(row.metric, sighting)]
    if sighting.code == EventCode.GONE:
        first = max((row.values[-1][0] for row in own), default=None)
        known = True
    else:
        first = min((at for row in own for at in _bad_samples(row, sighting.code)), default=None)
        known = any(row.values and row.values[0][0] < (first or 0.0) for row in rows)
    if first is None:
        return sighting
    return replace(sighting, at=first, holders=_holders(own, first), onset_known=known)


def _bad_samples(row: MatrixRow, code: str) -> Iterator[float]:
    """Yield the times at which a series says that something is wrong."""
    metric = _BY_NAME.get(row.metric.name)
    if metric is not None:
        for at, text in row.values:
            coded = event_code(metric.code, row.metric, parse_number(text))
            if coded is not None and coded[0] == code:
                yield at


def _is_of(labels: Labels, sighting: GpuSighting) -> bool:
    if sighting.uuid and labels.gpu_uuid:
        return labels.gpu_uuid == sighting.uuid
    return labels.gpu == sighting.gpu


def _holders(rows: Sequence[MatrixRow], at: float) -> frozenset[str]:
    """Return who held a GPU at a time, or else shortly before it."""
    for before in (0.0, HELD_BEFORE_SECONDS):
        holders = {
            row.metric.holder
            for row in rows
            if row.metric.holder and any(at - before <= then <= at for then, _ in row.values)
        }
        if holders:
            return frozenset(holders)
    return frozenset()
