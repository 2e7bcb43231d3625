"""Observing a cluster through Fairway, beside the bare calls that carry the same facts.

Bare: the same HTTP client reads the same lists and throws them away undecoded, so the ratio is all that
Fairway adds. Kubernetes is measured cold on both sides (kubeconfig, TLS, connection, lists); once Fairway's
informers run, a look costs no call: `steady_look_s`.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import yaml

from bench.figure import Figure, in_turn, median
from bench.fleets import A100, PRODUCT
from bench.wire import counting
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Observes
from fairway.engines.slurm.engine import SlurmEngine
from fairway.engines.slurm.rest.client import Tokens
from fairway.model.fleet import (
    Capacity,
    Cluster,
    KubernetesConnection,
    KubernetesPlace,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.names import ClusterName, PoolName
from lab import Instance, find
from lab.instance import obtain

TARGET = 1.5


def _pool(place: SlurmPlace | KubernetesPlace) -> Pool:
    return Pool(PoolName("a100"), ClusterName("bench"), A100, Capacity.OWNED, Decimal("1.90"), place)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two ways to the same facts."""

    ours: Callable[[], Awaitable[object]]
    bare: Callable[[], Awaitable[object]]


Open = Callable[[str], AbstractAsyncContextManager[Pair]]
"""Opens both ways to the server at a URL."""


async def _bytes(url: str, open_pair: Open) -> tuple[int, int]:
    """What each way moves. Counted apart from the timing, which no forwarder must slow down."""
    there = urlsplit(url)
    counts: list[int] = []
    async with (
        counting(there.hostname or "", there.port or 0) as wire,
        open_pair(f"{there.scheme}://127.0.0.1:{wire.port}") as pair,
    ):
        for call in (pair.ours, pair.bare):
            await call()  # connections and tokens are there
            wire.take()
            await call()
            counts.append(wire.take())
    return counts[0], counts[1]


async def _measure(
    name: str, nodes: int, rounds: int, url: str, open_pair: Open, limits: str, more: dict[str, object]
) -> Figure:
    ours_bytes, bare_bytes = await _bytes(url, open_pair)
    async with open_pair(url) as pair:
        seconds, bare_seconds = await in_turn(pair.ours, pair.bare, rounds)
        tracemalloc.start()
        await pair.ours()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Figure(
        name,
        str(nodes),
        median(seconds),
        median(bare_seconds),
        "s",
        TARGET,
        limits,
        {
            "bytes": f"{ours_bytes:,} against {bare_bytes:,}",
            "bytes_ratio": round(ours_bytes / bare_bytes, 3),
            "peak_memory_mb": round(peak / 1e6, 1),
            "rounds": rounds,
            **more,
        },
    )


async def _true_total(engine: Observes, instance: Instance) -> None:
    """A figure of a wrong answer is worth nothing."""
    observation = await engine.observe()
    gpus = sum(d.total for n in observation.nodes for d in n.devices if d.pool == "a100")
    if gpus != instance.options["nodes"] * 8:
        raise SystemExit(f"error: {instance.name} shows {gpus} GPUs\n\nhint: python -m lab status")


async def slurm(instance: Instance, rounds: int) -> Figure:
    """Every node with its partitions and GRES, against the same list."""
    facts = instance.facts()

    @asynccontextmanager
    async def open_pair(url: str) -> AsyncIterator[Pair]:
        connection = SlurmConnection(url, user=facts["user"], jwt_key_file=facts["jwt_key_file"])
        engine = SlurmEngine(Cluster(ClusterName("bench"), connection), (_pool(SlurmPlace("gpu", "a100")),))
        headers = {"X-SLURM-USER-NAME": facts["user"], "X-SLURM-USER-TOKEN": Tokens(connection).current()}
        async with httpx2.AsyncClient(timeout=60, headers=headers) as client:

            async def bare() -> None:
                (await client.get(f"{url}/slurm/v0.0.42/nodes")).raise_for_status()

            await _true_total(engine, instance)
            yield Pair(engine.observe, bare)
        await engine.close()

    return await _measure(
        f"observe-slurm-{instance.version}",
        instance.options["nodes"],
        rounds,
        facts["url"],
        open_pair,
        "slurmrestd, which makes its JSON in one thread; decoding is a small part",
        {},
    )


async def kubernetes(instance: Instance, rounds: int) -> Figure:
    """Cold: list nodes and unfinished pods, decode, sum up; against the same two lists."""
    config = yaml.safe_load(Path(instance.facts()["fairway_kubeconfig"]).read_text())
    server = config["clusters"][0]["cluster"]
    url = server["server"]
    pools = (_pool(KubernetesPlace(PRODUCT)),)
    steady: list[float] = []

    @asynccontextmanager
    async def open_pair(url: str) -> AsyncIterator[Pair]:
        server["server"] = url
        with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as file:
            yaml.safe_dump(config, file)
            file.flush()
            cluster = Cluster(ClusterName("bench"), KubernetesConnection(file.name))

            async def ours() -> None:
                engine = KubernetesEngine(cluster, pools)
                try:
                    await engine.observe()
                finally:
                    await engine.close()

            async def bare() -> None:  # as cold: the kubeconfig, TLS and a connection first
                read = yaml.safe_load(Path(file.name).read_text())
                ca = base64.b64decode(read["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
                tls = ssl.create_default_context(cadata=ca)
                headers = {"Authorization": f"Bearer {read['users'][0]['user']['token']}"}
                async with httpx2.AsyncClient(timeout=60, verify=tls, headers=headers) as client:
                    for what in ("nodes", "pods?fieldSelector=status.phase!=Succeeded,status.phase!=Failed"):
                        (await client.get(f"{url}/api/v1/{what}")).raise_for_status()

            warm = KubernetesEngine(cluster, pools)
            await _true_total(warm, instance)
            start = time.perf_counter()
            for _ in range(10):
                await warm.observe()
            steady.append((time.perf_counter() - start) / 10)
            await warm.close()
            yield Pair(ours, bare)

    figure = await _measure(
        "observe-kubernetes",
        instance.options["nodes"],
        rounds,
        url,
        open_pair,
        "the API server's encoding of whole nodes; below some hundred nodes the fixed cost of"
        " more connections, two watches and /version",
        {},
    )
    return replace(figure, details={**figure.details, "steady_look_s": round(min(steady), 5)})


async def run(size: str) -> list[Figure]:
    """small: the instances of `make lab-up`. A number: instances of that many nodes, made and wiped here."""
    figures: list[Figure] = []
    if size == "small":
        for name in ("slurm-24", "slurm-26", "kubernetes"):
            instance = find(name)
            if instance is None or instance.state == "down":
                raise SystemExit(f"error: the lab's {name} is not up\n\nhint: make lab-up")
            figures.append(await (kubernetes if name == "kubernetes" else slurm)(instance, 15))
        return figures
    for kind, version in (("slurm", "24.11"), ("slurm", "26.05"), ("kubernetes", None)):
        name = f"bench-{kind}" + (f"-{version[:2]}" if version else "")
        instance = obtain(kind, name, version, {"nodes": int(size)})
        await asyncio.to_thread(instance.up)
        try:
            figures.append(await (kubernetes if kind == "kubernetes" else slurm)(instance, 7))
        finally:
            await asyncio.to_thread(instance.wipe)
    return figures
