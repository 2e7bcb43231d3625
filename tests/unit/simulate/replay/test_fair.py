"""The ideal division by shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.names import TeamName
from fairway.model.team import Team
from fairway.simulate.replay.chance import exponential, mixed, uniform
from fairway.simulate.replay.fair import FairDivision, divide, jains_index, share_parts

_WANTS = st.lists(
    st.tuples(st.integers(1, 9).map(float), st.integers(0, 50).map(float)), min_size=1, max_size=9
)


def test_what_one_does_not_need_goes_to_the_others() -> None:
    assert divide(12.0, [(1, 2), (1, 100), (2, 100)]) == pytest.approx([2, 10 / 3, 20 / 3])


@given(st.integers(0, 100).map(float), _WANTS)
def test_nothing_is_left_while_somebody_wants_more(amount: float, wants: list[tuple[float, float]]) -> None:
    parts = divide(amount, wants)
    given_to = list(zip(parts, wants, strict=True))
    by_weight = [(part / weight, part < demand - 1e-9) for part, (weight, demand) in given_to]

    assert sum(parts) == pytest.approx(min(amount, sum(demand for _, demand in wants)))
    assert all(part <= demand + 1e-9 for part, (_, demand) in given_to)
    least = min((part for part, wants_more in by_weight if wants_more), default=1e9)
    assert max(part for part, _ in by_weight) <= least + 1e-6, "nobody gets more than one who wants more"


def test_a_team_divides_among_its_children_what_it_does_not_use() -> None:
    a, b, c = TeamName("a"), TeamName("b"), TeamName("c")
    teams = (Team(a, share=3), Team(b, parent=a), Team(c, parent=a, share=3), Team(TeamName("d")))

    assert FairDivision(teams).ideal(16.0, [4, 16, 16, 16]) == pytest.approx([4, 2, 6, 4])
    assert share_parts(teams, [b, c, TeamName("d")]) == pytest.approx({b: 0.1875, c: 0.5625, "d": 0.25})


def test_jains_index() -> None:
    assert jains_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jains_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jains_index([]) == 1.0


def test_chance_depends_on_nothing_but_its_arguments() -> None:
    draws = [uniform(7, n) for n in range(2000)]

    assert mixed(1, 2, 3) == mixed(1, 2, 3) != mixed(1, 3, 2)
    assert min(draws) >= 0.0
    assert max(draws) < 1.0
    assert sum(draws) / 2000 == pytest.approx(0.5, abs=0.03)
    assert sum(exponential(10.0, 7, n) for n in range(2000)) / 2000 == pytest.approx(10.0, rel=0.1)
