"""The page of the fleet: what there is, who waits, what it costs, and what to do where there is nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import httpx2
import pytest

from fairway.ledger import Ledger, StoredBudgetStatus
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget, BudgetLevel, Hold
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.observation import Health
from fairway.services.fleets import NO_FLEET
from fairway.web.pages.fleet import page as fleet_page
from tests.unit.web.conftest import FLEET, SignIn
from tests.unit.web.fleet_sights import lose, mig_node, mirror, node, observe, runs, waits

PART = {"HX-Request": "true", "HX-Target": "fleet-part"}


def words(page: str) -> str:
    """A page as one reads it."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


async def busy(ledger: Ledger) -> None:
    """research holds 20 of 16 guaranteed, product waits; a node is drained, one is down."""
    await observe(
        ledger,
        node("n1", 8),
        node("n2", 8),
        node("n3", 4),
        node("n4", health=Health.DRAINED, reason="disk is full"),
        node("n5", health=Health.DOWN, reason="no answer"),
        mig_node("m1", 3, 0),
    )
    await mirror(
        ledger,
        runs(1, 16, "n1", "n2"),
        runs(2, 4, "n3"),
        runs(3, 3, "m1", slice_="1g.10gb"),
        waits(4, 8, "Resources"),
        waits(5, 8, "Resources"),
        waits(6, 2, "QOSGrpGRES"),
    )


async def test_a_bar_has_its_numbers_as_words(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await busy(ledger)
    page = (await admin.get("/fleet")).text
    assert 'aria-label="hpc-a100: 16 used, 4 on loan, 4 idle, 8 drained, 8 down"' in page
    assert 'aria-label="hpc-mig/1g.10gb: 3 on loan, 4 idle"' in page
    assert "23 of 49" in words(page)  # with slices: of a GPU without known profiles, each is a GPU
    assert "includes 3 of 9 slices" in words(page)
    assert "8 down, 8 drained" in words(page)


async def test_what_waits_is_told_by_pool_and_team_with_its_reasons(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await busy(ledger)
    page = words((await admin.get("/fleet")).text)
    assert "3 jobs waiting for 18 GPUs, the longest for 3 h" in page
    assert "hpc-a100 product 3 waiting 18 GPUs 3 h Resources 2 jobs QOSGrpGRES 1 job" in page


async def test_reasons_that_differ_in_numbers_alone_are_one(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8))
    await mirror(
        ledger,
        *(waits(i, 1, f"0/{i} nodes are available on n{i}, n{i + 1}") for i in range(1, 4)),
        waits(9, 1, "QOSGrpGRES"),
    )
    page = words((await admin.get("/fleet")).text)
    assert re.search(r"0/\d nodes are available on n\d, n\d 3 jobs QOSGrpGRES 1 job", page)


async def test_a_live_part_is_the_part_alone_and_shows_the_change(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8))
    before = (await admin.get("/fleet", headers=PART)).text
    assert "<html" not in before and "hpc-a100: 8 used" in before
    await observe(ledger, node("n1", 3))
    assert "hpc-a100: 3 used, 5 idle" in (await admin.get("/fleet", headers=PART)).text


async def test_a_cluster_that_cannot_be_reached_is_loud_and_its_last_state_stays(
    ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("n1", 8))
    assert 'role="alert"' not in (await admin.get("/fleet")).text
    await lose(ledger)
    page = (await admin.get("/fleet")).text
    assert 'role="alert"' in page
    said = words(page)
    assert "Cluster hpc cannot be reached" in said
    assert "Unreachable nobody answers at hpc:6820" in said
    assert "What to do: look whether slurmrestd runs" in said
    assert "hpc-a100: 8 used" in page


