"""Idle rules on a real ledger: each step once, recorded first, finished by whoever comes next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from fairway.control.loops import idle
from fairway.control.loops.idle import ApplyIdleRules
from fairway.engines.port import NOT_RESUMABLE, RequeueRequest, Unreachable
from fairway.ledger import Lease, LeaseLost, Ledger, Revision
from fairway.ledger.records.jobs import DesiredState
from fairway.ledger.telemetry.idle import StoredStep
from fairway.model.diagnosis import DiagnosisSettings
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleOutcome, IdleRule, IdleRules, IdleStep
from fairway.model.job import EngineId, JobId, Tolerates
from fairway.model.names import UserName
from fairway.services.fleets import Fleets, LastApplied
from tests.unit.control import job_toy
from tests.unit.control.job_toy import FLEET, HPC, Field, ToyRuns, applied, take

NOON = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp())
HOUR = 3600
RULE = IdleRule(
    "notebooks",
    Decimal("0.01"),
    HOUR,
    (IdleStep(IdleAction.WARN, 0), IdleStep(IdleAction.CANCEL, 1800)),
    dry_run=False,
)
ALL = replace(
    RULE,
    steps=tuple(IdleStep(action, 600 * bool(number)) for number, action in enumerate(IdleAction)),
)


@dataclass
class World(Field):
    """A cluster whose jobs can be lowered and requeued."""

    asked: list[tuple[str, EngineId]] = field(default_factory=list)
    refuses: dict[EngineId, Refused] = field(default_factory=dict)
    away: bool = False

    def build(self) -> Demoting:
        self.built += 1
        return Demoting(self)


class Demoting(ToyRuns):
    world: World

    async def lower(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
        return self._ask("lower", ids)

    async def requeue(self, jobs: Sequence[RequeueRequest], fleet: Fleet) -> Mapping[EngineId, Refused]:
        (job,) = jobs
        return self._ask("requeue" if job.begin else "complete", [job.engine_id])

    def _ask(self, verb: str, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        if self.world.away:
            raise Unreachable("EngineDown", "it does not answer", "start it")
        self.world.asked += [(verb, id_) for id_ in ids]
        return {id_: self.world.refuses[id_] for id_ in ids if id_ in self.world.refuses}


class Setting:
    """A loop, the job that it looks at, and a clock that tests move."""

    def __init__(self, ledger: Ledger, db: psycopg.Connection[Any]) -> None:
        self.ledger, self.db = ledger, db
        self.world = World()
        self.now = float(NOON)
        self.rules = IdleRules((RULE,))
        self.diagnosis = DiagnosisSettings()

    def loop(self) -> ApplyIdleRules:
        def parse(revision: Revision) -> Fleet:
            return replace(FLEET, idle=self.rules, diagnosis=self.diagnosis)

        last = LastApplied(HPC, self.ledger, Fleets(self.ledger, parse))
        return ApplyIdleRules(HPC, self.world.build, self.ledger, last, clock=lambda: self.now)

    async def job(self, since: int = NOON - 4 * HOUR, engine_id: str = "71", **spec: Any) -> JobId:
        (number,) = await job_toy.submit(self.ledger, **spec)
        self.db.execute(
            "UPDATE job SET state = 'running', engine_id = %s, started_at = %s WHERE id = %s",
            (engine_id, datetime.fromtimestamp(since, UTC), number),
        )
        return number

    def measure(self, job: JobId, since: int, until: int, busy: float = 0.0, measured: float = 1.0) -> None:
        """Windows of a job, as the reading of metrics stores them, and how far it has read."""
        for start in range(since, until, WINDOW_SECONDS):
            self.db.execute(
                "INSERT INTO job_window VALUES (%s, to_timestamp(%s), 'hpc', %s, %s, 1, %s)"
                " ON CONFLICT (job, started_at) DO NOTHING",
                (job, start, 300 * measured, 300 * busy, int(busy < 0.01)),
            )
        self.db.execute(
            "INSERT INTO telemetry_mark VALUES ('hpc', to_timestamp(%s), 15)"
            " ON CONFLICT (cluster) DO UPDATE SET read_to = excluded.read_to",
            (until,),
        )
        self.now = until + 90.0

    async def steps(self, job: JobId) -> list[tuple[IdleAction, IdleOutcome | None]]:
        return [(step.action, step.outcome) for step in await self.found(job)]

    async def found(self, job: JobId) -> tuple[StoredStep, ...]:
        return (await self.ledger.idle.steps([job])).get(job, ())

    def notices(self) -> list[tuple[Any, ...]]:
        return self.db.execute('SELECT subject, text, team, "user", job FROM notice ORDER BY id').fetchall()


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def setting(ledger: Ledger, db: psycopg.Connection[Any]) -> AsyncIterator[Setting]:
    await applied(ledger)
    yield Setting(ledger, db)


@pytest.fixture
async def lease(ledger: Ledger) -> Lease:
    return await take(ledger, "idle", seconds=60)


async def test_an_idle_job_is_warned_once_and_cancelled_after_the_grace(
    setting: Setting, lease: Lease
) -> None:
    job, loop = await setting.job(), setting.loop()
    setting.measure(job, NOON - HOUR, NOON)
    await loop(lease)
    await loop(lease)
    assert await setting.steps(job) == [(IdleAction.WARN, IdleOutcome.DONE)]
    ((subject, text, team, user, of),) = setting.notices()
    assert subject.endswith("(train) holds 1 idle GPU")
    assert "In 30 min it is cancelled unless it works again, or you run:\n  fairway keep" in text
    assert (team, user, of) == ("research", "ada", job)
    setting.measure(job, NOON, NOON + 1500)
    await loop(lease)  # warned at 12:01:30: the grace ends at 12:31:30
    assert len(await setting.steps(job)) == 1
    setting.measure(job, NOON + 1500, NOON + 1800)
    await loop(lease)
    assert await setting.steps(job) == [
        (IdleAction.WARN, IdleOutcome.DONE),
        (IdleAction.CANCEL, IdleOutcome.DONE),
    ]
    detail = await setting.ledger.jobs.one(job)
    assert detail is not None
    assert detail.row.desired_state is DesiredState.CANCEL
    assert detail.events[-1].by == "idle rule notebooks"
    assert "was cancelled" in setting.notices()[-1][0]


async def test_a_dry_run_records_and_does_nothing(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((replace(ALL, dry_run=True),))
    job, loop = await setting.job(), setting.loop()
    for until in range(NOON, NOON + 2 * HOUR, WINDOW_SECONDS):
        setting.measure(job, NOON - HOUR, until)
        await loop(lease)
    assert await setting.steps(job) == [(action, IdleOutcome.DRY_RUN) for action in IdleAction]
    detail = await setting.ledger.jobs.one(job)
    assert detail is not None
    assert detail.row.desired_state is DesiredState.RUN
    assert (setting.world.asked, setting.world.told, setting.notices()) == ([], [], [])


async def test_every_step_of_a_ladder(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((ALL,))
    job, loop = await setting.job(tolerates=frozenset({Tolerates.PREEMPTION})), setting.loop()
    for until in range(NOON, NOON + 2 * HOUR, WINDOW_SECONDS):
        setting.measure(job, NOON - HOUR, until)
        await loop(lease)
    assert await setting.steps(job) == [(action, IdleOutcome.DONE) for action in IdleAction]
    assert setting.world.asked == [("lower", "71"), ("requeue", "71")]
    assert len(setting.notices()) == 4


async def test_what_cannot_be_done_is_said_and_the_next_step_follows(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((ALL,))
    job, loop = await setting.job(), setting.loop()
    setting.world.refuses = {EngineId("71"): Refused("Forbidden", "not allowed here", "ask")}
    for until in range(NOON, NOON + 2 * HOUR, WINDOW_SECONDS):
        setting.measure(job, NOON - HOUR, until)
        await loop(lease)
    assert [(s.action, s.outcome, s.detail) for s in (await setting.found(job))[1:3]] == [
        (IdleAction.LOWER, IdleOutcome.REFUSED, "not allowed here"),
        (
            IdleAction.REQUEUE,
            IdleOutcome.SKIPPED,
            "it does not say that it can resume (tolerates: [preemption])",
        ),
    ]
    assert (await setting.steps(job))[-1] == (IdleAction.CANCEL, IdleOutcome.DONE)


async def test_a_native_job_resumes_if_the_engine_finds_its_mark(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((replace(RULE, steps=(IdleStep(IdleAction.REQUEUE, 0),)),))
    job = await setting.job()
    setting.db.execute("DELETE FROM job_spec")
    setting.world.refuses = {EngineId("71"): Refused(NOT_RESUMABLE, "no mark", "set it")}
    setting.measure(job, NOON - HOUR, NOON)
    await setting.loop()(lease)
    assert await setting.steps(job) == [(IdleAction.REQUEUE, IdleOutcome.SKIPPED)]


async def test_keep_postpones_and_the_ladder_begins_anew(setting: Setting, lease: Lease) -> None:
    job, loop = await setting.job(), setting.loop()
    setting.measure(job, NOON - HOUR, NOON)
    await loop(lease)
    until = datetime.fromtimestamp(NOON + 2 * HOUR, UTC)
    await setting.ledger.idle.keep([job], until, "ada", "I come back")
    for read in range(NOON, NOON + 2 * HOUR, WINDOW_SECONDS):
        setting.measure(job, NOON, read)
        await loop(lease)
    assert await setting.steps(job) == [(IdleAction.WARN, IdleOutcome.DONE)]
    setting.measure(job, NOON, NOON + 2 * HOUR)
    await loop(lease)
    assert await setting.steps(job) == [(IdleAction.WARN, IdleOutcome.DONE)] * 2


@pytest.mark.parametrize(
    "exempt",
    [
        replace(RULE, except_users=(UserName("ada"),)),
        replace(RULE, except_jobs=("tr*",)),
        replace(RULE, pools=("other",)),  # type: ignore[arg-type]
    ],
)
async def test_exempt_jobs_are_left_alone(setting: Setting, lease: Lease, exempt: IdleRule) -> None:
    setting.rules = IdleRules((exempt,))
    job = await setting.job()
    setting.measure(job, NOON - 2 * HOUR, NOON)
    await setting.loop()(lease)
    assert await setting.steps(job) == []


async def test_services_are_left_alone_unless_the_rule_says_otherwise(setting: Setting, lease: Lease) -> None:
    job = await setting.job(engine_id="ml/pod/notebook-0/ab12")
    setting.measure(job, NOON - 2 * HOUR, NOON)
    await setting.loop()(lease)
    assert await setting.steps(job) == []
    setting.rules = IdleRules((replace(RULE, except_services=False),))
    await setting.loop()(lease)
    assert await setting.steps(job) == [(IdleAction.WARN, IdleOutcome.DONE)]


async def test_jobs_that_the_fleet_names_as_services_are_left_alone(setting: Setting, lease: Lease) -> None:
    setting.diagnosis = DiagnosisSettings(services=("tr*",))
    job = await setting.job()
    setting.measure(job, NOON - 2 * HOUR, NOON)
    await setting.loop()(lease)
    assert await setting.steps(job) == []
    setting.diagnosis = DiagnosisSettings(services=("serve-*",))
    await setting.loop()(lease)
    assert await setting.steps(job) == [(IdleAction.WARN, IdleOutcome.DONE)]


async def test_nothing_is_decided_while_telemetry_is_behind(setting: Setting, lease: Lease) -> None:
    job = await setting.job()
    setting.measure(job, NOON - 2 * HOUR, NOON)
    setting.now = NOON + 901.0
    await setting.loop()(lease)
    assert await setting.steps(job) == []


async def test_busy_and_unmeasured_jobs_are_left_alone(setting: Setting, lease: Lease) -> None:
    busy, dark = await setting.job(engine_id="72"), await setting.job(engine_id="73")
    setting.measure(busy, NOON - 2 * HOUR, NOON, busy=0.4)
    setting.measure(dark, NOON - 2 * HOUR, NOON, measured=0.5)
    await setting.loop()(lease)
    assert await setting.steps(busy) == await setting.steps(dark) == []


async def test_an_engine_that_is_away_is_asked_again_and_a_late_step_is_decided_anew(
    setting: Setting, lease: Lease
) -> None:
    setting.rules = IdleRules((replace(RULE, steps=(IdleStep(IdleAction.LOWER, 0),)),))
    job, loop = await setting.job(), setting.loop()
    setting.measure(job, NOON - HOUR, NOON)
    setting.world.away = True
    with pytest.raises(Unreachable):
        await loop(lease)
    assert await setting.steps(job) == [(IdleAction.LOWER, None)]
    setting.world.away = False
    await loop(lease)
    assert await setting.steps(job) == [(IdleAction.LOWER, IdleOutcome.DONE)]

    other = await setting.job(engine_id="72")
    setting.measure(other, NOON - HOUR, NOON + 300)
    setting.world.away = True
    with pytest.raises(Unreachable):
        await loop(lease)
    setting.world.away = False
    setting.measure(other, NOON + 300, NOON + 1500)
    await loop(lease)
    assert await setting.steps(other) == [
        (IdleAction.LOWER, IdleOutcome.EXPIRED),
        (IdleAction.LOWER, IdleOutcome.DONE),
    ]


async def test_a_job_that_restarted_meanwhile_is_left_alone(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((replace(RULE, steps=(IdleStep(IdleAction.REQUEUE, 0),)),))
    job = await setting.job(tolerates=frozenset({Tolerates.PREEMPTION}))
    setting.measure(job, NOON - HOUR, NOON)
    setting.world.away = True
    with pytest.raises(Unreachable):
        await setting.loop()(lease)
    again = datetime.fromtimestamp(setting.now, UTC) + timedelta(seconds=5)
    setting.db.execute("UPDATE job SET started_at = %s WHERE id = %s", (again, job))
    setting.world.away = False
    await setting.loop()(lease)
    assert await setting.steps(job) == [(IdleAction.REQUEUE, IdleOutcome.SKIPPED)]
    assert setting.world.asked == [("complete", "71")]


async def test_keep_also_stops_a_step_that_waits_for_its_engine(setting: Setting, lease: Lease) -> None:
    setting.rules = IdleRules((replace(RULE, steps=(IdleStep(IdleAction.LOWER, 0),)),))
    job = await setting.job()
    setting.measure(job, NOON - HOUR, NOON)
    setting.world.away = True
    with pytest.raises(Unreachable):
        await setting.loop()(lease)
    until = datetime.fromtimestamp(setting.now, UTC) + timedelta(hours=4)
    await setting.ledger.idle.keep([job], until, "alice", "")
    setting.world.away = False
    await setting.loop()(lease)
    assert await setting.steps(job) == [(IdleAction.LOWER, IdleOutcome.SKIPPED)]
    assert setting.world.asked == []


class Killed(Exception):
    """The process ended here."""


async def test_killed_between_any_two_writes_each_step_is_taken_once(
    setting: Setting, ledger: Ledger, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.rules = IdleRules((ALL,))
    jobs = [
        await setting.job(engine_id=str(80 + n), tolerates=frozenset({Tolerates.PREEMPTION}))
        for n in range(3)
    ]
    writing, calls = ledger.writing, 0

    def dies(lease: Lease) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise Killed
        return writing(lease)

    monkeypatch.setattr(ledger, "writing", dies)
    for until in range(NOON, NOON + HOUR, WINDOW_SECONDS):
        for job in jobs:
            setting.measure(job, NOON - HOUR, until)
        for _ in range(8):
            try:
                await setting.loop()(lease)  # a new process each time
            except Killed:
                continue
    for job in jobs:
        assert await setting.steps(job) == [(action, IdleOutcome.DONE) for action in IdleAction]
    assert len(setting.notices()) == 12


async def test_at_most_so_many_steps_in_a_round(
    setting: Setting, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "MAX_ACTIONS", 2)
    jobs = [await setting.job(engine_id=str(90 + n)) for n in range(5)]
    for job in jobs:
        setting.measure(job, NOON - HOUR, NOON)
    loop = setting.loop()
    counts = []
    for _ in range(4):
        await loop(lease)
        counts.append(len(await setting.ledger.idle.newest(100)))
    assert counts == [2, 4, 5, 5]


async def test_a_server_that_lost_its_lease_records_nothing(setting: Setting, ledger: Ledger) -> None:
    job = await setting.job()
    setting.measure(job, NOON - HOUR, NOON)
    old = await take(ledger, "idle", "old", 60)
    await ledger.leases.release(old)
    lease = await take(ledger, "idle", "new", 60)
    with pytest.raises(LeaseLost):
        await setting.loop()(old)
    assert await setting.steps(job) == []
    await setting.loop()(lease)
    assert len(await setting.steps(job)) == 1
