"""What the guide to the fleet file shows is valid, and `check` says what the guide says it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairway.files import location_lines
from tests.unit.files.fleets import SOUND, checked, only_fault

GUIDE = (Path(__file__).parents[4] / "docs/guides/fleet-file.md").read_text()
MIG = """\
  hpc-mig:
    cluster: hpc
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    slurm: { partition: mig }
"""
BLOCKS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_piece_of_a_file_is_valid(block: str) -> None:
    report = checked(SOUND + MIG + block)
    assert report.fleet is not None and report.faults == ()


def test_the_fault_it_shows_is_the_one_that_is_said() -> None:
    first = BLOCKS[0].replace("guarantee: { hpc-a100: 16 }", "guarantee: { hpc-a100: 24 }", 1)
    fault = only_fault(SOUND.replace("price: 1.90\n", "price: 1.90\n    gpus: 32\n", 1) + first)
    assert f"error: {fault.message}\n" in GUIDE
    assert f"hint: {fault.hint}\n" in GUIDE
    shown = re.findall(r"^  fleet.yaml:\S+ +(teams.*)$", GUIDE, re.MULTILINE)
    assert [re.sub(r"^\S+ +", "", line) for line in location_lines(fault)] == shown


def test_it_names_every_key_of_a_team() -> None:
    for key in ("share", "guarantee", "borrow", "limits", "priorities", "members", "draining", "teams"):
        assert re.search(rf"^ *{key}:", GUIDE, re.MULTILINE), key
