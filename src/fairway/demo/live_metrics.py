"""Serve made-up metrics of the demo's live GPUs, as a Prometheus with dcgm-exporter's metrics would.

The server of the demo reads them like those of any cluster. Only the queries that Fairway sends are answered;
the reply to any other is empty.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final
from urllib.parse import parse_qs
from zlib import crc32

from fairway.demo.gpu_shapes import IDLE_WATTS, GpuShape, device_memory_mib, draw_shape, watts_limit
from fairway.demo.history_use import gpu_uuid
from fairway.demo.jobs import ABANDONED, virtual_place
from fairway.engines.virtual import VirtualEngine
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.team import Supply
from fairway.simulate.cluster import SimState
from fairway.simulate.cluster.jobs import JobView

SAMPLE_SECONDS: Final = 5.0
"""Live jobs are short: a sample every 15 s would miss most of them."""
KEEP_SECONDS: Final = 1800.0
_MAX_BODY: Final = 1_000_000
_FIRST_INSTANCE: Final = 7
_NOTHING: Final = GpuShape(0, 0, 0, 0, 0, pcie=0)

_PROF, _DEV = "DCGM_FI_PROF_", "DCGM_FI_DEV_"
_OVER_TIME: Final = re.compile(r"(avg|count|max)_over_time\((\w+)\{")
_HOW: Final = re.compile(r"^(avg|sum|max) by \(")
_RANGE: Final = re.compile(r"\[(\d+)ms\]$|\[(\d+)ms\]\)")
_NAMES: Final = re.compile(r'^\{__name__=~"([^"]*)"')
_SERVED: Final = re.compile(r'^count by \(__name__\) \(\{__name__=~"([^"]*)"')
"""Asks which metrics there are: the demo has all of them, also those of errors that it never shows."""
_HOSTS: Final = re.compile(r'Hostname=~"((?:[^"\\]|\\.)*)"')
_CLUSTER: Final = re.compile(r'cluster="([a-z0-9-]+)"')


@dataclass(frozen=True, slots=True)
class Series:
    """The labels of one device's metrics while one job, or nobody, holds it."""

    cluster: ClusterName
    node: NodeName
    gpu: str
    instance: str
    profile: str
    model: str
    hpc_job: str

    def labels(self, name: str = "") -> dict[str, str]:
        """Return the labels as an exporter has them: those without a value are left out."""
        found = {
            "__name__": name,
            "Hostname": str(self.node),
            "gpu": self.gpu,
            "UUID": gpu_uuid(self.node, self.gpu),
            "GPU_I_ID": self.instance,
            "GPU_I_PROFILE": self.profile,
            "modelName": self.model,
            "hpc_job": self.hpc_job,
        }
        return {label: text for label, text in found.items() if text}


Values = Mapping[str, float]
"""Values by the names of metrics."""


