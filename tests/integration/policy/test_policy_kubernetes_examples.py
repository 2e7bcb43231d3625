"""Every example file on a real cluster of each engine it names: plan, apply, and the next plan is empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from fairway.files import read_fleet
from fairway.policy.objects import Action
from tests.integration.policy.policy_lab import KINDS, Governed, governed

if TYPE_CHECKING:
    from fairway.model.fleet import Fleet
    from fairway.model.names import ClusterName

pytestmark = pytest.mark.timeout(300)

FOLDER: Final = Path(__file__).parents[3] / "examples"
EXAMPLES: Final = {path.name: read_fleet(path) for path in sorted(FOLDER.glob("*.yaml"))}


def params() -> list[object]:
    """Each cluster of each example, on every instance of its engine."""
    return [
        pytest.param(name, file, cluster.name, marks=getattr(pytest.mark, kind.value))
        for file, fleet in EXAMPLES.items()
        for cluster in fleet.clusters
        for name, kind in KINDS.items()
        if cluster.engine is kind
    ]


@pytest.fixture(scope="module")
def used() -> Iterator[set[str]]:
    """The names of clusters that examples were applied to."""
    names: set[str] = set()
    yield names
    for name in names:
        governed(name).drop_namespaces()


@pytest.fixture
async def here(request: pytest.FixtureRequest, used: set[str]) -> AsyncIterator[Governed]:
    cluster = governed(request.param)
    used.add(request.param)
    yield cluster
    await cluster.clear()


@pytest.mark.parametrize(("here", "file", "cluster"), params(), indirect=["here"])
async def test_example(here: Governed, file: str, cluster: ClusterName) -> None:
    fleet = here.home(EXAMPLES[file], cluster, own_places=False)
    granted = [team for team in fleet.teams if team.grants]

    await here.count_devices(fleet)
    made = (await here.settle(fleet)).changes
    assert {change.action for change in made} <= {Action.CREATE}
    assert bool(made) == bool(granted), "teams, and nothing but teams, need objects"

    if granted:
        changed = (await here.settle(_with_more(fleet))).changes
        assert {change.action for change in changed} <= {Action.UPDATE}
        assert changed, "a share that changes is a change"


def _with_more(fleet: Fleet) -> Fleet:
    """Every team has one share more."""
    return replace(fleet, teams=tuple(replace(team, share=team.share + 1) for team in fleet.teams))
