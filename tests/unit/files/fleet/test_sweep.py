"""Sweeps of a fleet file: keys, values, the grid, and what is refused with which hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.files import InvalidFile
from fairway.files.fleet.override import InvalidOverride, parse_path
from fairway.files.fleet.sweep import SweptFleet, parse_part, parse_size, parse_sweep, swept_fleets
from fairway.model.fleet import VirtualPlace
from fairway.model.names import PoolName
from fairway.model.team import Supply

GPU = PoolName("gpu")
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: lab
currency: USD
clusters: { lab: { engine: virtual } }
pools:
  gpu: { cluster: lab, gpu: A100-80GB, capacity: owned, price: 2, virtual: { nodes: 4, gpus_per_node: 8 } }
priorities:
  urgent: { rank: 100 }
  normal: { rank: 50, default: true }
teams:
  research:
    share: 60
    guarantee: { gpu: 16 }
    teams: { nlp: { share: 2, guarantee: { gpu: 8 } }, vision: {} }
  product: { share: 40, guarantee: { gpu: 16 }, borrow: { gpu: 4 } }
"""


def swept(*sweeps: str, text: str = FLEET) -> list[SweptFleet]:
    return list(swept_fleets(text, "fleet.yaml", Path.cwd(), [parse_sweep(sweep) for sweep in sweeps]))


def test_without_a_sweep_there_is_the_file_as_it_is() -> None:
    (found,) = swept()
    assert (found.name, found.fleet.name) == ("", "lab")


def test_half_life_has_a_short_name_and_need_not_stand_in_the_file() -> None:
    found = swept("half_life=1d,7d")
    assert [one.fleet.fairness.half_life_seconds for one in found] == [86_400, 7 * 86_400]
    assert [one.name for one in found] == ["half_life=1d", "half_life=7d"]


def test_a_team_is_found_wherever_it_is_nested() -> None:
    (found,) = swept("teams.nlp.share=5")
    assert {team.name: team.share for team in found.fleet.teams} == {
        "research": 60,
        "nlp": 5,
        "vision": 1,
        "product": 40,
    }


def test_a_star_is_every_key() -> None:
    (found,) = swept("teams.*.borrow.gpu=unlimited")
    grants = {team.name: team.grant(Supply(GPU)) for team in found.fleet.teams}
    assert all(grant and grant.ceiling is None for grant in grants.values())


def test_sizes_priorities_and_several_sweeps_make_a_grid() -> None:
    found = swept("pools.gpu.nodes=4,8", "priorities.urgent.rank=60,90,100")
    places = [(one.fleet.pool(GPU).place, one.fleet.priorities[0].rank) for one in found]
    assert places == [(VirtualPlace(nodes, 8), rank) for nodes in (4, 8) for rank in (60, 90, 100)]
    assert found[0].settings == ("pools.gpu.nodes=4", "priorities.urgent.rank=60")


def test_sizes_and_spot_parts_outside_the_file() -> None:
    (found,) = swept("nodes.gpu=6x4", "spot.gpu=30%")
    assert found.sizes == {GPU: VirtualPlace(6, 4)}
    assert found.spot_parts == {GPU: 0.3}


def test_a_mapping_is_one_value_and_makes_another_layout() -> None:
    text = FLEET.replace("capacity: owned", "slices: [1g.10gb, 3g.40gb], capacity: owned").replace(
        "gpus_per_node: 8", "gpus_per_node: 8, slices_per_gpu: { 1g.10gb: 4, 3g.40gb: 1 }"
    )
    text = text.replace("gpu: 16", "gpu/1g.10gb: 4").replace("gpu: 8 }", "gpu/1g.10gb: 1 }")
    text = text.replace("borrow: { gpu: 4 }", "borrow: { gpu/1g.10gb: 4 }")
    found = swept("pools.gpu.slices_per_gpu={1g.10gb: 1, 3g.40gb: 1},{1g.10gb: 4, 3g.40gb: 1}", text=text)
    cuts = [
        place.slices_per_gpu for one in found if isinstance(place := one.fleet.pool(GPU).place, VirtualPlace)
    ]
    assert cuts == [{"1g.10gb": 1, "3g.40gb": 1}, {"1g.10gb": 4, "3g.40gb": 1}]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("half_life", ("fairness", "half_life")),
        ("teams.a.share", ("teams", "a", "share")),
        ('pools.mig.slice_prices."1g.10gb"', ("pools", "mig", "slice_prices", "1g.10gb")),
    ],
)
def test_paths(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    ("sweep", "message", "hint"),
    [
        ("half_life", "half_life is no sweep", "half_life=1d,7d,14d"),
        ("half_life=", "no sweep", "half_life=1d,7d,14d"),
        ("half_life=1d,1d", "has a value twice", "once"),
        ("a..b=1", "a..b is no key", "with dots"),
        ('a."b=1', "is no key", "with dots"),
        ("half_life=soon", "half_life=soon is not valid", ""),
        ("half_live=1d", "half_live", "half_life"),
        ("teams.researsh.share=1", "the file has no team researsh", "research"),
        ("pools.cpu.price=1", "the file has no pool cpu", "gpu"),
        ("name.first=1", "name is a value, and has no first", "fairway schema"),
        ("teams.research.guarantee.gpu=400", "is not valid", ""),
        ("half_life={", "is no value", "the file would have"),
        ("nodes.gpu=16", "16 is no size of a pool", "16x8"),
        ("nodes.cpu=16x8", "the fleet has no pool cpu", "gpu"),
        ("spot.gpu=130%", "130% is no part of a pool", "30%"),
        ("clusters.*.pools.*.x=1", "nothing for the *", "name one"),
    ],
)
def test_what_no_file_could_have_is_refused_with_a_hint(sweep: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidOverride) as error:
        swept(sweep)
    assert message in error.value.message
    assert hint in error.value.hint


def test_the_grid_is_bounded() -> None:
    with pytest.raises(InvalidOverride, match="100 points together, more than 64"):
        swept(
            "pools.gpu.nodes=" + ",".join(map(str, range(1, 11))),
            "teams.nlp.share=" + ",".join("123456789") + ",10",
        )


def test_a_key_is_swept_once() -> None:
    with pytest.raises(InvalidOverride, match="the same key"):
        swept("half_life=1d", "half_life=2d")


def test_a_file_that_is_invalid_itself_shows_its_own_faults() -> None:
    with pytest.raises(InvalidFile) as error:
        swept(text=FLEET.replace("share: 60", "share: many"))
    assert "share" in error.value.message


def test_sizes_and_parts() -> None:
    assert parse_size("16x8") == VirtualPlace(16, 8)
    assert [parse_part(text) for text in ("0", "30%", "0.5", "100%")] == [0.0, 0.3, 0.5, 1.0]
