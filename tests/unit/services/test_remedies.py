"""What would help on a real ledger: what the server accepts of this person, and the model has verified."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail
from fairway.model.access import Role
from fairway.model.errors import Refused, TemporaryError
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, UserName
from fairway.services import remedies as services
from fairway.services.convert import jobs as convert
from fairway.services.job_changes import JobChanger
from fairway.services.remedies import RemedyFinder, RemedyTask, compute_remedies
from fairway.services.rights import Person
from fairway.simulate.cluster import JobRequest, NodeSnapshot, terms_of
from fairway.simulate.remedies import Remedy
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob
from fairway.wire import jobs as wire
from tests.unit.control.job_toy import ADA, HPC, NORMAL, POOL, RESEARCH, SUPPLY
from tests.unit.control.loops.test_dispatch import Bench as Dispatching
from tests.unit.services.test_submit_jobs import TWO, spec
from tests.unit.services.test_submit_jobs import Bench as Submitting

ME = Person(ADA, Role.MEMBER, frozenset({RESEARCH}))
NOW = 1_800_000_000.0


class Bench(Submitting):
    """A cluster whose four nodes have two free GPUs each, and a job that waits for eight on one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.changer = JobChanger(ledger, self.submitter)
        self.computed: list[RemedyTask] = []
        self.until: asyncio.Event | None = None
        self.reads = 0
        self.finder = RemedyFinder(
            ledger,
            self.fleets,  # type: ignore[arg-type]
            self,
            self.submitter,
            self.changer,
            self.compute,
            clock=lambda: self.now,
        )
        self.job = JobId(0)

    async def read(self, cluster: ClusterName) -> ClusterSnapshot | None:
        if cluster != HPC:
            return None
        self.reads += 1
        names = [NodeName(f"n{n}") for n in range(4)]
        row = (await self.detail()).row
        held = JobRequest(ADA, POOL, 6, team=RESEARCH, limit_seconds=864_000.0)
        wanted = replace(held, gpus=row.gpus, priority=NORMAL, name="train")
        return ClusterSnapshot(
            HPC,
            NOW,
            TWO.pools_of(HPC),
            terms_of(TWO),
            tuple(NodeSnapshot(name, SUPPLY, 8) for name in names),
            tuple(
                RunningJob(JobId(900 + n), held, NOW - 9999, NOW - 9999, (name,))
                for n, name in enumerate(names)
            ),
            (WaitingJob(self.job, wanted, NOW - 5),),
        )

    async def compute(self, task: RemedyTask) -> Sequence[Remedy]:
        self.computed.append(task)
        if self.until is not None:
            await self.until.wait()
        return compute_remedies(task)

    async def detail(self) -> JobDetail:
        found = await self.ledger.jobs.one(self.job)
        assert found is not None
        return found

    async def find(self, who: Person = ME) -> tuple[list[wire.Alternative], bool]:
        found = await self.detail()
        assert found.spec is not None
        return await self.finder.find(who, convert.job(found.row), found.row, found.spec)


@pytest.fixture
async def bench(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(services, "WAIT_SECONDS", 60.0)
    await ledger.revisions.add("fleet", "fleet", "test")
    made = Bench(ledger)
    await made.observe(HPC, POOL, 4)
    (stored,) = await made.submitter.submit([replace(spec(), pool=POOL)], ADA, by="ada")
    made.job = stored.ids[0]
    await Dispatching(ledger, made.fields[HPC]).run()
    return made


async def test_the_largest_request_that_starts_now_is_offered_and_accepted(bench: Bench) -> None:
    found, pending = await bench.find()
    assert not pending
    (best,) = found
    word = convert.job((await bench.detail()).row).id
    assert (best.kind, best.command) == ("resize", f"fairway resize {word} --gpus 2")
    assert (best.effect, best.starts_now, best.gpus) == ("starts now", True, 2)
    assert best.sooner_seconds is not None and best.sooner_seconds > 300
    assert best.text.startswith("2 GPUs instead of 8, ")
    assert best.text.endswith(" sooner, 6.00 USD an hour less")
    asked = wire.JobChangeRequest(gpus=best.gpus)
    assert (await bench.changer.change(ME, (await bench.detail()).row, asked, by="ada")).requested


async def test_whoever_may_not_change_the_job_is_offered_nothing(bench: Bench) -> None:
    stranger = Person(UserName("bob"), Role.MEMBER, frozenset())
    assert await bench.find(stranger) == ([], False)
    assert bench.computed == []


async def test_what_the_server_or_the_engine_would_refuse_is_not_played(bench: Bench) -> None:
    bench.fields[HPC].unchangeable["train"] = Refused("CannotChange", "not there", "submit it again")
    assert await bench.find() == ([], False)
    assert bench.computed == []


async def test_a_search_that_takes_long_goes_on_and_is_found_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "WAIT_SECONDS", 0.0)
    bench.until = asyncio.Event()
    assert await bench.find() == ([], True)
    assert await bench.find() == ([], True)
    bench.until.set()
    monkeypatch.setattr(services, "WAIT_SECONDS", 60.0)
    found, pending = await bench.find()
    assert (len(found), pending, len(bench.computed)) == (1, False, 1)
    bench.now += services.FRESH_SECONDS + 1
    assert len((await bench.find())[0]) == 1
    assert (len(bench.computed), bench.reads) == (2, 2), "it is verified again"


async def test_a_worker_that_fails_is_no_failure_of_the_answer(bench: Bench) -> None:
    async def broken(task: RemedyTask) -> Sequence[Remedy]:
        raise TemporaryError("ModelTimedOut", "no answer", "look")

    bench.finder._compute = broken
    assert await bench.find() == ([], False)
