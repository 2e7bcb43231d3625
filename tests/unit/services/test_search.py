"""Search over everything: jobs by name and any id, teams, pools, nodes, users, each bounded."""

from __future__ import annotations

import pytest

from fairway.ledger import JobFilter, Ledger
from fairway.model.access import Role
from fairway.model.job import format_job_id
from fairway.model.names import TeamName, UserName
from fairway.services.rights import Person
from fairway.services.search import MAX_OF_A_KIND, Found, FoundKind, search
from tests.unit.web.conftest import FLEET
from tests.unit.web.fleet_sights import mirror, node, observe, runs

ADA = Person(UserName("ada"), Role.MEMBER, frozenset({TeamName("research"), TeamName("vision")}))


async def find(ledger: Ledger, text: str, person: Person = ADA) -> list[Found]:
    return await search(ledger, FLEET, person, text)


async def test_a_job_is_found_by_name_by_its_id_and_by_the_engines(ledger: Ledger) -> None:
    await mirror(ledger, *(runs(n, 1, "n1") for n in (1541, 1542, 1543)))
    (row,) = await ledger.jobs.page(JobFilter(name="train-1542"))
    word = format_job_id(row.id)
    for text in ("1542", "hpc/1542", "train-1542", "RAIN-1542", word, word.upper()):
        (first, *_) = await find(ledger, text)
        assert (first.kind, first.href) == (FoundKind.JOB, f"/jobs/{word}"), text
    assert first.name == f"train-1542 ({word})"
    assert first.detail == "running, ada, research, hpc-a100"
    assert len([f for f in await find(ledger, "train") if f.kind is FoundKind.JOB]) == 3


async def test_teams_pools_nodes_and_users(ledger: Ledger) -> None:
    await observe(ledger, node("gpu-017"), node("gpu-018"))
    await mirror(ledger, runs(1, 1, "gpu-017"))
    assert await find(ledger, "gpu-01") == [
        Found(FoundKind.NODE, "gpu-017", "ready on hpc", "/pools/hpc-a100"),
        Found(FoundKind.NODE, "gpu-018", "ready on hpc", "/pools/hpc-a100"),
    ]
    assert Found(FoundKind.POOL, "hpc-a100", "A100-80GB on hpc", "/pools/hpc-a100") in await find(
        ledger, "A100"
    )
    assert await find(ledger, "bob") == [Found(FoundKind.USER, "bob", "product", "/jobs?user=bob")]
    assert Found(FoundKind.USER, "ada", "research", "/jobs?user=ada") in await find(ledger, "ad")
    assert await find(ledger, "vis") == [Found(FoundKind.TEAM, "vision", "in research", "/teams/vision")]
    # A team whose page she may not open leads to its jobs.
    assert await find(ledger, "produ") == [Found(FoundKind.TEAM, "product", "", "/jobs?team=product")]
    operator = Person(UserName("olga"), Role.OPERATOR, frozenset())
    assert await find(ledger, "produ", operator) == [Found(FoundKind.TEAM, "product", "", "/teams/product")]


@pytest.mark.parametrize("text", ["", "   ", "\x00", "%", "_", "'", "\\", "x" * 5000, "nothing-like-this"])
async def test_what_finds_nothing(ledger: Ledger, text: str) -> None:
    await observe(ledger, node("n1"))
    await mirror(ledger, runs(1, 1, "n1"))
    assert await find(ledger, text) == []


async def test_results_are_bounded(ledger: Ledger) -> None:
    await observe(ledger, *(node(f"n{n}") for n in range(20)))
    await mirror(ledger, *(runs(n, 1, "n1") for n in range(1, 20)))
    found = await find(ledger, "n")
    kinds = [one.kind for one in found]
    assert kinds.count(FoundKind.NODE) == kinds.count(FoundKind.JOB) == MAX_OF_A_KIND
