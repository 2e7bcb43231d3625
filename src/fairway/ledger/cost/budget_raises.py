"""Store raises of team budgets: each is requested once and decided once, with the notices of both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from fairway.cost.budgets import Raises
from fairway.ledger.connection import LedgerStore
from fairway.ledger.notices import add_notices
from fairway.ledger.records.costs import BudgetRaise, NewBudgetRaise
from fairway.ledger.schema.costs import budget_event, budget_raise
from fairway.ledger.sql_values import AnyRow, page_limit
from fairway.model.budget import Every, RaiseState
from fairway.model.names import TeamName
from fairway.model.notice import Notice


class BudgetRaiseStore(LedgerStore):
    """Reads raises, and writes what becomes of them."""

    async def approved(self, since: date) -> Raises:
        """Return the sum of the approved raises of each team and period that began on `since` or later."""
        team, every, period = budget_raise.c.team, budget_raise.c.every, budget_raise.c.period
        sums = (
            select(team, every, period, func.sum(budget_raise.c.amount).label("amount"))
            .where(period >= since, budget_raise.c.state == RaiseState.APPROVED.value)
            .group_by(team, every, period)
        )
        return {
            (TeamName(row.team), Every(row.every), row.period): row.amount for row in await self._fetch(sums)
        }

    async def approved_after(self, moment: datetime) -> bool:
        """Return whether any raise was approved after a moment."""
        found = select(budget_raise.c.id).where(
            budget_raise.c.state == RaiseState.APPROVED.value, budget_raise.c.decided_at > moment
        )
        return await self._fetch_first(found.limit(1)) is not None

    async def find(self, number: int) -> BudgetRaise | None:
        """Return one raise. Returns None if there is none with this number."""
        row = await self._fetch_first(select(budget_raise).where(budget_raise.c.id == number))
        return None if row is None else _raise(row)

    async def of_period(self, team: TeamName, every: Every, period: date) -> tuple[BudgetRaise, ...]:
        """Return the raises of a team in a period, newest first."""
        found = select(budget_raise).where(
            budget_raise.c.team == team, budget_raise.c.every == every.value, budget_raise.c.period == period
        )
        rows = await self._fetch(found.order_by(budget_raise.c.id.desc()).limit(page_limit(1000)))
        return tuple(map(_raise, rows))

    async def page(
        self,
        *,
        teams: Collection[str] | None = None,
        state: RaiseState | None = None,
        since: date | None = None,
        limit: int = 100,
    ) -> tuple[BudgetRaise, ...]:
        """Return at most `limit` (≤ 2000) raises, newest first, of periods that began on `since` or later."""
        page = select(budget_raise).order_by(budget_raise.c.id.desc()).limit(page_limit(limit))
        if teams is not None:
            page = page.where(budget_raise.c.team.in_(sorted(teams)))
        if state is not None:
            page = page.where(budget_raise.c.state == state.value)
        if since is not None:
            page = page.where(budget_raise.c.period >= since)
        return tuple(map(_raise, await self._fetch(page)))

    async def request(
        self, wanted: NewBudgetRaise, *, event: str, notice_of: Callable[[BudgetRaise], Notice]
    ) -> BudgetRaise | None:
        """Store a request, with its event and its notice.

        Returns None, and stores nothing, if the team has an open request for this period.
        """
        values = {
            "team": wanted.team,
            "every": wanted.every.value,
            "period": wanted.period,
            "amount": wanted.amount,
            "reason": wanted.reason,
            "requested_by": wanted.by,
        }
        add = insert(budget_raise).values(values).on_conflict_do_nothing().returning(budget_raise)
        async with self._connections.transaction() as connection:
            row = (await connection.execute(add)).first()
            if row is None:
                return None
            stored = _raise(row)
            await connection.execute(insert(budget_event).values(team=wanted.team, text=event))
            await add_notices(connection, [notice_of(stored)])
        return stored

    async def decide(
        self, number: int, state: RaiseState, *, by: str, comment: str, event: str, notices: Sequence[Notice]
    ) -> BudgetRaise | None:
        """Approve or deny a request, with its event and notices.

        Returns None, and stores nothing, if somebody has decided it before.
        """
        is_open = (budget_raise.c.id == number, budget_raise.c.state == RaiseState.REQUESTED.value)
        decided = {"state": state.value, "decided_by": by, "decided_at": func.now(), "comment": comment}
        change = update(budget_raise).where(*is_open).values(decided).returning(budget_raise)
        async with self._connections.transaction() as connection:
            row = (await connection.execute(change)).first()
            if row is None:
                return None
            await connection.execute(insert(budget_event).values(team=row.team, text=event))
            await add_notices(connection, notices)
        return _raise(row)


def _raise(row: AnyRow) -> BudgetRaise:
    return BudgetRaise(**{**row._mapping, "every": Every(row.every), "state": RaiseState(row.state)})
