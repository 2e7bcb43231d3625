"""What jobs waited for, by hour; and the numbers of teams' colours."""

from __future__ import annotations

from fairway.ledger import Ledger
from fairway.ledger.usage.queue import QueueHour
from fairway.model.charge import Span
from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply
from fairway.views.colours import assigned

HOUR = 3600
START = 1_800_000_000 // HOUR * HOUR
A100, MIG = Supply(PoolName("a100")), Supply(PoolName("mig"), SliceName("1g.10gb"))


async def test_samples_add_up(ledger: Ledger) -> None:
    lease = await ledger.leases.take("meter", "hpc", "test", 60)
    assert lease is not None
    for waiting in ({A100: 8, MIG: 0}, {A100: 4, MIG: 2}):
        async with ledger.writing(lease) as tx:
            await tx.queue.add(waiting, [(START, 60), (START + HOUR, 30)])
    found = await ledger.queue.hours(Span(START, START + HOUR), ["a100", "mig"])
    assert sorted(found, key=str) == sorted(
        [QueueHour(START, A100, 120, 12 * 60), QueueHour(START, MIG, 120, 2 * 60)], key=str
    )
    assert len(await ledger.queue.hours(Span(START, START + 2 * HOUR), ["a100"])) == 2


async def test_a_team_keeps_its_number(ledger: Ledger) -> None:
    assert await ledger.team_colours.numbers(["nlp", "cv"], assigned) == {"nlp": 0, "cv": 1}
    assert await ledger.team_colours.numbers(["audio", "cv"], assigned) == {"audio": 2, "cv": 1}
    assert await ledger.team_colours.numbers(["nlp"], assigned) == {"nlp": 0}
