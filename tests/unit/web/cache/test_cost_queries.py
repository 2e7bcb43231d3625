"""Answers about money that pages share: only among those who may see the same, and not for long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi import FastAPI

from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import UserName
from fairway.model.price import Sharing
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.services.errors import RequestError
from fairway.web.cache import cost_queries
from fairway.web.cache.cost_queries import CachedCostQueries
from tests.unit.services.cost_history import OCTOBER, CostBook, fill, with_rules

MONTH = CostRequest(window="2026-10", by=(Label.TEAM,))


@pytest.fixture
def fleet() -> Fleet:
    return with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)


@pytest.fixture
async def costs(app: FastAPI, ledger: Ledger, database_url: str) -> CachedCostQueries:
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 2)
    book.close()
    return CachedCostQueries(ledger, app.state.fleets)


def person(user: str, role: Role) -> Token:
    now = datetime.now(UTC)
    return Token(1, user, role, now, "test", None, None, None, UserName(user))


async def test_an_answer_is_shared_by_those_who_may_see_the_same(
    costs: CachedCostQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    plain = CostQueries.cost

    async def counted(self: CostQueries, caller: Token, question: CostRequest) -> object:
        asked.append(caller.name)
        return await plain(self, caller, question)

    monkeypatch.setattr(CostQueries, "cost", counted)
    first = await costs.cost(person("root", Role.ADMIN), MONTH)
    assert await costs.cost(person("finance", Role.VIEWER), MONTH) is first
    assert asked == ["root"]
    hers = await costs.cost(person("alice", Role.MEMBER), MONTH)
    assert asked == ["root", "alice"]
    assert hers.total.total < first.total.total
    assert {row.labels[0] for row in hers.rows} == {"nlp"}
    with pytest.raises(RequestError, match="not your team"):
        await costs.cost(person("alice", Role.MEMBER), CostRequest("2026-10", (Label.TEAM,), team="product"))


async def test_old_answers_are_read_anew_and_few_are_kept(
    costs: CachedCostQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_queries, "MAX_AGE_SECONDS", 0.0001)
    monkeypatch.setattr(cost_queries, "STALE_SECONDS", 0.0)
    root = person("root", Role.ADMIN)
    first = await costs.cost(root, MONTH)
    assert await costs.cost(root, MONTH) is not first
    for number in range(cost_queries.MAX_RESULTS + 5):
        await costs.usage(root, CostRequest("2026-10", (Label.TEAM,), max_rows=number + 1))
    assert costs._cache is not None
    assert len(costs._cache[1]) == cost_queries.MAX_RESULTS


async def test_statements_are_shared_until_the_month_is_closed(costs: CachedCostQueries) -> None:
    root = person("root", Role.ADMIN)
    first = await costs.statements(root, "2026-10", None)
    assert await costs.statements(person("finance", Role.VIEWER), "2026-10", None) is first
    assert await costs.statements(root, "2026-10", "nlp") is not first
    hers = await costs.statements(person("alice", Role.MEMBER), "2026-10", None)
    assert {statement.team for statement in hers.statements} == {"nlp"}
    await costs.close(root, "2026-10")
    again = await costs.statements(root, "2026-10", None)
    assert first.closed_at is None and again.closed_at is not None
