"""Objectives are counted from the ledger: each event once, whenever it becomes known, as a recount shows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.slos import SETTLE_SECONDS, CountSlos
from fairway.control.metrics_slos import SloMetrics
from fairway.ledger import FLEET, Lease, Ledger
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName
from fairway.model.slo import DAY, DeliveredWithin, Slo, StartsWithin
from fairway.model.team import Team
from fairway.policy.slo import HOUR, Counts, JobHistory, Pause, Run, count, demand_of
from fairway.policy.slo_alerts import SloAlert
from fairway.services.fleets import Fleets
from tests.tier import sized

END = 40 * DAY
"""When the histories of these tests end; times are seconds since 1970."""
STARTS = Slo("starts", StartsWithin(HOUR), Decimal("0.9"))
SLOS = (
    STARTS,
    Slo("research", StartsWithin(2 * HOUR), Decimal("0.9"), team=TeamName("research")),
    Slo("small", StartsWithin(HOUR), Decimal("0.9"), gpus=4, priority=PriorityName("high")),
    Slo("a100", StartsWithin(HOUR), Decimal("0.9"), 7 * DAY, pools=(PoolName("a100"),)),
    Slo("hours", DeliveredWithin(Decimal(30), 6 * HOUR), Decimal("0.9"), team=TeamName("nlp")),
)
TEAMS = (Team(TeamName("research")), Team(TeamName("nlp"), TeamName("research")), Team(TeamName("product")))
HPC = Cluster(ClusterName("hpc"), VirtualConnection())
A100 = Pool(
    PoolName("a100"),
    HPC.name,
    CATALOGUE["A100-80GB"],
    Capacity.OWNED,
    Decimal(2),
    VirtualPlace(nodes=1, gpus_per_node=8),
)


@dataclass(frozen=True)
class Past:
    """A job of a history, with its owner."""

    history: JobHistory
    team: str
    pool: str
    priority: str

    def counts_for(self, slo: Slo) -> bool:
        return (
            (slo.team is None or self.team == slo.team or (self.team, slo.team) == ("nlp", "research"))
            and (not slo.pools or self.pool in slo.pools)
            and (slo.gpus is None or self.history.devices <= slo.gpus)
            and slo.priority in (None, self.priority)
        )


def random_history(dice: random.Random, jobs: int) -> list[Past]:
    """Jobs of the last days before END that were held, ran, were preempted, cancelled, or still wait."""
    found = []
    for _ in range(jobs):
        at = dice.uniform(END - 20 * DAY, END)
        bounds = sorted(dice.uniform(at, at + 5 * HOUR) for _ in range(dice.choice((0, 0, 2, 4))))
        pauses = tuple(Pause(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True))
        devices, runs, ended = dice.choice((1, 2, 4, 8)), [], None
        last = max(bounds, default=at)
        if dice.random() < 0.85:
            start = last + dice.expovariate(1 / HOUR)
            for _ in range(dice.choice((1, 1, 1, 2))):
                stop = start + dice.expovariate(1 / (3 * HOUR))
                runs.append(Run(start, stop, devices))
                start = stop + dice.expovariate(1 / HOUR)
            ended = runs[-1].end
        elif dice.random() < 0.5:
            ended = last + dice.expovariate(1 / HOUR)
        limit = dice.choice((None, HOUR, 8 * HOUR))
        history = JobHistory(at, devices, tuple(runs), ended, limit, pauses, dice.random() < 0.05)
        team, pool = dice.choice(("research", "nlp", "product", "")), dice.choice(("a100", "h100"))
        found.append(Past(history, team, pool, dice.choice(("high", "normal"))))
    return found


def as_known(past: Past, now: float) -> Past | None:
    """The job as the ledger has it at a time."""
    of = past.history
    if of.submitted > now:
        return None

    def known(end: float | None) -> float | None:
        return end if end is not None and end <= now else None

    ended = known(of.ended)
    return replace(
        past,
        history=replace(
            of,
            runs=tuple(replace(r, end=known(r.end)) for r in of.runs if r.start <= now),
            ended=ended,
            pauses=tuple(replace(p, end=known(p.end)) for p in of.pauses if p.start <= now),
            refused=of.refused and ended is not None,
        ),
    )


class Books:
    """The ledger's tables, written by hand as the mirror would have by some time."""

    def __init__(self, db: psycopg.Connection) -> None:
        self.db = db

    def write(self, history: Sequence[Past], now: float, *, late: bool = False) -> None:
        self.db.execute("TRUNCATE job, attempt, job_pause, job_class, job_clock")
        ordered = sorted(history, key=lambda one: one.history.submitted)
        for number, past in enumerate(ordered, 1):
            if (known := as_known(past, now)) is not None:
                self._job(number, known, late=late and number % 3 == 0)
        self.seen(now)

    def seen(self, now: float, cluster: str = "hpc") -> None:
        self.db.execute(
            "INSERT INTO mirror_mark VALUES (%s, 'm', %s)"
            " ON CONFLICT (cluster) DO UPDATE SET at = excluded.at",
            (cluster, moment(now)),
        )

    def _job(self, number: int, past: Past, *, late: bool) -> None:
        of = past.history
        started = of.runs[-1].start if of.runs else None
        state = "running" if of.runs else "waiting"
        if of.ended is not None:
            state = "refused" if of.refused else "done" if of.runs else "cancelled"
        values = (past.team, past.pool, past.priority)
        self.db.execute(
            "INSERT INTO job_class (cluster, team, pool, priority, native)"
            " VALUES ('hpc', %s, %s, %s, true) ON CONFLICT DO NOTHING",
            values,
        )
        self.db.execute(
            "INSERT INTO job (id, class, cluster, name, state, gpus, nodes, devices, submission, attempts,"
            " submitted_at, started_at, ended_at, time_seconds, late)"
            " SELECT %s, id, 'hpc', 'j', %s, %s, 1, %s, 0, %s, %s, %s, %s, %s, %s"
            " FROM job_class WHERE (team, pool, priority) = (%s, %s, %s)",
            (
                *(number, state, of.devices, of.devices, len(of.runs), moment(of.submitted)),
                *(moment(started), moment(of.ended), of.limit_seconds, late, *values),
            ),
        )
        for place, run in enumerate(of.runs, 1):
            self.db.execute(
                "INSERT INTO attempt (job, number, engine_id, started_at, ended_at, devices, nodes)"
                " VALUES (%s, %s, 'e', %s, %s, %s, '{}')",
                (number, place, moment(run.start), moment(run.end), run.devices),
            )
        shift = 0.0
        for pause in of.pauses:
            shift += 0 if pause.end is None else pause.end - pause.start
            waits_from = None if pause.end is None else moment(of.submitted + shift)
            self.db.execute(
                "INSERT INTO job_pause VALUES (%s, %s, %s, %s)",
                (number, moment(pause.start), moment(pause.end), waits_from),
            )
        if not late:
            self.db.execute(
                "INSERT INTO job_clock VALUES (date_trunc('minute', %s::timestamptz), %s)"
                " ON CONFLICT DO NOTHING",
                (moment(of.submitted), number),
            )


def moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def waited(job: JobHistory, until: float) -> float:
    """How long a job waited for GPUs by then, a sum over the gaps between its pauses."""
    total, at = 0.0, job.submitted
    for pause in job.pauses:
        end = until if pause.end is None else pause.end
        total += max(0.0, min(pause.start, until) - at)
        at = max(at, min(end, until))
    return total + max(0.0, until - at)


def recount(slo: Slo, history: Sequence[Past], until: float) -> Counts:
    """Count the events of an objective's window in one go, as the objective reads, not as the code counts."""
    assert isinstance(slo.promise, StartsWithin)
    found: Counter[str] = Counter()
    first = (until - slo.window_seconds) // 900 * 900
    for past in history:
        job, bound = past.history, slo.promise.seconds
        if not past.counts_for(slo) or job.refused:
            continue
        if job.started is not None and job.started <= until and waited(job, job.started) <= bound:
            found["good"] += job.started > first
            continue
        over = min(job.started if job.started is not None else until, until)
        over = min(over, job.ended if job.ended is not None else until)
        if waited(job, over) >= bound and over > job.submitted:
            low, high = job.submitted, over  # the moment at which its time was over
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if waited(job, middle) < bound else (low, middle)
            found["bad"] += first < high <= until
    return Counts(found["good"], found["bad"])


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("slos", FLEET, "test", 60)
    assert taken is not None
    yield taken


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    with psycopg.connect(database_url, autocommit=True) as db:
        yield Books(db)


async def counting(ledger: Ledger, *slos: Slo, most: int = 20_000) -> CountSlos:
    fleet = Fleet("acme", "USD", (HPC,), (A100,), TEAMS, slos=slos)
    await ledger.revisions.add(f"{slos}", f"{slos}", "test")
    metrics = SloMetrics(CollectorRegistry())
    clock = lambda: END + 2 * DAY  # noqa: E731
    return CountSlos(ledger, Fleets(ledger, lambda _: fleet), metrics, clock=clock, max_histories=most)


async def sums(ledger: Ledger) -> dict[str, Counts]:
    return {one.name: one.counts for one in await ledger.slos.statuses()}


@pytest.mark.parametrize("seed", range(sized(ci=3, nightly=30)))
async def test_counted_round_by_round_is_as_a_recount(
    ledger: Ledger, lease: Lease, books: Books, seed: int
) -> None:
    """Rounds at any times, by servers that forget everything in between, on a history as it becomes known."""
    dice = random.Random(seed)
    history = random_history(dice, 60)
    marks = sorted(dice.uniform(END - 15 * DAY, END + DAY) for _ in range(4))
    for mark in [*marks, END + DAY + SETTLE_SECONDS]:
        books.write(history, mark, late=seed % 2 == 1)
        count_slos = await counting(ledger, *SLOS, most=dice.choice((2, 20_000)))
        for _ in range(dice.choice((1, 2))):
            await count_slos(lease)
    found = await sums(ledger)
    for slo in SLOS[:4]:
        # The window of the first round: what was before it is not counted.
        assert found[slo.name] == recount(slo, history, END + DAY), slo.name
    hours = SLOS[4]
    assert isinstance(hours.promise, DeliveredWithin)
    jobs = [past.history for past in history if past.counts_for(hours)]
    assert any(demand_of(hours.promise, job) for job in jobs)
    whole = count(hours, jobs, 0, END + DAY, {})
    assert found["hours"] == Counts(sum(c.good for c in whole.values()), sum(c.bad for c in whole.values()))


