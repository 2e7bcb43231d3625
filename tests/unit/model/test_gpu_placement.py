"""Where slices may sit: known cases, and properties against a plain enumeration."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.gpu import GpuType, MigProfile, fits, layouts
from fairway.model.gpu_catalogue import CATALOGUE
from tests.tier import examples

A100, A30 = CATALOGUE["A100-80GB"], CATALOGUE["A30"]
WITH_MIG = [gpu for gpu in CATALOGUE.values() if gpu.profiles]


def cut(gpu: GpuType, names: str) -> list[MigProfile]:
    profiles = []
    for name in names.split():
        profile = gpu.profile(name)
        assert profile is not None, name
        profiles.append(profile)
    return profiles


@pytest.mark.parametrize(
    "names",
    [
        "",
        "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb",
        "3g.40gb 3g.40gb",
        "3g.40gb 4g.40gb",
        "1g.10gb 1g.10gb 2g.20gb 3g.40gb",
        "1g.20gb 2g.20gb 2g.20gb 2g.20gb",
        "1g.10gb+me 1g.10gb 1g.10gb 1g.10gb 3g.40gb",
        "7g.80gb",
    ],
)
def test_fits_on_an_a100(names: str) -> None:
    assert fits(A100, cut(A100, names)) is not None


@pytest.mark.parametrize(
    "names",
    [
        "1g.10gb " * 8,
        "3g.40gb 3g.40gb 1g.10gb",
        "4g.40gb 4g.40gb",
        "4g.40gb 3g.40gb 1g.10gb",
        "7g.80gb 1g.10gb",
        "1g.10gb+me 1g.10gb+me",
        "2g.20gb 2g.20gb 2g.20gb 2g.20gb",
        # Seven compute slices and eight memory slices, but no place: 3g covers the upper half or the lower.
        "3g.40gb 1g.20gb 1g.20gb 1g.10gb",
    ],
)
def test_does_not_fit_on_an_a100(names: str) -> None:
    assert fits(A100, cut(A100, names)) is None


def test_an_a30_has_four_slices_and_one_set_of_media_engines() -> None:
    assert fits(A30, cut(A30, "1g.6gb 1g.6gb 2g.12gb")) is not None
    assert fits(A30, cut(A30, "1g.6gb+me 2g.12gb 1g.6gb")) is not None
    assert fits(A30, cut(A30, "1g.6gb+me 2g.12gb+me")) is None
    assert fits(A30, cut(A30, "1g.6gb 4g.24gb")) is None


def test_a_gpu_without_mig_holds_no_slice() -> None:
    assert fits(CATALOGUE["L4"], cut(A100, "1g.10gb")) is None
    assert fits(CATALOGUE["L4"], []) == ()
    assert layouts(CATALOGUE["L4"]) == ()


@st.composite
def gpu_and_slices(draw: st.DrawFn) -> tuple[GpuType, list[MigProfile]]:
    gpu = draw(st.sampled_from(WITH_MIG))
    return gpu, draw(st.lists(st.sampled_from(gpu.profiles), max_size=5))


def by_enumeration(gpu: GpuType, slices: list[MigProfile]) -> bool:
    """The rules said again, without any of the search's order or shortcuts."""
    if sum(p.compute_slices for p in slices) > gpu.compute_slices:
        return False
    if any(slices.count(p) > p.max_instances for p in slices) or sum(p.media for p in slices) > 1:
        return False
    for starts in product(*(p.starts for p in slices)):
        taken = [s + i for s, p in zip(starts, slices, strict=True) for i in range(p.memory_slices)]
        if len(taken) == len(set(taken)) and all(t < gpu.memory_slices for t in taken):
            return True
    return False


@settings(max_examples=examples(400), deadline=None)
@given(gpu_and_slices())
def test_the_search_finds_a_place_exactly_when_there_is_one(case: tuple[GpuType, list[MigProfile]]) -> None:
    gpu, slices = case
    assert (fits(gpu, slices) is not None) == by_enumeration(gpu, slices)


@settings(max_examples=examples(400), deadline=None)
@given(gpu_and_slices())
def test_what_is_found_is_a_valid_layout(case: tuple[GpuType, list[MigProfile]]) -> None:
    gpu, slices = case
    found = fits(gpu, slices)
    if found is None:
        return
    assert [placed.profile for placed in found] == slices
    assert all(placed.start in placed.profile.starts for placed in found)
    covered = [m for placed in found for m in placed.covers]
    assert len(covered) == len(set(covered)) and set(covered) <= set(range(gpu.memory_slices))
    assert sum((gpu.fraction(p) for p in slices), Fraction(0)) <= 1


@settings(max_examples=examples(200), deadline=None)
@given(gpu_and_slices())
def test_order_does_not_matter_and_fewer_slices_fit_too(case: tuple[GpuType, list[MigProfile]]) -> None:
    gpu, slices = case
    shuffled = sorted(slices, key=lambda p: (p.name[::-1], p.memory_slices))
    assert (fits(gpu, slices) is None) == (fits(gpu, shuffled) is None)
    if slices and fits(gpu, slices) is not None:
        assert fits(gpu, slices[1:]) is not None


@pytest.mark.parametrize("gpu", WITH_MIG, ids=lambda gpu: gpu.name)
def test_layouts_fit_and_are_full_and_differ(gpu: GpuType) -> None:
    found = layouts(gpu)
    plain = [p for p in gpu.profiles if "+" not in p.name and "-" not in p.name]
    for layout in found:
        assert fits(gpu, layout) is not None
        assert all(fits(gpu, (*layout, p)) is None for p in plain)
    assert len({tuple(sorted(p.name for p in layout)) for layout in found}) == len(found)
    assert {p.name for layout in found for p in layout} == {p.name for p in plain}


def test_layouts_of_an_a30_are_these() -> None:
    named = {" ".join(p.name for p in layout) for layout in layouts(A30)}
    assert named == {
        "1g.6gb 1g.6gb 1g.6gb 1g.6gb",
        "1g.6gb 1g.6gb 2g.12gb",
        "2g.12gb 2g.12gb",
        "4g.24gb",
    }


def test_layouts_from_some_profiles_only() -> None:
    named = {" ".join(p.name for p in layout) for layout in layouts(A100, cut(A100, "1g.10gb 3g.40gb"))}
    assert named == {
        "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb",
        "1g.10gb 1g.10gb 1g.10gb 1g.10gb 3g.40gb",
        "3g.40gb 3g.40gb",
    }
