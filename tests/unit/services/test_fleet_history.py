"""Which fleet a day is charged by: prices as the newest file has them, the rest as it was applied then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast

from fairway.cost.calendar import calendar_of
from fairway.ledger import ApplyKind, ApplyState, Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.price import Sharing
from fairway.services.fleets import FleetHistory, Fleets, with_past_rules
from tests.unit.services.cost_history import FLEET, OCTOBER, with_rules


@dataclass(frozen=True)
class On:
    state: ApplyState = ApplyState.DONE


@dataclass(frozen=True)
class Did:
    """An apply, as far as it matters here."""

    created_at: datetime
    revision: int | None
    clusters: tuple[On, ...] = (On(),)
    kind: ApplyKind = ApplyKind.APPLY


class Past:
    """Fleets by revision, and when they were applied."""

    def __init__(self, fleets: dict[int, Fleet], done: Sequence[Did]) -> None:
        self._fleets = fleets
        self._done = done
        self.applies = self

    async def at(self, revision: int) -> Fleet | None:
        return self._fleets.get(revision)

    async def page(self, **_: Any) -> Sequence[Did]:
        return self._done

    def history(self) -> FleetHistory:
        return FleetHistory(cast("Ledger", self), cast("Fleets", self))


def on(day: int, hour: int = 12) -> datetime:
    return datetime(2026, 10, day, hour, tzinfo=UTC)


def october(fleet: Fleet) -> Span:
    return calendar_of(fleet).month_span(OCTOBER)


SHARED = with_rules(Sharing.BY_GUARANTEE, Sharing.OWN_LINE)
BEFORE = replace(SHARED, teams=SHARED.teams[:1])


async def test_days_are_charged_by_what_held_at_their_end() -> None:
    past = Past({1: BEFORE, 2: SHARED}, [Did(on(10), 2), Did(on(3), 1)])
    parts = await past.history().fleets(SHARED, october(SHARED))
    assert [(calendar_of(SHARED).day_of(span.start).day, len(f.teams)) for span, f in parts] == [
        (1, 1),
        (10, 4),
    ]
    assert parts[0][0].end == parts[1][0].start
    assert (parts[0][0].start, parts[-1][0].end) == (october(SHARED).start, october(SHARED).end)


async def test_what_was_not_done_never_held() -> None:
    past = Past(
        {1: BEFORE, 2: SHARED},
        [
            Did(on(20), None, kind=ApplyKind.ADOPT),
            Did(on(10), 2, clusters=(On(ApplyState.REFUSED), On(ApplyState.FAILED))),
            Did(on(3), 1),
        ],
    )
    ((span, fleet),) = await past.history().fleets(SHARED, october(SHARED))
    assert (span, len(fleet.teams)) == (october(SHARED), 1)


async def test_a_fleet_that_cannot_be_read_any_more_is_the_newest() -> None:
    past = Past({}, [Did(on(3), 1)])
    assert await past.history().fleets(SHARED, october(SHARED)) == [(october(SHARED), SHARED)]
    assert await Past({}, []).history().fleets(SHARED, october(SHARED)) == [(october(SHARED), SHARED)]


async def test_who_is_in_a_team_makes_no_part_of_its_own() -> None:
    """Only what charges are made of cuts a window: each part costs queries."""
    past = Past({1: replace(FLEET, teams=FLEET.teams[:2]), 2: FLEET}, [Did(on(3), 1), Did(on(10), 2)])
    assert len(await past.history().fleets(FLEET, october(FLEET))) == 1


def test_prices_are_the_newest_and_pools_that_are_gone_stay() -> None:
    newest = replace(
        FLEET,
        pools=tuple(replace(p, price=Decimal(9)) for p in FLEET.pools if p.name != "spot"),
        clusters=FLEET.clusters[:1],
    )
    held = with_past_rules(newest, FLEET)
    assert {p.name: p.price for p in held.pools} == {"a100": 9, "mig": 9, "spot": Decimal("0.55")}
    assert held.clusters == FLEET.clusters
    cheaper = replace(FLEET.clusters[0], overhead=MappingProxyType({"power": Decimal(1)}))
    assert with_past_rules(newest, replace(FLEET, clusters=(cheaper,))).clusters == (cheaper,)
    assert PoolName("spot") not in {p.name for p in newest.pools}


def test_days_stay_those_of_the_newest_zone() -> None:
    then = with_rules(Sharing.BY_USAGE, Sharing.BY_USAGE, "Asia/Kolkata")
    held = with_past_rules(FLEET, then)
    assert (held.cost.timezone, held.cost.idle) == ("UTC", Sharing.BY_USAGE)
