"""The end of a job is a notice to those who chose it, in the transaction that records it."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from fairway.ledger import Ledger
from fairway.ledger.jobs import ends
from fairway.ledger.jobs.ends import JobEndAudience
from fairway.model.job import JobState, SeenJob
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, SendWhen
from tests.unit.control.job_toy import Field, give_fleet
from tests.unit.control.loops.test_mirror import Bench
from tests.unit.ledger.job_samples import Desk, at, run, seen

ANN = JobEndAudience(users=frozenset({UserName("ann")}))
RESEARCH = JobEndAudience(teams=frozenset({TeamName("research")}))


async def notices(ledger: Ledger) -> list[Notice]:
    return [one.notice for one in await ledger.notices.unrouted(100)]


async def write(desk: Desk, audience: JobEndAudience, *jobs: SeenJob) -> None:
    async with desk.ledger.writing(desk.mirror) as tx:
        stored = await tx.mirror.write_jobs(jobs)
        await tx.job_ends.notify(stored.ended, audience)


@pytest.mark.parametrize("audience", [ANN, RESEARCH])
async def test_an_end_is_reported_once(ledger: Ledger, audience: JobEndAudience) -> None:
    desk = await Desk.of(ledger)
    await write(desk, audience, seen("1", "train", JobState.RUNNING, run(1)))
    assert await notices(ledger) == []
    over = seen("1", "train", JobState.FAILED, run(1, 61, exit_code=3), reason="out of memory")
    for _ in range(2):
        await write(desk, audience, over)
    (notice,) = await notices(ledger)
    assert (notice.kind, notice.team, notice.user) == (NoticeKind.JOB_END, "research", "ann")
    assert notice.job is not None
    assert "train" in notice.subject
    assert "failed after 60 s, exit code 3" in notice.text
    assert "out of memory" in notice.text


async def test_a_native_job_that_ended_before_it_was_seen_is_reported_unless_it_is_old(
    ledger: Ledger,
) -> None:
    desk = await Desk.of(ledger)
    await write(desk, ANN, seen("1", "short", JobState.DONE, run(1, 2)))
    old = seen("2", "old", JobState.DONE, run(-90_100, -90_000), submitted_at=at(-90_200))
    await write(desk, ANN, old, seen("3", "others", JobState.DONE, run(1, 2), user=UserName("bob")))
    assert [one.subject.split()[1] for one in await notices(ledger)] == ["short"]


async def test_many_ends_at_once_are_one_notice_with_those_that_failed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "MAX_SINGLE", 2)
    desk = await Desk.of(ledger)
    states = [JobState.DONE, JobState.DONE, JobState.FAILED]
    await write(desk, ANN, *(seen(str(n), f"j{n}", state, run(1, 2)) for n, state in enumerate(states)))
    (notice,) = await notices(ledger)
    assert notice.subject == "3 jobs of ann ended: 2 done, 1 failed"
    assert "j2 (" in notice.text
    assert "j1" not in notice.text


async def test_who_chose_it_is_known_to_the_mirror_within_half_a_minute(ledger: Ledger) -> None:
    await give_fleet(ledger)
    bench = Bench(ledger, Field())
    first, second = bench.world.put("first"), bench.world.put("second")
    await bench.look()
    (row, *_) = (await bench.rows()).values()
    rules = NoticeRules((NoticeRule(NoticeKind.JOB_END, SendWhen.AT_ONCE),))
    await ledger.notice_preferences.put(row.user, rules)
    bench.world.end(first)
    await bench.look()
    assert await notices(ledger) == []
    bench.now += 31
    bench.world.end(second)
    await bench.look()
    assert [one.user for one in await notices(ledger)] == [row.user]


@pytest.mark.parametrize(("audience", "added"), [(ends.NOBODY, 0), (ANN, 2)])
async def test_while_nobody_chose_it_an_end_costs_no_statement(
    ledger: Ledger, audience: JobEndAudience, added: int
) -> None:
    desk = await Desk.of(ledger)
    await desk.see(seen("0", "train", JobState.DONE, run(1, 2)))
    statements: list[str] = []
    engine = ledger._connections._engine.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    await desk.see(seen("1", "train", JobState.DONE, run(1, 2)))
    usual = len(statements)
    await write(desk, audience, seen("2", "train", JobState.DONE, run(1, 2)))
    assert len(statements) - usual == usual + added
