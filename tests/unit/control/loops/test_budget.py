"""Budgets on a real ledger: counted, told, held, lifted; whoever dies half-way is finished by the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text as sql

from fairway.control.loops.apply import ApplyToCluster
from fairway.control.loops.budget import HoldTeams, TrackBudgets
from fairway.control.loops.drift import PENDING_HOLD_SECONDS, FindDrift
from fairway.control.metrics import BudgetMetrics, PolicyMetrics
from fairway.cost.forecast import DailySpending, SpendingModel
from fairway.engines.port import Unreachable
from fairway.ledger import DesiredState, Lease, Ledger, NewBudgetRaise, Revision, StoredBudgetStatus
from fairway.model.budget import (
    AtLimit,
    Budget,
    BudgetLevel,
    BudgetOutlook,
    Every,
    Hold,
    RaiseState,
    Running,
)
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Cluster, Fleet, NamedBudget, VirtualConnection
from fairway.model.job import JobId
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.price import CostRules
from fairway.model.team import Team
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Translation, WantedObject
from fairway.services.fleets import Fleets, LastApplied, holds_of, with_budget_holds
from fairway.services.plans import plan_cluster
from tests.unit.control.toy import Toy, World
from tests.unit.ledger.job_samples import new_job

HPC = ClusterName("hpc")
CLUSTER = Cluster(HPC, VirtualConnection())
NOVEMBER = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp())
DECEMBER = int(datetime(2026, 12, 1, 0, 0, 1, tzinfo=UTC).timestamp())


def fleet(nlp: Budget | None, research: Budget | None = None, *, share: int = 1, zone: str = "UTC") -> Fleet:
    teams = (
        Team(TeamName("research"), budget=research),
        Team(TeamName("nlp"), TeamName("research"), share=share, budget=nlp),
        Team(TeamName("product")),
    )
    return Fleet("acme", "USD", (CLUSTER,), (), teams, cost=CostRules(zone))


def budget(amount: int, at_limit: AtLimit = AtLimit.STOP, running: Running = Running.LEAVE) -> Budget:
    return Budget(Decimal(amount), at_limit=at_limit, running=running)


class HoldToy(Toy):
    """One object a team, with its share and what it holds."""

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        return Translation(
            tuple(
                WantedObject(
                    ObjectKey("limit", t.name),
                    {"value": t.share} | ({"hold": t.hold.value} if t.hold else {}),
                    team=t.name,
                )
                for t in fleet.teams
            )
        )


@dataclass
class Till:
    """What teams and those inside them were charged, said by the test."""

    spent: dict[str, Fraction] = field(default_factory=dict)
    asked: list[Span] = field(default_factory=list)

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        self.asked.append(period)
        return {TeamName(team): amount for team, amount in self.spent.items()}

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Fraction]:
        return {named.name: self.spent.get(named.name, Fraction(0)) for named in budgets}

    async def budget_models(self, fleet: Fleet, now: int) -> Mapping[str, SpendingModel]:
        return {str(name): model for name, model in (await self.team_models(fleet, now)).items()}

    async def team_models(self, fleet: Fleet, now: int) -> Mapping[TeamName, SpendingModel]:
        """As if all of it had been spent evenly on 60 days."""
        first = date(2026, 9, 16)
        return {
            TeamName(team): SpendingModel(DailySpending(first, [float(amount) / 7] * 60))
            for team, amount in self.spent.items()
        }

    def clear(self) -> None:
        """Nothing is cached here."""


@dataclass
class Bench:
    """One cluster with its loops, step by step, at a time the test says."""

    ledger: Ledger
    world: World = field(default_factory=World)
    till: Till = field(default_factory=Till)
    now: float = NOVEMBER
    fleets: dict[str, Fleet] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.parsed = Fleets(self.ledger, self.parse)
        self.applied = LastApplied(HPC, self.ledger, self.parsed, self.clock)
        self.begin()

    def begin(self) -> None:
        """As a server that just started."""
        self.registry = CollectorRegistry()
        metrics = BudgetMetrics(self.registry)
        self.count = TrackBudgets(self.ledger, self.parsed, self.till, self.till, metrics, clock=self.clock)
        self.hold = HoldTeams(HPC, lambda: HoldToy(self.world), self.ledger, self.applied, self.writing)

    def parse(self, revision: Revision) -> Fleet:
        return self.fleets[revision.text]

    def clock(self) -> float:
        return self.now

    async def lease(self, loop: str, cluster: str = "hpc") -> Lease:
        taken = await self.ledger.leases.take(loop, cluster, "one", 60)
        assert taken is not None
        return taken

    async def apply(self, wanted: Fleet) -> None:
        text = f"fleet {len(self.fleets)}"
        self.fleets[text] = wanted
        shall = await with_budget_holds(wanted, self.ledger, self.clock)
        mark = (await plan_cluster(HoldToy(self.world), shall, HPC)).fingerprint
        await self.ledger.applies.queue(text, text, {HPC: mark}, force=True, by="ada")
        step = ApplyToCluster(
            CLUSTER,
            wanted.pools_of(HPC),
            lambda: HoldToy(self.world),
            self.ledger,
            self.parsed,
            PolicyMetrics(CollectorRegistry()),
            self.writing,
            now=self.clock,
        )
        await step(await self.lease("apply"))

    async def request(self, team: str, amount: int) -> int:
        """Request a raise for this month."""
        first = datetime.fromtimestamp(self.now, UTC).date().replace(day=1)
        wanted = NewBudgetRaise(TeamName(team), Every.MONTH, first, Decimal(amount), "paper", UserName("lee"))
        notice = Notice(NoticeKind.TEST, "raise", "raise", "raise")
        made = await self.ledger.budget_raises.request(wanted, event="raise", notice_of=lambda _: notice)
        assert made is not None
        return made.id

    async def approve(self, number: int) -> None:
        await self.ledger.budget_raises.decide(
            number, RaiseState.APPROVED, by="olga", comment="", event="approved", notices=()
        )

    async def counted(self) -> dict[str, StoredBudgetStatus]:
        await self.count(await self.lease("budget", "*"))
        return {s.team: s for s in await self.ledger.budgets.statuses()}

    async def held(self) -> dict[str, object]:
        await self.hold(await self.lease("hold"))
        return self.holds()

    def holds(self) -> dict[str, object]:
        return {k.name: o.fields["hold"] for k, o in self.world.objects.items() if "hold" in o.fields}

    def told(self, name: str, **labels: str) -> float | None:
        """What Prometheus would be told of nlp."""
        return self.registry.get_sample_value(f"fairway_budget_{name}", {"team": "nlp", **labels})

    async def events(self) -> list[tuple[str, str]]:
        return [(e.team, e.text) for e in reversed(await self.ledger.budgets.events())]


async def running(ledger: Ledger, team: str) -> JobId:
    """A job of a team that runs."""
    ((job,),) = await ledger.jobs.submit([new_job(team=team)], by="ann")
    async with ledger._connections.transaction() as connection:
        await connection.execute(sql("UPDATE job SET state = 'running' WHERE id = :id"), {"id": job})
    return job


async def desired(ledger: Ledger, job: JobId) -> DesiredState:
    (row,) = await ledger.jobs.rows([job])
    return row.desired_state


@pytest.fixture
def bench(ledger: Ledger) -> Bench:
    return Bench(ledger)


async def test_the_metric_has_the_state_that_people_see(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    for spent, state in ((1, "ok"), (60, "runs-out"), (100, "spent")):
        bench.till.spent = {"nlp": Fraction(spent)}
        await bench.counted()
        found = {one.value: bench.told("state", state=one.value) for one in BudgetOutlook}
        assert found == {one: float(one == state) for one in found}


async def test_a_spent_budget_is_held_told_once_and_lifted_by_a_raise(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(79)}
    assert (await bench.counted())["nlp"].level is BudgetLevel.OK
    assert await bench.held() == {}
    bench.till.spent = {"nlp": Fraction(80)}
    assert (await bench.counted())["nlp"].level is BudgetLevel.WARNED
    bench.till.spent = {"nlp": Fraction("100")}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.level, nlp.hold, nlp.spent) == (BudgetLevel.SPENT, Hold.STOP, Decimal(100))
    assert await bench.held() == {"nlp": "stop"}
    await bench.counted()
    warned, _ = [text for _, text in await bench.events()]
    assert warned.endswith("; will run out 14 days early")  # in the words of the pages and `get budgets`
    assert [text.partition(";")[0] for _, text in await bench.events()] == [
        "November: 80 of 100 USD spent, passing the 80 % warning",
        "November: 100 of 100 USD spent",
    ]
    told = [one.notice for one in await bench.ledger.notices.unrouted(10)]
    assert [(one.kind, one.subject, one.team, one.operators) for one in told] == [
        (NoticeKind.BUDGET, "nlp approaches its budget", "nlp", False),
        (NoticeKind.BUDGET, "the budget of nlp is spent", "nlp", True),
    ]
    assert told[1].text.startswith("nlp: November: 100 of 100 USD spent; on hold: no jobs start")

    await bench.apply(fleet(budget(101)))  # raised: the apply itself lets it go
    assert bench.holds() == {}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.level, nlp.hold) == (BudgetLevel.WARNED, None)
    assert (await bench.events())[-1][1].endswith("hold lifted: the budget was raised")
    assert await bench.held() == {}
    assert len(await bench.ledger.notices.unrouted(10)) == 3


async def test_an_approved_raise_lifts_the_hold_without_an_apply_until_the_period_ends(bench: Bench) -> None:
    await bench.apply(fleet(budget(100, running=Running.END), budget(1000)))
    job = await running(bench.ledger, "nlp")
    bench.till.spent = {"nlp": Fraction(100), "research": Fraction(100)}
    number = await bench.request("nlp", 50)  # requested: nothing changes
    await bench.counted()
    assert await bench.held() == {"nlp": "stop"}
    assert await desired(bench.ledger, job) is DesiredState.CANCEL
    applies = await bench.ledger.applies.applied()
    await bench.approve(number)
    assert await bench.held() == {}  # before anybody counted anew
    second = await running(bench.ledger, "nlp")
    nlp = (await bench.counted())["nlp"]
    assert (nlp.amount, nlp.level, nlp.hold) == (Decimal(150), BudgetLevel.OK, None)
    assert bench.told("limit") == 150
    assert await desired(bench.ledger, second) is not DesiredState.CANCEL
    assert (await bench.events())[-1] == (
        "nlp",
        "November: 100 of 150 USD spent; hold lifted: the budget was raised",
    )
    assert await bench.ledger.applies.applied() == applies
    bench.till.spent["nlp"] = Fraction(150)  # the raise is spent, too
    assert (await bench.counted())["nlp"].hold is Hold.STOP
    assert await bench.held() == {"nlp": "stop"}
    bench.now = DECEMBER
    bench.till.spent = {"nlp": Fraction(100)}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.amount, nlp.hold) == (Decimal(100), Hold.STOP)


async def test_a_hold_that_a_raise_just_lifted_is_no_drift(bench: Bench) -> None:
    bench.now = time.time()  # the ledger's clock says when a raise was approved
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    assert await bench.held() == {"nlp": "stop"}
    await bench.approve(await bench.request("nlp", 50))
    find = FindDrift(
        HPC,
        lambda: HoldToy(bench.world),
        bench.ledger,
        bench.applied,
        PolicyMetrics(CollectorRegistry()),
        clock=bench.clock,
    )
    await find(await bench.lease("drift"))
    assert await bench.ledger.drift.page() == ()
    bench.now += 2 * PENDING_HOLD_SECONDS
    await find(await bench.lease("drift"))
    assert len(await bench.ledger.drift.page()) > 0  # still there: somebody should know
    await bench.held()
    await find(await bench.lease("drift"))
    assert await bench.ledger.drift.page() == ()


async def test_a_budget_of_the_fleet_is_told_to_the_operators_and_holds_nobody(bench: Bench) -> None:
    cloud = NamedBudget("cloud", budget(100, AtLimit.WARN), capacity=(Capacity.SPOT,))
    of_nlp = NamedBudget("nlp-cloud", budget(100, AtLimit.WARN), team=TeamName("nlp"))
    await bench.apply(replace(fleet(None), budgets=(cloud, of_nlp)))
    bench.till.spent = {"cloud": Fraction(101), "nlp-cloud": Fraction(10)}
    states = await bench.counted()
    assert (states["cloud"].level, states["nlp-cloud"].level) == (BudgetLevel.SPENT, BudgetLevel.OK)
    assert (await bench.held(), bench.holds()) == ({}, {})
    (told,) = [one.notice for one in await bench.ledger.notices.unrouted(10)]
    assert (told.subject, told.team, told.operators) == ("the budget of cloud is spent", None, True)
    bench.till.spent["nlp-cloud"] = Fraction(90)
    await bench.counted()
    told = [one.notice for one in await bench.ledger.notices.unrouted(10)][-1]
    assert (told.subject, told.team, told.operators) == ("nlp-cloud approaches its budget", "nlp", True)


async def test_prometheus_is_told_what_the_ledger_shows_and_nothing_of_what_left(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(84)}
    nlp = (await bench.counted())["nlp"]
    assert (bench.told("limit"), bench.told("spent")) == (float(nlp.amount), float(nlp.spent))
    assert bench.told("spent_per_day") == float(nlp.per_day)
    assert nlp.runs_out is not None
    day = datetime.combine(nlp.runs_out, datetime.min.time(), UTC).timestamp()
    assert bench.told("runs_out_timestamp_seconds") == day

    bench.till.spent = {}
    await bench.counted()
    assert (bench.told("spent"), bench.told("runs_out_timestamp_seconds")) == (0, None)
    assert (bench.told("state", state="ok"), bench.told("state", state="runs-out")) == (1, 0)

    await bench.apply(fleet(None))  # no budget any more
    await bench.counted()
    assert (bench.told("limit"), bench.told("state", state="ok")) == (None, None)

    await bench.apply(fleet(budget(100)))
    await bench.counted()
    assert bench.told("limit") == 100
    await bench.count.close()  # the lease went elsewhere
    assert [sample for metric in bench.registry.collect() for sample in metric.samples] == []


async def test_the_day_a_budget_runs_out_begins_by_the_fleets_clock(bench: Bench) -> None:
    await bench.apply(fleet(budget(100), zone="America/New_York"))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    today = datetime(2026, 11, 15, 5, tzinfo=UTC)  # midnight in New York
    assert bench.told("runs_out_timestamp_seconds") == today.timestamp()


async def test_nobody_is_held_for_a_rounding(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(10**9 * 100 - 1, 10**9)}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.level, nlp.spent) == (BudgetLevel.WARNED, Decimal("99.999999"))


async def test_a_budget_covers_the_teams_inside_and_holds_them(bench: Bench) -> None:
    await bench.apply(fleet(None, budget(100, AtLimit.LOW_ONLY)))
    bench.till.spent = {"nlp": Fraction(70), "research": Fraction(100), "product": Fraction(1000)}
    assert (await bench.counted())["research"].spent == 100
    assert await bench.held() == {"nlp": "low-only", "research": "low-only"}


async def test_a_warning_holds_nobody(bench: Bench) -> None:
    await bench.apply(fleet(budget(100, AtLimit.WARN)))
    bench.till.spent = {"nlp": Fraction(500)}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.level, nlp.hold) == (BudgetLevel.SPENT, None)
    assert await bench.held() == {}
    assert "jobs continue" in (await bench.events())[-1][1]


async def test_a_new_period_lifts_it_before_anybody_counted_anew(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    assert await bench.held() == {"nlp": "stop"}
    bench.now = DECEMBER
    assert await bench.held() == {}
    bench.till.spent = {}
    nlp = (await bench.counted())["nlp"]
    assert (nlp.period, nlp.level) == (date(2026, 12, 1), BudgetLevel.OK)
    assert (await bench.events())[-1][1].endswith("hold lifted: a new period began")


async def test_the_period_is_of_the_fleets_time_zone(bench: Bench) -> None:
    await bench.apply(fleet(budget(100), zone="America/New_York"))
    bench.now = DECEMBER  # still November there
    assert (await bench.counted())["nlp"].period == date(2026, 11, 1)
    start = int(datetime(2026, 11, 1, 4, tzinfo=UTC).timestamp())
    assert bench.till.asked[0].start == start


async def test_a_server_that_died_between_ledger_and_engine_is_finished_by_the_next(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()  # kept, and killed before anything was written
    bench.begin()
    assert await bench.held() == {"nlp": "stop"}
    writes = len(bench.world.written)
    bench.begin()  # written, and killed before it was known
    assert await bench.held() == {"nlp": "stop"}
    assert len(bench.world.written) == writes
    bench.till.spent = {}
    bench.begin()
    await bench.counted()
    assert await bench.held() == {}


async def test_an_engine_that_is_away_is_asked_again(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    bench.world.deaf = Unreachable("Unreachable", "away", "wait")
    with pytest.raises(Unreachable):
        await bench.held()
    bench.world.deaf = None
    bench.world.faults[ObjectKey("limit", "nlp")] = Unreachable("Unreachable", "away", "wait")
    with pytest.raises(Unreachable):
        await bench.held()
    bench.world.faults.clear()
    assert await bench.held() == {"nlp": "stop"}


async def test_a_hold_is_no_drift_and_a_drift_is_not_healed_by_a_hold(bench: Bench) -> None:
    await bench.apply(fleet(budget(100), share=3))
    key = ObjectKey("limit", "nlp")
    bench.world.objects[key] = FoundObject(key, {"value": 77}, ours=True, changed_by="eve")
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    await bench.held()
    assert bench.world.objects[key].fields == {"value": 77, "hold": "stop"}
    later = 0.0  # than now by the ledger's clock
    drift = FindDrift(
        HPC,
        lambda: HoldToy(bench.world),
        bench.ledger,
        bench.applied,
        PolicyMetrics(CollectorRegistry()),
        clock=lambda: time.time() + later,
    )
    await drift(await bench.lease("drift"))
    assert [(d.entry.key, d.entry.field) for d in await bench.ledger.drift.page()] == [(key, "value")]
    # Not there: just after the budget was spent it is on its way; later somebody took it away by hand, and
    # that is drift, for them to see and an apply to heal.
    bench.world.objects[key] = FoundObject(key, {"value": 3}, ours=True, changed_by="eve")
    await drift(await bench.lease("drift"))
    assert await bench.ledger.drift.page() == ()
    later = PENDING_HOLD_SECONDS + 1
    await drift(await bench.lease("drift"))
    assert [(d.entry.field, d.entry.wanted) for d in await bench.ledger.drift.page()] == [("hold", "stop")]


async def test_an_apply_of_something_else_keeps_the_hold(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    await bench.held()
    await bench.apply(fleet(budget(100), share=9))
    assert bench.world.objects[ObjectKey("limit", "nlp")].fields == {"value": 9, "hold": "stop"}


async def test_a_budget_that_is_taken_away_is_forgotten(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    await bench.held()
    await bench.apply(fleet(None))
    assert bench.holds() == {}
    assert await bench.counted() == {}
    assert await bench.held() == {}


async def test_without_budgets_nobody_looks(bench: Bench) -> None:
    await bench.apply(fleet(None))
    looks = bench.world.looks
    await bench.counted()
    await bench.held()
    assert bench.world.looks == looks and bench.till.asked == []


async def test_once_held_a_round_asks_no_engine(bench: Bench) -> None:
    await bench.apply(fleet(budget(100)))
    bench.till.spent = {"nlp": Fraction(100)}
    await bench.counted()
    await bench.held()
    looks = bench.world.looks
    await bench.held()
    assert bench.world.looks == looks


def test_a_smaller_budget_holds_at_once_by_what_was_counted() -> None:
    kept = StoredBudgetStatus(
        TeamName("nlp"),
        date(2026, 11, 1),
        Decimal(1000),
        Decimal(400),
        Decimal(0),
        None,
        BudgetLevel.OK,
        None,
    )
    assert holds_of(fleet(budget(1000)), [kept], NOVEMBER) == {}
    assert holds_of(fleet(budget(400)), [kept], NOVEMBER) == {"nlp": Hold.STOP}
    assert holds_of(fleet(budget(400)), [kept], DECEMBER) == {}
    quarterly = replace(budget(400), every=Every.QUARTER)
    assert holds_of(fleet(quarterly), [kept], NOVEMBER) == {}  # counted for a month: not yet for this
