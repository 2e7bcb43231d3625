"""The Home page: each person's jobs, teams and budgets, what changed, and what needs attention."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape

import httpx2
import pytest

from fairway.ledger import JobFilter, Ledger
from fairway.model.access import Role
from fairway.model.budget import Budget, BudgetLevel, Hold
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import Device
from fairway.model.job import Attempt, Ending, JobState, SeenJob, format_job_id
from fairway.model.names import NodeName, TeamName, UserName
from fairway.model.observation import Health
from fairway.policy.objects import Intervention
from fairway.services.fleets import NO_FLEET
from tests.measured import did, measure
from tests.unit.web.conftest import FLEET, SignIn
from tests.unit.web.fleet_sights import lose, mirror, node, observe, runs, waits
from tests.unit.web.pages.fleet.test_page import standing

PART = {"HX-Request": "true", "HX-Target": "home-part"}


@pytest.fixture
def fleet() -> Fleet:
    budget = Budget(Decimal(3000))
    return replace(FLEET, teams=tuple(replace(t, budget=budget) for t in FLEET.teams))


def words(page: str) -> str:
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", page).split()))


def section(page: str, title: str) -> str:
    """The words of the section with this heading."""
    found = re.search(
        rf"<section[^>]*>(?:(?!</section>).)*<h2[^>]*>{title}</h2>.*?</section>", page, re.DOTALL
    )
    assert found, title
    return words(found[0])


async def home(client: httpx2.AsyncClient, **headers: str) -> str:
    answer = await client.get("/", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def failed(number: int, hours_ago: float) -> SeenJob:
    now = datetime.now(UTC).replace(microsecond=0)
    ended = now - timedelta(hours=hours_ago)
    attempt = Attempt(ended - timedelta(minutes=5), (NodeName("n1"),), 2, ended, Ending.FAILED, 3)
    return replace(
        runs(number, 2, "n1"), state=JobState.FAILED, attempts=(attempt,), ended_at=ended, exit_code=3
    )


async def test_my_jobs_come_with_their_reasons_and_others_do_not(ledger: Ledger, sign_in: SignIn) -> None:
    await observe(ledger, node("n1", 8))
    await mirror(
        ledger,
        runs(1, 4, "n1"),
        waits(2, 8, "Resources"),
        replace(waits(3, 8, "Resources"), user=UserName("bob")),
        failed(4, 1),
        failed(5, 30),
    )
    page = await home(await sign_in(Role.MEMBER))
    mine = section(page, "My jobs")
    assert "Running 1" in mine and "train-1" in mine and "running 60 min" in mine
    assert "Waiting 1" in mine and "train-2" in mine and "Resources" in mine
    assert "Ended since yesterday 1" in mine and "train-4" in mine and "exit code 3" in mine
    assert "train-3" not in mine and "train-5" not in mine
    (job,) = await ledger.jobs.page(JobFilter(name="train-1"))
    assert f'href="/jobs/{format_job_id(job.id)}"' in page
    attention = section(page, "Needs attention")
    assert re.search(r"train-4 \(\w+\) failed: exit code 3", attention)
    assert "train-5" not in attention
    since = section(page, "Since yesterday")
    assert "1 job of yours ended: 1 failed" in since
    other = await home(await sign_in(Role.MEMBER, user="bob"))
    assert "train-4" not in other and "train-3" in other


async def test_idle_gpus_and_holds_of_mine_need_attention(ledger: Ledger, sign_in: SignIn) -> None:
    await mirror(ledger, runs(1, 2, "n1"), runs(2, 2, "n1"), replace(waits(3, 1, ""), state=JobState.HELD))
    one, two = sorted(await ledger.jobs.page(JobFilter(states=(JobState.RUNNING,))), key=lambda r: r.name)
    start = int(datetime.now(UTC).timestamp()) // 300 * 300 - 1800
    idle, busy = did(0.0, sm=0.0, memory=4), did(0.9, sm=0.8, memory=4000)
    await measure(
        ledger,
        start,
        5,
        {
            one.id: {Device("n1", str(n)): idle for n in range(2)},
            two.id: {Device("n1", str(n)): busy for n in range(2, 4)},
        },
    )
    attention = section(await home(await sign_in(Role.MEMBER)), "Needs attention")
    assert f"train-1 ({format_job_id(one.id)}) holds 2 GPUs and does not use them" in attention
    assert "train-2" not in attention
    assert "1 job of yours is on hold" in attention


async def test_my_team_shows_what_it_holds_what_is_on_loan_and_its_budget(
    ledger: Ledger, sign_in: SignIn
) -> None:
    await observe(ledger, node("n1", 8), node("n2", 8))
    await mirror(ledger, runs(1, 4, "n1"), runs(2, 12, "n1", "n2", team="product"))
    first = datetime.now(UTC).date().replace(day=1)
    lease = await ledger.leases.take("budget", "", "test", 60)
    assert lease is not None
    statuses = [
        replace(standing("research", first, 1350, BudgetLevel.OK), runs_out=first.replace(day=3)),
        standing("product", first, 3100, BudgetLevel.SPENT, Hold.STOP),
    ]
    async with ledger.writing(lease) as tx:
        await tx.budgets.write(statuses, [(TeamName("research"), "1,350 of 3,000 USD spent")])
    await ledger.leases.release(lease)
    page = await home(await sign_in(Role.MEMBER))
    said = words(page)
    assert re.search(r"hpc-a100 4 16 12 0 ", said), "held, guaranteed, on loan, waiting"
    assert "1,350.00 USD of 3,000.00 USD spent (45 %)" in said
    assert re.search(r"Will run out \d+ days early", said)
    assert "product" not in section(page, "Needs attention")
    assert re.search(r"Budget of research: will run out \d+ days early", section(page, "Needs attention"))
    assert "research: 1,350 of 3,000 USD spent" in section(page, "Since yesterday")
    everything = await home(await sign_in(Role.VIEWER))
    assert "Budget of product: spent" in section(everything, "Needs attention")
    bob = await home(await sign_in(Role.MEMBER, user="bob"))
    assert "1,350" not in bob


async def test_operators_see_what_is_wrong_with_the_fleet(ledger: Ledger, sign_in: SignIn) -> None:
    await observe(ledger, node("n1", 8), node("n2"))
    await observe(ledger, node("n1", 8), node("n2", health=Health.DOWN))
    lease = await ledger.leases.take("intervene", "hpc", "test", 30)
    assert lease
    async with ledger.writing(lease) as tx:
        await tx.drift.write_interventions(
            [Intervention("guarantee", f"scontrol requeue {n}", str(n), "product waits") for n in (17, 18)]
        )
    await ledger.leases.release(lease)
    await lose(ledger)
    operator = await home(await sign_in(Role.OPERATOR))
    attention = section(operator, "Needs attention")
    assert "Cluster hpc is not reachable: nobody answers at hpc:6820" in attention
    assert "1 node is down" in attention
    since = section(operator, "Since yesterday")
    assert "n2 on hpc is down" in since
    assert "n1" not in since, "it has been ready since it was first seen"
    assert "2 interventions on hpc to keep the promise “guarantee”" in since
    assert "GPUs in use" in words(operator)
    member = await home(await sign_in(Role.MEMBER))
    assert "nobody answers" not in member
    assert "Nothing needs your attention" in member


async def test_a_live_part_is_the_part_alone(sign_in: SignIn) -> None:
    member = await sign_in(Role.MEMBER)
    part = await home(member, **PART)
    assert "My jobs" in part and "<html" not in part
    page = await home(member)
    assert '<a href="/" data-key="h" aria-current="page">Home</a>' in page
    assert '<a href="/fleet" data-key="f">Fleet</a>' in page


class TestNoFleet:
    @pytest.fixture
    def fleet(self) -> Fleet:
        return NO_FLEET

    async def test_it_leads_to_how_to_begin(self, sign_in: SignIn) -> None:
        page = await home(await sign_in(Role.ADMIN))
        assert "There is no fleet yet" in page and 'href="/fleet"' in page
