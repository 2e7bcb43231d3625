"""Everything that a fleet file takes away is on the first screen of its plan, and needs force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairway.cli.output.plan import plan_lines
from fairway.model.budget import Budget
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import Commitment, PriceStep, Pricing
from fairway.model.team import Team
from fairway.model.text import duration_text
from fairway.policy.recent_use import RecentUse
from fairway.policy.removals import RemovalKind, find_removals
from fairway.services.policy import field_diffs
from fairway.services.removals import count_removals
from fairway.views.removals import confirmation_names
from fairway.wire import policy as wire
from tests.strategies.fleets import fleets

FIRST_SCREEN = 40
WIDTH = 100
PAIRS = 200

CUT = {SliceName("1g.10gb"): 4, SliceName("3g.40gb"): 1}
LAYOUT = {"hpc": ("hpc-a100", "hpc-mig"), "cloud": ("cloud-a100", "cloud-mig"), "edge": ("edge-a100",)}
PRICINGS = (
    Pricing(),
    Pricing(discount=Decimal("0.12")),
    Pricing(steps=(PriceStep(date(2026, 7, 1), Decimal("1.75")),)),
    Pricing(commitments=(Commitment(32, Decimal("2.10"), date(2026, 1, 1), date(2027, 1, 1)),)),
)


@st.composite
def worlds(draw: st.DrawFn) -> Fleet:
    """A fleet on some clusters with some of their pools, with prices, overhead and budgets."""
    names = draw(st.lists(st.sampled_from(sorted(LAYOUT)), min_size=1, unique=True))
    clusters = []
    for name in names:
        overhead = draw(st.sampled_from([{}, {"power": Decimal(4000)}, {"people": Decimal(9000)}]))
        pools = draw(st.lists(st.sampled_from(LAYOUT[name]), min_size=1, unique=True))
        cluster = Cluster(ClusterName(name), VirtualConnection(), overhead=overhead)
        clusters.append((cluster, [_pool(draw, pool, ClusterName(name)) for pool in pools]))
    fleet = draw(fleets(clusters))
    return replace(fleet, teams=tuple(_with_budget(draw, team) for team in fleet.teams))


def _pool(draw: st.DrawFn, name: str, cluster: ClusterName) -> Pool:
    cut = CUT if name.endswith("mig") else {}
    return Pool(
        PoolName(name),
        cluster,
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal("1.90"),
        VirtualPlace(4, 8, cut),
        tuple(cut),
        pricing=draw(st.sampled_from(PRICINGS)),
    )


def _with_budget(draw: st.DrawFn, team: Team) -> Team:
    amount = draw(st.sampled_from([None, None, Decimal(5000), Decimal(120_000)]))
    return team if amount is None else replace(team, budget=Budget(amount))


USED = RecentUse.of({f"user{n}": 3600 * (900 - n) for n in range(9)})
USABLE = frozenset(RemovalKind) - {
    RemovalKind.BUDGET,
    RemovalKind.LIMIT,
    RemovalKind.PRICE,
    RemovalKind.OVERHEAD,
    RemovalKind.DEFAULT_TEAM,
}


def plan_of(before: Fleet, after: Fleet, history: dict[TeamName, int], *, used: bool = False) -> wire.Plan:
    found = find_removals(before, after)
    users = {r: USED for r in found if used and r.kind in USABLE}
    return wire.Plan(
        fleet=after.name,
        digest="",
        diff=field_diffs(before, after),
        removals=count_removals(found, history, (), (), users),
        clusters=[],
        failures=[],
        warnings=[],
    )


def first_screen(plan: wire.Plan) -> str:
    lines = plan_lines(plan, WIDTH, wide=False)
    return " ".join(" ".join(line.text for line in lines[:FIRST_SCREEN]).split())


def what_disappears(before: Fleet, after: Fleet) -> Iterator[tuple[str, str, bool]]:
    """Everything that is gone, by another walk than the one under test: name, what is shown, forced."""
    clusters, pools = {c.name for c in after.clusters}, {p.name: p for p in after.pools}
    teams, was = {t.name: t for t in after.teams}, {t.name: t for t in before.teams}
    yield from ((c.name, f"cluster {c.name}", True) for c in before.clusters if c.name not in clusters)
    for pool in before.pools:
        if pool.name not in pools:
            yield (pool.name if pool.cluster in clusters else pool.cluster), pool.name, True
        elif pool.pricing.discount and not pools[pool.name].pricing.discount:
            yield pool.name, f"discount of {pool.name}", True
        elif pool.pricing.steps and not pools[pool.name].pricing.steps:
            yield pool.name, f"price from 2026-07-01 of {pool.name}", True
        elif pool.pricing.commitments and not pools[pool.name].pricing.commitments:
            yield pool.name, f"until 2027-01-01 of {pool.name}", True
    for cluster in before.clusters:
        now = next((c for c in after.clusters if c.name == cluster.name), None)
        for what in cluster.overhead if now else ():
            if now and what not in now.overhead:
                yield cluster.name, f"{what} of {cluster.name}", True
    priorities = {p.name for p in after.priorities}
    yield from ((p.name, f"{p.name}", True) for p in before.priorities if p.name not in priorities)
    for team in before.teams:
        if team.budget and not (team.name in teams and teams[team.name].budget):
            yield team.name, f"of {team.name} ({team.budget.amount:,f} a month)", True
        if team.name not in teams:
            yield team.name, team.name, False
            yield from ((team.name, member, False) for member in team.members)
        else:
            yield from _of_team(team, teams[team.name], was, teams, pools)


def _of_team(
    old: Team, new: Team, was: dict[TeamName, Team], teams: dict[TeamName, Team], pools: dict[PoolName, Pool]
) -> Iterator[tuple[str, str, bool]]:
    yield from ((old.name, f"{m} of {old.name}", False) for m in old.members if m not in new.members)
    for field, what, text in (
        ("job_gpus", "GPUs of a job", str),
        ("job_seconds", "time of a job", duration_text),
        ("user_gpus", "GPUs of a user", str),
    ):
        value = getattr(old.limits, field)
        if value is not None and getattr(new.limits, field) is None:
            owner = old  # the topmost of the teams that had it from above, and lose it together
            while (
                owner.parent in teams
                and getattr(was[owner.parent].limits, field) == value
                and getattr(teams[owner.parent].limits, field) is None
            ):
                owner = was[owner.parent]
            yield owner.name, f"{what} of {owner.name} ({text(value)})", True
    for grant in old.grants:
        pool = pools.get(grant.supply.pool)
        if pool is None or grant.supply not in pool.supplies or not grant.guarantee:
            continue
        if not any(g.supply == grant.supply and g.guarantee for g in new.grants):
            yield old.name, f"of {old.name} on {grant.supply} ({grant.guarantee})", True


# Without shrinking: a pair of fleets is read from two files, and the message names what is missing.
@settings(
    max_examples=PAIRS,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    worlds(),
    worlds(),
    st.sets(st.sampled_from(["research", "nlp", "vision", "product", "search"])),
    st.booleans(),
)
def test_what_disappears_is_on_the_first_screen_and_needs_force(
    before: Fleet, after: Fleet, busy: set[str], used: bool
) -> None:
    plan = plan_of(before, after, {TeamName(name): 12 for name in busy}, used=used)
    screen, confirmed = first_screen(plan), confirmation_names(plan.removals)
    remaining = {t.name for t in after.teams}
    for name, shown, forced in what_disappears(before, after):
        assert shown in screen, f"{shown} disappears and is not on the first screen:\n{screen}"
        if forced or (shown == name and name in busy and name not in remaining):
            assert name in confirmed, f"{shown} disappears and nothing asks for {name}"


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_the_same_fleet_removes_nothing(fleet: Fleet) -> None:
    assert find_removals(fleet, fleet) == ()


def fleet_with(*teams: Team, pools: int = 1) -> Fleet:
    cluster = ClusterName("hpc")
    names = [PoolName(f"p{n}") for n in range(pools)]
    gpu = CATALOGUE["A100-80GB"]
    return Fleet(
        "acme",
        "USD",
        (Cluster(cluster, VirtualConnection()),),
        tuple(Pool(n, cluster, gpu, Capacity.OWNED, Decimal(1), VirtualPlace(1)) for n in names),
        teams,
    )


@pytest.mark.parametrize(("teams", "lines"), [(20, 24), (200, 40)])
def test_many_teams_that_go_are_all_named(teams: int, lines: int) -> None:
    before = fleet_with(*(Team(TeamName(f"t{n:03}")) for n in range(teams)))
    plan = plan_of(before, fleet_with(), {TeamName("t001"): 3})
    text = [line.text for line in plan_lines(plan, WIDTH, wide=False)]
    screen = " ".join(text[:lines])
    assert all(f"t{n:03}" in screen for n in range(teams))
    assert confirmation_names(plan.removals) == ["t001"]


def test_a_team_without_jobs_goes_without_force() -> None:
    removals = count_removals(find_removals(fleet_with(Team(TeamName("a"))), fleet_with()), {}, (), ())
    assert [(r.kind, r.name, r.needs_force) for r in removals] == [(RemovalKind.TEAM, "a", False)]
