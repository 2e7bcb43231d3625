"""What keeps jobs from starting is summed by reason, the most GPU-hours first."""

from __future__ import annotations

from fairway.ledger import Ledger
from fairway.ledger.jobs.waiting import QueuedTeam
from fairway.model.job import JobState
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply
from tests.unit.ledger.job_samples import Desk, at, new_job, run, seen


async def test_waiting_jobs_are_summed_by_reason(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    jobs = (
        ("small", JobState.WAITING, 1, "TeamAtCeiling", "research"),
        ("large", JobState.WAITING, 8, "NotEnoughFree", "research"),
        ("other", JobState.WAITING, 4, "NotEnoughFree", "vision"),
        ("held", JobState.HELD, 2, "", "research"),
        ("runs", JobState.RUNNING, 64, "", "research"),
    )
    await desk.see(
        *(
            seen(
                name,
                name,
                state,
                *([run(1)] if state is JobState.RUNNING else []),
                team=TeamName(team),
                gpus=gpus,
                reason_code=code,
                submitted_at=at(-3600),
            )
            for name, state, gpus, code, team in jobs
        )
    )
    await desk.submit(new_job(gpus=3, team="vision"))  # not sent yet: it has no reason

    found = await ledger.waiting.sums()
    assert [(s.code, s.jobs, s.devices) for s in found] == [
        ("NotEnoughFree", 2, 12),
        ("Held", 1, 2),
        ("TeamAtCeiling", 1, 1),
        ("", 1, 3),
    ]
    most = found[0]
    assert 12 * 3600 <= most.device_seconds < 12 * 7200
    names = [row.name for row in await ledger.jobs.rows(most.largest)]
    assert sorted(names) == ["large", "other"]
    assert (await desk.row(most.largest[0])).name == "large"

    of_team = await ledger.waiting.sums(teams=[TeamName("vision")])
    assert [(s.code, s.devices) for s in of_team] == [("NotEnoughFree", 4), ("", 3)]
    assert await ledger.waiting.sums(pool="no-such-pool") == ()
    assert await ledger.waiting.sums(cluster="other") == ()


async def test_the_queue_and_the_holders_of_whole_gpus_and_of_slices_are_counted(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    cut = {"supply": Supply(PoolName("hpc-a100"), SliceName("1g.10gb"))}
    await desk.see(
        seen("1", "runs", JobState.RUNNING, run(0), time_seconds=3600),
        seen("2", "first", JobState.WAITING, gpus=4, submitted_at=at(1)),
        seen("3", "asks", JobState.WAITING, gpus=2, submitted_at=at(2), team=TeamName("vision")),
        seen("4", "last", JobState.WAITING, gpus=1, submitted_at=at(3)),
        seen("5", "cut", JobState.WAITING, gpus=1, submitted_at=at(0), **cut),
        seen("6", "cut too", JobState.WAITING, gpus=3, submitted_at=at(4), **cut),
    )
    jobs = {row.name: row for row in await ledger.jobs.by_engine_ids("hpc", list("123456"))}

    of_gpus = await ledger.waiting.queue(jobs["asks"], {}, None)
    assert of_gpus == (QueuedTeam(TeamName("research"), 2, 1, 4), QueuedTeam(TeamName("vision"), 1, 0, 0))
    assert await ledger.waiting.queue(jobs["asks"], {}, ["4"]) == (
        QueuedTeam(TeamName("research"), 2, 1, 1),
        QueuedTeam(TeamName("vision"), 1, 0, 0),
    )
    assert await ledger.waiting.first_ahead(jobs["asks"], {}) == (jobs["first"].id,)
    (holding,) = await ledger.waiting.holdings(jobs["asks"], [TeamName("research")])
    assert (holding.user, holding.jobs, holding.devices) == ("ann", 1, 2)
    assert holding.largest == await ledger.waiting.ending(jobs["asks"]) == (jobs["runs"].id,)

    use = await ledger.waiting.use(jobs["last"])
    assert (use.by_team, use.of_user) == ({TeamName("research"): 2}, 2)
    assert (await ledger.waiting.use(jobs["asks"])).of_user == 0
    assert (await ledger.waiting.use(jobs["cut"])).by_team == {}

    of_slices = await ledger.waiting.queue(jobs["cut too"], {}, None)
    assert of_slices == (QueuedTeam(TeamName("research"), 2, 1, 1),)
    assert await ledger.waiting.holdings(jobs["cut"], [TeamName("research")]) == ()
