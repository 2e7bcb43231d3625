"""The map of a pool, what fits on it, what it costs: decisions alone."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairway.explain.reasons import REASONS, WAITS_FOR_CAPACITY
from fairway.ledger.pools import DeviceRow, Holder, WaitingGroup
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import JobId, format_job_id
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, TeamName, UserName
from fairway.model.observation import Health
from fairway.model.price import PriceStep, Pricing
from fairway.model.team import Supply
from fairway.web.pages.pool import node_map
from fairway.web.pages.pool import view_model as pool_view_model
from fairway.web.pages.pool.node_map import Colouring, MapColours

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def pool(per_rack: int | None = None, **more: object) -> Pool:
    place = VirtualPlace(nodes=4, nodes_per_rack=per_rack)
    return Pool(
        PoolName("a100"),
        ClusterName("hpc"),
        GpuType("A100-80GB", 80),
        Capacity.OWNED,
        Decimal("1.90"),
        place,
        **more,  # type: ignore[arg-type]
    )


def row(
    node: str,
    in_use: int = 0,
    *,
    total: int = 8,
    health: Health = Health.READY,
    unhealthy: int = 0,
    slice_: str | None = None,
) -> DeviceRow:
    cut = None if slice_ is None else SliceName(slice_)
    return DeviceRow(NodeName(node), health, "", NOW, cut, total, in_use, unhealthy)


def holder(number: int, devices: int, *nodes: str, team: str = "nlp") -> Holder:
    return Holder(
        JobId(number),
        f"job-{number}",
        UserName("ada"),
        TeamName(team),
        None,
        None,
        devices,
        tuple(NodeName(n) for n in nodes),
        NOW,
        number,
    )


PLAIN = MapColours()


def waits(least: int, code: str, reason: str = "so says the engine") -> WaitingGroup:
    supply = Supply(PoolName("a100"))
    return WaitingGroup(ClusterName("hpc"), None, None, supply, "", reason, code, 1, least, least, NOW)


def blocks(rack: node_map.Rack) -> list[list[tuple[str, int, str]]]:
    return [[(b.kind, b.count, b.label) for r in t.rows for b in r.blocks] for t in rack.tiles]


def test_nodes_stand_in_the_order_people_count() -> None:
    found = node_map.pool_nodes([row("n10"), row("n2"), row("n1")])
    assert [m.name for m in found] == ["n1", "n2", "n10"]


def test_a_job_is_a_block_as_wide_as_what_it_holds_on_each_node() -> None:
    every = node_map.pool_nodes([row("n1", 6), row("n2", 4)])
    (rack,) = node_map.racks(
        pool(), every, every, [holder(1, 8, "n1", "n2"), holder(2, 2, "n1", team="cv")], PLAIN
    )
    assert blocks(rack) == [
        [("used", 4, "nlp"), ("used", 2, "cv"), ("idle", 2, "")],
        [("used", 4, "nlp"), ("idle", 4, "")],
    ]
    first = rack.tiles[0].rows[0].blocks[1]
    assert (first.start, first.width, first.link) == ("50", "25", f"/jobs/{format_job_id(JobId(2))}")


def test_what_is_in_use_by_nobody_known_is_said_so() -> None:
    every = node_map.pool_nodes([row("n1", 5)])
    (rack,) = node_map.racks(pool(), every, every, [holder(1, 4, "n1")], PLAIN)
    assert blocks(rack) == [[("used", 4, "nlp"), ("unknown", 1, "?"), ("idle", 3, "")]]


def test_no_more_is_drawn_as_held_than_the_node_says() -> None:
    every = node_map.pool_nodes([row("n1", 2)])
    (rack,) = node_map.racks(pool(), every, every, [holder(1, 8, "n1")], PLAIN)
    assert blocks(rack) == [[("used", 2, "nlp"), ("idle", 6, "")]]


@pytest.mark.parametrize(
    ("health", "unhealthy", "expected"),
    [
        (Health.DRAINED, 0, [("unknown", 2, "?"), ("drained", 6, "")]),
        (Health.DOWN, 0, [("unknown", 2, "?"), ("down", 6, "")]),
        (Health.READY, 1, [("unknown", 2, "?"), ("down", 1, ""), ("idle", 5, "")]),
    ],
)
def test_what_cannot_be_had_is_not_idle(
    health: Health, unhealthy: int, expected: list[tuple[str, int, str]]
) -> None:
    every = node_map.pool_nodes([row("n1", 2, health=health, unhealthy=unhealthy)])
    assert blocks(node_map.racks(pool(), every, every, [], PLAIN)[0]) == [expected]


def test_the_map_is_coloured_by_team_user_or_job() -> None:
    """All jobs in one green, as it was, say nothing of whose they are."""
    every = node_map.pool_nodes([row("n1", 8)])
    jobs = [holder(1, 4, "n1"), holder(2, 2, "n1", team="cv"), holder(3, 2, "n1")]
    looks = {}
    for by in Colouring:
        colours = MapColours(by, {"nlp": 3, "cv": 13}, frozenset({"cv"}))
        found = node_map.racks(pool(), every, every, jobs, colours)
        looks[by] = [b.colour for b in found[0].tiles[0].rows[0].blocks]
        entries, more = node_map.legend(found)
        assert sum(entry.devices for entry in entries) == 8 and more == 0
    assert looks[Colouring.TEAM] == ["t3", "t13", "t3"]
    assert len(set(looks[Colouring.JOB])) == 3
    found = node_map.racks(
        pool(), every, every, jobs, MapColours(teams={"nlp": 3}, borrowing=frozenset({"cv"}))
    )
    blocks_ = found[0].tiles[0].rows[0].blocks
    assert [b.on_loan for b in blocks_] == [False, True, False]
    assert "; on loan" in blocks_[1].title and blocks_[1].colour == "others"
    assert [e.name for e in node_map.legend(found)[0]] == ["nlp", "cv"]


def test_nodes_stand_in_their_racks_on_every_page() -> None:
    every = node_map.pool_nodes([row(f"n{i}") for i in range(1, 6)])
    found = node_map.racks(pool(per_rack=2), every, every[1:], [], PLAIN)
    assert [(r.number, [t.node.name for t in r.tiles]) for r in found] == [
        (1, ["n2"]),
        (2, ["n3", "n4"]),
        (3, ["n5"]),
    ]


def test_a_large_pool_is_paged_and_shrunk() -> None:
    every = node_map.pool_nodes([row(f"n{i:04}", i % 9) for i in range(1000)])
    shown, page, pages = node_map.page_of(every, 99)
    assert (page, pages, len(shown)) == (21, 21, 1000 - 20 * node_map.NODES_PER_PAGE)
    small = node_map.squares(every)
    assert sum(small.counts.values()) == 1000 and small.beyond == 0
    assert small.counts["used"] == 111 and small.counts["idle"] == 112
    assert sum(map(len, small.paths.values())) < 25_000
    assert node_map.squares(every * 5).beyond == 1000


def test_what_fits_counts_node_by_node() -> None:
    (room,) = pool_view_model.free_spreads(
        pool(), [row("n1", 5), row("n2", 5), row("n3", 8), row("n4", 0)], []
    )
    assert room.free == 14
    assert room.nodes_by_free == ((8, 1), (3, 2))
    assert [(f.size, f.jobs) for f in room.fits] == [(1, 14), (2, 6), (4, 2), (8, 1)]
    assert (room.smallest_request, room.unusable) == (0, 0)


def test_drained_nodes_have_no_room() -> None:
    (room,) = pool_view_model.free_spreads(pool(), [row("n1", 2, health=Health.DRAINED)], [])
    assert (room.free, room.nodes_by_free) == (0, ())


def test_free_but_of_no_use_to_what_waits_for_room() -> None:
    rows = [row("n1", 5), row("n2", 2)]
    (room,) = pool_view_model.free_spreads(pool(), rows, [waits(4, "NotEnoughFree"), waits(1, "UserLimit")])
    assert (room.smallest_request, room.unusable) == (4, 3)


@given(code=st.sampled_from(["", *REASONS]), reason=st.text())
@example(code="UserLimit", reason="Resources")
def test_who_waits_for_room_is_told_by_the_code_alone(code: str, reason: str) -> None:
    (room,) = pool_view_model.free_spreads(pool(), [row("n1", 5)], [waits(4, code, reason)])
    assert room.unusable == (3 if code in WAITS_FOR_CAPACITY else 0)


def test_sizes_stop_at_what_a_node_has() -> None:
    (room,) = pool_view_model.free_spreads(pool(), [row("n1", total=4)], [])
    assert [f.size for f in room.fits] == [1, 2, 4]


def test_the_step_that_holds_today_is_told_from_those_to_come() -> None:
    steps = (PriceStep(date(2026, 1, 1), Decimal("1.80")), PriceStep(date(2027, 1, 1), Decimal("1.50")))
    told = pool_view_model.price(pool(pricing=Pricing(steps=steps)), "USD", date(2026, 11, 15), ())
    assert told.today == Decimal("1.80")
    assert told.steps == (
        (None, Decimal("1.90"), False),
        (date(2026, 1, 1), Decimal("1.80"), True),
        (date(2027, 1, 1), Decimal("1.50"), False),
    )
