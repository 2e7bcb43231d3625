"""Raises of budgets: one open request for each team and period, one decision, and the notices of both."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from fairway.ledger import BudgetRaise, Ledger, NewBudgetRaise
from fairway.model.budget import Every, RaiseState
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind

NLP = NewBudgetRaise(
    TeamName("nlp"), Every.MONTH, date(2026, 11, 1), Decimal("5000.5"), "paper", UserName("lee")
)
QUARTER = replace(NLP, every=Every.QUARTER, period=date(2026, 10, 1))


def notice_of(one: BudgetRaise) -> Notice:
    return Notice(NoticeKind.BUDGET, f"raise/{one.id}/requested", "more", "text", operators=True)


async def request(ledger: Ledger, wanted: NewBudgetRaise = NLP) -> BudgetRaise | None:
    return await ledger.budget_raises.request(wanted, event="lee requests", notice_of=notice_of)


async def decide(ledger: Ledger, number: int, state: RaiseState, by: str = "olga") -> BudgetRaise | None:
    notice = Notice(NoticeKind.BUDGET, f"raise/{number}/{state}", "done", "text", TeamName("nlp"))
    return await ledger.budget_raises.decide(
        number, state, by=by, comment="", event=f"{by} decides", notices=[notice]
    )


async def keys(ledger: Ledger) -> list[str]:
    return [stored.notice.key for stored in await ledger.notices.unrouted(100)]


async def stored(ledger: Ledger, wanted: NewBudgetRaise = NLP) -> BudgetRaise:
    made = await request(ledger, wanted)
    assert made is not None
    return made


async def test_a_request_is_what_was_requested(ledger: Ledger) -> None:
    made = await stored(ledger)
    assert (made.team, made.every, made.period, made.amount) == ("nlp", "month", NLP.period, NLP.amount)
    assert (made.reason, made.requested_by, made.state) == ("paper", "lee", RaiseState.REQUESTED)
    assert (made.decided_by, made.decided_at, made.comment) == (None, None, "")
    assert await ledger.budget_raises.find(made.id) == made
    assert await ledger.budget_raises.find(made.id + 1) is None
    assert await keys(ledger) == [f"raise/{made.id}/requested"]
    assert [(e.team, e.text) for e in await ledger.budgets.events()] == [("nlp", "lee requests")]


async def test_one_request_of_a_team_and_period_is_open_whoever_asks_at_once(ledger: Ledger) -> None:
    made = [one for one in await asyncio.gather(*(request(ledger) for _ in range(8))) if one is not None]
    assert len(made) == 1
    assert len(await keys(ledger)) == len(await ledger.budgets.events()) == 1
    assert await request(ledger, replace(NLP, team=TeamName("vision"))) is not None
    assert await request(ledger, replace(NLP, period=date(2026, 12, 1))) is not None
    assert await request(ledger, QUARTER) is not None
    await decide(ledger, made[0].id, RaiseState.DENIED)
    assert await request(ledger) is not None


async def test_a_request_is_decided_once_whoever_decides_at_once(ledger: Ledger) -> None:
    made = await stored(ledger)
    states = [RaiseState.APPROVED, RaiseState.DENIED] * 4
    decided = await asyncio.gather(*(decide(ledger, made.id, s, f"op-{n}") for n, s in enumerate(states)))
    (one,) = [found for found in decided if found is not None]
    assert await ledger.budget_raises.find(made.id) == one
    assert one.decided_at is not None and one.state in (RaiseState.APPROVED, RaiseState.DENIED)
    assert await keys(ledger) == [f"raise/{made.id}/requested", f"raise/{made.id}/{one.state}"]
    assert len(await ledger.budgets.events()) == 2
    assert await decide(ledger, made.id + 1, RaiseState.APPROVED) is None


async def test_what_is_approved_adds_up_by_period(ledger: Ledger) -> None:
    assert await ledger.budget_raises.approved(date(2026, 10, 1)) == {}
    for wanted, state in (
        (NLP, RaiseState.APPROVED),
        (replace(NLP, amount=Decimal(1)), RaiseState.APPROVED),
        (replace(NLP, amount=Decimal(7)), RaiseState.DENIED),
        (QUARTER, RaiseState.APPROVED),
        (replace(NLP, period=date(2026, 9, 1)), RaiseState.APPROVED),
    ):
        await decide(ledger, (await stored(ledger, wanted)).id, state)
    await request(ledger)  # open: it does not count
    assert await ledger.budget_raises.approved(date(2026, 10, 1)) == {
        ("nlp", Every.MONTH, date(2026, 11, 1)): Decimal("5001.5"),
        ("nlp", Every.QUARTER, date(2026, 10, 1)): Decimal("5000.5"),
    }
    now = datetime.now(UTC)
    assert await ledger.budget_raises.approved_after(now - timedelta(minutes=1))
    assert not await ledger.budget_raises.approved_after(now + timedelta(minutes=1))


async def test_pages(ledger: Ledger) -> None:
    first = await stored(ledger)
    await decide(ledger, first.id, RaiseState.DENIED)
    second = await stored(ledger)
    other = await stored(ledger, replace(NLP, team=TeamName("vision")))

    async def ids(**which: object) -> list[int]:
        return [one.id for one in await ledger.budget_raises.page(**which)]  # type: ignore[arg-type]

    assert await ids() == [other.id, second.id, first.id]
    assert await ids(limit=1) == [other.id]
    assert await ids(teams={"nlp"}) == [second.id, first.id]
    assert await ids(teams=()) == []
    assert await ids(state=RaiseState.DENIED) == [first.id]
    assert await ids(since=date(2026, 12, 1)) == []
    found = await ledger.budget_raises.of_period(NLP.team, NLP.every, NLP.period)
    assert [one.id for one in found] == [second.id, first.id]


@pytest.mark.parametrize("amount", ["0", "-1"])
async def test_the_table_refuses_what_takes_away(ledger: Ledger, amount: str) -> None:
    with pytest.raises(Exception, match="budget_raise_amount_check"):
        await request(ledger, replace(NLP, amount=Decimal(amount)))
    assert await keys(ledger) == []
