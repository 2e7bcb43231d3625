"""Nodes with broken GPUs are closed as the fleet says, up to a limit, and opened by people alone."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from fairway.control.loops.health import WatchHealth
from fairway.engines.port import CordonOutcome, Unreachable
from fairway.ledger import Ledger
from fairway.model.fleet import Telemetry
from fairway.model.gpu_health import GpuSighting, HealthAction, HealthRule
from fairway.model.names import ClusterName, NodeName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.services.fleets import Fleets, LastApplied
from fairway.telemetry.prometheus import Labels, MatrixRow, Point, Prometheus, TelemetryUnreachable, VectorRow
from tests.unit.control.job_toy import FLEET, HPC, POOL, give_fleet, take

CORDON = HealthRule("broken", action=HealthAction.CORDON, max_share=Decimal("0.5"))


@dataclass
class Nodes:
    """An engine that closes nodes."""

    closed: dict[NodeName, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    away: bool = False

    async def observe(self) -> Observation:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    async def cordon(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, CordonOutcome]:
        if self.away:
            raise Unreachable("EngineDown", "it does not answer", "start it")
        ours = {node: reason for node, reason in nodes.items() if node not in self.others}
        self.closed |= ours
        return {n: CordonOutcome.DONE if n in ours else CordonOutcome.NOT_OURS for n in nodes}

    async def uncordon(self, nodes: Collection[NodeName]) -> Mapping[NodeName, CordonOutcome]:
        for node in nodes:
            self.closed.pop(node, None)
        return dict.fromkeys(nodes, CordonOutcome.DONE)


class Fake(Prometheus):
    """A Prometheus that has these answers, or none."""

    def __init__(self, broken: list[Labels], *, away: bool = False) -> None:
        self.broken, self.away = broken, away

    async def vector(self, query: str, at: float) -> tuple[VectorRow, ...]:
        if self.away:
            raise TelemetryUnreachable("TelemetryUnreachable", "it does not answer", "start it")
        if "unless" in query:
            return ()
        return tuple(VectorRow(labels, Point(at, "79")) for labels in self.broken)

    async def matrix(self, query: str, at: float) -> tuple[MatrixRow, ...]:
        present, xid = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"
        rows = []
        for labels in self.broken:
            own = {"node": labels.node, "gpu": labels.gpu}
            rows.append(MatrixRow(Labels(name=present, **own), ((at - 60, "1"), (at - 10, "1"))))
            rows.append(MatrixRow(Labels(name=xid, **own), ((at - 10, "79"),)))
        return tuple(rows)

    async def close(self) -> None:
        pass


class Setting:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.engine = ledger, Nodes()
        self.prometheus = Fake([])
        self.rules: tuple[HealthRule, ...] = (CORDON,)

    async def step(self) -> None:
        fleets = Fleets(self.ledger, lambda _: replace(FLEET, health=self.rules))
        loop = WatchHealth(
            HPC,
            Telemetry("http://prometheus"),
            lambda: self.engine,
            self.ledger,
            LastApplied(HPC, self.ledger, fleets),
            prometheus=lambda _: self.prometheus,
        )
        lease = await take(self.ledger, "health")
        try:
            await loop(lease)
        finally:
            await loop.close()
            await self.ledger.leases.release(lease)

    def breaks(self, *nodes: str) -> None:
        self.prometheus.broken += [Labels(node=node, gpu="3", code="xid-last") for node in nodes]

    async def show(self, *nodes: tuple[str, Health]) -> None:
        lease = await take(self.ledger, "observe")
        seen = tuple(
            Node(NodeName(name), health, "", (Devices(POOL, "gpu:a100", None, 8, 0),))
            for name, health in nodes
        )
        async with self.ledger.writing(lease) as tx:
            await tx.observations.write(Observation(ClusterName(HPC), "1", seen))
        await self.ledger.leases.release(lease)


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def setting(ledger: Ledger) -> Setting:
    await give_fleet(ledger)
    made = Setting(ledger)
    await made.show(*((f"n{n}", Health.READY) for n in range(4)))
    return made


async def test_nodes_are_closed_up_to_the_limit_and_operators_are_told(
    setting: Setting, db: psycopg.Connection[Any]
) -> None:
    setting.breaks("n0", "n1", "n2")
    await setting.step()
    assert setting.engine.closed == {
        "n0": "GPU 3 fell off the bus (XID 79)",
        "n1": "GPU 3 fell off the bus (XID 79)",
    }
    told = [subject for (subject,) in db.execute("SELECT subject FROM notice ORDER BY subject")]
    assert "broken nodes of pool hpc-a100 stay open" in told
    assert "node n0 is closed to new jobs" in told
    assert "GPU 3 of n2 fell off the bus (XID 79)" in told
    await setting.step()
    assert len(setting.engine.closed) == 2
    assert db.execute("SELECT count(*) FROM notice").fetchone() == (len(told),)


async def test_without_a_rule_nothing_is_closed(setting: Setting) -> None:
    setting.rules = ()
    setting.breaks("n0")
    await setting.step()
    assert setting.engine.closed == {}
    assert len(await setting.ledger.gpu_events.known(HPC, time.time())) == 1


async def test_an_engine_that_is_away_is_asked_again(setting: Setting) -> None:
    setting.breaks("n0")
    setting.engine.away = True
    with pytest.raises(Unreachable):
        await setting.step()
    (cordon,) = await setting.ledger.cordons.open(HPC)
    assert not cordon.done
    setting.engine.away = False
    await setting.step()
    assert list(setting.engine.closed) == ["n0"]


async def test_what_somebody_else_closed_meanwhile_is_theirs(setting: Setting) -> None:
    setting.breaks("n0")
    setting.engine.others.add("n0")
    await setting.step()
    assert await setting.ledger.cordons.open(HPC) == ()


async def test_a_node_is_opened_when_somebody_asks_even_without_prometheus(setting: Setting) -> None:
    setting.breaks("n0")
    await setting.step()
    assert await setting.ledger.cordons.ask_to_lift(HPC, "n0", "ann")
    assert not await setting.ledger.cordons.ask_to_lift(HPC, "n1", "ann")
    setting.prometheus.away = True
    with pytest.raises(TelemetryUnreachable):
        await setting.step()
    assert setting.engine.closed == {}
    setting.prometheus.away = False
    await setting.step()
    assert setting.engine.closed == {}, "what lasts does not close it again"


async def test_an_old_xid_closes_no_node(setting: Setting) -> None:
    now = time.time()
    await setting.ledger.gpu_events.report(HPC, [GpuSighting("n0", "1", "xid-79", now, now)])
    await setting.step()
    assert setting.engine.closed == {}
