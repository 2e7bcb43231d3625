"""The figures of jobs from what the telemetry loop stored, and what `why` says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import NoReturn

import psycopg
import pytest

from fairway.cli.output.jobs import advice_lines
from fairway.ledger import Lease, Ledger
from fairway.model.access import Role
from fairway.model.diagnosis import DiagnosisSettings, Thresholds
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, SlurmConnection, SlurmPlace, Telemetry
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.gpu_use import WINDOW_SECONDS, Device, GpuUse, HostUse, MetricCode, Window
from fairway.model.job import JobId
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName
from fairway.model.telemetry import JobFigures
from fairway.services.engine_cache import EngineCache
from fairway.services.fleets import Fleets
from fairway.services.gpu_use import job_figures
from fairway.services.jobs import explain_job
from fairway.services.rights import Person
from fairway.services.why import JobExplainer
from fairway.views.summary import summary_lines
from fairway.wire import jobs as wire
from tests.metered import CLUSTER, Hand

HOUR = 3600
NOW = int(datetime(2026, 11, 5, 12, 30, tzinfo=UTC).timestamp())
FLEET = Fleet(
    "f",
    "USD",
    (
        Cluster(
            ClusterName(CLUSTER),
            SlurmConnection("http://127.0.0.1:1"),
            telemetry=Telemetry("http://127.0.0.1:2"),
        ),
    ),
    (
        Pool(
            PoolName("gpu"),
            ClusterName(CLUSTER),
            CATALOGUE["A100-80GB"],
            Capacity.OWNED,
            Decimal(2),
            SlurmPlace("gpu"),
        ),
    ),
)
OWNER = Person(UserName("ann"), Role.MEMBER, frozenset({TeamName("ml")}))
OTHER = Person(UserName("bob"), Role.MEMBER, frozenset())
OPERATOR = Person(UserName("root"), Role.OPERATOR, frozenset())
GOOD = {
    MetricCode.ENGINE: 0.96,
    MetricCode.SM: 0.85,
    MetricCode.TENSOR: 0.42,
    MetricCode.DRAM: 0.45,
    MetricCode.MEMORY: 60_000.0,
    MetricCode.PCIE: 2e8,
    MetricCode.NVLINK: 8e9,
}
LOADER = GOOD | {MetricCode.ENGINE: 0.25, MetricCode.SM: 0.2, MetricCode.TENSOR: 0.1, MetricCode.DRAM: 0.1}
IDLE = dict.fromkeys(GOOD, 0.0) | {MetricCode.MEMORY: 20_000.0}


@pytest.fixture
def hand(database_url: str) -> Iterator[Hand]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Hand(connection)


class Loop:
    """Adds windows as the telemetry loop does."""

    def __init__(self, ledger: Ledger, lease: Lease) -> None:
        self.ledger, self.lease = ledger, lease

    async def start(self, at: int) -> None:
        async with self.ledger.writing(self.lease) as tx:
            await tx.gpu_use.start(at, 15.0)

    async def read(
        self,
        job: int,
        since: int,
        until: int,
        *gpus: dict[MetricCode, float],
        host: HostUse | None = None,
        seconds: float = WINDOW_SECONDS,
    ) -> None:
        """Add every window between two moments; `gpus`: the means of each."""
        for start in range(since, until, WINDOW_SECONDS):
            devices = {Device("n1", str(n)): GpuUse() for n in range(len(gpus))}
            for use, means in zip(devices.values(), gpus, strict=True):
                use.add(means, seconds, means[MetricCode.MEMORY] * 1.1)
            async with self.ledger.writing(self.lease) as tx:
                await tx.gpu_use.add(
                    Window(start, start + WINDOW_SECONDS),
                    start // HOUR * HOUR,
                    date(2026, 11, 1),
                    {JobId(job): devices} if gpus else {},
                    {},
                    15.0,
                    {JobId(job): host} if host else {},
                )


@pytest.fixture
async def loop(ledger: Ledger) -> AsyncIterator[Loop]:
    taken = await ledger.leases.take("telemetry", CLUSTER, "test", 60)
    assert taken is not None
    yield Loop(ledger, taken)


def running(hand: Hand, since: int, *, gpus: int = 1, name: str = "train") -> int:
    job = hand.job(hand.class_())
    hand.db.execute(
        "UPDATE job SET gpus = %s, devices = %s, name = %s, started_at = to_timestamp(%s), engine_id = '17'"
        " WHERE id = %s",
        (gpus, gpus, name, since, job),
    )
    hand.attempt(job, 1, since, devices=gpus)
    return job


def busy_cpus(ratio: float, cores: int = 8) -> HostUse:
    given = cores * WINDOW_SECONDS
    return HostUse(given * ratio, given, WINDOW_SECONDS, 0.0, WINDOW_SECONDS)


async def figures(ledger: Ledger, job: int, fleet: Fleet = FLEET, now: int = NOW) -> JobFigures | None:
    found = await job_figures(ledger, [JobId(job)], fleet, datetime.fromtimestamp(now, UTC))
    return found.get(JobId(job))


def no_engine(cluster: Cluster, pools: tuple[Pool, ...]) -> NoReturn:
    raise AssertionError("nobody needs an engine to diagnose a job")


async def explained(
    ledger: Ledger, job: int, fleet: Fleet = FLEET, now: int = NOW, person: Person = OWNER
) -> wire.Why:
    found = await ledger.jobs.one(JobId(job))
    assert found is not None
    await ledger.revisions.add("fleet", "digest", "test")
    fleets = Fleets(ledger, lambda _: fleet)
    explainer = JobExplainer(ledger, fleets, EngineCache(no_engine))
    return await explain_job(ledger, fleets, explainer, found, person, datetime.fromtimestamp(now, UTC))


async def why(ledger: Ledger, job: int, fleet: Fleet = FLEET) -> wire.Diagnosis | None:
    return (await explained(ledger, job, fleet)).diagnosis


async def test_a_running_job_has_the_figures_of_its_last_hours(
    ledger: Ledger, hand: Hand, loop: Loop
) -> None:
    began = NOW - 6 * HOUR
    job = running(hand, began, gpus=2)
    await loop.start(began)
    await loop.read(job, began, NOW - 2 * HOUR, IDLE, IDLE)
    await loop.read(job, NOW - 2 * HOUR, NOW, GOOD, LOADER, host=busy_cpus(0.5))
    found = await figures(ledger, job)
    assert found is not None
    # Half an hour more than two hours, since sums are by the hour.
    assert found.span_seconds == 2.5 * HOUR
    assert (found.held_gpu_seconds, found.measured_gpu_seconds) == (5 * HOUR, 5 * HOUR)
    assert [round(g.figures.engine or 0, 3) for g in found.gpus] == [0.768, 0.2]
    assert found.gpus[0].figures.memory_peak_mib == pytest.approx(66_000)
    assert found.gpus[0].figures.memory_total_mib == 80 * 1024
    assert (found.host.cpu_ratio, found.host.cpus, found.host.io_pressure) == (0.5, 8, 0.0)
    assert len(found.recent) == 30
    assert found.recent[0] == 0.0
    assert found.recent[-1] == pytest.approx((0.96 + 0.25) / 2)


async def test_an_ended_job_has_the_figures_of_its_life(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    began = NOW - 6 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, began + HOUR, GOOD)
    await loop.read(job, began + HOUR, NOW)
    hand.attempt(job, 1, began, began + 2 * HOUR)
    hand.move(job, hand.class_(), "done")
    found = await figures(ledger, job)
    assert found is not None
    assert (found.span_seconds, found.held_gpu_seconds) == (2 * HOUR, 2 * HOUR)
    assert found.coverage == 0.5
    assert found.recent == ()


async def test_a_requeued_job_is_not_judged_by_its_earlier_attempt(
    ledger: Ledger, hand: Hand, loop: Loop
) -> None:
    began = NOW - 5 * HOUR
    job = running(hand, began)
    hand.attempt(job, 1, began, NOW - HOUR, ending="requeued")
    hand.attempt(job, 2, NOW - HOUR)
    await loop.start(began)
    await loop.read(job, began, NOW - HOUR, IDLE)
    await loop.read(job, NOW - HOUR, NOW, GOOD)
    found = await figures(ledger, job)
    assert found is not None
    assert found.span_seconds == 1800  # from the first hour that is the new attempt's alone
    assert found.mean().engine == pytest.approx(0.96)
    assert found.coverage == 1.0


async def test_what_a_silent_prometheus_did_not_tell_is_not_measured(
    ledger: Ledger, hand: Hand, loop: Loop
) -> None:
    began = NOW - 6 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, NOW - 2 * HOUR, GOOD)
    found = await figures(ledger, job)
    assert found is not None
    assert found.coverage == pytest.approx(0.2)
    said = await why(ledger, job)
    assert said is not None
    assert said.code == "NotMeasured"


async def test_a_cluster_without_telemetry_has_no_figures_of_now(
    ledger: Ledger, hand: Hand, loop: Loop
) -> None:
    began = NOW - 6 * HOUR
    job, before = running(hand, began), running(hand, began)
    assert await figures(ledger, job) is None
    await loop.start(began)
    await loop.read(before, began, began + HOUR, GOOD)
    end(hand, before, began, began + HOUR)
    plain = replace(FLEET, clusters=(replace(FLEET.clusters[0], telemetry=None),))
    assert await figures(ledger, job, plain) is None
    late = await figures(ledger, job)
    assert late is not None
    assert late.coverage == 0.0
    known = await figures(ledger, before, plain)
    assert known is not None
    assert known.coverage == 1.0


@pytest.mark.parametrize(
    ("means", "cpu", "code"),
    [(GOOD, 0.3, None), (LOADER, 0.95, "CpuBound"), (IDLE, 0.002, "Abandoned"), (LOADER, None, None)],
)
async def test_why_says_what_limits_a_running_job(
    ledger: Ledger,
    hand: Hand,
    loop: Loop,
    means: dict[MetricCode, float],
    cpu: float | None,
    code: str | None,
) -> None:
    began = NOW - 4 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, NOW, means, host=None if cpu is None else busy_cpus(cpu))
    said = await why(ledger, job)
    assert (said.code if said else None) == code
    if said is not None:
        assert said.confidence == "high"
        assert said.evidence
        assert said.text
        assert "JOB" not in said.hint


async def test_services_may_wait(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    began = NOW - 4 * HOUR
    job = running(hand, began, name="serve-llama")
    await loop.start(began)
    await loop.read(job, began, NOW, IDLE, host=busy_cpus(0.002))
    named = replace(FLEET, diagnosis=DiagnosisSettings(services=("serve-*",)))
    assert await why(ledger, job, named) is None
    assert await why(ledger, job) is not None
    hand.db.execute("UPDATE job SET engine_id = 'web/pod/llama-7d4b9-x2x4q/0a1b2c3d' WHERE id = %s", [job])
    assert await why(ledger, job) is None


async def test_thresholds_come_from_the_fleet(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    began = NOW - 4 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, NOW, LOADER, host=busy_cpus(0.6))
    strict = replace(FLEET, diagnosis=DiagnosisSettings(Thresholds(cpu_busy=0.5)))
    said = await why(ledger, job, strict)
    assert said is not None
    assert said.code == "CpuBound"
    unlike = await why(ledger, job)
    assert unlike is None or unlike.code != "CpuBound"


def end(hand: Hand, job: int, began: int, ended: int, devices: int = 1) -> None:
    hand.attempt(job, 1, began, ended, devices=devices)
    hand.move(job, hand.class_(), "done")


async def test_a_job_that_is_over_is_summarized(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    began = NOW - 4 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, began + 2 * HOUR, LOADER | {MetricCode.POWER: 250.0}, host=busy_cpus(0.95))
    await loop.read(job, began + 2 * HOUR, NOW)
    assert summary_lines(await explained(ledger, job)) == []
    end(hand, job, began, began + 2 * HOUR)
    found = await explained(ledger, job)
    assert summary_lines(found) == [
        "It held 2.0 GPU-hours, 4.00 USD. GPUs: engine busy 25 % of the time, 25 % in the last five minutes"
        " measured; at most 64 GiB of memory on one; 0.5 kWh."
    ]
    assert found.diagnosis is not None
    assert found.diagnosis.code == "CpuBound"
    assert any("CpuBound" in line.text for line in advice_lines(found, 100))
    assert (await explained(ledger, job, person=OTHER)).cost is None


async def test_the_next_request_is_advised_from_past_jobs(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    """Six jobs with two GPUs used one of them, and an eighth of its memory."""
    small = dict.fromkeys(GOOD, 0.0) | {
        MetricCode.ENGINE: 0.1,
        MetricCode.SM: 0.02,
        MetricCode.MEMORY: 5_000.0,
    }
    unused = dict.fromkeys(GOOD, 0.0) | {MetricCode.MEMORY: 4.0}
    began = NOW - 12 * HOUR
    await loop.start(began)
    for number in range(6):
        job = running(hand, began, gpus=2, name=f"finetune-{number}")
        await loop.read(job, began, began + HOUR, small, unused)
        end(hand, job, began, began + HOUR, devices=2)
        began += HOUR
    await loop.read(job, began, NOW)
    found = (await explained(ledger, job)).right_size
    assert found is not None
    assert (found.pattern, found.jobs, found.request) == ("finetune-*", 6, "--gpus 1")
    assert found.saved_money == Decimal("12.00")
    assert found.saved_wait_seconds is None
    assert found.text == (
        "your last 6 finetune-* jobs used 5 of 80 GB and 1 of 2 GPUs; --gpus 1 would have saved 12.00 USD"
    )
    assert (await explained(ledger, job, person=OTHER)).right_size is None
    seen = (await explained(ledger, job, person=OPERATOR)).right_size
    assert seen is not None
    assert seen.text.startswith("ann's last 6 finetune-* jobs")
    sliced = Pool(
        PoolName("mig"),
        ClusterName(CLUSTER),
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal(2),
        SlurmPlace("mig"),
        slices=(SliceName("1g.10gb"),),
    )
    with_slices = replace(FLEET, pools=(*FLEET.pools, sliced))
    found = (await explained(ledger, job, with_slices)).right_size
    assert found is not None
    assert found.request == "--gpus 1g.10gb"
    # Those who ask for a slice usually begin at once.
    hand.db.execute("UPDATE job SET submitted_at = started_at - interval '30 minutes', attempts = 1")
    for _ in range(5):
        other = hand.job(hand.class_(pool="mig", slice_="1g.10gb"), "done")
        hand.db.execute("UPDATE job SET started_at = now(), submitted_at = now() WHERE id = %s", [other])
    found = (await explained(ledger, job, with_slices)).right_size
    assert found is not None
    assert found.saved_wait_seconds == 6 * 1800
    assert found.text.endswith("and 3 h of waiting")


async def test_nobody_is_told_to_cancel_a_job_that_is_over(ledger: Ledger, hand: Hand, loop: Loop) -> None:
    began = NOW - 4 * HOUR
    job = running(hand, began)
    await loop.start(began)
    await loop.read(job, began, NOW, LOADER | {MetricCode.ENGINE: 0.2})
    now = await why(ledger, job)
    assert now is not None
    assert now.code == "LowUtilisation"
    assert "fairway cancel" in now.hint
    end(hand, job, began, NOW)
    after = await why(ledger, job)
    assert after is not None
    assert after.hint == now.hint.rpartition("; ")[0]
