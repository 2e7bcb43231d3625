"""Where questions about money are asked: routes and pages get the same answers, by the same rights."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from datetime import date
from http import HTTPStatus
from typing import Any, Final, TypeVar

from fairway.api import cost_known as known
from fairway.api import cost_wire as wire
from fairway.api.cost_rights import check_sees_all, teams_seen, usage_filter
from fairway.api.fleets import Fleets
from fairway.api.problems import ApiError
from fairway.control.closing import Closing
from fairway.control.cost_reports import PLACES, CostReports, Question, window_of
from fairway.control.costs import Costs
from fairway.control.costs_quick import QuickCosts
from fairway.control.exporting import focus_lines, month_corrections
from fairway.control.fleet_history import FleetHistory
from fairway.cost.focus import Correction
from fairway.cost.window import parse_month
from fairway.ledger import Ledger, Token, UsageFilter
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet

_STATUSES: Final = {
    "InvalidWindow": HTTPStatus.UNPROCESSABLE_ENTITY,
    "UsageTooFine": HTTPStatus.UNPROCESSABLE_ENTITY,
    "MonthNotOver": HTTPStatus.CONFLICT,
    "MonthClosed": HTTPStatus.CONFLICT,
    "MonthOpen": HTTPStatus.CONFLICT,
}
"""What is the asker's to mend; everything else is the ledger's trouble."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as somebody put it, before anybody looked whether it is theirs to ask."""

    window: str = "30d"
    by: tuple[Label, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    most: int = 1000


class CostDesk:
    """Answers a caller as far as they may know; raises ApiError with a hint for what they may not."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, quick: bool = False) -> None:
        """`quick`: for those who ask again and again; what runs may count only up to some seconds ago."""
        self._fleets = fleets
        history = FleetHistory(ledger, fleets)
        self._costs = QuickCosts(ledger, history) if quick else Costs(ledger, history)
        self._reports = CostReports(self._costs)
        self._closing = Closing(ledger, self._costs)

    async def fleet(self) -> Fleet:
        """What was applied last, or, before anything was, what the server was given."""
        fleet = await self._fleets.in_force()
        if not fleet.name:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "NoFleet",
                "there is no fleet yet, so nothing has a price",
                "give one:  fairway apply -f fleet.yaml",
            )
        return fleet

    async def cost(self, caller: Token, asked: Asked) -> wire.CostReport:
        """What usage cost, with shares of what nobody used and of overhead."""
        fleet, question, said = await self._question(caller, asked)
        return known.cost(fleet, question, await answered(self._reports.cost(fleet, question)), said)

    async def usage(self, caller: Token, asked: Asked) -> wire.UsageReport:
        """What was held."""
        fleet, question, said = await self._question(caller, asked)
        return known.usage(fleet, question, await answered(self._reports.usage(fleet, question)), said)

    async def waste(self, caller: Token, asked: Asked) -> wire.WasteReport:
        """What nobody used: nobody's, so everybody may see it."""
        fleet, question, said = await self._question(caller, asked)
        _check_places(question)
        return known.waste(fleet, question, await answered(self._reports.waste(fleet, question)), said)

    async def cost_by_day(
        self, caller: Token, asked: Asked, label: Label | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """What was asked, and the same by a label of few names and day, from one look."""
        fleet, question, said = await self._question(caller, asked)
        told, daily = await answered(self._reports.cost_by_day(fleet, question, label))
        over_time = replace(question, by=_daily(label))
        return known.cost(fleet, question, told, said), known.cost(fleet, over_time, daily, said)

    async def usage_by_day(
        self, caller: Token, asked: Asked, label: Label | None
    ) -> tuple[wire.UsageReport, wire.UsageReport]:
        """As `cost_by_day`, without money."""
        fleet, question, said = await self._question(caller, asked)
        told, daily = await answered(self._reports.usage_by_day(fleet, question, label))
        over_time = replace(question, by=_daily(label))
        return known.usage(fleet, question, told, said), known.usage(fleet, over_time, daily, said)

    async def waste_by_day(self, caller: Token, asked: Asked) -> tuple[wire.WasteReport, wire.WasteReport]:
        """What nobody used, and the same by day."""
        fleet, question, said = await self._question(caller, asked)
        _check_places(question)
        told, daily = await answered(self._reports.waste_by_day(fleet, question))
        over_time = replace(question, by=_daily(None))
        return known.waste(fleet, question, told, said), known.waste(fleet, over_time, daily, said)

    async def capacity(self, caller: Token, asked: Asked) -> wire.CapacityReport:
        """What was there, used or not: a whole bill, which tells what others spent."""
        fleet, question, _ = await self._question(caller, asked)
        check_sees_all(caller, fleet)
        found, days = await answered(self._reports.capacity(fleet, question))
        return known.capacity(fleet, found, days)

    async def statements(self, caller: Token, month: str, team: str | None) -> wire.Statements:
        """A month's charges by team."""
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        found = await answered(self._closing.statement(fleet, _month(month)))
        return known.statements(fleet, found, teams_seen(caller, fleet), which.teams)

    async def close(self, caller: Token, month: str) -> wire.Statements:
        """Keep a month as it is told now, for good; who may do so, the route's rule says."""
        fleet = await self.fleet()
        found = await answered(self._closing.close(fleet, _month(month), caller.name))
        return known.statements(fleet, found, None, None)

    async def focus(self, caller: Token, window: str, team: str | None) -> AsyncIterator[str]:
        """Charges as FOCUS rows, CSV, in pieces.

        What can go wrong goes wrong before the first piece: after it, all that is left is to break off.
        """
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        lines = self._focus(fleet, window, which)
        return _after(await answered(anext(lines)), lines)

    async def _focus(self, fleet: Fleet, text: str, which: UsageFilter) -> AsyncIterator[str]:
        window = window_of(fleet, text)
        corrections: tuple[Correction, ...] = ()
        if re.fullmatch(wire.MONTH_PATTERN, text):
            corrections = await month_corrections(self._closing, fleet, window.first, which, window.now)
        async for piece in focus_lines(self._costs, fleet, window, which, corrections):
            yield piece

    async def _question(self, caller: Token, asked: Asked) -> tuple[Fleet, Question, dict[str, Any]]:
        """The fleet, the question as far as it is the caller's to ask, and what documents say of that."""
        fleet = await self.fleet()
        names = {"team": asked.team or None, "user": asked.user or None, "pool": asked.pool or None}
        which = usage_filter(caller, fleet, names["team"], names["user"], names["pool"])
        seen = teams_seen(caller, fleet)
        said = {**names, "of_teams": None if seen is None else sorted(seen)}
        return fleet, Question(asked.window, tuple(dict.fromkeys(asked.by)), which, asked.most), said


def _daily(label: Label | None) -> tuple[Label, ...]:
    return (Label.DAY,) if label is None else (label, Label.DAY)


def _check_places(question: Question) -> None:
    """Raise ApiError for a label that what nobody used cannot have."""
    if wrong := [label.value for label in question.by if label not in PLACES]:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "InvalidRequest",
            f"by: nobody used it, so it has no {' and no '.join(wrong)}",
            f"by is any of {', '.join(PLACES)}",
        )


async def answered(answer: Awaitable[Found]) -> Found:
    """What was asked for, or why not as the caller may know it."""
    try:
        return await answer
    except PermanentError as error:
        if error.code not in _STATUSES:
            raise
        raise ApiError(_STATUSES[error.code], error.code, error.message, error.hint) from error


def _month(text: str) -> date:
    try:
        return parse_month(text)
    except PermanentError as error:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, error.message, error.hint) from error


async def _after(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece
