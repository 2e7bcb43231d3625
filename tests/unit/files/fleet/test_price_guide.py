"""What the guide to prices shows is valid, and names every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fairway.files.fleet import schema_prices as ps
from fairway.files.schema.containers import Key
from tests.unit.files.fleets import SOUND, checked

GUIDE = (Path(__file__).parents[4] / "docs/guides/prices.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_piece_of_a_file_is_valid(block: str) -> None:
    """Pools and clusters beside those of the sound file."""
    section, _, inner = block.partition("\n")
    text = SOUND.replace(f"{section}\n", block, 1) if f"{section}\n" in SOUND else SOUND + block
    assert inner in text
    report = checked(text)
    assert report.fleet is not None and report.faults == (), report.faults


def test_it_names_every_key() -> None:
    keys: list[Key[Any]] = [*ps.POOL_PRICING, ps.OVERHEAD, ps.TIMEZONE, ps.IDLE, ps.OVERHEAD_RULE, ps.COST]
    for key in keys:
        assert re.search(rf"\b{key.name}:", GUIDE), key.name
