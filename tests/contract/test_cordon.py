"""What `Cordons` promises, on every engine: nodes close and open, and what people closed stays theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairway.engines.port import CordonOutcome, Cordons, Observes
from fairway.model.names import NodeName
from fairway.model.observation import Health
from tests.contract.driver import Driver
from tests.contract.looking import healthy, look, the_node, until

DONE, NOT_OURS, MISSING = CordonOutcome.DONE, CordonOutcome.NOT_OURS, CordonOutcome.MISSING


@pytest.fixture
async def engine(driver: Driver) -> AsyncIterator[Observes]:
    opened = driver.engine(driver.whole, driver.sliced)
    assert isinstance(opened, Cordons)
    yield opened
    await opened.close()


async def test_a_node_is_closed_with_a_reason_and_opened_again(driver: Driver, engine: Observes) -> None:
    assert isinstance(engine, Cordons)
    async with driver.held(driver.whole, 1) as node:
        try:
            assert await engine.cordon({node: "GPU 3 fell off the bus (XID 79)"}) == {node: DONE}
            seen = await until(engine, healthy(node, Health.DRAINED))
            assert "GPU 3 fell off the bus (XID 79)" in the_node(seen, node).reason
            assert "fairway" in the_node(seen, node).reason
            assert await engine.cordon({node: "again"}) == {node: DONE}
        finally:
            assert await engine.uncordon([node]) == {node: DONE}
        await until(engine, healthy(node, Health.READY))
        assert await engine.uncordon([node]) == {node: DONE}


async def test_what_somebody_else_closed_is_left_alone(driver: Driver, engine: Observes) -> None:
    assert isinstance(engine, Cordons)
    async with driver.held(driver.whole, 1) as node:
        pass
    async with driver.drained(node, "fan is noisy, see T-7"):
        await until(engine, healthy(node, Health.DRAINED))
        assert await engine.cordon({node: "GPU 3 fell off the bus"}) == {node: NOT_OURS}
        assert await engine.uncordon([node]) == {node: NOT_OURS}
        assert "fan is noisy" in the_node(await look(engine), node).reason
    await until(engine, healthy(node, Health.READY))


async def test_a_node_that_is_not_there(engine: Observes) -> None:
    assert isinstance(engine, Cordons)
    nobody = NodeName("no-such-node")
    assert await engine.cordon({nobody: "why"}) == {nobody: MISSING}
    assert await engine.uncordon([nobody]) == {nobody: MISSING}
