"""A composed file reads back as the fleet it was made of."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.files import Report, Severity, check_text
from fairway.files.fleet.write import MAX_WIDTH, compose_fleet
from fairway.model.fleet import Fleet, KubernetesPlace, SlurmConnection
from fairway.model.gpu import GpuType, Vendor
from fairway.model.names import TeamName, UserName
from fairway.model.team import Grant
from fairway.policy.fleet_diff import describe
from tests.strategies.fleets import changed, fleets
from tests.tier import examples
from tests.unit.files.fleets import FOLDER, SHARED, SOUND, checked

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))
SOME = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def read_back(fleet: Fleet, remarks: tuple[tuple[str, str], ...] = ()) -> Report:
    return check_text(compose_fleet(fleet, remarks), "composed", None)


def fleet_of(text: str) -> Fleet:
    fleet = checked(text).fleet
    assert fleet is not None
    return fleet


@pytest.mark.parametrize(
    "text", [SOUND, SHARED, *(path.read_text() for path in EXAMPLES)], ids=lambda t: t[:20]
)
def test_it_reads_back(text: str) -> None:
    fleet = fleet_of(text)
    again = read_back(fleet)
    assert again.fleet == fleet
    assert again.faults == checked(text).faults or all(f.severity is Severity.WARNING for f in again.faults)


@SOME
@given(fleets())
def test_any_fleet_reads_back(fleet: Fleet) -> None:
    assert read_back(fleet).fleet == fleet
    assert describe(fleet, fleet) == ()


@SOME
@given(st.data())
def test_an_edit_is_said_and_reads_back(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    after = data.draw(changed(fleet))
    assert read_back(after).fleet == after
    # Only a team's place among its siblings, or a name in a list, may move without a word.
    assert describe(fleet, after) or _sorted(after) == _sorted(fleet)


def _sorted(fleet: Fleet) -> Fleet:
    teams = (replace(t, members=tuple(sorted(t.members))) for t in fleet.teams)
    return replace(fleet, teams=tuple(sorted(teams, key=lambda t: t.name)))


def test_what_is_inherited_or_usual_is_left_out() -> None:
    text = compose_fleet(fleet_of(SHARED))
    vision = text[text.index("      vision:") : text.index("  product:")]
    assert vision == (
        "      vision:\n        borrow: { lab-mig/1g.10gb: 0 }\n        members: [alice, carol]\n"
    )
    assert "priorities:\n" not in text  # urgent, normal, low are the usual ones
    assert compose_fleet(fleet_of(SOUND)).count("\n\n") == 2


def test_remarks_stand_above_what_they_are_about_and_else_at_the_head() -> None:
    remarks = (
        ("account nlp", "GrpJobs=5 has no word in Fairway"),
        ("QOS high", "preempts normal\nand \x1b[31mlow " + "so " * 60),
        ("partition hpc-a100", "OverSubscribe=FORCE"),
        ("", "read this first"),
    )
    text = compose_fleet(fleet_of(SHARED), remarks)
    lines = text.splitlines()
    assert lines[0].startswith("# QOS high: preempts normal and  [31mlow so so")
    assert lines[lines.index("      nlp:") - 1] == "      # account nlp: GrpJobs=5 has no word in Fairway"
    assert lines[lines.index("  hpc-a100:") - 1] == "  # partition hpc-a100: OverSubscribe=FORCE"
    assert "# read this first" in lines
    assert max(len(line) for line in lines) <= MAX_WIDTH
    assert check_text(text, "x", FOLDER).fleet == fleet_of(SHARED)


def test_many_members_are_folded() -> None:
    fleet = fleet_of(SHARED)
    crowd = tuple(UserName(f"person{i}") for i in range(200))
    fleet = replace(fleet, teams=(*fleet.teams[:-1], replace(fleet.teams[-1], members=crowd)))
    assert max(len(line) for line in compose_fleet(fleet).splitlines()) <= MAX_WIDTH
    assert read_back(fleet).fleet == fleet


def test_words_that_yaml_would_take_for_something_else_are_quoted() -> None:
    fleet = fleet_of(SHARED)
    odd = {"a": "no", "b": "1", "c": "0x1F", "d": "1e5", "e": "null", "example.org/f": "true"}
    cloud = replace(fleet.pools[1], place=KubernetesPlace(odd, ("x=no:NoSchedule",), "example.org/gpu"))
    slurm = SlurmConnection("http://127.0.0.1:6820", "me", None, '/etc/a b/"quoted": {x}, #\t[y]')
    product = replace(fleet.teams[-1], name=TeamName("no"))
    fleet = replace(
        fleet,
        clusters=(replace(fleet.clusters[0], connection=slurm), *fleet.clusters[1:]),
        pools=(replace(fleet.pools[0], price=Decimal("1E+2")), cloud, fleet.pools[2]),
        teams=(*fleet.teams[:-1], product),
    )
    # A tab is no part of a path that a file may hold, so it is left out of what is read back.
    slurm = replace(slurm, token_file='/etc/a b/"quoted": {x}, # [y]')
    fleet = replace(fleet, clusters=(replace(fleet.clusters[0], connection=slurm), *fleet.clusters[1:]))
    again = read_back(fleet)
    assert again.fleet == fleet and again.faults == ()


def test_a_gpu_type_of_ones_own_is_described() -> None:
    fleet = fleet_of(SOUND)
    own = GpuType("X9", 48, ("Nine",), vendor=Vendor.AMD)
    cloud = replace(fleet.pools[1], gpu=own, place=KubernetesPlace({"a": "b"}, (), "amd.com/gpu"))
    fleet = replace(fleet, pools=(fleet.pools[0], cloud, fleet.pools[2]))
    assert read_back(fleet).fleet == fleet


def test_a_grant_of_nothing_is_no_grant() -> None:
    fleet = fleet_of(SHARED)
    closed = Grant(fleet.pools[1].supplies[0], 0, 0)
    product = fleet.teams[-1]
    told = replace(fleet, teams=(*fleet.teams[:-1], replace(product, grants=(*product.grants, closed))))
    assert read_back(told).fleet == fleet
