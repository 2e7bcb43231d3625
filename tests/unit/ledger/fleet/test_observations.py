"""What an engine showed is kept: completely, cheaply, and only what changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import Engine, event

from fairway.engines.port import Unreachable
from fairway.ledger import FLEET, Lease, Ledger, ObservationRefused
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.model.observation import Health, Observation
from tests.unit.ledger.samples import gpus, many, node, observation, slices


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement that SQLAlchemy sends meanwhile."""
    sent: list[str] = []

    def note(_c: object, _k: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def lease_of(ledger: Ledger, cluster: str = "hpc") -> Lease:
    lease = await ledger.leases.take("observe", cluster, "me", 60)
    assert lease is not None
    return lease


async def keep(ledger: Ledger, *seen: Observation) -> None:
    for each in seen:
        async with ledger.writing(await lease_of(ledger, each.cluster)) as tx:
            await tx.observations.write(each, engine=EngineKind.SLURM)


async def fail(ledger: Ledger, error: FairwayError, cluster: str = "hpc") -> None:
    async with ledger.writing(await lease_of(ledger, cluster)) as tx:
        await tx.observations.write_failure(cluster, error, engine=EngineKind.SLURM)


def versions(url: str, table: str) -> dict[str, int]:
    """Which transaction last touched each row: a row that was not touched keeps its own."""
    key = "name" if table == "node" else "node || kind"
    with psycopg.connect(url) as connection:
        # xmax counts too: it changes when a row is locked, which also writes its page
        rows = connection.execute(f"SELECT {key}, xmin::text::bigint + xmax::text::bigint FROM {table}")
        return dict(rows.fetchall())


async def test_all_of_it_comes_back(ledger: Ledger) -> None:
    await keep(
        ledger,
        observation(
            node("a1", gpus(in_use=2, unhealthy=1), slices(total=7, in_use=3)),
            node("a2", gpus(pool=None, in_use=8), health=Health.DRAINED, reason="disk"),
        ),
    )
    cluster = (await ledger.clusters.all())[0]
    assert (cluster.cluster, cluster.engine, cluster.engine_version) == ("hpc", EngineKind.SLURM, "24.11")
    assert cluster.reachable
    assert (cluster.code, cluster.message, cluster.hint) == ("", "", "")
    assert cluster.observed_at == cluster.attempted_at is not None

    a1, a2 = await ledger.clusters.nodes()
    assert (a1.name, a1.health, a1.reason) == ("a1", Health.READY, "")
    assert [(d.kind, d.pool, d.slice, d.total, d.in_use, d.unhealthy) for d in a1.devices] == [
        ("gpu:1g.10gb", "mig", "1g.10gb", 7, 3, 0),
        ("gpu:a100", "a100", None, 8, 2, 1),
    ]
    assert (a2.health, a2.reason, a2.devices[0].pool) == (Health.DRAINED, "disk", None)

    assert [
        (p.pool, p.slice, p.total, p.in_use, p.free, p.unhealthy, p.nodes, p.nodes_drained)
        for p in await ledger.clusters.pools()
    ] == [
        (None, None, 8, 8, 0, 0, 1, 1),
        ("a100", None, 8, 2, 5, 1, 1, 0),
        ("mig", "1g.10gb", 7, 3, 4, 0, 1, 0),
    ]


async def test_only_changed_rows_are_touched(ledger: Ledger, database_url: str) -> None:
    await keep(ledger, observation(node("a"), node("b"), node("c")))
    nodes, devices = versions(database_url, "node"), versions(database_url, "device")

    await keep(ledger, observation(node("a"), node("b", gpus(in_use=1)), node("c", health=Health.DOWN)))

    assert {n for n, v in versions(database_url, "node").items() if v != nodes[n]} == {"c"}
    assert {d for d, v in versions(database_url, "device").items() if v != devices[d]} == {"bgpu:a100"}


async def test_what_vanished_is_gone(ledger: Ledger) -> None:
    other = observation(node("x", gpus(pool="other")), cluster="cloud")
    await keep(ledger, other, observation(node("a"), node("b", gpus(), slices())))
    await keep(ledger, observation(node("b", slices())))
    assert [(n.cluster, n.name, len(n.devices)) for n in await ledger.clusters.nodes()] == [
        ("cloud", "x", 1),
        ("hpc", "b", 1),
    ]
    assert [(p.cluster, p.pool) for p in await ledger.clusters.pools()] == [
        ("cloud", "other"),
        ("hpc", "mig"),
    ]
    await keep(ledger, observation())
    assert [n.cluster for n in await ledger.clusters.nodes()] == ["cloud"]


async def test_since_changes_with_health_only(ledger: Ledger) -> None:
    await keep(ledger, observation(node("a"), node("b")))
    before = {str(n.name): n.since for n in await ledger.clusters.nodes()}
    await keep(
        ledger,
        observation(node("a", gpus(in_use=4), reason="note"), node("b", health=Health.DOWN, reason="x")),
    )
    a, b = await ledger.clusters.nodes()
    assert a.since == before["a"]
    assert a.reason == "note"
    assert b.since > before["b"]
    await keep(ledger, observation(node("a"), node("b", health=Health.DOWN, reason="y")))
    assert (await ledger.clusters.nodes())[1].since == b.since


async def test_an_equal_observation_touches_the_cluster_only(ledger: Ledger, database_url: str) -> None:
    await keep(ledger, observation(node("a"), node("b", gpus(), slices())))
    before, nodes = (await ledger.clusters.all())[0], versions(database_url, "node")
    with statements() as sent:
        await keep(ledger, observation(node("b", slices(), gpus()), node("a"), version="24.11.1"))
    after = (await ledger.clusters.all())[0]
    assert after.observed_at is not None
    assert before.observed_at is not None
    assert after.observed_at > before.observed_at
    assert after.since == before.since
    assert after.engine_version == "24.11.1"
    assert versions(database_url, "node") == nodes
    assert not [s for s in sent if "INTO node" in s or "INTO device" in s or "INTO pool_total" in s]


@pytest.mark.parametrize("count", [10, 1000])
async def test_statements_do_not_grow_with_nodes(ledger: Ledger, count: int) -> None:
    with statements() as first:
        await keep(ledger, many(count))
    with statements() as again:
        await keep(ledger, many(count))
    with statements() as changed:
        await keep(ledger, many(count, in_use=4))
    # Taking the lease, opening and closing check are three of each.
    assert (len(first), len(again), len(changed)) == (8, 4, 8)
    assert (await ledger.clusters.pools())[0].total == 8 * count


async def test_a_failure_keeps_what_was_known_and_since_when(ledger: Ledger) -> None:
    await keep(ledger, observation(node("a")))
    known = (await ledger.clusters.all())[0]

    await fail(ledger, Unreachable("Unreachable", "no answer", "look"))
    first = (await ledger.clusters.all())[0]
    assert (first.reachable, first.code, first.message, first.hint) == (
        False,
        "Unreachable",
        "no answer",
        "look",
    )
    assert first.since > known.since
    assert (first.observed_at, first.engine_version) == (known.observed_at, "24.11")

    await fail(ledger, Refused("Refused", "bad token", "renew it"))
    second = (await ledger.clusters.all())[0]
    assert (second.code, second.since) == ("Refused", first.since)
    assert second.attempted_at is not None
    assert first.attempted_at is not None
    assert second.attempted_at > first.attempted_at
    assert [n.name for n in await ledger.clusters.nodes()] == ["a"]

    await keep(ledger, observation(node("a")))
    back = (await ledger.clusters.all())[0]
    assert (back.reachable, back.code, back.message, back.hint) == (True, "", "", "")
    assert back.since > second.since


async def test_a_cluster_that_never_answered_is_shown(ledger: Ledger) -> None:
    await fail(ledger, Unreachable("Unreachable", "no answer", "look"))
    await fail(ledger, Unreachable("Unreachable", "no answer", "look"))
    (state,) = await ledger.clusters.all()
    assert (state.reachable, state.observed_at, state.engine) == (False, None, EngineKind.SLURM)


@pytest.mark.parametrize(
    "seen",
    [observation(node("a"), node("a")), observation(node("a", gpus(pool="x"), gpus(pool="y")))],
    ids=["a node twice", "a kind twice"],
)
async def test_a_contradiction_is_refused_whole(ledger: Ledger, seen: Observation) -> None:
    with pytest.raises(ObservationRefused, match="twice"):
        await keep(ledger, seen)
    assert await ledger.clusters.all() == ()


async def test_an_engines_words_cannot_break_the_write(ledger: Ledger) -> None:
    await keep(
        ledger, observation(node("a", health=Health.DOWN, reason="nul \0, lone \udc80, long " + "x" * 9000))
    )
    reason = (await ledger.clusters.nodes())[0].reason
    assert reason.startswith("nul , lone ?, long xxx")
    assert len(reason) <= 2000


async def test_a_lease_serves_its_own_cluster_only(ledger: Ledger) -> None:
    lease = await lease_of(ledger, "cloud")
    with pytest.raises(ValueError, match="cannot write for hpc"):
        async with ledger.writing(lease) as tx:
            await tx.observations.write(observation(node("a")))


async def test_the_fleet_says_which_clusters_are_shown(ledger: Ledger) -> None:
    hpc, cloud = ClusterName("hpc"), ClusterName("cloud")
    first = await ledger.revisions.add("one", "d1", "me")
    await ledger.revisions.follow(first.id, {hpc: EngineKind.SLURM, cloud: EngineKind.KUBERNETES})
    waiting, _ = await ledger.clusters.all()
    assert (waiting.cluster, waiting.engine, waiting.code) == (cloud, EngineKind.KUBERNETES, "NotObserved")
    assert (waiting.reachable, waiting.attempted_at) == (False, None)

    await keep(ledger, observation(node("a")), observation(node("x"), cluster="cloud"))
    old, whole = await lease_of(ledger, "cloud"), await lease_of(ledger, FLEET)
    second = await ledger.revisions.add("two", "d2", "me")
    await ledger.revisions.follow(second.id, {hpc: EngineKind.SLURM})
    assert [c.cluster for c in await ledger.clusters.all()] == [hpc]
    left = await ledger.clusters.left()
    assert [(c.cluster, c.revision) for c in left.values()] == [(cloud, second.id)]
    assert left[cloud].seen_at <= left[cloud].left_at
    assert {n.cluster for n in await ledger.clusters.nodes()} == {hpc}
    assert {p.cluster for p in await ledger.clusters.pools()} == {hpc}
    assert await ledger.leases.renew(old) is None  # a server that has not noticed cannot bring it back
    again = await lease_of(ledger, "cloud")
    assert again.token > old.token
    assert await ledger.leases.renew(whole) is not None  # what serves the whole fleet serves the new one, too

    await ledger.revisions.follow(first.id, {cloud: EngineKind.KUBERNETES})  # overtaken: nothing happens
    assert [c.cluster for c in await ledger.clusters.all()] == [hpc]

    third = await ledger.revisions.add("three", "d3", "me")
    await ledger.revisions.follow(third.id, {hpc: EngineKind.SLURM, cloud: EngineKind.KUBERNETES})
    assert await ledger.clusters.left() == {}  # it is back
