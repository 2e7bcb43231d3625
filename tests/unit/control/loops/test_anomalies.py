"""An unusual day of a team is reported once, to the team and to the operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from fairway.control.loops.anomalies import FindAnomalies, anomalies
from fairway.cost.forecast import HISTORY_DAYS, DailySpending
from fairway.ledger import FLEET, Ledger
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.team import Team
from fairway.services.fleets import Fleets

TODAY = date(2026, 11, 18)
CURRENT = Fleet("acme", "USD", (), (), (Team(TeamName("nlp")), Team(TeamName("vision"))))


def spending(*last: float, before: float = 100.0, days: int = HISTORY_DAYS) -> DailySpending:
    """A team that spends the same each day, less on weekends, and on the last days so much."""
    first = TODAY - timedelta(days=HISTORY_DAYS)
    usual = [
        0.0 if n < HISTORY_DAYS - days else before * (0.5 if (first + timedelta(days=n)).weekday() > 4 else 1)
        for n in range(HISTORY_DAYS - len(last))
    ]
    return DailySpending(first, [*usual, *last])


@dataclass
class Spending:
    """What each team spent."""

    by_team: dict[str, DailySpending]
    reads: int = 0

    async def read(self, fleet: Fleet, label: Label, now: int) -> Mapping[str, DailySpending]:
        assert (fleet, label) == (CURRENT, Label.TEAM)
        self.reads += 1
        return self.by_team

    def clear(self) -> None:
        pass


async def test_an_unusual_day_is_one_notice_whoever_looks_and_however_often(ledger: Ledger) -> None:
    await ledger.revisions.add("fleet", "digest", "test")
    lease = await ledger.leases.take("anomalies", FLEET, "test", 60)
    assert lease is not None
    read = Spending({"nlp": spending(300.0), "vision": spending()})
    now = datetime(2026, 11, 18, 0, 30, tzinfo=UTC).timestamp()
    fleets = Fleets(ledger, lambda _: CURRENT)

    def loop(at: float) -> FindAnomalies:
        return FindAnomalies(ledger, fleets, read, clock=lambda: at)

    find = loop(now + 3600)
    await find(lease)
    await find(lease)
    assert read.reads == 1  # once a day
    await find.close()
    await find(lease)
    await loop(now + 7200)(lease)  # another server, later
    assert read.reads == 3
    (one,) = await ledger.notices.unrouted(10)
    assert (one.notice.kind, one.notice.key) == ("anomaly", "anomaly/nlp/2026-11-17")
    assert (one.notice.team, one.notice.operators) == ("nlp", True)
    assert one.notice.subject == "nlp spent 300 USD on 2026-11-17, usually 100 USD"
    assert "200 USD more than usual on a Tuesday (100 USD)" in one.notice.text
    assert "fairway report cost --team nlp --by user,name --window 2026-11-17" in one.notice.text


def test_a_team_is_compared_with_its_own_days_only() -> None:
    def found(**teams: DailySpending) -> set[str]:
        return set(anomalies(teams))

    assert found(nlp=spending(300.0), vision=spending(110.0)) == {"nlp"}
    assert found(small=spending(3.0, before=1.0), vision=spending(before=1000.0)) == set()  # 2 of 1,001
    assert found(new=spending(300.0, days=10), vision=spending()) == set()  # too few days to compare with
    assert found(first=spending(300.0, days=0), vision=spending()) == set()
    assert anomalies({"": spending(300.0), "vision": spending()}) == {}  # work of no team has nobody to tell
    assert anomalies({}) == {}