class LiveMetrics:
    """The samples of the last half hour of all GPUs, and the answers to queries about them."""

    def __init__(
        self,
        fleet: Fleet,
        engines: Mapping[ClusterName, VirtualEngine],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._engines = engines
        self._clock = clock
        self._samples: deque[tuple[float, dict[Series, Values]]] = deque()
        self._held: dict[tuple[ClusterName, int], dict[NodeName, list[int]]] = {}
        """The devices of each job, by the number of the supply's devices on a node."""
        self._shapes: dict[tuple[ClusterName, int], GpuShape] = {}

    def sample(self) -> None:
        """Take a sample of every GPU."""
        now = self._clock()
        found: dict[Series, Values] = {}
        for name in self._engines:
            found.update(self._cluster(name))
        self._samples.append((now, found))
        while self._samples and self._samples[0][0] < now - KEEP_SECONDS:
            self._samples.popleft()

    def answer(self, query: str, at: float) -> dict[str, object]:
        """Return the reply to a query at a time. Queries that are not known have an empty one."""
        if (asked := _SERVED.match(query)) is not None:
            served = [{"metric": {"__name__": name}, "value": [at, "1"]} for name in asked[1].split("|")]
            return {"resultType": "vector", "result": served}
        cluster = _CLUSTER.search(query)
        length = _RANGE.search(query)
        if cluster is None or length is None:
            return {"resultType": "vector", "result": []}
        start = at - int(length[1] or length[2]) / 1000
        series = self._series(ClusterName(cluster[1]), start, at)
        if (names := _NAMES.match(query)) is not None:
            return {
                "resultType": "matrix",
                "result": list(_matrix(series, names[1].split("|"), _HOSTS.search(query))),
            }
        how, over_time = _HOW.match(query), _OVER_TIME.findall(query)
        result = [] if how is None else list(_vector(series, how[1], over_time, at))
        return {"resultType": "vector", "result": result}

    def _series(
        self, cluster: ClusterName, start: float, end: float
    ) -> dict[Series, list[tuple[float, Values]]]:
        found: dict[Series, list[tuple[float, Values]]] = {}
        for at, sample in self._samples:
            if start <= at <= end:
                for series, values in sample.items():
                    if series.cluster == cluster:
                        found.setdefault(series, []).append((at, values))
        return found

    def _cluster(self, cluster: ClusterName) -> Iterator[tuple[Series, Values]]:
        engine = self._engines[cluster]
        running = {v.id: v for v in engine.simulator.jobs() if v.state is SimState.RUNNING and v.nodes}
        for key in [key for key in self._held if key[0] == cluster and key[1] not in running]:
            del self._held[key], self._shapes[key]
        pools = {pool.name: pool for pool in self._fleet.pools_of(cluster)}
        holders = self._assign(cluster, pools, running)
        for pool in pools.values():
            for number in range(1, virtual_place(pool).nodes + 1):
                node = NodeName(f"{pool.name}-{number:04}")
                for slice_ in pool.slices or (None,):
                    held = holders.get((node, slice_), {})
                    for index in range(_per_node(pool, slice_)):
                        holder = held.get(index)
                        name = "" if holder is None else engine.engine_id(holder)
                        gpu, instance = _names(pool, slice_, index)
                        series = Series(cluster, node, gpu, instance, slice_ or "", pool.gpu.name, name)
                        view = None if holder is None else running[holder]
                        yield series, self._device(cluster, pool, slice_, view, node, index)

    def _assign(
        self, cluster: ClusterName, pools: Mapping[PoolName, Pool], running: Mapping[int, JobView]
    ) -> dict[tuple[NodeName, SliceName | None], dict[int, int]]:
        """Give new jobs free devices of their nodes. Returns who holds which device of each node."""
        holders: dict[tuple[NodeName, SliceName | None], dict[int, int]] = {}
        new = []
        for number, view in running.items():
            devices = self._held.get((cluster, number), {})
            if set(devices) != set(view.nodes):
                new.append(view)
                continue
            for node, indices in devices.items():
                holders.setdefault((node, view.request.slice), {}).update(dict.fromkeys(indices, number))
        for view in new:
            request = view.request
            devices = {}
            for node in view.nodes:
                held = holders.setdefault((node, request.slice), {})
                free = (i for i in range(_per_node(pools[request.pool], request.slice)) if i not in held)
                devices[node] = list(islice(free, request.gpus))
                held.update(dict.fromkeys(devices[node], view.id))
            self._held[cluster, view.id] = devices
            random = Random(crc32(f"{cluster}/{view.id}".encode()))  # noqa: S311 - nothing secret
            self._shapes[cluster, view.id] = draw_shape(random, request.name.partition("-")[0], request.user)
        return holders

    def _device(
        self,
        cluster: ClusterName,
        pool: Pool,
        slice_: SliceName | None,
        view: JobView | None,
        node: NodeName,
        index: int,
    ) -> Values:
        size = device_memory_mib(pool, Supply(pool.name, slice_))
        if view is None:
            return _values(_NOTHING, size, watts_limit(pool), works=False)
        shape = self._shapes[cluster, view.id]
        # Some use one GPU of those they hold; one that nobody works on holds its memory, and does nothing.
        first_node = next(iter(self._held[cluster, view.id].items()))
        if shape.used < 1 and (node, [index]) != (first_node[0], first_node[1][:1]):
            return _values(_NOTHING, size, watts_limit(pool), works=False)
        works = not view.request.name.startswith(ABANDONED)
        return _values(shape, size, watts_limit(pool), works=works)


def _per_node(pool: Pool, slice_: SliceName | None) -> int:
    place = virtual_place(pool)
    return place.gpus_per_node * (1 if slice_ is None else place.slices_per_gpu[slice_])


def _names(pool: Pool, slice_: SliceName | None, index: int) -> tuple[str, str]:
    """Return the index of the GPU, and the instance if it is cut."""
    if slice_ is None:
        return str(index), ""
    per_gpu = virtual_place(pool).slices_per_gpu
    first = _FIRST_INSTANCE + sum(per_gpu[name] for name in sorted(per_gpu) if name < slice_)
    return str(index // per_gpu[slice_]), str(first + index % per_gpu[slice_])


def _values(shape: GpuShape, size: float, limit: float, *, works: bool) -> Values:
    """Return the values of a device with `size` MiB; one that does not work only holds memory."""
    pace = 1.0 if works else 0.0
    return {
        f"{_PROF}GR_ENGINE_ACTIVE": shape.engine * pace,
        f"{_PROF}SM_ACTIVE": shape.sm * pace,
        f"{_PROF}PIPE_TENSOR_ACTIVE": shape.tensor * pace,
        f"{_PROF}DRAM_ACTIVE": shape.dram * pace,
        f"{_DEV}FB_USED": max(3.0, shape.memory * size),
        f"{_DEV}POWER_USAGE": shape.watts(limit) if works else IDLE_WATTS,
        f"{_PROF}PCIE_RX_BYTES": shape.pcie * pace * 0.8,
        f"{_PROF}PCIE_TX_BYTES": shape.pcie * pace * 0.2,
    }


def _vector(
    series: Mapping[Series, list[tuple[float, Values]]],
    how: str,
    over_time: list[tuple[str, str]],
    at: float,
) -> Iterator[dict[str, object]]:
    for one, samples in series.items():
        parts = []
        for function, name in over_time:
            values = [sample[name] for _, sample in samples if name in sample]
            if values:
                mean = sum(values) / len(values)
                parts.append({"avg": mean, "count": float(len(values)), "max": max(values)}[function])
        if parts:
            value = {"avg": sum(parts) / len(parts), "sum": sum(parts), "max": max(parts)}[how]
            yield {"metric": one.labels(), "value": [at, f"{value:.6g}"]}


def _matrix(
    series: Mapping[Series, list[tuple[float, Values]]], names: Iterable[str], hosts: re.Match[str] | None
) -> Iterator[dict[str, object]]:
    wanted = re.compile("" if hosts is None else hosts[1].replace("\\\\", "\\"))
    for one, samples in series.items():
        if wanted.fullmatch(one.node):
            for name in names:
                values = [[at, f"{sample[name]:.6g}"] for at, sample in samples if name in sample]
                if values:
                    yield {"metric": one.labels(name), "values": values}


def listen() -> socket.socket:
    """Listen on a free port of the loopback: its address is in the fleet file before anything is served.

    Whoever asks before that waits.
    """
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


async def serve_metrics(metrics: LiveMetrics, listener: socket.socket) -> None:
    """Take samples and answer queries until it is cancelled."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _reply(metrics, reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, sock=listener):
        while True:
            metrics.sample()
            await asyncio.sleep(SAMPLE_SECONDS)


async def _reply(metrics: LiveMetrics, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request. Returns whether another may follow."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    size = int(length[1]) if length else 0
    if size > _MAX_BODY:
        return False
    form = parse_qs((await reader.readexactly(size)).decode("utf-8", errors="replace"))
    found = metrics.answer(form.get("query", [""])[0], float(form.get("time", ["0"])[0]))
    content = json.dumps({"status": "success", "data": found}).encode()
    kind = "Content-Type: application/json"
    writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return True
