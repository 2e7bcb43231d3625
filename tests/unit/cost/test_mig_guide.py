"""docs/guides/mig-chargeback.md says what the cost core says: every number of its tables is computed anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from fairway.cost.calendar import Calendar
from fairway.cost.charges import charges
from fairway.cost.rates import gpus_behind, memory_part, rate_spans
from fairway.cost.rounding import apportion_paths
from fairway.files import parse_fleet
from fairway.model.charge import CapacitySum, Charge, Label, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.names import SliceName, TeamName
from fairway.model.price import CostRules, Sharing, cent
from fairway.model.team import Supply

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "mig-chargeback.md"
CALENDAR = Calendar(UTC)
MIDNIGHT = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())
DAY = Span(MIDNIGHT, MIDNIGHT + 86_400)
SMALL = SliceName("1g.10gb")
NLP, VISION = TeamName("nlp"), TeamName("vision")


def _tables() -> Iterator[list[dict[str, str]]]:
    for block in re.findall(r"(?:^\|.*\n)+", GUIDE.read_text(), re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        yield [dict(zip(head, row, strict=True)) for row in rows]


LAYOUTS, POOLS, STATEMENT, RULES = _tables()


def _fleet(*, own_prices: bool = False) -> Fleet:
    text, prices = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return parse_fleet(text.replace("teams:", f"{prices}teams:") if own_prices else text, GUIDE.name)


def _counts(layout: str) -> dict[SliceName, int]:
    found: dict[SliceName, int] = {}
    for part in layout.split(" + "):
        count, _, name = part.rpartition(" × ")
        found[SliceName(name)] = int(count or 1)
    return found


def _capacity(counts: dict[SliceName, int], fleet: Fleet) -> list[CapacitySum]:
    """A day of these slices, hour by hour; the GPUs behind them stand on the first of them."""
    pool = fleet.pools[0]
    gpus = gpus_behind(pool.gpu, counts)
    return [
        CapacitySum(
            hour.start, pool.cluster, Supply(pool.name, name), 3600 * n, 0, 0, 0, 0 if place else 3600 * gpus
        )
        for hour in CALENDAR.hours(DAY)
        for place, (name, n) in enumerate(sorted(counts.items()))
    ]


def _hourly(fleet: Fleet, counts: dict[SliceName, int]) -> dict[str, Fraction]:
    pool = fleet.pools[0]
    (span,) = rate_spans(fleet, CALENDAR, DAY, _capacity(counts, fleet), {})[pool.name]
    return {name: span.rate(pool, name) * 3600 for name in counts}


@pytest.mark.parametrize("row", LAYOUTS + POOLS, ids=lambda row: next(iter(row.values())))
def test_what_each_slice_costs(row: dict[str, str]) -> None:
    fleet = _fleet()
    gpu, counts = fleet.pools[0].gpu, _counts(row.get("layout") or row["pool"])
    hourly = _hourly(fleet, counts)

    told = {name: Fraction(text) for name, text in row.items() if gpu.profile(name) and text}
    assert hourly == told
    gpus = gpus_behind(gpu, counts)
    assert gpus == int(row.get("GPUs", "1"))
    whole = sum((hourly[name] * n for name, n in counts.items()), Fraction(0))
    assert whole == Fraction(row.get("the GPU") or row["the GPUs"]) == gpus * Fraction(fleet.pools[0].price)
    if "memory taken" in row:
        taken = sum((memory_part(gpu, name) * n for name, n in counts.items()), Fraction(0))
        assert taken == Fraction(row["memory taken"])


def test_a_price_of_its_own() -> None:
    hourly = _hourly(_fleet(own_prices=True), {SMALL: 3, SliceName("3g.40gb"): 1})
    assert hourly == {SMALL: Fraction("0.35"), "3g.40gb": Fraction("1.20")}


def _day(sharing: Sharing) -> tuple[Fleet, tuple[Charge, ...]]:
    """The guide's day."""
    fleet = replace(_fleet(), cost=CostRules(idle=sharing))
    supply = Supply(fleet.pools[0].name, SMALL)
    capacity = _capacity({SMALL: 7}, fleet)
    rates = rate_spans(fleet, CALENDAR, DAY, capacity, {})
    usage = [
        UsageSum(0, supply, (NLP,), 3 * 86_400),
        UsageSum(0, supply, (VISION,), 2 * 10 * 3600),
    ]
    return fleet, charges(fleet, CALENDAR, DAY, capacity, rates, usage, (Label.TEAM,))


def _money(fleet: Fleet, made: tuple[Charge, ...]) -> dict[str, Decimal]:
    """What each carries, rounded as a statement is."""
    amounts: dict[tuple[str, ...], Fraction] = {}
    for charge in made:
        who = (charge.labels[0] if charge.labels else "(nobody)",)
        amounts[who] = amounts.get(who, Fraction(0)) + charge.amount
    rounded = apportion_paths(amounts, cent(fleet.currency))
    return {who: amount for (who,), amount in rounded.items()}


def test_the_statement_of_a_day() -> None:
    fleet, made = _day(Sharing.OWN_LINE)
    money = _money(fleet, made)
    found = {
        charge.labels[0] if charge.labels else "(nobody)": (charge.kind.value, charge.device_seconds)
        for charge in made
    }
    *rows, total = STATEMENT
    for row in rows:
        kind, seconds = found.pop(row["who"])
        assert (row["for"], row["slice-seconds"]) == (kind, str(seconds))
        assert row["GPU-hours"] == f"{seconds / 7 / 3600:.2f}"
        assert Decimal(row["USD"]) == money[row["who"]]
    assert not found
    assert total["slice-seconds"] == str(sum(int(row["slice-seconds"]) for row in rows)) == str(7 * 86_400)
    assert Decimal(total["USD"]) == sum(money.values()) == 24 * fleet.pools[0].price


@pytest.mark.parametrize("row", RULES, ids=lambda row: row["rule"])
def test_who_carries_what_was_idle(row: dict[str, str]) -> None:
    fleet, made = _day(Sharing(row["rule"]))
    money = _money(fleet, made)
    assert (money[NLP], money[VISION]) == (Decimal(row["nlp"]), Decimal(row["vision"]))
    assert sum(money.values()) == Decimal(row["all"])
