"""The page of a pool: its map, who holds what, what fits, what is out of service."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx2
import pytest

from fairway.ledger import Ledger, PricePointRow
from fairway.model.fleet import Capacity, Fleet
from fairway.model.gpu_health import GpuSighting
from fairway.model.names import PoolName
from fairway.model.observation import Health
from tests.unit.web.conftest import FLEET
from tests.unit.web.fleet_sights import lose, mig_node, mirror, node, observe, runs, waits
from tests.unit.web.pages.fleet.test_page import words

PART = {"HX-Request": "true", "HX-Target": "pool-part"}


async def test_the_map_shows_each_job_where_it_is(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1", 8), node("n2", 8), node("n3", 3))
    await mirror(ledger, runs(1, 16, "n1", "n2"), runs(2, 3, "n3", team="product"))
    page = (await admin.get("/pools/hpc-a100")).text
    assert page.count("<title>train-1 (") == 2
    assert page.count("<title>train-2 (") == 1
    assert "ada, research, 16 in all on 2 nodes</title>" in page
    assert page.count('<li class="node ready">') == 3


async def test_who_holds_what_names_job_team_user_and_how_long(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8), node("n2", 8))
    await mirror(ledger, runs(1, 16, "n1", "n2"))
    page = (await admin.get("/pools/hpc-a100")).text
    assert re.search(r'<td><a href="/jobs/[a-z0-9]+">train-1</a></td>', page)
    assert "train-1 research ada 16 n1 and 1 more 60 min" in words(page)


async def test_guarantees_and_borrowing_by_team(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, *(node(f"n{i}", 8) for i in range(3)))
    await mirror(ledger, runs(1, 6, "n1", team="vision"), runs(2, 13, "n1", "n2"), waits(3, 8, "Resources"))
    page = words((await admin.get("/pools/hpc-a100")).text)
    assert "research 16 19 ▲ 3 24 –" in page
    assert "vision 4 6 ▲ 2 12 –" in page
    assert "product 8 0 – 16 8" in page


async def test_what_fits_and_what_is_of_no_use(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1", 5), node("n2", 6))
    await mirror(ledger, waits(1, 4, "Resources"))
    page = words((await admin.get("/pools/hpc-a100")).text)
    assert "5 GPUs free: 3 on 1 node, 2 on 1 node" in page
    assert "Jobs of 1 2 4 8 fit now 5 2 0 0" in page
    assert "5 free GPUs cannot be used by the waiting jobs: the smallest needs 4 on one node" in page


async def test_nodes_out_of_service_say_why_and_since_when(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(
        ledger,
        node("n1", health=Health.DRAINED, reason="disk is full"),
        node("n2", health=Health.DOWN, reason="no answer"),
    )
    page = words((await admin.get("/pools/hpc-a100")).text)
    assert re.search(r"n1 ◌ drained for \d+ s disk is full", page)
    assert re.search(r"n2 ✕ down for \d+ s no answer", page)


async def test_slices_have_rows_of_their_own(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, mig_node("m1", 3, 1))
    await mirror(ledger, runs(1, 3, "m1", slice_="1g.10gb"))
    page = (await admin.get("/pools/hpc-mig")).text
    assert page.count("<title>train-1 (") == 1
    assert "1g.10gb 3/7" in words(page) and "3g.40gb 1/2" in words(page)
    assert "in use by a job that is not known yet" in page


async def test_a_pool_of_a_thousand_nodes_is_bounded_and_its_pages_are_addresses(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, *(node(f"n{i:04}", 8) for i in range(1, 1001)))
    await mirror(ledger, *(runs(i, 8, f"n{i:04}") for i in range(1, 1001)))
    page = await admin.get("/pools/hpc-a100?nodes=2")
    assert len(page.content) < 200_000
    assert "Nodes 49 to 96 of 1,000" in words(page.text)
    assert page.text.count('<li class="node ready">') == 48
    assert "<title>train-49 (" in page.text and "<title>train-97 (" not in page.text
    assert 'href="?nodes=1"' in page.text and 'href="?nodes=3"' in page.text
    assert "1,000 full" in words(page.text)
    assert "The largest 12 of 1,000" in words(page.text)
    last = words((await admin.get("/pools/hpc-a100?nodes=9999")).text)
    assert "Nodes 961 to 1,000 of 1,000" in last


async def test_a_live_part_is_the_part_alone_and_shows_the_change(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8))
    before = (await admin.get("/pools/hpc-a100", headers=PART)).text
    assert "<html" not in before and "8/8" in before
    await observe(ledger, node("n1", 3))
    assert "3/8" in (await admin.get("/pools/hpc-a100", headers=PART)).text
    other = (await admin.get("/pools/hpc-mig", headers=PART)).text
    assert "n1" not in words(other)


async def test_a_pool_that_was_never_seen_says_what_happens_next(admin: httpx2.AsyncClient) -> None:
    page = words((await admin.get("/pools/dream-a100")).text)
    assert "No nodes observed yet: Fairway reads dream every few seconds." in page


async def test_a_pool_without_nodes_says_where_to_look(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1"))
    page = words((await admin.get("/pools/hpc-mig")).text)
    assert "No node of hpc belongs to this pool." in page and "fairway get nodes --cluster hpc" in page


async def test_an_unreachable_cluster_is_loud(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1", 8))
    await lose(ledger)
    page = words((await admin.get("/pools/hpc-a100")).text)
    assert "Cluster hpc cannot be reached" in page and "look whether slurmrestd runs" in page


async def test_a_pool_that_is_not_there_names_those_that_are(viewer: httpx2.AsyncClient) -> None:
    for path in ("/pools/hpc-a10", "/pools/hpc-a10/data", "/pools/%00"):
        page = await viewer.get(path)
        assert page.status_code == 404
        assert "dream-a100, hpc-a100, hpc-mig" in page.text


@pytest.fixture
def fleet() -> Fleet:
    """Let one pool be bought on a spot market."""
    pools = [replace(p, capacity=Capacity.SPOT) if p.name == "hpc-a100" else p for p in FLEET.pools]
    return replace(FLEET, pools=tuple(pools))


async def test_a_spot_price_that_holds_now_goes_before_the_list(
    ledger: Ledger, viewer: httpx2.AsyncClient
) -> None:
    at = datetime.now(UTC) - timedelta(hours=2)
    await ledger.prices.add([PricePointRow(PoolName("hpc-mig"), at, Decimal("0.01"))], by="mistaken")
    await ledger.prices.add([PricePointRow(PoolName("hpc-a100"), at, Decimal("0.59"))], by="test")
    page = words((await viewer.get("/pools/hpc-a100")).text)
    assert "0.59 USD per GPU-hour (spot price of" in page and "List price 1.90" in page
    assert "1.90 USD per GPU-hour today" in words((await viewer.get("/pools/hpc-mig")).text)


async def test_the_plot_of_a_pool(ledger: Ledger, viewer: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1", 8))
    data = (await viewer.get("/pools/hpc-a100/data?window=24h")).json()
    assert len(data["time"]) == 25
    page = (await viewer.get("/pools/hpc-a100?colour=user")).text
    assert 'class="skeleton"' in page and 'aria-current="true">By user</a>' in page


async def test_what_went_wrong_with_gpus_is_shown_with_its_serial_number(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8))
    now = datetime.now(UTC).timestamp()
    await ledger.gpu_events.report(
        "hpc",
        [
            GpuSighting("n1", "3", "xid-79", now, now, uuid="GPU-5f3c", serial="1324", onset_known=True),
            GpuSighting("n1", "4", "xid-31", now, now),
            GpuSighting("elsewhere", "1", "xid-48", now, now),
        ],
    )
    page = words((await admin.get("/pools/hpc-a100")).text)
    assert "GPU 3 of n1 ✕ hardware" in page
    assert "fell off the bus (XID 79) · 1324" in page
    assert "XID 31" not in page
    assert "XID 48" not in page
