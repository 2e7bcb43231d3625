"""Revisions, pages of nodes, tokens."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from fairway.ledger import Ledger, LedgerRefused, LedgerUnreachable
from fairway.model.observation import Health
from tests.unit.ledger.fleet.test_observations import keep
from tests.unit.ledger.samples import gpus, many, node, observation, slices


async def test_revisions(ledger: Ledger) -> None:
    assert await ledger.revisions.newest() is None
    assert await ledger.revisions.newest_id() is None
    one = await ledger.revisions.add("clusters: {}", "d1", "alice")
    assert await ledger.revisions.add("clusters: {}", "d1", "bob") == one
    two = await ledger.revisions.add("clusters: {a: }", "d2", "bob")
    assert await ledger.revisions.newest() == two
    assert (two.created_by, two.text, two.digest) == ("bob", "clusters: {a: }", "d2")
    assert two.created_at.tzinfo is not None
    back = await ledger.revisions.add("clusters: {}", "d1", "alice")  # going back is a revision too
    assert await ledger.revisions.newest_id() == back.id > two.id > one.id


async def test_one_revision_from_many_who_keep_the_same(ledger: Ledger) -> None:
    kept = await asyncio.gather(*(ledger.revisions.add("x", "d", f"server-{i}") for i in range(8)))
    assert len(set(kept)) == 1


async def test_pages_of_nodes_meet_without_gap(ledger: Ledger) -> None:
    await keep(ledger, many(250), observation(node("n00001"), node("Z"), node("é"), cluster="cloud"))
    everything = [(n.cluster, n.name) for n in await ledger.clusters.nodes(limit=1000)]
    assert len(everything) == 253
    assert everything == sorted(everything)
    paged: list[tuple[str, str]] = []
    while page := await ledger.clusters.nodes(after=paged[-1] if paged else None, limit=60):
        assert len(page) <= 60
        paged += [(n.cluster, n.name) for n in page]
    assert paged == everything


async def test_nodes_by_cluster_pool_and_health(ledger: Ledger) -> None:
    await keep(
        ledger,
        observation(
            node("a", gpus(), slices()),
            node("b", gpus(pool="h100")),
            node("c", health=Health.DOWN, reason="x"),
        ),
        observation(node("d", health=Health.DRAINED), cluster="cloud"),
    )

    async def names(**by: object) -> str:
        return "".join(n.name for n in await ledger.clusters.nodes(**by))  # type: ignore[arg-type]

    assert await names() == "dabc"
    assert await names(cluster="hpc") == "abc"
    assert await names(pool="a100") == "dac"
    assert await names(pool="mig") == "a"
    assert await names(health=Health.READY) == "ab"
    assert await names(health=Health.DOWN) == "c"
    assert await names(cluster="hpc", pool="a100", health=Health.READY) == "a"
    assert await names(cluster="none") == ""
    assert await names(limit=0) == "d"  # never nothing, never everything


async def test_a_page_does_not_read_the_nodes_before_it(ledger: Ledger, database_url: str) -> None:
    await keep(ledger, many(5000))
    with psycopg.connect(database_url) as connection:
        connection.execute("ANALYZE")
        rows = connection.execute(
            "EXPLAIN SELECT name FROM node WHERE (cluster, name) > ('hpc', 'n04000')"
            " ORDER BY cluster, name LIMIT 10"
        ).fetchall()
    assert any("Index Cond: (ROW(cluster, name) > " in line for (line,) in rows), rows


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("nonsense", LedgerRefused, "not a URL"),
        ("mysql://u:secret@h/d", LedgerRefused, "mysql"),
        ("postgresql://u:secret@127.0.0.1:1/d", LedgerUnreachable, "is not reachable"),
        ("postgresql://u:secret@/d?host=/nonexistent", LedgerUnreachable, "is not reachable"),
    ],
)
async def test_a_bad_address_is_explained_without_its_secret(
    url: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        await Ledger.connect(url)
    assert "secret" not in f"{caught.value} {caught.value.hint}"  # type: ignore[attr-defined]


async def test_an_unknown_database_is_refused(postgres_url: str) -> None:
    wrong = postgres_url.replace("/postgres?", "/nothing-here?")
    with pytest.raises(LedgerRefused, match="nothing-here"):
        await Ledger.connect(wrong)


async def test_a_cut_connection_is_mended(ledger: Ledger, database_url: str) -> None:
    await ledger.clusters.all()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert await ledger.clusters.all() == ()
