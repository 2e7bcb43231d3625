"""Answers about money that pages share: only among those who may see the same, and not for long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi import FastAPI

from fairway.api.cost_desk import Asked, CostDesk
from fairway.api.problems import ApiError
from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import UserName
from fairway.model.price import Sharing
from fairway.web import shared_desk
from fairway.web.shared_desk import SharedDesk
from tests.unit.control.cost_history import OCTOBER, CostBook, fill, with_rules

MONTH = Asked(window="2026-10", by=(Label.TEAM,))


@pytest.fixture
def fleet() -> Fleet:
    return with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)


@pytest.fixture
async def desk(app: FastAPI, ledger: Ledger, database_url: str) -> SharedDesk:
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 2)
    book.close()
    return SharedDesk(ledger, app.state.fleets)


def person(user: str, role: Role) -> Token:
    now = datetime.now(UTC)
    return Token(1, user, role, now, "test", None, None, None, UserName(user))


async def test_an_answer_is_shared_by_those_who_may_see_the_same(
    desk: SharedDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    plain = CostDesk.cost

    async def counted(self: CostDesk, caller: Token, question: Asked) -> object:
        asked.append(caller.name)
        return await plain(self, caller, question)

    monkeypatch.setattr(CostDesk, "cost", counted)
    first = await desk.cost(person("root", Role.ADMIN), MONTH)
    assert await desk.cost(person("finance", Role.VIEWER), MONTH) is first
    assert asked == ["root"]
    hers = await desk.cost(person("alice", Role.MEMBER), MONTH)
    assert asked == ["root", "alice"]
    assert hers.total.total < first.total.total
    assert {row.labels[0] for row in hers.rows} == {"nlp"}
    with pytest.raises(ApiError, match="not your team"):
        await desk.cost(person("alice", Role.MEMBER), Asked("2026-10", (Label.TEAM,), team="product"))


async def test_old_answers_are_read_anew_and_few_are_kept(
    desk: SharedDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_desk, "KEEP_SECONDS", 0.0001)
    monkeypatch.setattr(shared_desk, "STALE_SECONDS", 0.0)
    root = person("root", Role.ADMIN)
    first = await desk.cost(root, MONTH)
    assert await desk.cost(root, MONTH) is not first
    for number in range(shared_desk.MOST_ANSWERS + 5):
        await desk.usage(root, Asked("2026-10", (Label.TEAM,), most=number + 1))
    assert len(desk._looks(await desk.fleet())) == shared_desk.MOST_ANSWERS
