"""Observing a cluster through Fairway, beside the bare calls that carry the same facts.

Bare: the same HTTP client reads the same lists and throws them away undecoded, so the ratio is all that
Fairway adds. Kubernetes is measured cold (a new engine each time: list, decode, sum up); once its informers
run, a look costs no call.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import ssl
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import yaml

from bench.figure import Figure, in_turn, median
from bench.wire import Wire, counting
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Observes
from fairway.engines.slurm.engine import SlurmEngine
from fairway.engines.slurm.tokens import Tokens
from fairway.model.fleet import (
    Capacity,
    Cluster,
    KubernetesConnection,
    KubernetesPlace,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName
from lab import Instance, find
from lab.instance import obtain

TARGET = 1.5
A100 = CATALOGUE["A100-80GB"]
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


def _pool(place: SlurmPlace | KubernetesPlace) -> Pool:
    return Pool(PoolName("a100"), ClusterName("bench"), A100, Capacity.OWNED, Decimal("1.90"), place)


async def _measure(
    name: str,
    nodes: int,
    rounds: int,
    wire: Wire,
    ours: Callable[[], Awaitable[object]],
    bare: Callable[[], Awaitable[object]],
    limits: str,
    more: dict[str, object],
) -> Figure:
    bytes_of: dict[str, int] = {}

    async def weighed(which: str, call: Callable[[], Awaitable[object]]) -> None:
        wire.take()
        await call()
        bytes_of[which] = wire.take()

    seconds, bare_seconds = await in_turn(
        lambda: weighed("ours", ours), lambda: weighed("bare", bare), rounds
    )
    tracemalloc.start()
    await ours()
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
            "bytes": f"{bytes_of['ours']:,} against {bytes_of['bare']:,}",
            "bytes_ratio": round(bytes_of["ours"] / bytes_of["bare"], 3),
            "peak_memory_mb": round(peak / 1e6, 1),
            "rounds": rounds,
            **more,
        },
    )


def _truth(nodes: int, engine: str, gpus: int) -> None:
    if gpus != nodes * 8:
        raise SystemExit(f"error: {engine} shows {gpus} GPUs, not {nodes * 8}\n\nhint: python -m lab status")


async def _gpus(engine: Observes) -> int:
    observation = await engine.observe()
    return sum(d.total for n in observation.nodes for d in n.devices if d.pool == "a100")


async def slurm(instance: Instance, rounds: int) -> Figure:
    """Every node with its partitions and GRES, against the same list."""
    facts = instance.facts()
    there = urlsplit(facts["url"])
    async with (
        counting(there.hostname or "", there.port or 0) as wire,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        connection = SlurmConnection(
            f"http://127.0.0.1:{wire.port}", user=facts["user"], jwt_key_file=facts["jwt_key_file"]
        )
        engine = SlurmEngine(Cluster(ClusterName("bench"), connection), (_pool(SlurmPlace("gpu", "a100")),))
        headers = {"X-SLURM-USER-NAME": facts["user"], "X-SLURM-USER-TOKEN": Tokens(connection).current()}

        async def bare() -> None:
            (await client.get(f"{connection.url}/slurm/v0.0.42/nodes", headers=headers)).raise_for_status()

        nodes = instance.options["nodes"]
        _truth(nodes, instance.name, await _gpus(engine))
        try:
            return await _measure(
                f"observe-slurm-{instance.version}",
                nodes,
                rounds,
                wire,
                engine.observe,
                bare,
                "slurmrestd, which makes its JSON in one thread; decoding is a small part",
                {},
            )
        finally:
            await engine.close()


async def kubernetes(instance: Instance, rounds: int) -> Figure:
    """Cold: list nodes and unfinished pods, decode, sum up; against the same two lists."""
    config = yaml.safe_load(Path(instance.facts()["fairway_kubeconfig"]).read_text())
    server = config["clusters"][0]["cluster"]
    there = urlsplit(server["server"])
    tls = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
    async with counting(there.hostname or "", there.port or 0) as wire:
        server["server"] = f"https://127.0.0.1:{wire.port}"
        with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as file:
            yaml.safe_dump(config, file)
            file.flush()
            cluster = Cluster(ClusterName("bench"), KubernetesConnection(file.name))
            pools = (_pool(KubernetesPlace(PRODUCT)),)
            headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}

            async def ours() -> None:
                engine = KubernetesEngine(cluster, pools)
                try:
                    await engine.observe()
                finally:
                    await engine.close()

            async def bare() -> None:
                async with httpx2.AsyncClient(timeout=60, verify=tls, headers=headers) as client:
                    for what in ("nodes", "pods?fieldSelector=status.phase!=Succeeded,status.phase!=Failed"):
                        (await client.get(f"{server['server']}/api/v1/{what}")).raise_for_status()

            warm = KubernetesEngine(cluster, pools)
            nodes = instance.options["nodes"]
            _truth(nodes, instance.name, await _gpus(warm))
            gc.collect()
            start = time.perf_counter()
            for _ in range(10):
                await warm.observe()
            steady = (time.perf_counter() - start) / 10
            await warm.close()
            return await _measure(
                "observe-kubernetes",
                nodes,
                rounds,
                wire,
                ours,
                bare,
                "the API server's encoding of whole nodes; below some hundred nodes the fixed cost of"
                " a second connection, two watches and /version",
                {"steady_look_s": round(steady, 5)},
            )


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
