"""Observe, and the runner that follows the fleet: real ledger, virtual engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fairway.control import Engine, Runner
from fairway.control.loop import LeasedLoop
from fairway.engines.port import Unreachable
from fairway.engines.virtual import VirtualEngine
from fairway.files import parse_fleet
from fairway.ledger import ClusterState, Ledger, Revision
from fairway.model.apply import ApplyState
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.observation import Observation
from fairway.model.team import Grant, Team
from fairway.services.fleets import Fleets
from fairway.settings import Settings

SETTINGS = Settings(
    listen_port=0,
    state_dir=Path("/nonexistent"),
    lease_seconds=10,
    observe_seconds=0.05,
    drift_seconds=0.05,
    intervention_seconds=0.05,
    budget_seconds=1,
)


def fleet(**nodes: int) -> Fleet:
    """A fleet of virtual clusters by name, with so many nodes in one pool each."""
    return Fleet(
        "acme",
        "USD",
        tuple(Cluster(ClusterName(name), VirtualConnection()) for name in nodes),
        tuple(
            Pool(
                PoolName(f"{name}-a100"),
                ClusterName(name),
                GpuType("A100-80GB", 80),
                Capacity.OWNED,
                Decimal(1),
                VirtualPlace(nodes=count),
            )
            for name, count in nodes.items()
        ),
    )


class Failing(VirtualEngine):
    """A virtual engine that fails when told to."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...], stage: Stage) -> None:
        super().__init__(cluster, pools)
        self.name = cluster.name
        self.stage = stage

    async def observe(self) -> Observation:
        if self.name in self.stage.faults:
            raise self.stage.faults[self.name]
        return await super().observe()

    async def close(self) -> None:
        self.stage.closed.append(self.name)


@dataclass
class Stage:
    """Revisions by their text, faults by cluster, and what was built and closed."""

    ledger: Ledger
    fleets: dict[str, Fleet] = field(default_factory=dict)
    faults: dict[str, Exception] = field(default_factory=dict)
    built: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    kept: dict[ClusterName, VirtualEngine] = field(default_factory=dict)
    """Clusters that are there before and after whoever looks at them."""
    build_fault: FairwayError | None = None

    async def give(self, wanted: Fleet) -> None:
        text = f"fleet {len(self.fleets)}"
        self.fleets[text] = wanted
        await self.ledger.revisions.add(text, text, "test")

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Engine:
        if self.build_fault is not None:
            raise self.build_fault
        self.built.append(cluster.name)
        if cluster.name not in self.kept:
            return Failing(cluster, pools, self)
        return self.kept[cluster.name]

    async def until_built(self, *others: Stage, **times: int) -> None:
        """Each cluster's engines so often: by the loops that look all the time, observe and mirror."""
        wanted = {name: 2 * count for name, count in times.items()}
        async with asyncio.timeout(60):
            while Counter(name for s in (self, *others) for name in s.built) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def parse(self, revision: Revision) -> Fleet:
        return self.fleets.get(revision.text) or parse_fleet(revision.text, "fleet.yaml")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CollectorRegistry]:
        registry = CollectorRegistry()
        fleets = Fleets(self.ledger, self.parse)
        runner = Runner(self.ledger, self.build, SETTINGS, registry, fleets, poll_seconds=0.05)
        task = asyncio.create_task(runner.run())
        try:
            yield registry
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, wanted: Callable[[dict[str, ClusterState]], bool]) -> dict[str, ClusterState]:
        async with asyncio.timeout(60):
            while True:
                states = {str(c.cluster): c for c in await self.ledger.clusters.all()}
                if wanted(states):
                    return states
                await asyncio.sleep(0.02)


