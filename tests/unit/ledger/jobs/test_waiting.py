"""What keeps jobs from starting is summed by reason, the most GPU-hours first."""

from __future__ import annotations

from fairway.ledger import Ledger
from fairway.model.job import JobState
from fairway.model.names import TeamName
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
