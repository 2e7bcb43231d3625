"""Which jobs are compared with which: name patterns, sizes and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.model.names import TeamName, UserName
from fairway.simulate.run_times import JobGroup, JobTraits, keys_of, name_pattern
from fairway.simulate.run_times.traits import Level, size_class

JOB = JobTraits(UserName("alice"), TeamName("nlp"), "train-17", 8, 3600.0)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train-17", "train-*"),
        ("train-2026-11-19_0815", "train-*"),
        ("Eval_step00042.lr0.001", "eval_step*.lr*"),
        ("llama-3f9a1c07", "llama-*"),
        ("sweep-x7k2p", "sweep-*"),
        ("resnet50", "resnet*"),
        ("defaced", "defaced"),
        ("serve-model", "serve-model"),
        ("", ""),
    ],
)
def test_numbers_and_hashes_are_collapsed_in_a_name(name: str, pattern: str) -> None:
    assert name_pattern(name) == pattern


def test_a_very_long_name_has_a_bounded_pattern() -> None:
    assert len(name_pattern("a-" * 100_000)) <= 64
    assert name_pattern("\ud800") == "\ud800"
    assert keys_of(JobGroup.of(replace(JOB, name="\ud800")))


def test_sizes_are_powers_of_two() -> None:
    assert [size_class(n) for n in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 2, 2, 3, 3, 4]


def levels(traits: JobTraits) -> set[Level]:
    return {level for level, _ in keys_of(JobGroup.of(traits))}


def test_what_is_not_known_makes_no_group() -> None:
    assert levels(JOB) == set(Level)
    unnamed = replace(JOB, name="")
    assert levels(JOB) - levels(unnamed) == {Level.TEAM_NAME, Level.USER_NAME, Level.USER_NAME_SIZE}
    nobody = replace(JOB, user=UserName(""), team=TeamName(""), limit_seconds=None)
    assert levels(nobody) == {Level.ALL, Level.SIZE}


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, user=UserName("bob")),
        replace(JOB, team=TeamName("vision")),
        replace(JOB, name="eval-17"),
        replace(JOB, devices=64),
        replace(JOB, limit_seconds=7200.0),
    ],
)
def test_every_trait_separates_groups_of_which_it_is_part_and_no_other(other: JobTraits) -> None:
    mine, theirs = dict(keys_of(JobGroup.of(JOB))), dict(keys_of(JobGroup.of(other)))
    field = next(
        name
        for name in ("user", "team", "name", "devices", "limit_seconds")
        if getattr(JOB, name) != getattr(other, name)
    )
    word = {"devices": "SIZE", "limit_seconds": "LIMIT"}.get(field, field.upper())
    differ = {level for level in mine if mine[level] != theirs[level]}
    assert differ == {level for level in Level if word in level.name.split("_")}


def test_a_key_is_the_same_in_every_process_and_fits_into_a_bigint() -> None:
    keys = [key for _, key in keys_of(JobGroup.of(JOB))]
    assert keys[0] == -5_654_555_044_250_612_799
    assert len(set(keys)) == len(Level)
    assert all(-(2**63) <= key < 2**63 for key in keys)
