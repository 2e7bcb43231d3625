"""The step of the anomalies loop: once a day, compare each team's last day with its own days of that weekday.

The key of a notice is the team and the day: whichever server looks, and however often, it is reported once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import date, timedelta
from itertools import dropwhile
from typing import Final, Protocol

from fairway.cost.anomalies import MIN_PART, Anomaly, find_anomaly
from fairway.cost.calendar import calendar_of
from fairway.cost.forecast import DailySpending
from fairway.ledger import Lease, Ledger
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.services.fleets import Clock, Fleets

SETTLE_SECONDS: Final = 3600
"""How long after midnight to look: what ran until then is metered and corrected by then."""


class ReadsSpending(Protocol):
    """Provides what payers spent on each of the last days; implemented by `SpendingHistory`."""

    async def read(self, fleet: Fleet, label: Label, now: int) -> Mapping[str, DailySpending]:
        """Return the spending of every payer by `label`, each without what is inside it."""
        ...

    def clear(self) -> None:
        """Forget what was read."""
        ...


class FindAnomalies:
    """Notifies teams and operators of days on which a team spent much more than usual."""

    def __init__(
        self, ledger: Ledger, fleets: Fleets, spending: ReadsSpending, *, clock: Clock = time.time
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._spending = spending
        self._clock = clock
        self._checked: date | None = None

    async def __call__(self, lease: Lease) -> None:
        """Check yesterday, unless this server has."""
        fleet = await self._fleets.in_force()
        now = int(self._clock())
        today = calendar_of(fleet).day_of(now - SETTLE_SECONDS)
        if self._checked == today or not fleet.name:
            return
        spending = await self._spending.read(fleet, Label.TEAM, now - SETTLE_SECONDS)
        self._spending.clear()  # months of days, which are needed once a day
        notices = [anomaly_notice(fleet, team, found) for team, found in anomalies(spending).items()]
        async with self._ledger.writing(lease) as tx:
            await tx.notices.add(notices)
        self._checked = today

    async def close(self) -> None:
        """Check anew in the next tenure."""
        self._checked = None


def anomalies(spending: Mapping[str, DailySpending]) -> dict[TeamName, Anomaly]:
    """Find the teams whose last whole day was unusual. A team is compared without the teams inside it.

    Its days begin with its first spending: a new team does not alert because it spent nothing before.
    """
    sums = [sum(amounts) for amounts in zip(*(one.days for one in spending.values()), strict=True)]
    whole = list(dropwhile(lambda amount: amount <= 0, sums))
    if not whole:
        return {}
    least = MIN_PART * sum(whole) / len(whole)
    found = {}
    for team, one in spending.items():
        days = list(dropwhile(lambda amount: amount <= 0, one.days))
        first = one.first + timedelta(days=len(one.days) - len(days))
        anomaly = find_anomaly(DailySpending(first, days), least) if team and days else None
        if anomaly is not None:
            found[TeamName(team)] = anomaly
    return found


def anomaly_notice(fleet: Fleet, team: TeamName, found: Anomaly) -> Notice:
    """Return the notice of an unusual day, with the command that shows what it consists of."""
    amounts = (found.amount, found.usual, found.extra)
    spent, usual, extra = (f"{amount:,.0f} {fleet.currency}" for amount in amounts)
    text = (
        f"{team} spent {spent} on {found.day:%A}, {found.day}: {extra} more than usual on a {found.day:%A}"
        f" ({usual}).\nhint: fairway report cost --team {team} --by user,name --window {found.day}"
    )
    return Notice(
        NoticeKind.ANOMALY,
        f"anomaly/{team}/{found.day}",
        f"{team} spent {spent} on {found.day}, usually {usual}",
        text,
        team,
        operators=True,
    )