def waits(at: float, started: float | None = None, **more: object) -> Past:
    runs = () if started is None else (Run(started, None, 2),)
    return Past(replace(JobHistory(at, 2, runs), **more), "research", "a100", "high")  # type: ignore[arg-type]


async def test_an_event_that_is_known_is_counted_once_and_a_new_objective_is_filled_from_the_history(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    history = [waits(END - 9 * DAY, END - 9 * DAY + 60), waits(END - 2 * HOUR)]
    books.write(history, END)
    first = await counting(ledger, STARTS)
    for _ in range(3):
        await first(lease)
    assert await sums(ledger) == {"starts": Counts(1, 1)}
    second = await counting(ledger, STARTS, SLOS[3])
    await second(lease)
    assert await sums(ledger) == {"starts": Counts(1, 1), "a100": Counts(0, 1)}  # of 7 days


async def test_a_renamed_objective_keeps_its_counts_and_one_that_is_gone_is_forgotten(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    books.write([waits(END - 2 * HOUR)], END)
    await (await counting(ledger, STARTS))(lease)
    books.write([], END)  # nothing can be read again
    await (await counting(ledger, replace(STARTS, name="renamed", target=Decimal("0.5"))))(lease)
    assert await sums(ledger) == {"renamed": Counts(0, 1)}
    await (await counting(ledger))(lease)
    assert await sums(ledger) == {} and await ledger.slos.cursors() == {}


async def test_nothing_is_counted_beyond_the_oldest_report_of_its_clusters(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    """A cluster that cannot be reached may have started the job long ago."""
    books.write([waits(END - 2 * HOUR)], END - HOUR)
    count_slos = await counting(ledger, STARTS)
    await count_slos(lease)
    assert await sums(ledger) == {"starts": Counts()}
    books.write([waits(END - 2 * HOUR, END - HOUR - 60)], END)
    await count_slos(lease)
    assert await sums(ledger) == {"starts": Counts(good=1)}


async def test_a_job_on_hold_or_of_a_cluster_that_left_is_not_late(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    held = waits(END - 20 * HOUR, pauses=(Pause(END - 19.5 * HOUR),))
    books.write([held, waits(END - 9 * HOUR)], END)
    books.db.execute("UPDATE job SET cluster = 'old' WHERE id = 2")
    count_slos = await counting(ledger, STARTS)
    await count_slos(lease)
    assert await sums(ledger) == {"starts": Counts()}
    again = replace(held, history=replace(held.history, pauses=(Pause(END - 19.5 * HOUR, END),)))
    books.write([again], END + HOUR)
    await count_slos(lease)
    assert await sums(ledger) == {"starts": Counts(bad=1)}


async def test_many_late_jobs_in_the_last_hour_alert_and_the_alert_has_a_beginning(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    good = [waits(END - 9 * DAY + n * HOUR, END - 9 * DAY + n * HOUR) for n in range(40)]
    books.write([*good, *(waits(END - 1.3 * HOUR) for _ in range(5))], END)
    count_slos = await counting(ledger, replace(STARTS, target=Decimal("0.95")))
    await count_slos(lease)
    (status,) = await ledger.slos.statuses()
    assert status.alert is SloAlert.FAST_BURN and status.alert_since is not None
    await count_slos(lease)
    assert (await ledger.slos.statuses())[0].alert_since == status.alert_since


async def test_the_metrics_are_those_of_the_objectives_and_go_with_the_lease(
    ledger: Ledger, lease: Lease, books: Books
) -> None:
    books.write([waits(END - 2 * HOUR), waits(END - 3 * HOUR, END - 2.5 * HOUR)], END)
    await counting(ledger, STARTS)
    registry = CollectorRegistry()
    fleet = Fleet("acme", "USD", (HPC,), (A100,), TEAMS, slos=(STARTS,))
    count_slos = CountSlos(ledger, Fleets(ledger, lambda _: fleet), SloMetrics(registry), clock=lambda: END)
    await count_slos(lease)
    labels = {"slo": "starts", "team": ""}
    value = registry.get_sample_value
    assert value("fairway_slo_target_ratio", labels) == 0.9
    assert value("fairway_slo_events", labels | {"result": "bad"}) == 1
    assert value("fairway_slo_error_budget_left_ratio", labels) == pytest.approx(-4)
    assert value("fairway_slo_counted_to_timestamp_seconds", labels) == END - SETTLE_SECONDS
    assert value("fairway_slo_burn_rate", labels | {"window": "6h"}) == pytest.approx(5)
    await count_slos.close()
    assert value("fairway_slo_target_ratio", labels) is None
