"""The whole line on real engines: file, server, ledger, API, command line, against the engine's own tools.

At the size of `make lab-up` in every run; at 1,000 nodes (8,000 GPUs) an engine nightly:
    FAIRWAY_TESTS=nightly pytest tests/integration/nodes/test_whole_line.py --junitxml build/whole-line.xml
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from fairway.model.fleet import (
    Cluster,
    KubernetesConnection,
    KubernetesPlace,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.observation import Health
from lab import Instance
from lab.instance import obtain
from tests.contract.driver import Driver
from tests.integration.server_process import Home, temporary_home
from tests.waiting import eventually

SHOWS_WITHIN_SECONDS = 60
"""The promise: a drained node, a dead slurmd and a NotReady node show by then."""


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


def fleet_file(cluster: Cluster, *pools: Pool) -> str:
    """The fleet as a platform engineer would write it."""
    match cluster.connection:
        case SlurmConnection(url=url, user=user, jwt_key_file=key):
            engine: dict[str, Any] = {"engine": "slurm", "url": url}
            engine["credentials"] = {"user": user, "jwt_key_file": key}
        case KubernetesConnection(kubeconfig=kubeconfig):
            engine = {"engine": "kubernetes", "kubeconfig": kubeconfig}
        case _:
            raise AssertionError("a real engine is meant")
    return yaml.safe_dump(
        {
            "apiVersion": "fairway/v1alpha1",
            "kind": "Fleet",
            "name": "whole-line",
            "currency": "USD",
            "clusters": {str(cluster.name): engine},
            "pools": {str(pool.name): _pool(pool) for pool in pools},
        },
        sort_keys=False,
    )


def _pool(pool: Pool) -> dict[str, Any]:
    match pool.place:
        case SlurmPlace(partition=partition, gres=gres):
            place: dict[str, Any] = {"slurm": {"partition": partition} | ({"gres": gres} if gres else {})}
        case KubernetesPlace(node_labels=labels):
            place = {"kubernetes": {"node_labels": dict(labels)}}
        case _:
            raise AssertionError("a real engine is meant")
    sliced = {"slices": list(pool.slices)} if pool.slices else {}
    return {
        "cluster": str(pool.cluster),
        "gpu": "A100-80GB",
        "capacity": "owned",
        "price": 1.9,
        **sliced,
        **place,
    }


class Line:
    """The fleet as `fairway get` shows it."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def get(self, what: str, *more: str) -> list[dict[str, Any]]:
        shown = self._home.fairway("get", what, *more, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        answer: list[dict[str, Any]] = json.loads(shown.stdout)
        return answer

    def whole(self) -> dict[str, Any]:
        """Counts of the pool of whole GPUs."""
        counts: dict[str, Any] | None = next(p for p in self.get("pools") if p["name"] == "whole")["gpus"]
        return counts or {}

    def unwell(self, health: Health) -> dict[str, str]:
        """Nodes of that health, with the engine's reason."""
        return {n["name"]: n["reason"] for n in self.get("nodes", "--health", health.value)}

    async def until(self, true: Callable[[], object], what: str) -> float:
        """Seconds until it shows; fails after a minute."""
        return await eventually(true, SHOWS_WITHIN_SECONDS, what)


async def walk(
    driver: Driver, home: Home, database_url: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Totals are true; a drained and a lost node show in time, and show as well again."""
    file = home.folder / "fleet.yaml"
    file.write_text(fleet_file(driver.cluster, driver.whole, driver.sliced))
    server = home.start("-f", str(file), "--listen", "127.0.0.1:0", FAIRWAY_DATABASE_URL=database_url)
    line, took = Line(home), dict[str, float]()
    try:
        truth = await driver.counts()
        total = truth[(driver.whole.name, None)]
        took["first totals"] = await line.until(lambda: line.whole().get("total") == total, f"{total} GPUs")
        slices = next(p for p in line.get("pools") if p["name"] == "sliced")["slices"]
        for row in slices:
            assert row["total"] == truth[(driver.sliced.name, row["slice"])]
        before = line.whole()
        async with driver.held(driver.whole, 4) as node:
            took["held GPUs"] = await line.until(
                lambda: line.whole()["in_use"] == before["in_use"] + 4, "4 GPUs in use"
            )
            async with driver.drained(node, "check the fan"):
                took["drained"] = await line.until(
                    lambda: node in line.unwell(Health.DRAINED), "drained node"
                )
                assert "check the fan" in line.unwell(Health.DRAINED)[node]
                counts = line.whole()
                assert counts["nodes_drained"] == before["nodes_drained"] + 1
                assert counts["in_use"] == before["in_use"] + 4
                assert counts["total"] == total
        await line.until(lambda: line.whole() == before, "all as before")
        async with driver.lost(node):
            took["lost"] = await line.until(lambda: node in line.unwell(Health.DOWN), "lost node")
            counts = line.whole()
            assert counts["total"] == counts["in_use"] + counts["free"] + counts["unhealthy"] == total
        await line.until(lambda: line.whole() == before, "all as before")
    finally:
        assert server.stop() == 0, server.log
    record_testsuite_property(
        f"{driver.cluster.name}, {total} GPUs", {what: f"{seconds:.1f} s" for what, seconds in took.items()}
    )


def open_driver(kind: str, name: str) -> Any:
    return importlib.import_module(f"tests.contract.drivers.{kind}").open_driver(name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("slurm", "slurm-24", marks=pytest.mark.slurm),
        pytest.param("slurm", "slurm-26", marks=pytest.mark.slurm),
        pytest.param("kubernetes", "kubernetes", marks=pytest.mark.kubernetes),
    ],
)
@pytest.mark.timeout(400)
async def test_the_whole_line(
    kind: str,
    name: str,
    home: Home,
    database_url: str,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    async with open_driver(kind, name) as driver:
        await walk(driver, home, database_url, record_testsuite_property)


@asynccontextmanager
async def a_thousand_nodes(kind: str, name: str, version: str | None) -> AsyncIterator[Instance]:
    instance = obtain(kind, name, version, {"nodes": 1000})
    await asyncio.to_thread(instance.up)
    try:
        yield instance
    finally:
        await asyncio.to_thread(instance.wipe)


@pytest.mark.nightly("a thousand nodes an engine; CI runs the same at the size of the lab")
@pytest.mark.parametrize(
    ("kind", "name", "version"),
    [
        pytest.param("slurm", "slurm-24-large", "24.11", marks=pytest.mark.slurm),
        pytest.param("slurm", "slurm-26-large", "26.05", marks=pytest.mark.slurm),
        pytest.param("kubernetes", "kubernetes-large", None, marks=pytest.mark.kubernetes),
    ],
)
@pytest.mark.timeout(900)
async def test_the_whole_line_at_a_thousand_nodes(
    kind: str,
    name: str,
    version: str | None,
    home: Home,
    database_url: str,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    async with a_thousand_nodes(kind, name, version), open_driver(kind, name) as driver:
        assert (await driver.counts())[(driver.whole.name, None)] == 8000
        await walk(driver, home, database_url, record_testsuite_property)
