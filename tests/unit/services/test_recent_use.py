"""Who used what a fleet removes, from the ledger's sums of the last 30 days."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairway.ledger import Ledger
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import PoolName, UserName
from fairway.model.team import Grant, Limits, Supply
from fairway.policy.recent_use import RecentUse
from fairway.policy.removals import Removal, RemovalKind, find_removals
from fairway.services import recent_use as service
from fairway.services.convert.policy import recent_use as convert
from fairway.services.recent_use import recent_use
from fairway.services.removals import count_removals
from fairway.views.removals import removal_lines, used_text
from tests.unit.ledger.job_samples import Desk, run, seen
from tests.unit.services.cost_history import FLEET, OCTOBER, CostBook, fill

SOON = int(datetime(2026, 10, 20, 12, 30, tzinfo=UTC).timestamp())
LATER = int(datetime(2026, 12, 20, tzinfo=UTC).timestamp())
SMALLER = replace(
    FLEET,
    clusters=FLEET.clusters[:1],
    pools=FLEET.pools[:1],
    teams=tuple(replace(t, members=t.members[:1]) for t in FLEET.teams if t.name != "product"),
)


async def test_each_removal_has_its_users_of_the_last_30_days(ledger: Ledger, database_url: str) -> None:
    with closing(CostBook(database_url)) as book:
        await fill(ledger, book, OCTOBER, 7)
    removals = find_removals(FLEET, SMALLER)
    used = await recent_use(ledger, [FLEET], removals, SOON)
    users = {(r.kind.value, r.name, r.what): [user for user, _ in use.users] for r, use in used.items()}
    assert users["team", "product", ""] == ["dan"]
    assert users["member", "nlp", "bob"] == ["bob"]
    assert users["cluster", "cloud", ""]
    assert users["pool", "mig", ""]
    assert all(use.gpu_hours > 0 for use in used.values())
    later = await recent_use(ledger, [FLEET], removals, LATER)
    assert set(later.values()) == {RecentUse()}


async def test_lowered_limits_have_the_users_whose_jobs_were_above_them(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    large = seen("1", "large", JobState.DONE, replace(run(1, 61), devices=8), user=UserName("ann"))
    long = seen("2", "long", JobState.DONE, run(1, 101), user=UserName("bob"))
    await desk.see(large, long)

    async def users(was: Limits, now: Limits) -> list[str]:
        before, after = (
            replace(FLEET, teams=(replace(FLEET.teams[0], limits=limits),)) for limits in (was, now)
        )
        used = await recent_use(ledger, [before], find_removals(before, after))
        return [user for use in used.values() for user, _ in use.users]

    assert await users(Limits(), Limits(job_gpus=8)) == []
    assert await users(Limits(job_gpus=8), Limits(job_gpus=4)) == ["ann"]
    assert await users(Limits(), Limits(job_gpus=1)) == ["ann", "bob"]
    assert await users(Limits(), Limits(job_seconds=90)) == ["bob"]
    assert await users(Limits(job_gpus=1), Limits(job_gpus=4)) == []


def test_what_is_lowered_is_said_in_one_line() -> None:
    def fleet(guarantee: int, borrow: int | None, limits: Limits) -> Fleet:
        grant = Grant(Supply(PoolName("a100")), guarantee, borrow)
        return replace(FLEET, teams=(replace(FLEET.teams[0], grants=(grant,), limits=limits),))

    before = fleet(12, None, Limits(job_seconds=7200))
    removals = find_removals(before, fleet(8, 4, Limits(job_gpus=4, job_seconds=3600, user_gpus=6)))
    (line,) = removal_lines(count_removals(removals, {}, (), ()))
    assert line == (
        "lowers 4 limits: GPUs of a job for research (none → 4), time of a job for research (2h → 1h), "
        "GPUs of a user for research (none → 6), a100 for research (guarantee 12 → 8, at most unlimited → 12)"
    )
    assert not any(r.needs_force for r in count_removals(removals, {}, (), ()))
    assert find_removals(fleet(8, 4, Limits(job_gpus=4)), fleet(8, 4, Limits(job_gpus=4))) == ()
    assert find_removals(fleet(8, 4, Limits(job_gpus=4)), fleet(9, 9, Limits(job_gpus=9))) == ()


async def test_a_ledger_that_takes_too_long_is_said(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    removal = Removal(RemovalKind.TEAM, "product")
    monkeypatch.setattr(service, "SECONDS", 0.0)
    used = await recent_use(ledger, [FLEET], [removal], SOON)
    assert used[removal].unknown == "the ledger did not respond within 0 s"


def test_what_nobody_can_use_is_not_asked_about() -> None:
    removals = [Removal(RemovalKind.BUDGET, "nlp", value="5,000 a month")]
    (line,) = removal_lines(count_removals(removals, {}, (), ()))
    assert line == "removes budget of nlp (5,000 a month)"


def test_the_lines_name_who_used_it() -> None:
    use = RecentUse.of({f"user{n}": 3600 * (120 - n) for n in range(9)})
    text = used_text(convert(use))
    assert text == (
        "used in the last 30 days by user0 (120 GPU-hours), user1 (119), user2 (118), user3 (117), "
        "user4 (116) and 4 more"
    )
    assert used_text(convert(RecentUse())) == "not used in the last 30 days"
    assert used_text(convert(RecentUse.of({"bob": 60}))) == (
        "used in the last 30 days by bob (under 0.1 GPU-hours)"
    )
    unknown = used_text(convert(RecentUse(unknown="slurmdbd is away")))
    assert unknown == "usage in the last 30 days is unknown: slurmdbd is away"
    members = [Removal(RemovalKind.MEMBER, "nlp", user) for user in ("alice", "bob")]
    used = {members[0]: RecentUse.of({"alice": 7200}), members[1]: RecentUse()}
    (line,) = removal_lines(count_removals(members, {}, (), (), used))
    assert line == (
        "removes 2 members: alice of nlp, 2 GPU-hours in the last 30 days; bob of nlp; "
        "the other not used in the last 30 days"
    )
