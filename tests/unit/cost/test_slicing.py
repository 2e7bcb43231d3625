"""GPUs behind slices, and the part of a GPU a slice is."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.cost.rates import gpus_behind, memory_part, parts
from fairway.model.gpu import is_plain, layouts
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import SliceName
from tests.tier import examples
from tests.unit.cost.small import patient

A100 = CATALOGUE["A100-80GB"]
ONE, TWO, THREE = SliceName("1g.10gb"), SliceName("2g.20gb"), SliceName("3g.40gb")
LAYOUTS = layouts(A100)


@pytest.mark.parametrize(
    ("slices", "gpus"),
    [
        ({}, 0),
        ({ONE: 7}, 1),
        ({ONE: 8}, 2),
        ({ONE: 56}, 8),
        ({THREE: 16}, 8),
        ({TWO: 3, ONE: 1}, 1),
        ({THREE: 1, TWO: 1, ONE: 2}, 1),
        ({THREE: 3}, 2),
        ({SliceName("9g.nothing"): 2, ONE: 1}, 3),
    ],
)
def test_the_fewest_gpus(slices: dict[SliceName, int], gpus: int) -> None:
    assert gpus_behind(A100, slices) == gpus


@settings(patient, max_examples=examples(50))
@given(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=8))
def test_never_more_than_they_were_cut_from(cut: list[tuple[object, ...]]) -> None:
    counts: Counter[SliceName] = Counter()
    for layout in cut:
        counts.update(p.name for p in layout)  # type: ignore[attr-defined]
    memory = sum(n * memory_part(A100, name) for name, n in counts.items())
    assert memory <= gpus_behind(A100, counts) <= len(cut)


def test_seven_slices_are_one_gpu() -> None:
    assert parts(A100, {ONE: 7 * 3600}, 3600) == {ONE: Fraction(1, 7)}
    assert memory_part(A100, ONE) == Fraction(1, 8)


def test_whole_gpus_are_whole() -> None:
    assert parts(A100, {None: 5}, 5) == {None: 1}
    assert parts(A100, {}, 0) == {}


def test_without_knowledge_of_gpus_by_memory() -> None:
    assert parts(A100, {ONE: 0, TWO: 0}, 0) == {ONE: Fraction(1, 8), TWO: Fraction(1, 4)}
    assert parts(A100, {SliceName("9g.nothing"): 4}, 0) == {SliceName("9g.nothing"): 1}


@patient
@given(
    st.dictionaries(
        st.sampled_from([p.name for p in A100.profiles if is_plain(p)]), st.integers(1, 10**6), min_size=1
    ),
    st.integers(1, 10**6),
)
def test_parts_sum_to_the_gpus(totals: dict[SliceName | None, int], gpu_seconds: int) -> None:
    found = parts(A100, totals, gpu_seconds)
    assert sum(totals[name] * part for name, part in found.items()) == gpu_seconds
