"""Read service level objectives as they were measured. Members see those of their teams."""

from __future__ import annotations

from datetime import UTC, datetime

from fairway.ledger import Ledger, Token
from fairway.ledger.slos.counts import StoredSlo
from fairway.model.slo import Slo, StartsWithin
from fairway.model.text import duration_text
from fairway.policy.slo import NO_COUNTS, Outlook, SloStatus
from fairway.policy.slo_alerts import SloAlert, alert_of, outlook_text
from fairway.policy.slo_history import budget_points
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.rights import visible_teams
from fairway.wire import slos as wire


def stored_slo(status: SloStatus) -> StoredSlo:
    """Return the state of an objective as the ledger stores it."""
    outlook, slo = status.outlook, status.slo
    return StoredSlo(
        slo.name,
        slo.digest,
        slo.target,
        status.counts,
        _moment(status.since),
        _moment(status.until),
        status.burns,
        None if outlook is None or outlook.missed_at is None else _moment(outlook.missed_at),
        None if outlook is None else outlook.compliance,
        alert_of(status),
    )


def status_of(slo: Slo, stored: StoredSlo) -> SloStatus:
    """Return an objective's state from what the ledger stores of it."""
    missed_at = None if stored.missed_at is None else stored.missed_at.timestamp()
    return SloStatus(
        slo,
        stored.counts,
        stored.since.timestamp(),
        stored.counted_to.timestamp(),
        stored.burns,
        None if stored.last_day is None else Outlook(missed_at, stored.last_day),
    )


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


class SloQueries:
    """Reads objectives for a caller. Raises RequestError with a hint if they may not."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets

    async def slos(self, caller: Token) -> wire.Slos:
        """Return the objectives that the caller may see. One of all teams is for those who see all."""
        fleet = await self._fleets.in_force()
        visible = visible_teams(caller, fleet)
        stored = {one.name: one for one in await self._ledger.slos.statuses()}
        return wire.Slos(
            slos=[_wire(slo, stored.get(slo.name)) for slo in fleet.slos if _is_visible(slo, visible)],
            of_teams=None if visible is None else sorted(visible),
        )

    async def history(self, caller: Token, name: str, seconds: int, points: int) -> wire.SloHistory:
        """Return the error budget of an objective over the last `seconds`."""
        fleet = await self._fleets.in_force()
        visible = visible_teams(caller, fleet)
        slo = next((slo for slo in fleet.slos if slo.name == name and _is_visible(slo, visible)), None)
        if slo is None:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoSuchSlo",
                f"there is no SLO {name}, or it is of a team that is not yours",
                "fairway get slos  lists those that you may see",
            )
        stored = {one.name: one for one in await self._ledger.slos.statuses()}.get(name)
        found = _wire(slo, stored)
        if found.counted_to is None or stored is None:
            return wire.SloHistory(slo=found, points=[])
        last = stored.counted_to.timestamp()
        first = max(last - seconds, stored.since.timestamp())
        slots = await self._ledger.slos.slots([slo.digest], first - slo.window_seconds)
        return wire.SloHistory(
            slo=found,
            points=[
                wire.SloPoint(
                    at=_moment(point.at),
                    good=point.counts.good,
                    bad=point.counts.bad,
                    budget_left=point.budget_left,
                )
                for point in budget_points(slo, slots[slo.digest], first, last, points)
            ],
        )


def _is_visible(slo: Slo, visible: frozenset[str] | None) -> bool:
    return visible is None or (slo.team is not None and slo.team in visible)


def _wire(slo: Slo, stored: StoredSlo | None) -> wire.Slo:
    """Return an objective with its state, unless what was stored under its name is of another one."""
    if stored is not None and (stored.digest, stored.target) != (slo.digest, slo.target):
        stored = None
    status = SloStatus(slo, NO_COUNTS, 0, 0) if stored is None else status_of(slo, stored)
    alert = SloAlert.NONE if stored is None else stored.alert
    missed_at = None if stored is None else stored.missed_at
    return wire.Slo(
        name=slo.name,
        team=slo.team,
        text=slo.text,
        target=slo.target,
        window_seconds=slo.window_seconds,
        unit="jobs" if isinstance(slo.promise, StartsWithin) else "GPU-seconds",
        good=status.counts.good,
        bad=status.counts.bad,
        compliance=status.compliance,
        met=status.met,
        budget_left=status.budget_left,
        burns=[
            wire.SloBurn(window=duration_text(burn.seconds), rate=burn.rate, spent=burn.spent)
            for burn in status.burns
        ],
        alert=alert,
        alert_since=stored.alert_since if stored is not None and alert else None,
        last_day=None if stored is None else stored.last_day,
        missed_at=missed_at,
        outlook=outlook_text(alert, status),
        since=None if stored is None else stored.since,
        counted_to=None if stored is None else stored.counted_to,
    )