async def test_a_cluster_shows_its_engine_and_version(ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    await observe(ledger, node("n1"))
    page = words((await admin.get("/fleet")).text)
    assert "hpc slurm 24.11.5 ● reachable" in page
    assert "dream virtual ○ not observed yet" in page


async def test_a_pool_nobody_looked_at_yet_says_so(admin: httpx2.AsyncClient) -> None:
    page = words((await admin.get("/fleet")).text)
    assert "Not observed yet: cluster dream has not answered." in page
    assert "No jobs waiting" in page


class TestNoFleet:
    @pytest.fixture
    def fleet(self) -> Fleet:
        return NO_FLEET

    async def test_it_says_how_to_give_one(self, viewer: httpx2.AsyncClient) -> None:
        page = await viewer.get("/fleet")
        assert page.status_code == 200
        assert "fairway apply -f fleet.yaml" in page.text and "fairway demo" in page.text
        assert "No fleet yet" in (await viewer.get("/fleet", headers=PART)).text
        assert (await viewer.get("/fleet/data")).json()["time"] == []


class TestMoney:
    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cost of today is waited for, however busy the machine is."""
        monkeypatch.setattr(fleet_page, "QUICK_SECONDS", 60.0)

    @pytest.fixture
    def fleet(self) -> Fleet:
        budget = Budget(Decimal(3000), at_limit=AtLimit.STOP)
        return replace(FLEET, teams=tuple(replace(t, budget=budget) for t in FLEET.teams))

    async def stand(self, ledger: Ledger) -> None:
        first = datetime.now(UTC).date().replace(day=1)
        lease = await ledger.leases.take("budget", "", "test", 60)
        assert lease is not None
        async with ledger.writing(lease) as tx:
            await tx.budgets.write(
                [
                    standing("research", first, 2700, BudgetLevel.WARNED),
                    standing("vision", first, 10, BudgetLevel.OK),
                    standing("product", first, 3100, BudgetLevel.SPENT, Hold.STOP),
                ],
                [],
            )

    async def test_budgets_that_need_attention_are_listed(
        self, ledger: Ledger, viewer: httpx2.AsyncClient
    ) -> None:
        await self.stand(ledger)
        page = words((await viewer.get("/fleet")).text)
        assert "product ■ spent: no jobs start 103 %" in page
        assert "research ▲ over 80 %, but will last the month 90 %" in page
        assert "2,700.00 of 3,000.00 USD this month · 50.00 per day" in page
        assert "1 other budget will last the period" in page and "vision ▲" not in page

    async def test_every_page_has_the_same_level_of_a_budget(
        self, ledger: Ledger, viewer: httpx2.AsyncClient
    ) -> None:
        """By forecast: 45 % spent says nothing of a budget that runs out on the third day."""
        first = datetime.now(UTC).date().replace(day=1)
        days = (date(first.year + first.month // 12, first.month % 12 + 1, 1) - first).days
        lease = await ledger.leases.take("budget", "", "test", 60)
        assert lease is not None
        status = replace(standing("research", first, 1350, BudgetLevel.OK), runs_out=first.replace(day=3))
        async with ledger.writing(lease) as tx:
            await tx.budgets.write([status], [])
        early = f"▲ will run out {days - 3} days early"
        for address in ("/fleet", "/teams", "/teams/research", "/cost"):
            assert early in words((await viewer.get(address)).text), address

    async def test_a_member_sees_the_money_of_their_own_teams_alone(
        self, ledger: Ledger, sign_in: SignIn
    ) -> None:
        await self.stand(ledger)
        page = words((await (await sign_in(Role.MEMBER, user="bob")).get("/fleet")).text)
        assert "product ■ spent" in page and "research ▲" not in page
        assert "Your teams today" in page and "DayCost today" not in page
        mine = words((await (await sign_in(Role.LEAD, user="vic")).get("/fleet", headers=PART)).text)
        assert "2,700.00" not in mine and "3,100.00" not in mine

    async def test_a_days_part_is_of_the_outermost_budgets(
        self, ledger: Ledger, viewer: httpx2.AsyncClient, sign_in: SignIn
    ) -> None:
        today = datetime.now(UTC).date()
        days = (date(today.year + today.month // 12, today.month % 12 + 1, 1) - today.replace(day=1)).days
        both, one = (round(Decimal(of) / days) for of in (6000, 3000))
        assert f"of {both:,} per day in budgets" in words((await viewer.get("/fleet")).text)
        vic = await sign_in(Role.MEMBER, user="vic")  # sees vision, and not the budget it is inside of
        assert f"of {one:,} per day in budgets" in words((await vic.get("/fleet")).text)

    async def test_what_waits_for_money_says_so(self, ledger: Ledger, viewer: httpx2.AsyncClient) -> None:
        await self.stand(ledger)
        await mirror(ledger, waits(1, 8, "QOSGrpGRES"))
        assert "BudgetSpent: " in words((await viewer.get("/fleet")).text)


def standing(
    team: str, first: date, spent: int, level: BudgetLevel, hold: Hold | None = None
) -> StoredBudgetStatus:
    now = datetime.now(UTC)
    return StoredBudgetStatus(
        TeamName(team), first, Decimal(3000), Decimal(spent), Decimal(50), None, level, hold, now, now
    )


async def test_the_plot_has_gaps_where_nothing_was_known(viewer: httpx2.AsyncClient) -> None:
    data = (await viewer.get("/fleet/data?window=24h")).json()
    assert len(data["time"]) == len(data["capacity"]) == len(data["queued"]) == 25
    assert set(data["capacity"]) == set(data["queued"]) == {None}


async def test_charts_reach_from_a_day_to_a_year(viewer: httpx2.AsyncClient) -> None:
    for window, points, by_day in (("24h", 25, False), ("30d", 30, True), ("90d", 90, True)):
        data = (await viewer.get(f"/fleet/data?window={window}")).json()
        assert (len(data["time"]), data["by_day"]) == (points, by_day)
    for window in ("367d", "x", "2026-13"):
        assert (await viewer.get(f"/fleet/data?window={window}")).status_code == 422
    assert (await viewer.get("/fleet/data?by=user")).status_code == 422


async def test_nobody_who_did_not_sign_in_sees_anything(stranger: httpx2.AsyncClient) -> None:
    for path in ("/fleet", "/fleet/data", "/pools/hpc-a100", "/pools/hpc-a100/data"):
        assert (await stranger.get(path)).status_code == 303