async def test_every_cluster_is_observed(ledger: Ledger) -> None:
    stage = Stage(ledger)
    await stage.give(fleet(hpc=3, cloud=5))
    async with stage.running():
        await stage.until(lambda s: len(s) == 2 and all(c.reachable for c in s.values()))
        await stage.until_built(cloud=1, hpc=1)
    assert [(p.pool, p.total, p.nodes) for p in await ledger.clusters.pools()] == [
        ("cloud-a100", 40, 5),
        ("hpc-a100", 24, 3),
    ]
    assert sorted(stage.closed) == sorted(stage.built)
    for cluster in ("hpc", "cloud"):  # given back at the end
        assert await ledger.leases.take("observe", cluster, "next", 1) is not None


async def test_a_failure_is_shown_and_passes(ledger: Ledger) -> None:
    stage = Stage(ledger)
    await stage.give(fleet(hpc=3, cloud=5))
    async with stage.running() as registry:
        good = await stage.until(lambda s: len(s) == 2 and all(c.reachable for c in s.values()))
        stage.faults["hpc"] = Unreachable("Unreachable", "no answer", "look")
        bad = (await stage.until(lambda s: not s["hpc"].reachable))["hpc"]
        assert (bad.code, bad.message, bad.hint) == ("Unreachable", "no answer", "look")
        assert bad.observed_at is not None
        assert good["hpc"].observed_at is not None
        assert bad.observed_at >= good["hpc"].observed_at
        assert len(await ledger.clusters.nodes(cluster="hpc")) == 3  # its last known state stays
        errors = registry.get_sample_value(
            "fairway_loop_errors_total", {"loop": "observe", "cluster": "hpc", "code": "Unreachable"}
        )
        assert errors is not None
        assert errors >= 1
        later = await stage.until(
            lambda s: (
                s["hpc"].attempted_at is not None
                and s["hpc"].attempted_at > (bad.attempted_at or s["hpc"].since)
            )
        )
        assert later["hpc"].since == bad.since
        assert later["cloud"].reachable
        del stage.faults["hpc"]
        await stage.until(lambda s: s["hpc"].reachable)


async def test_an_engine_that_cannot_be_built_is_shown(ledger: Ledger) -> None:
    stage = Stage(ledger, build_fault=Refused("Refused", "no key file", "write it"))
    await stage.give(fleet(hpc=3))
    async with stage.running():
        state = (await stage.until(lambda s: "hpc" in s and s["hpc"].code == "Refused"))["hpc"]
        assert (state.hint, state.observed_at) == ("write it", None)


async def test_a_new_fleet_restarts_only_what_changed(ledger: Ledger) -> None:
    stage = Stage(ledger)
    await stage.give(fleet(hpc=3, cloud=5, old=1))
    async with stage.running():
        await stage.until(lambda s: len(s) == 3 and all(c.reachable for c in s.values()))
        await stage.until_built(hpc=1, cloud=1, old=1)  # or one leaves before all its loops looked
        await stage.give(fleet(hpc=4, cloud=5, new=2))
        await stage.until(lambda s: set(s) == {"hpc", "cloud", "new"} and s["new"].reachable)
        async with asyncio.timeout(60):
            while len(await ledger.clusters.nodes(cluster="hpc")) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await stage.until_built(cloud=1, hpc=2, new=1, old=1)
        assert await ledger.clusters.nodes(cluster="old") == ()


async def test_new_money_settings_restart_no_loop_and_are_applied(ledger: Ledger) -> None:
    """And the apply does not wait for loops that never restart."""
    before = fleet(hpc=3)
    (pool,), (cluster,) = before.pools, before.clusters
    pricing = replace(pool.pricing, discount=Decimal("0.1"))
    dearer = replace(
        before,
        clusters=(replace(cluster, overhead={"power": Decimal(100)}), *fleet(new=1).clusters),
        pools=(replace(pool, price=Decimal(7), pricing=pricing), *fleet(new=1).pools),
    )
    stage = Stage(ledger, {"dearer": dearer})
    await stage.give(before)
    async with stage.running():
        await stage.until_built(hpc=1)
        before_apply = await _holders(ledger, "hpc")
        fingerprint = {ClusterName("hpc"): ""}
        number = await ledger.applies.queue("dearer", "dearer", fingerprint, force=False, by="ada")

        async def applied() -> bool:
            found = await ledger.applies.one(number)
            return found is not None and found.state is ApplyState.DONE

        await _until(applied)
        await stage.until(lambda s: "new" in s and s["new"].reachable)
        after_apply = await _holders(ledger, "hpc")
    assert {"observe", "mirror"} <= before_apply.keys()
    assert before_apply.items() <= after_apply.items()  # a loop that restarts is another holder


