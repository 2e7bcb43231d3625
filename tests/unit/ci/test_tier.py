"""The table of tests that run on some engines only names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tier import NIGHTLY, ON_SOME_ENGINES, examples, sized

TESTS = Path(__file__).parents[2]


def test_every_test_of_the_table_exists() -> None:
    written = "\n".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", written))
    assert {name.partition("[")[0] for name in ON_SOME_ENGINES} <= there


def test_no_test_is_nightly_on_every_slurm() -> None:
    for name, why in ON_SOME_ENGINES.items():
        if "other Slurm" in why:
            other = name.replace("slurm-24", "?").replace("slurm-26", "slurm-24").replace("?", "slurm-26")
            assert other not in ON_SOME_ENGINES


def test_sizes_are_those_of_the_tier() -> None:
    assert sized(ci=1, nightly=2) == (2 if NIGHTLY else 1)
    assert examples(400) == (400 if NIGHTLY else 100)
    assert examples(8) == 8
