"""Who may write: one at a time, by the database's clock, and never with an old token."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from fairway.ledger import Lease, LeaseLost, Ledger, LedgerBusy, LedgerUnreachable
from tests.unit.ledger.samples import node, observation, pass_time


async def take(ledger: Ledger, holder: str, seconds: float = 60, cluster: str = "hpc") -> Lease | None:
    return await ledger.leases.take("observe", cluster, holder, seconds)


async def taken(ledger: Ledger, holder: str, seconds: float = 60) -> Lease:
    lease = await take(ledger, holder, seconds)
    assert lease is not None
    return lease


async def test_one_holder_at_a_time(ledger: Ledger) -> None:
    first = await taken(ledger, "a")
    assert (first.loop, first.cluster, first.holder, first.token) == ("observe", "hpc", "a", 1)
    assert await take(ledger, "b") is None
    assert await take(ledger, "b", cluster="cloud") is not None
    assert await ledger.leases.take("drift", "hpc", "b", 60) is not None


async def test_a_live_lease_is_given_to_its_holder_again(ledger: Ledger) -> None:
    first = await taken(ledger, "a")
    again = await taken(ledger, "a")
    assert again.token == first.token
    assert again.expires_at > first.expires_at


async def test_every_tenure_has_the_next_token(ledger: Ledger, database_url: str) -> None:
    tokens = []
    for holder in ("a", "b", "b", "a"):
        tokens.append((await taken(ledger, holder, 60)).token)
        pass_time(database_url, 61)
    last = await taken(ledger, "a")
    await ledger.leases.release(last)
    assert [*tokens, last.token, (await taken(ledger, "c")).token] == [1, 2, 3, 4, 5, 6]


async def test_one_of_many_takers_gets_it(ledger: Ledger, database_url: str) -> None:
    for token in (1, 2, 3):
        got = await asyncio.gather(*(take(ledger, f"h{i}", 60) for i in range(10)))
        (winner,) = [lease for lease in got if lease is not None]
        assert winner.token == token
        pass_time(database_url, 61)


async def test_renewing(ledger: Ledger, database_url: str) -> None:
    lease = await taken(ledger, "a", 60)
    pass_time(database_url, 40)
    renewed = await ledger.leases.renew(lease)
    assert renewed is not None
    assert renewed.token == lease.token
    pass_time(database_url, 40)
    assert await take(ledger, "b") is None  # past the first end, before the second
    pass_time(database_url, 40)
    assert await ledger.leases.renew(lease) is None  # ran out, though nobody else took it
    assert (await taken(ledger, "b")).token == 2
    assert await ledger.leases.renew(lease) is None


async def test_releasing_twice_or_too_late_harms_nobody(ledger: Ledger) -> None:
    old = await taken(ledger, "a")
    await ledger.leases.release(old)
    new = await taken(ledger, "b")
    await ledger.leases.release(old)
    assert await ledger.leases.renew(new) is not None
    with pytest.raises(LeaseLost):
        async with ledger.writing(old) as tx:
            await tx.observations.write(observation(node("a")))
    assert await ledger.clusters.all() == ()


async def test_a_lease_that_ran_out_cannot_write(ledger: Ledger, database_url: str) -> None:
    lease = await taken(ledger, "a")
    pass_time(database_url, 61)
    with pytest.raises(LeaseLost, match="token 1"):
        async with ledger.writing(lease) as tx:
            await tx.observations.write(observation(node("a")))
    assert await ledger.clusters.nodes() == ()


async def test_time_that_runs_out_inside_the_write_undoes_it(ledger: Ledger) -> None:
    lease = await taken(ledger, "a", 0.4)
    with pytest.raises((LeaseLost, LedgerBusy, LedgerUnreachable)):
        async with ledger.writing(lease) as tx:
            await tx.observations.write(observation(node("a")))
            await asyncio.sleep(0.5)
    assert await ledger.clusters.nodes() == ()


async def test_the_clock_is_looked_at_again_before_the_commit(ledger: Ledger, database_url: str) -> None:
    lease = await taken(ledger, "a", 2)
    with pytest.raises(LeaseLost):
        async with ledger.writing(lease) as tx:
            for i in range(14):  # never idle for long, and yet past its end
                await tx.observations.write(observation(node(f"n{i}")))
                await asyncio.sleep(0.15)
    assert await ledger.clusters.nodes() == ()


async def test_nobody_takes_a_lease_while_its_holder_writes(ledger: Ledger, database_url: str) -> None:
    lease = await taken(ledger, "a")
    async with ledger.writing(lease) as tx:
        with psycopg.connect(database_url, autocommit=True) as other:
            # Whatever the clock says to others, the row is locked until the commit.
            # Nobody waits for it either: the commit only comes after this.
            assert await asyncio.wait_for(take(ledger, "b"), 20) is None
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("SELECT FROM lease FOR UPDATE NOWAIT")
        await tx.observations.write(observation(node("a")))
    assert len(await ledger.clusters.nodes()) == 1


async def test_a_write_renews(ledger: Ledger, database_url: str) -> None:
    lease = await taken(ledger, "a", 60)
    pass_time(database_url, 40)
    async with ledger.writing(lease):
        pass
    pass_time(database_url, 40)
    assert await ledger.leases.renew(lease) is not None


async def test_an_error_in_the_body_undoes_all_of_it(ledger: Ledger) -> None:
    lease = await taken(ledger, "a")
    with pytest.raises(RuntimeError):
        async with ledger.writing(lease) as tx:
            await tx.observations.write(observation(node("a")))
            raise RuntimeError
    assert await ledger.clusters.nodes() == ()
    assert await ledger.leases.renew(lease) is not None


async def test_an_older_writer_cannot_overwrite_a_newer_one(ledger: Ledger, database_url: str) -> None:
    """The second line of defence: the state's row itself refuses a smaller token."""
    lease = await taken(ledger, "a")
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO cluster_state (cluster, reachable, since, token) VALUES ('hpc', true, now(), 99)"
        )
    with pytest.raises(LeaseLost):
        async with ledger.writing(lease) as tx:
            await tx.observations.write(observation(node("a")))
    assert await ledger.clusters.nodes() == ()