async def _holders(ledger: Ledger, cluster: str) -> dict[str, str]:
    """The holders of a cluster's leases, by loop."""
    return {one.loop: one.holder for one in await ledger.leases.all() if one.cluster == cluster}


async def test_a_revision_that_cannot_be_read_changes_nothing(ledger: Ledger) -> None:
    stage = Stage(ledger)
    await stage.give(fleet(hpc=3))
    async with stage.running():
        await stage.until(lambda s: "hpc" in s and s["hpc"].reachable)
        await ledger.revisions.add("nonsense: [", "bad", "test")
        before = (await stage.until(lambda s: True))["hpc"].observed_at
        await stage.until(
            lambda s: (
                s["hpc"].observed_at is not None and before is not None and s["hpc"].observed_at > before
            )
        )
        await stage.give(fleet(hpc=3, cloud=1))
        await stage.until(lambda s: "cloud" in s and s["cloud"].reachable)


async def test_two_servers_share_the_clusters_out(ledger: Ledger) -> None:
    one, two = Stage(ledger), Stage(ledger)
    await one.give(fleet(a=1, b=1, c=1, d=1))
    two.fleets = one.fleets
    async with one.running(), two.running():
        await one.until(lambda s: len(s) == 4 and all(c.reachable for c in s.values()))
        await one.until_built(two, a=1, b=1, c=1, d=1)
        await asyncio.sleep(0.5)
        # An engine is built only where the lease is held: one for each loop and cluster, wherever that is.
        await one.until_built(two, a=1, b=1, c=1, d=1)


async def test_what_is_queued_is_applied_and_what_is_changed_by_hand_is_seen(ledger: Ledger) -> None:
    plain = fleet(hpc=2)
    supply = plain.pools[0].supplies[0]
    wanted = replace(plain, teams=(Team(TeamName("research"), grants=(Grant(supply, 8),)),))
    hpc = ClusterName("hpc")
    stage = Stage(ledger, {"wanted": wanted}, kept={hpc: VirtualEngine(plain.clusters[0], plain.pools)})
    await stage.give(plain)
    async with stage.running() as registry:
        number = await ledger.applies.queue("wanted", "wanted", {hpc: ""}, force=False, by="ada")

        async def applied() -> bool:
            found = await ledger.applies.one(number)
            return found is not None and found.state is ApplyState.DONE

        await _until(applied)
        (key,) = (k.key for k in (await stage.kept[hpc].find_policy()).objects if k.key.kind == "grant")
        stage.kept[hpc].remove_by_hand(key)

        async def drifted() -> bool:
            """The ledger has it, and a moment later the metric."""
            shown = registry.get_sample_value("fairway_drift_objects", {"cluster": "hpc"})
            return shown == 1 and [d.entry.key for d in await ledger.drift.page()] == [key]

        await _until(drifted)
        done = {"cluster": "hpc", "state": "done"}
        assert registry.get_sample_value("fairway_applies_total", done) == 1


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_loop_that_is_started_again_writes_under_the_same_lock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LeasedLoop] = []

    def start(loop: LeasedLoop) -> asyncio.Task[None]:
        started.append(loop)
        return asyncio.create_task(asyncio.sleep(0))  # it ends by itself, so that it is started again

    monkeypatch.setattr("fairway.control.runner._start", start)
    stage = Stage(ledger)
    await stage.give(fleet(hpc=1))
    async with stage.running(), asyncio.timeout(60):
        while sum(loop.name == "intervene" for loop in started) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    writers = [loop._step for loop in started if loop.name in ("apply", "intervene", "hold")]
    assert len({id(writer._writing) for writer in writers if hasattr(writer, "_writing")}) == 1
