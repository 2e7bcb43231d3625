"""All pages together are all rows, whatever the size of a page, and while rows come and go."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Cluster, Fleet, VirtualConnection
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.services.fleets import Fleets
from tests.unit.api.conftest import bearer, pool


async def observe(ledger: Ledger, cluster: str, names: list[str]) -> None:
    lease = await ledger.leases.take("observe", cluster, "test", 60)
    assert lease is not None
    nodes = tuple(
        Node(NodeName(name), Health.READY, "", (Devices(PoolName("p"), "gpu", None, 8, 0),)) for name in names
    )
    async with ledger.writing(lease) as writing:
        await writing.observations.write(Observation(ClusterName(cluster), "1", nodes))
    await ledger.leases.release(lease)


async def every_page(
    http: httpx2.AsyncClient,
    headers: dict[str, str],
    path: str,
    limit: int,
    between: Callable[[], object] = lambda: None,
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    for _ in range(1000):
        params = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        page = (await http.get(path, params=params, headers=headers)).raise_for_status().json()
        assert len(page["items"]) <= limit
        assert page["items"] or page["next_cursor"] is None
        found += [(item.get("cluster", ""), item["name"]) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
        await between()  # type: ignore[misc]
    raise AssertionError("endless")


async def nothing() -> None:
    return None


@pytest.fixture
async def rows(ledger: Ledger) -> list[tuple[str, str]]:
    odd = ["n-1", "n.2", "n_3", "N4", "n10", "ñ", "n 5", "日本"]
    names = {"a": [*odd, *(f"n{i:03}" for i in range(40))], "b": ["n000", "z"], "c": []}
    await ledger.revisions.add("text", "digest", "test")
    await ledger.revisions.follow(1, {})
    for cluster, of in names.items():
        await observe(ledger, cluster, of)
    return [(cluster, name) for cluster, of in names.items() for name in of]


@pytest.mark.parametrize("limits", [[1, 7, 49], [50, 51, 500]])
async def test_all_pages_are_all_rows(
    http: httpx2.AsyncClient, ledger: Ledger, rows: list[tuple[str, str]], limits: list[int]
) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    for limit in limits:
        found = await every_page(http, headers, "/v1/nodes", limit, nothing)
        assert len(found) == len(set(found))
        assert set(found) == set(rows)
        whole = await every_page(http, headers, "/v1/nodes", 500, nothing)
        assert found == whole  # and in the same order


async def test_rows_that_stay_are_seen_once_while_others_come_and_go(
    http: httpx2.AsyncClient, ledger: Ledger, rows: list[tuple[str, str]]
) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    stay = [name for cluster, name in rows if cluster == "a" and not name.endswith("5")]
    turn = 0

    async def change() -> None:
        nonlocal turn
        turn += 1
        await observe(ledger, "a", [*stay, f"a-early-{turn}", f"n{turn:03}x", f"zz-late-{turn}"])

    found = await every_page(http, headers, "/v1/nodes", 6, change)
    assert turn > 5
    assert len(found) == len(set(found))
    assert {("a", name) for name in stay} <= set(found)


async def test_clusters_pools_and_tokens_page_too(ledger: Ledger) -> None:
    names = [f"c{i}" for i in range(25)]
    fleet = Fleet(
        "big",
        "USD",
        tuple(Cluster(ClusterName(name), VirtualConnection()) for name in names),
        tuple(pool(f"p-{name}", name) for name in names),
    )
    await ledger.revisions.add("text", "digest", "test")
    app = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: fleet), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    headers = await bearer(ledger, Role.ADMIN, "root")
    for i in range(9):
        await bearer(ledger, Role.VIEWER, f"t{i}")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        for path, wanted in (
            ("/v1/clusters", names),
            ("/v1/pools", [f"p-{name}" for name in names]),
            ("/v1/tokens", ["root", *(f"t{i}" for i in range(9))]),
        ):
            for limit in (1, 4, 5, 100):
                found = [name for _, name in await every_page(http, headers, path, limit, nothing)]
                assert found == sorted(wanted), (path, limit)
