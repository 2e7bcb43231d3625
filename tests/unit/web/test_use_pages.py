"""What held GPUs did, on the pages of the fleet, its pools and teams, and in the API."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from fastapi import FastAPI

from fairway.ledger import Ledger
from fairway.ledger.records.gpu_use import NodeHour, NodeHours
from fairway.model.access import Role
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import Device, HeldKind
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName
from fairway.web.use_chart import UsePoint, draw_use
from fairway.web.use_view import draw_heat
from tests.measured import did, measure
from tests.unit.services.cost_history import CLASSES, CostBook, fill
from tests.unit.services.test_efficiency import measure as measure_rows
from tests.unit.web.conftest import SignIn, token
from tests.unit.web.pages.teams.test_page import fleet

__all__ = ["fleet"]

HOUR = 3600


@pytest.fixture
async def work(ledger: Ledger, database_url: str) -> None:
    """Usage of yesterday with what GPUs did in it, and a node with a held GPU that did nothing."""
    book = CostBook(database_url)
    rows = await fill(ledger, book, datetime.now(UTC).date() - timedelta(days=1), 1)
    measure_rows(book, rows)
    book.job(101, CLASSES[0], "train-101", "running")
    now = int(datetime.now(UTC).timestamp())
    start = now // HOUR * HOUR - HOUR
    nodes = {"n1": (2 * 300.0, 290.0), "n2": (300.0, 3.0)}
    devices = {Device("n1", "0"): did(0.96), Device("n2", "0"): did(0.0)}
    await measure(ledger, start, 12, {JobId(101): devices}, nodes)
    book.db.execute(
        "INSERT INTO node VALUES ('hpc', 'n1', 'ready', '', now()), ('hpc', 'n2', 'ready', '', now())"
    )
    book.db.execute(
        "INSERT INTO device VALUES ('hpc', 'n1', 'gpu', 'a100', '', 2, 1, 0),"
        " ('hpc', 'n2', 'gpu', 'a100', '', 1, 1, 0)"
    )
    book.close()


async def late_part(client: httpx2.AsyncClient, path: str) -> str:
    """The part that a page loads after itself; until then it shows a skeleton."""
    whole = await page(client, path)
    assert 'aria-busy="true"' in whole and "Loading…" in whole and "held-h" not in whole
    part = {"fleet": "fleet-use", "pools": "pool-use", "teams": "team-use"}[path.split("/")[1]]
    return await page(client, path, **{"HX-Request": "true", "HX-Target": part})


async def page(client: httpx2.AsyncClient, path: str, **headers: str) -> str:
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("path", ["/fleet", "/pools/a100", "/teams/nlp"])
async def test_held_and_busy_over_time(sign_in: SignIn, path: str) -> None:
    text = await late_part(await sign_in(Role.VIEWER), path)
    said = re.search(r'aria-label="Of ([\d,]+) GPU-hours held: ([^"]*)"', text)
    assert said is not None
    parts = [int(n) for n in re.findall(r"(\d+) %", said[2])]
    assert len(parts) == 4
    assert 98 <= sum(parts) <= 102, "rounded one by one"
    for kind in HeldKind:
        assert f'class="u-{kind}"' in text
    assert "Show as a table" in text


@pytest.mark.usefixtures("work")
async def test_wasters_are_those_of_teams_that_one_may_see(sign_in: SignIn) -> None:
    async def users(role: Role, user: str, path: str = "/fleet") -> set[str]:
        text = await late_part(await sign_in(role, user=user), path)
        part = text.split('id="wasters-h"')[1].split("</section>")[0]
        return set(re.findall(r'<a href="/jobs\?user=(\w*)"', part))

    everybody = await users(Role.VIEWER, "finance")
    assert {"alice", "carol", "dan"} <= everybody
    assert "bob" not in everybody, "of bob nothing is measured, so nothing is idle"
    assert await users(Role.MEMBER, "alice") == {"alice"}
    assert await users(Role.MEMBER, "nobody") == set()
    assert await users(Role.VIEWER, "finance", "/pools/mig") == {"carol", "dan"}
    assert await users(Role.VIEWER, "finance", "/teams/product") == {"dan"}


@pytest.mark.usefixtures("work")
async def test_nodes_by_hour(sign_in: SignIn) -> None:
    client = await sign_in(Role.VIEWER)
    for path in ("/fleet", "/pools/a100"):
        text = await late_part(client, path)
        cells = {
            node: re.findall(r'<td class="(\w+)" title="[^"]*">([^<]*)</td>', rest)
            for node, rest in re.findall(r'<tr><th scope="row">(n\d)</th>(.*?)</tr>', text)
        }
        assert set(cells) == {"n1", "n2"}
        assert {len(row) for row in cells.values()} == {24}
        assert ("h10", "96") in cells["n1"]
        assert ("h0", "0") in cells["n2"]
        assert ("unknown", "?") in cells["n1"], "the hours before"
    # The part that is asked for again every second is without it.
    live = await page(client, "/fleet", **{"HX-Request": "true", "HX-Target": "fleet-part"})
    assert "wasters-h" not in live


async def test_without_metrics_the_pages_say_so(sign_in: SignIn, ledger: Ledger, database_url: str) -> None:
    book = CostBook(database_url)
    await fill(ledger, book, datetime.now(UTC).date() - timedelta(days=1), 1)
    book.close()
    client = await sign_in(Role.VIEWER)
    for path in ("/fleet", "/pools/a100", "/teams/nlp"):
        text = await late_part(client, path)
        assert "GPU metrics are not collected" in text
        assert "No idle GPUs were held" not in text


@pytest.mark.usefixtures("work")
async def test_over_http(app: FastAPI, stranger: httpx2.AsyncClient, ledger: Ledger, fleet: Fleet) -> None:
    async def ask(path: str, role: Role, user: str) -> httpx2.Response:
        secret = await token(ledger, role, f"{user}-{len(path)}-{path[-3:]}", user)
        return await stranger.get(path, headers={"Authorization": f"Bearer {secret}"})

    now = (await ask("/v1/use/now", Role.VIEWER, "finance")).json()["supplies"]
    assert [(s["pool"], s["slice"], s["idle_gpus"]) for s in now] == [("a100", None, 1)]
    assert (now[0]["measured_gpus"], now[0]["busy_gpus"]) == (2.0, pytest.approx(0.96))
    found = (await ask("/v1/use/history?days=2&pool=a100", Role.MEMBER, "nobody")).json()
    assert found["by_day"] is False
    assert len(found["spans"]) in (48, 49)
    for span in found["spans"]:
        assert sum(span["gpu_seconds"].values()) == pytest.approx(span["held_gpu_seconds"])
    assert sum(span["held_gpu_seconds"] for span in found["spans"]) > 0
    refused = await ask("/v1/use/history?team=product", Role.MEMBER, "alice")
    assert (refused.status_code, refused.json()["code"]) == (403, "NotYourTeam")
    assert (await ask("/v1/use/history?team=product", Role.MEMBER, "dan")).status_code == 200
    assert (await ask("/v1/use/history?pool=none", Role.VIEWER, "ops")).status_code == 404


def test_bars_add_up_to_what_was_held() -> None:
    kinds = {HeldKind.BUSY: 1800.0, HeldKind.IDLE: 900.0, HeldKind.UNMEASURED: 900.0}
    start = datetime(2026, 11, 1, tzinfo=UTC)
    chart = draw_use([UsePoint(start, HOUR, kinds), UsePoint(start + timedelta(hours=1), HOUR, {})])
    assert chart is not None
    assert chart.most == 1.0
    full, empty = chart.bars
    assert [(p.kind, p.top, p.height) for p in full.parts] == [
        (HeldKind.BUSY, 60, 60),
        (HeldKind.IDLE, 30, 30),
        (HeldKind.UNMEASURED, 0, 30),
    ]
    assert empty.parts == ()
    assert chart.description == (
        "Of 1 GPU-hours held: 50 % busy, 0 % poorly used, 25 % idle, 25 % not measured"
    )
    assert draw_use([UsePoint(start, HOUR, {})]) is None


def test_a_node_is_busy_idle_free_or_unknown() -> None:
    hours = {
        0: NodeHour(8 * 3600, 8 * 3600, 4 * 3600),
        HOUR: NodeHour(8 * 3600, 3600, 0),
        2 * HOUR: NodeHour(8 * 3600, 0, 0),
        3 * HOUR: NodeHour(10, 10, 10),
    }
    heat = draw_heat(Span(0, 5 * HOUR), [NodeHours(ClusterName("hpc"), NodeName("n1"), hours)])
    (row,) = heat.rows
    assert [(cell.shade, cell.text) for cell in row.cells] == [
        ("h5", "50"),
        ("h0", "0"),
        ("free", "·"),
        ("unknown", "?"),
        ("unknown", "?"),
    ]
