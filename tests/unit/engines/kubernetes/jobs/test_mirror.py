"""How the mirror lives with its connection; what it tells of jobs is for the contract suite."""

from __future__ import annotations

import asyncio

import pytest

from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.engines.port import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId
from tests.unit.engines.kubernetes.api.connections import CLUSTER, Connections, connection


async def test_a_mirror_goes_on_after_a_lookup_met_a_401() -> None:
    """The lookup replaces the connection that the mirror's informers run on."""
    made = Connections()
    through = connection(made)
    fleet = Fleet("acme", "USD", (CLUSTER,), ())
    mirror = KubernetesMirror(through, ())
    first = await mirror.changes(None, fleet)
    made.status = 401
    with pytest.raises(Refused):
        await mirror.look_up([EngineId("research/train")], fleet)
    made.status = 200

    async with asyncio.timeout(10):
        again = await mirror.changes(first.mark, fleet)
        later = await mirror.changes(again.mark, fleet)

    assert again.snapshot  # its informers began anew, on the new connection
    assert not later.snapshot
    assert len(made.made) == 2
    await mirror.close()


async def test_a_mirror_goes_on_after_its_own_401() -> None:
    made = Connections()
    through = connection(made)
    fleet = Fleet("acme", "USD", (CLUSTER,), ())
    mirror = KubernetesMirror(through, ())
    mark = (await mirror.changes(None, fleet)).mark
    made.status = 401
    async with asyncio.timeout(10):
        with pytest.raises(Refused) as said:
            while True:
                mark = (await mirror.changes(mark, fleet)).mark
    assert said.value.code == "Unauthorized"

    made.status = 200
    async with asyncio.timeout(10):
        again = await mirror.changes(mark, fleet)

    assert again.snapshot
    await mirror.close()
