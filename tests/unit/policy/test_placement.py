"""Where jobs go: table by table, and what must hold whatever the fleet and its queues are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.errors import PermanentError
from fairway.model.fleet import (
    Capacity,
    Cluster,
    Connection,
    Fleet,
    KubernetesConnection,
    Pool,
    SlurmConnection,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.job import GpuRequest, JobSpec, Tolerates
from fairway.model.names import ClusterName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.price import PriceStep, Pricing
from fairway.model.team import DEFAULT_PRIORITIES, Grant, Limits, Supply, Team
from fairway.policy.placement import (
    NoPoolFits,
    NotAllowed,
    PlacementOptions,
    Start,
    SupplyState,
    choose,
    matches,
    options,
    priority_of,
    team_of,
)
from tests.unit.policy.clusters import patient

ADA = UserName("ada")
NORMAL = next(p for p in DEFAULT_PRIORITIES if p.name == "normal")
LOW = next(p for p in DEFAULT_PRIORITIES if p.name == "low")
PRIORITIES = tuple(p.name for p in DEFAULT_PRIORITIES)
SLURM = SlurmConnection("http://hpc", jwt_key_file="key")


def pool(name: str, gpu: str = "A100-80GB", *, on: str = "hpc", price: str = "1.90", **more: object) -> Pool:
    made = Pool(
        PoolName(name),
        ClusterName(on),
        CATALOGUE[gpu],
        Capacity.OWNED,
        Decimal(price),
        VirtualPlace(nodes=4),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def team(name: str = "research", *grants: Grant, **more: object) -> Team:
    made = Team(TeamName(name), grants=grants, priorities=PRIORITIES, members=(ADA,))
    return replace(made, **more)  # type: ignore[arg-type]


def fleet(*pools: Pool, teams: tuple[Team, ...] = (), **clusters: Connection) -> Fleet:
    there = {p.cluster: clusters.get(p.cluster, VirtualConnection()) for p in pools}
    return Fleet("acme", "USD", tuple(Cluster(n, c) for n, c in there.items()), pools, teams)


def spec(gpus: GpuRequest | int = 1, **more: object) -> JobSpec:
    asked = GpuRequest(gpus) if isinstance(gpus, int) else gpus
    return replace(JobSpec("train", asked, ("true",)), **more)  # type: ignore[arg-type]


def borrows(name: str, guarantee: int = 0, borrow: int | None = None) -> Grant:
    return Grant(Supply(PoolName(name)), guarantee, borrow)


def ask(job: JobSpec, where: Fleet, stocks: Mapping[str, SupplyState] | None = None) -> PlacementOptions:
    known = {Supply(PoolName(name)): stock for name, stock in (stocks or {}).items()}
    return options(job, where.teams[0], priority_of(where, job, where.teams[0]), where, known)


def chosen(found: PlacementOptions) -> str:
    return str(choose(found).supply)


@pytest.mark.parametrize(
    ("asked", "gpu", "fits"),
    [
        (GpuRequest(1, model="A100"), "A100-40GB", True),
        (GpuRequest(1, model="A100"), "A100-80GB", True),
        (GpuRequest(1, model="a100-80gb"), "A100-80GB", True),
        (GpuRequest(1, model="A100-80GB"), "A100-40GB", False),
        (GpuRequest(1, model="A10"), "A100-40GB", False),
        (GpuRequest(1, model="A100"), "H100-80GB", False),
        (GpuRequest(1, memory_gb=(40, 80)), "A100-40GB", True),
        (GpuRequest(1, memory_gb=(40, 80)), "H200-141GB", False),
        (GpuRequest(1, memory_gb=(41, None)), "A100-40GB", False),
        (GpuRequest(1, memory_gb=(41, None)), "A100-80GB", True),
        (GpuRequest(1), "A100-40GB", True),
        (GpuRequest(1, slice=SliceName("1g.10gb")), "A100-80GB", False),
    ],
)
def test_what_was_asked_for(asked: GpuRequest, gpu: str, *, fits: bool) -> None:
    there = pool("p", gpu)
    assert matches(asked, there, there.supplies[0]) is fits


def test_slices_are_only_for_who_asks_for_them() -> None:
    cut = pool("mig", slices=(SliceName("1g.10gb"), SliceName("2g.20gb")))
    one, two = cut.supplies
    asked = GpuRequest(1, slice=SliceName("1g.10gb"))
    assert (matches(asked, cut, one), matches(asked, cut, two)) == (True, False)
    assert not matches(GpuRequest(1), cut, one)
    assert not matches(GpuRequest(1, memory_gb=(5, None)), cut, one)


def test_the_guarantee_comes_first_then_what_is_lent_then_the_shorter_queue_then_the_price() -> None:
    names = ("waits", "long", "lent", "back", "mine")
    grants = (
        *(borrows(n) for n in ("waits", "long", "lent")),
        borrows("back", 8),
        borrows("mine", 8),
    )
    where = fleet(
        *(pool(n, price=str(i)) for i, n in enumerate(names, 1)), teams=(team("research", *grants),)
    )
    stocks = {
        "waits": SupplyState(32, 0, waiting=4),
        "long": SupplyState(32, 0, waiting=40),
        "lent": SupplyState(32, 12),
        "back": SupplyState(32, 0, waiting=99, lent=4),
        "mine": SupplyState(32, 8),
    }
    found = ask(spec(4), where, stocks)
    assert [(str(o.supply), o.start) for o in found.fits] == [
        ("mine", Start.GUARANTEED),
        ("back", Start.RECLAIMED),
        ("lent", Start.LENT),
        ("waits", Start.WAITS),
        ("long", Start.WAITS),
    ]


def test_a_guarantee_comes_back_only_from_what_teams_borrow() -> None:
    where = fleet(pool("a"), teams=(team("t", borrows("a", 8)),))
    lent = choose(ask(spec(4), where, {"a": SupplyState(32, 1, lent=3)})).why
    assert "on loan, which will be reclaimed now" in lent
    # held by jobs from before the policy, or of accounts that are no team: nothing takes them back
    held = choose(ask(spec(4), where, {"a": SupplyState(32, 1, lent=2)})).why
    assert held.startswith("a has 1 of 32 GPUs free and 0 requested by waiting jobs")


def test_a_user_at_the_limit_is_told_so() -> None:
    limited = replace(team("t", borrows("a", 8)), limits=Limits(user_gpus=6))
    where = fleet(pool("a"), teams=(limited,))
    stock = {"a": SupplyState(32, 8, user_held=4)}
    assert "you already use 4 of the 6 that one user of t may use" in choose(ask(spec(4), where, stock)).why
    assert choose(ask(spec(2), where, stock)).why.startswith("a has 8 GPUs free")


def test_the_cheapest_on_a_tie_then_the_order_of_the_file() -> None:
    grants = tuple(borrows(n) for n in ("a", "b", "c"))
    where = fleet(
        pool("a", price="2"), pool("b", price="1"), pool("c", price="1"), teams=(team("t", *grants),)
    )
    stocks = {n: SupplyState(32, 12) for n in "abc"}
    found = ask(spec(4), where, stocks)
    assert [str(o.supply) for o in found.fits] == ["b", "c", "a"]
    assert (
        choose(found).why
        == "b has 12 GPUs free; c has 12 GPUs free. Both are equal, and b is first in the fleet file"
    )
    stocks["b"] = stocks["c"] = SupplyState(32, 0, waiting=1)
    assert choose(ask(spec(4), where, stocks)).why == (
        "a has 12 GPUs free; b has 0 of 32 GPUs free and 1 requested by waiting jobs. "
        "a starts it sooner, but costs more (2.00 vs 1.00 per GPU-hour)"
    )


def test_a_price_is_that_of_the_day() -> None:
    cheaper = Pricing(steps=(PriceStep(date(2026, 7, 1), Decimal("0.50")),))
    where = fleet(
        pool("a", price="1"),
        pool("b", price="2", pricing=cheaper),
        teams=(team("t", borrows("a"), borrows("b")),),
    )
    stocks = {Supply(PoolName(n)): SupplyState(32, 12) for n in "ab"}
    found = {
        day: options(spec(4), where.teams[0], where.default_priority, where, stocks, today=day).fits[0]
        for day in (None, date(2026, 6, 30), date(2026, 7, 1))
    }
    assert [(str(o.supply), o.price) for o in found.values()] == [
        ("a", Decimal(1)),
        ("a", Decimal(1)),
        ("b", Decimal("0.50")),
    ]


def test_those_who_wait_are_before_whoever_comes_now() -> None:
    where = fleet(pool("a"), teams=(team("t", borrows("a")),))
    assert ask(spec(4), where, {"a": SupplyState(32, 8, waiting=4)}).fits[0].start is Start.LENT
    assert ask(spec(4), where, {"a": SupplyState(32, 8, waiting=5)}).fits[0].start is Start.WAITS


def test_what_a_team_holds_already_is_not_promised_again() -> None:
    where = fleet(pool("a"), teams=(team("t", borrows("a", 8, 4)),))
    t = TeamName("t")

    def start(busy: int) -> Start:
        return ask(spec(4), where, {"a": SupplyState(32, 32, busy={t: busy})}).fits[0].start

    assert [start(n) for n in (0, 4, 5, 8, 9)] == [
        Start.GUARANTEED,
        Start.GUARANTEED,
        Start.LENT,
        Start.LENT,
        Start.WAITS,
    ]


def test_the_parents_ceiling_binds_too() -> None:
    above, inside = team("lab", borrows("a", 0, 8)), team("nlp", borrows("a"), parent=TeamName("lab"))
    where = fleet(pool("a"), teams=(above, inside))
    stocks = {Supply(PoolName("a")): SupplyState(64, 64, busy={above.name: 6})}
    assert options(spec(2), inside, NORMAL, where, stocks).fits[0].start is Start.LENT
    assert options(spec(4), inside, NORMAL, where, stocks).fits[0].start is Start.WAITS
    with pytest.raises(NoPoolFits, match="a allows team lab 8 GPUs, and the request is for 9"):
        choose(options(spec(9), inside, NORMAL, where, stocks))


def test_a_preemptible_priority_has_no_guarantee() -> None:
    where = fleet(pool("a"), teams=(team("t", borrows("a", 8)),))
    job = spec(4, priority=PriorityName("low"))
    assert ask(job, where, {"a": SupplyState(32, 8)}).fits[0].start is Start.LENT
    assert ask(job, where, {"a": SupplyState(32, 0)}).fits[0].start is Start.WAITS


def test_a_cluster_that_cannot_be_reached_comes_last() -> None:
    where = fleet(
        pool("away", on="hpc", price="1"),
        pool("here", on="cloud", price="9"),
        teams=(team("t", borrows("away", 8), borrows("here")),),
    )
    stocks = {"away": SupplyState(32, 32, reachable=False), "here": SupplyState(32, 0, waiting=64)}
    assert chosen(ask(spec(4), where, stocks)) == "here"


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (spec(1, pool=PoolName("cloud-spot")), "cloud-spot is spot"),
        (spec(GpuRequest(1, model="H100")), "hpc-a100 has whole A100-80GB, not H100"),
        (spec(1, pool=PoolName("nobodys")), "nobodys is not granted to team research"),
        (
            spec(8, nodes=3, pool=PoolName("hpc-a100")),
            "allows 16 GPUs for one job of team research, and the request is for 24",
        ),
        (spec(16, pool=PoolName("hpc-a100")), "at most 8 GPUs on one node, and the request is for 16"),
        (
            spec(6, nodes=2, pool=PoolName("hpc-a100")),
            "allows team research 10 GPUs, and the request is for 12",
        ),
        (
            spec(1, pool=PoolName("hpc-a100"), time_seconds=7201),
            "allows 2h for one job of team research, and the request is for 2h1s",
        ),
    ],
)
def test_each_pool_says_why_not(job: JobSpec, says: str) -> None:
    research = team(
        "research",
        borrows("hpc-a100", 10, 0 if job.devices != 16 else 9),
        borrows("cloud-spot"),
        limits=Limits(job_gpus=16, job_seconds=7200),
    )
    where = fleet(
        pool("hpc-a100"),
        pool("cloud-spot", on="cloud", capacity=Capacity.SPOT),
        pool("nobodys"),
        teams=(research,),
        hpc=SLURM,
        cloud=KubernetesConnection(),
    )
    stocks = {"hpc-a100": SupplyState(32, 32, largest_node=8), "cloud-spot": SupplyState(4, 4)}
    with pytest.raises(NoPoolFits) as refused:
        choose(ask(job, where, stocks))
    assert says in refused.value.message
    assert refused.value.code == "NoPoolFits"
    assert refused.value.hint


def test_the_hint_is_about_what_came_nearest() -> None:
    where = fleet(pool("h", "H100-80GB"), pool("a", capacity=Capacity.SPOT), teams=(team("t", borrows("a")),))
    with pytest.raises(NoPoolFits) as refused:
        choose(ask(spec(GpuRequest(1, model="A100")), where))
    assert refused.value.hint == "submit it with  --tolerates spot"
    assert refused.value.message.startswith(
        "no pool fits: a is spot capacity, whose nodes can be lost; h has whole H100"
    )


def test_what_an_engine_would_refuse_is_not_chosen() -> None:
    where = fleet(pool("a", price="1"), pool("b", price="2"), teams=(team("t", borrows("a"), borrows("b")),))
    refusals = {Supply(PoolName("a")): PermanentError("NoRacks", "knows no racks", "leave it out")}
    found = options(spec(), where.teams[0], NORMAL, where, {}, refusals)
    assert chosen(found) == "b"
    assert [(str(m.supply), m.why) for m in found.misfits] == [("a", "would refuse it: knows no racks")]


def test_spot_is_for_who_tolerates_it() -> None:
    where = fleet(pool("a", capacity=Capacity.SPOT), teams=(team("t", borrows("a")),))
    assert chosen(ask(spec(tolerates=frozenset({Tolerates.SPOT})), where)) == "a"


def test_a_pool_that_is_not_there() -> None:
    where = fleet(pool("hpc-a100"), teams=(team("t", borrows("hpc-a100")),))
    with pytest.raises(NoPoolFits) as refused:
        ask(spec(pool=PoolName("hpc-a10")), where)
    assert (refused.value.code, refused.value.hint) == ("NoSuchPool", "did you mean hpc-a100?")


@pytest.mark.parametrize(
    ("user", "name", "code"),
    [
        ("ada", None, ""),
        ("ada", "research", ""),
        ("ada", "product", "NotAMember"),
        ("eve", "research", "NotAMember"),
        ("eve", None, "NoTeam"),
        ("ada", "reserch", "NoSuchTeam"),
        ("bob", "old", "TeamDraining"),
    ],
)
def test_whose_team_it_is(user: str, name: str | None, code: str) -> None:
    bob = (UserName("bob"),)
    teams = (team("research"), team("product", members=bob), team("old", members=bob, draining=True))
    where = fleet(pool("a"), teams=teams)
    job = spec(team=TeamName(name) if name else None)
    if not code:
        assert team_of(where, job, UserName(user)).name == "research"
        return
    with pytest.raises(NotAllowed) as refused:
        team_of(where, job, UserName(user))
    assert refused.value.code == code
    assert refused.value.hint


def test_projects_are_the_teams() -> None:
    where = fleet(pool("a"), teams=(replace(team("t"), projects=("llm", "vision")),))
    (ada,) = where.teams[0].members
    for project in (None, "llm"):
        assert team_of(where, spec(project=project), ada).name == "t"
    with pytest.raises(NotAllowed) as refused:
        team_of(where, spec(project="lm"), ada)
    assert (refused.value.code, refused.value.message) == ("ProjectNotAllowed", "team t has no project 'lm'")
    assert "llm, vision" in refused.value.hint
    assert team_of(fleet(pool("a"), teams=(team("t"),)), spec(project="any"), ada).name == "t"


def test_priorities_are_the_teams() -> None:
    where = fleet(pool("a"), teams=(team("t", priorities=(PriorityName("low"),)),))
    (t,) = where.teams
    assert priority_of(where, spec(), t) == LOW
    assert priority_of(where, spec(), replace(t, priorities=PRIORITIES)) == NORMAL
    for name, code in (("urgent", "PriorityNotAllowed"), ("hasty", "NoSuchPriority")):
        with pytest.raises(NotAllowed) as refused:
            priority_of(where, spec(priority=PriorityName(name)), t)
        assert refused.value.code == code


# whatever the fleet

GPUS = ("A100-40GB", "A100-80GB", "H100-80GB")
KINDS = (
    GpuRequest(),
    GpuRequest(model="A100"),
    GpuRequest(memory_gb=(40, 60)),
    GpuRequest(slice=SliceName("1g.10gb")),
)
NAMES = tuple(PoolName(f"p{i}") for i in range(5))
counts = st.integers(0, 40)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Fleet, Team, JobSpec, dict[Supply, SupplyState]]:
    pools = tuple(
        pool(
            name,
            draw(st.sampled_from(GPUS)),
            on=draw(st.sampled_from(["hpc", "cloud"])),
            price=str(draw(st.integers(1, 3))),
            capacity=draw(st.sampled_from([Capacity.OWNED, Capacity.SPOT])),
            slices=draw(st.sampled_from([(), (), (SliceName("1g.10gb"),)])),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    )
    supplies = [s for p in pools for s in p.supplies]
    above, own = TeamName("above"), TeamName("own")

    def grants() -> tuple[Grant, ...]:
        some = draw(st.lists(st.sampled_from(supplies), unique=True))
        return tuple(Grant(s, draw(counts), draw(st.none() | counts)) for s in some)

    limits = Limits(draw(st.none() | st.integers(1, 20)), draw(st.none() | st.just(60)))
    teams = (
        Team(above, grants=grants()),
        Team(own, above, grants=grants(), limits=limits, priorities=PRIORITIES, members=(ADA,)),
    )
    stocks = {}
    for supply in supplies:
        if draw(st.booleans()):
            total = draw(counts)
            stocks[supply] = SupplyState(
                total,
                draw(st.integers(0, total)),
                draw(st.none() | st.integers(1, 8)),
                reachable=draw(st.sampled_from([True, True, False])),
                busy={above: draw(counts), own: draw(counts)},
                waiting=draw(counts),
            )
    job = spec(
        replace(draw(st.sampled_from(KINDS)), count=draw(st.integers(1, 10))),
        nodes=draw(st.integers(1, 3)),
        pool=draw(st.none() | st.sampled_from([p.name for p in pools])),
        priority=draw(st.sampled_from([None, *PRIORITIES])),
        time_seconds=draw(st.sampled_from([None, 30, 90])),
        image=draw(st.sampled_from([None, "cuda"])),
        tolerates=draw(st.sampled_from([frozenset(), frozenset({Tolerates.SPOT})])),
    )
    return fleet(*pools, teams=teams, hpc=SLURM, cloud=KubernetesConnection()), teams[1], job, stocks


@patient
@given(situations())
def test_nothing_is_chosen_that_may_not_be(
    drawn: tuple[Fleet, Team, JobSpec, dict[Supply, SupplyState]],
) -> None:
    where, own, job, stocks = drawn
    found = options(job, own, priority_of(where, job, own), where, stocks)
    every = [s for p in where.pools for s in p.supplies]
    assert sorted([o.supply for o in found.fits] + [m.supply for m in found.misfits]) == sorted(every)
    if not found.fits:
        with pytest.raises(NoPoolFits):
            choose(found)
        return
    placed = choose(found)
    there = where.pool(placed.supply.pool)
    stock = stocks.get(placed.supply, SupplyState())
    assert placed.cluster == there.cluster
    assert matches(job.gpus, there, placed.supply)
    assert job.pool in {None, there.name}
    assert there.capacity is not Capacity.SPOT or Tolerates.SPOT in job.tolerates
    assert job.image is None or there.cluster == "cloud" or job.pool is not None
    grant = own.grant(placed.supply)
    assert grant is not None
    for holder in where.teams:
        held = holder.grant(placed.supply)
        assert held is None or held.ceiling is None or job.devices <= held.ceiling
    assert own.limits.job_gpus is None or job.devices <= own.limits.job_gpus
    assert own.limits.job_seconds is None or (job.time_seconds or 0) <= own.limits.job_seconds
    assert stock.total is None or job.devices <= stock.total
    assert stock.largest_node is None or job.gpus.count <= stock.largest_node


@patient
@given(situations())
def test_nothing_better_in_every_way_is_passed_over(
    drawn: tuple[Fleet, Team, JobSpec, dict[Supply, SupplyState]],
) -> None:
    where, own, job, stocks = drawn
    found = options(job, own, priority_of(where, job, own), where, stocks)
    if not found.fits:
        return
    best = next(o for o in found.fits if o.supply == choose(found).supply)
    for other in found.fits:
        no_worse = other.start <= best.start and other.queue <= best.queue and other.price <= best.price
        same = (other.start, other.queue, other.price) == (best.start, best.queue, best.price)
        assert same or not no_worse


@patient
@given(situations())
def test_more_room_never_makes_a_start_later(
    drawn: tuple[Fleet, Team, JobSpec, dict[Supply, SupplyState]],
) -> None:
    where, own, job, stocks = drawn
    priority = priority_of(where, job, own)
    before = {o.supply: o.start for o in options(job, own, priority, where, stocks).fits}
    roomy = {
        s: replace(k, total=None if k.total is None else k.total + 5, free=k.free + 5)
        for s, k in stocks.items()
    }
    after = {o.supply: o.start for o in options(job, own, priority, where, roomy).fits}
    assert all(after[supply] <= start for supply, start in before.items())


@pytest.mark.parametrize("user", ["root", "fairway"])
def test_a_reserved_user_has_no_team_even_as_a_member(user: str) -> None:
    where = fleet(pool("a"), teams=(replace(team("t", borrows("a")), members=(UserName(user),)),))
    with pytest.raises(NotAllowed) as refused:
        team_of(replace(where, clusters=(Cluster(ClusterName("hpc"), SLURM),)), spec(1), UserName(user))
    assert refused.value.code == "SystemUser"


def test_a_shorter_queue_is_compared_with_room_and_price() -> None:
    where = fleet(
        pool("a", price="1.75"), pool("b", price="3.67"), teams=(team("t", borrows("a"), borrows("b")),)
    )
    stocks = {"a": SupplyState(96, 2, waiting=122), "b": SupplyState(48, 24, waiting=109)}
    assert choose(ask(spec(8), where, stocks)).why == (
        "a has 2 of 96 GPUs free and 122 requested by waiting jobs; b has 24 of 48 GPUs free and 109 "
        "requested "
        "by waiting jobs. The queue of a is shorter for its size (1.3 vs 2.3 requested for each GPU), and "
        "a is "
        "cheaper (1.75 vs 3.67 per GPU-hour)"
    )


@pytest.mark.parametrize("gpus", [99, 96, 64])
def test_the_hint_is_a_request_that_fits(gpus: int) -> None:
    where = fleet(pool("a"), teams=(team("t", borrows("a")),))
    stocks = {"a": SupplyState(96, 96, largest_node=8)}
    with pytest.raises(NoPoolFits) as refused:
        choose(ask(spec(gpus), where, stocks))
    nodes = min(gpus, 96) // 8
    assert refused.value.hint.endswith(f"--gpus 8 --nodes {nodes}")
    assert choose(ask(spec(8, nodes=nodes), where, stocks)).supply.pool == "a"
