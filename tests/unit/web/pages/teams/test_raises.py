"""Raises of budgets on a team's page: requested by its lead, decided by those who may."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from decimal import Decimal

import httpx2
import pytest

from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget
from fairway.model.fleet import Fleet
from fairway.model.names import UserName
from tests.unit.web.conftest import FLEET, SignIn

STOP = Budget(Decimal(1000), at_limit=AtLimit.STOP)


@pytest.fixture
def fleet() -> Fleet:
    """vision (vic) is inside research (ada, lee); both have budgets, product has none."""
    changes = {"research": {"budget": STOP}, "vision": {"budget": STOP, "members": (UserName("vic"),)}}
    teams = (replace(t, **changes.get(t.name, {})) for t in FLEET.teams)  # type: ignore[arg-type]
    return replace(FLEET, teams=tuple(teams))


async def page(client: httpx2.AsyncClient, path: str = "/teams/vision") -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


async def send(client: httpx2.AsyncClient, path: str, status: int = 303, **form: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', await page(client))
    assert found is not None
    answer = await client.post(path, data={"csrf": found[1], **form}, follow_redirects=False)
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


async def test_a_lead_requests_and_the_lead_above_approves(sign_in: SignIn, ledger: Ledger) -> None:
    vic, lee = await sign_in(Role.LEAD, user="vic"), await sign_in(Role.LEAD, user="lee")
    text = await page(vic)
    assert "Request a raise" in text and "waits for a decision" not in text
    await send(vic, "/teams/vision/raises", amount="2,500.5", reason="<b>paper</b>")
    (asked,) = await ledger.budget_raises.page()
    assert (asked.team, asked.amount, asked.requested_by) == ("vision", Decimal("2500.5"), "vic")
    text = await page(vic)
    assert "a raise waits for a decision" in text and ">Withdraw<" in text and ">Approve<" not in text
    assert 'name="amount"' not in text  # one request at a time
    wants = re.escape('href="/teams/vision#raises">')
    assert re.search(f"{wants}.*vision requests 2,500.50 USD more for ", await page(lee, "/"), re.DOTALL)
    assert "vision requests" not in re.sub(r"vic requests.*", "", await page(vic, "/")).split("Since")[0]
    path = f"/teams/vision/raises/{asked.id}"
    assert "CannotDecideRaise" in await send(vic, path, 403, decision="approve")
    answer = await lee.get("/teams/vision")
    assert "&lt;b&gt;paper" in answer.text and ">Approve<" in answer.text and ">Deny<" in answer.text
    await send(lee, path, decision="approve", comment="once")
    text = await page(vic)
    assert "of 3,500.50 USD per month" in re.sub(r"<[^>]+>", "", text)
    assert "2,500.50 USD of it by approved" in re.sub(r"<[^>]+>", "", text)
    assert "lee, " in text and ": once" in text
    assert "RaiseDecided" in await send(lee, path, 409, decision="deny")


async def test_who_may_not_request_sees_no_form(sign_in: SignIn) -> None:
    for role, user in ((Role.MEMBER, "vic"), (Role.VIEWER, "finance")):
        text = await page(await sign_in(role, user=user))
        assert "Request a raise" not in text and 'id="raises"' not in text
    olga = await sign_in(Role.OPERATOR)
    assert "Request a raise" in await page(olga)
    assert "Request a raise" not in await page(olga, "/teams/product")  # which has no budget


@pytest.mark.parametrize(
    "form",
    [{"amount": "much", "reason": "x"}, {"amount": "-1", "reason": "x"}, {"amount": "5", "reason": ""}, {}],
)
async def test_what_no_form_may_contain(sign_in: SignIn, ledger: Ledger, form: dict[str, str]) -> None:
    lee = await sign_in(Role.LEAD)
    text = await send(lee, "/teams/vision/raises", 422, **form)
    assert "InvalidRaise" in text and "what the money is for" in text
    assert await ledger.budget_raises.page() == ()


async def test_a_decision_that_is_none(sign_in: SignIn, ledger: Ledger) -> None:
    lee = await sign_in(Role.LEAD)
    await send(lee, "/teams/vision/raises", amount="5", reason="x")
    (asked,) = await ledger.budget_raises.page()
    assert "neither approve nor deny" in await send(lee, f"/teams/vision/raises/{asked.id}", 422)
    await send(lee, f"/teams/vision/raises/{asked.id}", 422, decision="deny", comment="x" * 501)
    await send(lee, f"/teams/vision/raises/{10**18}", 422, decision="deny")
    without = await lee.post(f"/teams/vision/raises/{asked.id}", data={"decision": "deny"})
    assert without.status_code == 403 and "NotFromHere" in without.text
