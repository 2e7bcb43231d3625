"""The pages of teams over a real ledger: what all may see, and what is only theirs."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget
from fairway.model.fleet import Fleet
from fairway.model.price import Sharing
from tests.unit.services.cost_history import CLASSES, CostBook, fill, with_rules
from tests.unit.web.conftest import SignIn


@pytest.fixture
def fleet() -> Fleet:
    """nlp (alice, bob) is inside research (lead); product is dan's; research and product have budgets."""
    made = with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)
    budgets = {"research": Budget(Decimal(9000)), "product": Budget(Decimal(2500), at_limit=AtLimit.STOP)}
    return replace(made, teams=tuple(replace(t, budget=budgets.get(t.name)) for t in made.teams))


@pytest.fixture
async def work(ledger: Ledger, database_url: str) -> None:
    """Usage of yesterday (today may be minutes old), jobs that run and wait, and a budget that is spent."""
    book = CostBook(database_url)
    await fill(ledger, book, datetime.now(UTC).date() - timedelta(days=1), 1)
    alice, dan = CLASSES[0], CLASSES[3]
    for number, of, state in ((101, alice, "running"), (102, dan, "waiting"), (103, dan, "running")):
        book.job(number, of, f"train-{number}", state)
        book.db.execute("UPDATE job SET devices = 5, reason = 'Resources' WHERE id = %s", (number,))
    _spend(book.db)
    book.close()


def _spend(db: psycopg.Connection[Any]) -> None:
    row = "(%s, date_trunc('month', now()), %s, %s, 100, NULL, %s, %s, now(), now())"
    columns = "team, period, amount, spent, per_day, runs_out, level, hold, since, checked_at"
    for values in (("research", 9000, 1234, "ok", None), ("product", 2500, 2533, "spent", "stop")):
        db.execute(f"INSERT INTO budget_standing ({columns}) VALUES {row}", values)
    forecast = "('team', %s, date_trunc('month', now()), %s, %s, %s, %s, now())"
    for team, *amounts in (("nlp", 320, 640, 510, 800), ("product", 2533, 5000, 4100, 6200)):
        db.execute(f"INSERT INTO spending_forecast VALUES {forecast}", (team, *amounts))
    db.execute("INSERT INTO budget_event (team, text) VALUES ('product', 'spent 2,533 of 2,500 EUR')")


async def page(client: httpx2.AsyncClient, path: str, status: int = 200) -> str:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


def row_of(text: str, team: str) -> str:
    found = re.search(rf'<tr id="team-{team}">.*?</tr>', text, re.DOTALL)
    assert found is not None
    return found[0]


@pytest.mark.usefixtures("work")
async def test_the_tree(admin: httpx2.AsyncClient) -> None:
    text = await page(admin, "/teams")
    assert re.findall(r'<tr id="team-(\w+)"', text) == ["product", "research", "nlp", "vision"]
    product = row_of(text, "product")
    assert "a100: holds 5, 1 of them borrowed, guaranteed 4" in product
    assert '<span class="n borrowed warn">1</span>' in product and "5 GPUs" in product
    assert "spent: no jobs start" in product and "2,533.00" in product
    assert "holds 5, guaranteed 12" in row_of(text, "research")
    assert "will last the month" in row_of(text, "research")
    by_name = await page(admin, "/teams?sort=name")
    assert re.findall(r'<tr id="team-(\w+)"', by_name) == ["nlp", "product", "research", "vision"]
    assert "in research" in row_of(by_name, "nlp")
    refused = await page(admin, "/teams?sort=colour", 422)
    assert "cannot be sorted by 'colour'" in refused


@pytest.mark.usefixtures("work")
async def test_members_see_what_others_hold_and_not_what_they_spend(sign_in: SignIn) -> None:
    alice = await sign_in(Role.MEMBER, user="alice")
    text = await page(alice, "/teams")
    product = row_of(text, "product")
    assert "holds 5" in product and "/teams/product" not in product
    assert "2,533" not in text and "1,234" not in text
    assert "on hold: a budget is spent" in product
    assert "/teams/nlp" in row_of(text, "nlp")
    above = await page(await sign_in(Role.LEAD, user="lead"), "/teams")
    assert "1,234.00" in above and "2,533" not in above


@pytest.mark.usefixtures("work")
async def test_one_team(admin: httpx2.AsyncClient) -> None:
    text = await page(admin, "/teams/product")
    assert "Team product has spent 2,533 of its 2,500 EUR budget" in text
    assert "raise  budget.amount  of product" in text
    assert "spent 2,533 of 2,500 EUR" in text
    assert "train-103" in text and "train-102" in text and "train-101" not in text
    assert text.count("/jobs?team=product") == 2
    spent = re.search(r'aria-label="By user">.*?</table>', text, re.DOTALL)
    assert spent is not None and "dan" in spent[0]
    widths = {row.count("<t") for row in re.findall(r"<tr>(.*?)</tr>", spent[0], re.DOTALL)}
    assert len(widths) == 1  # a total under each column
    assert "510–800 by month end" in await page(admin, "/teams/nlp")  # without a budget, too
    inside = await page(admin, "/teams/research")
    assert "/teams/nlp" in inside and "/teams/vision" in inside


@pytest.mark.usefixtures("work")
async def test_a_team_that_is_not_there_or_not_theirs(sign_in: SignIn, admin: httpx2.AsyncClient) -> None:
    missing = await page(admin, "/teams/nobody", 404)
    assert "fairway get teams" in missing.lower()
    alice = await sign_in(Role.MEMBER, user="alice")
    refused = await page(alice, "/teams/product", 403)
    assert "NotYourTeam" in refused and "nlp" in refused and "2,533" not in refused
    assert "NotYourTeam" in await page(alice, "/teams/research", 403)
    assert "train-101" in await page(alice, "/teams/nlp")


@pytest.mark.usefixtures("work")
async def test_what_is_remembered_is_nobody_elses(sign_in: SignIn, admin: httpx2.AsyncClient) -> None:
    everything = await page(admin, "/teams")
    assert "% of all" in row_of(everything, "product")
    alice = await page(await sign_in(Role.MEMBER, user="alice"), "/teams")
    assert "% of all" not in alice
    assert " h<" not in row_of(alice, "product").replace(" ", " ")


async def test_nothing_yet(admin: httpx2.AsyncClient) -> None:
    text = await page(admin, "/teams/vision")
    assert "No running jobs." in text and "No budget" in text


class TestWithoutTeams:
    """A fleet that names no team."""

    @pytest.fixture
    def fleet(self) -> Fleet:
        return replace(with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE), teams=())

    async def test_it_says_what_to_write(self, admin: httpx2.AsyncClient) -> None:
        text = await page(admin, "/teams")
        assert "has no teams yet" in text and "guarantee:" in text


async def test_a_live_update_is_the_part_alone(admin: httpx2.AsyncClient) -> None:
    for path, part in (("/teams", "teams-part"), ("/teams/nlp", "team-part")):
        answer = await admin.get(path, headers={"HX-Request": "true", "HX-Target": part})
        assert answer.status_code == 200
        assert "<html" not in answer.text and "a100" in answer.text
