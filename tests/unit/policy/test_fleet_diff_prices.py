"""What changes of prices, said in the words of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.files import parse_fleet
from fairway.policy.fleet_diff import FieldDiff, describe
from tests.unit.files.fleets import SHARED, changed

FOLDER = Path("/etc/fairway")
PRICE = "    price: 1.90\n    gpus: 32\n"


def told(before: str, after: str) -> tuple[FieldDiff, ...]:
    groups = describe(parse_fleet(before, "x", FOLDER), parse_fleet(after, "x", FOLDER))
    assert all(group.team is None for group in groups)
    return tuple(change for group in groups for change in group.changes)


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        ("price: 2.10", FieldDiff("~", "price of pool hpc-a100", "1.90", "2.10")),
        (
            "price: { before: 1.90, 2026-07-01: 1.75 }",
            FieldDiff("~", "price of pool hpc-a100", "1.90", "1.90, 1.75 from 2026-07-01"),
        ),
        (
            "price: { 2026-01-01: 1.90, 2026-07-01: 1.75 }",
            FieldDiff("~", "price of pool hpc-a100", "1.90", "1.90 from 2026-01-01, 1.75 from 2026-07-01"),
        ),
        ("price: 1.90\ndiscount: 12.50%", FieldDiff("~", "discount of pool hpc-a100", "none", "12.5 %")),
        (
            "price: 1.90\ncommitments: [{ gpus: 8, price: 1.10, from: 2026-01-01, until: 2027-01-01 }]",
            FieldDiff(
                "~",
                "commitments of pool hpc-a100",
                "none",
                "8 GPUs at 1.10 from 2026-01-01 until 2027-01-01",
            ),
        ),
    ],
)
def test_one_edit_is_said_in_its_own_words(lines: str, change: FieldDiff) -> None:
    after = changed(PRICE, "".join(f"    {line}\n" for line in [*lines.splitlines(), "gpus: 32"]), SHARED)
    assert told(SHARED, after) == (change,)


def test_rules_and_overhead_are_said() -> None:
    after = SHARED + "cost: { timezone: Europe/Berlin, idle: by-usage }\n"
    after = changed(
        "    engine: virtual\n",
        "    engine: virtual\n    overhead: { power: 4000, people: 9000.50 }\n",
        after,
    )
    assert told(SHARED, after) == (
        FieldDiff("~", "time zone of charges", "UTC", "Europe/Berlin"),
        FieldDiff("~", "unused capacity is paid", "own-line", "by-usage"),
        FieldDiff("+", "overhead of cluster lab", None, "people 9,000.50, power 4,000 a month"),
    )
    assert told(after, SHARED)[-1] == FieldDiff(
        "-", "overhead of cluster lab", "people 9,000.50, power 4,000 a month", None
    )


def test_a_slice_with_a_price_of_its_own_is_said() -> None:
    old = "    price: 1.90\n    virtual:"
    after = changed(old, "    price: 1.90\n    slice_prices: { 1g.10gb: 0.30 }\n    virtual:", SHARED)
    assert told(SHARED, after) == (FieldDiff("~", "slice prices of pool lab-mig", "none", "1g.10gb 0.30"),)
