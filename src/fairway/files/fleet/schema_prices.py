"""Define the keys of prices in a fleet file: dated prices, commitments, overhead, cost rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.files.diagnostics import FaultCode, Faults, shown
from fairway.files.schema import values
from fairway.files.schema.containers import Key, ListOf, MapOf, Record, Section
from fairway.files.schema.labels import LABEL_KEY
from fairway.files.schema.values import (
    FieldPath,
    Integer,
    OneOf,
    ParsedValue,
    Percent,
    Price,
    Problem,
    ScalarSchema,
    Schema,
    Text,
    ValueSchema,
    bad_value,
    wrong_type,
)
from fairway.files.yaml import MappingEntry, MappingNode, Node, SequenceNode
from fairway.model.labels import MAX_COST_LABELS
from fairway.model.price import Sharing

BEFORE: Final = "before"
"""The key used instead of a date for a pool's first price."""
MAX_GPUS: Final = 10_000_000
_FIRST_YEAR: Final = 1971
_LAST_YEAR: Final = 2199
_DAY_PATTERN: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MAX_STEPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Day(ScalarSchema[date]):
    """A date such as `2026-07-01`, quoted or not: YAML 1.2 reads both as text."""

    expected = "a day, for example 2026-07-01"

    def parse(self, text: str, _label: str) -> date | Problem:
        return _day(text) or bad_value(text, "a day", _day_hint(text))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{_DAY_PATTERN}$", "examples": ["2026-07-01"]}


def _day(text: str) -> date | None:
    if not re.fullmatch(_DAY_PATTERN, text) or not _FIRST_YEAR <= int(text[:4]) <= _LAST_YEAR:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _day_hint(text: str) -> str:
    """Return a hint on what was probably meant by `2026-7-1`, `2026/07/01`, `1.7.2026` or 31 June."""
    parts = re.fullmatch(r"([0-9]{4})[-/.]([0-9]{1,2})[-/.]([0-9]{1,2})(?:[T ].{0,40})?", text.strip())
    day_first = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})", text.strip())
    if parts is None and day_first is None:
        return "write year, month and day, for example 2026-07-01"
    year, month, day = parts.groups() if parts else reversed(day_first.groups()) if day_first else ()
    meant = f"{year}-{int(month):02d}-{int(day):02d}"
    if meant == text or _day(meant) is None:
        return f"there is no such day from {_FIRST_YEAR} to {_LAST_YEAR}; look at the calendar"
    return f"write {meant}"


@dataclass(frozen=True, slots=True)
class PriceSteps:
    """A price as written in the file: the first one, and the dated ones after it."""

    first: Decimal
    steps: tuple[tuple[ParsedValue[date], Decimal], ...] = ()


@dataclass(frozen=True, slots=True)
class PriceOverTime(ValueSchema[PriceSteps]):
    """One price, or prices by the day from which they apply, in order; the first key may be `before`."""

    price: Price

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[PriceSteps] | None:
        if not isinstance(node, MappingNode):
            one = self.price.read(node, at, faults)
            return None if one is None else ParsedValue(PriceSteps(one.value), one.location)
        if not 0 < len(node.entries) <= _MAX_STEPS:
            faults.add(
                FaultCode.OUT_OF_RANGE,
                at.key_location(),
                f"{at.label} has {len(node.entries)} prices",
                expected=f"1 to {_MAX_STEPS} prices",
                hint="write one price, or some by day:  price: { before: 2.10, 2026-07-01: 1.75 }",
            )
            return None
        first: Decimal | None = None
        steps: list[tuple[ParsedValue[date], Decimal]] = []
        for entry in node.entries:
            inner = FieldPath((*at.path, entry.key.text), entry.key.mark)
            price = self.price.read(entry.value, inner, faults)
            if entry.key.text == BEFORE:
                first = price.value if price else None
                if entry is not node.entries[0]:
                    _not_first(inner, faults)
                continue
            day = self._day(entry, inner, faults)
            if price is not None and day is not None:
                steps.append((day, price.value))
        if first is None and not steps:
            return None
        return ParsedValue(
            PriceSteps(steps[0][1] if first is None else first, tuple(steps)), at.key_location()
        )

    def _day(self, entry: MappingEntry, inner: FieldPath, faults: Faults) -> ParsedValue[date] | None:
        word = entry.key.text
        if re.search("[0-9]", word) is None:
            faults.add(
                FaultCode.BAD_VALUE,
                inner.key_location(),
                f"{shown(word) or 'an empty text'} is not a day",
                expected=f"{Day.expected}, or {BEFORE}",
                hint=f"write the day from which the price holds, or {BEFORE} for the first one",
            )
            return None
        return Day().read(entry.key, inner, faults)

    def schema(self) -> Schema:
        by_day = {
            "type": "object",
            "propertyNames": {"pattern": f"^({BEFORE}|{_DAY_PATTERN})$"},
            "additionalProperties": self.price.schema(),
            "minProperties": 1,
        }
        return {"anyOf": [self.price.schema(), by_day], "examples": [1.9, {BEFORE: 2.1, "2026-07-01": 1.75}]}


def _not_first(inner: FieldPath, faults: Faults) -> None:
    faults.add(
        FaultCode.NOT_IN_ORDER,
        inner.key_location(),
        f"{inner.label} stands after a dated price",
        expected=f"{BEFORE} first, then days in their order",
        hint=f"put {BEFORE} before every day",
    )


@dataclass(frozen=True, slots=True)
class Discount(Percent):
    """A discount in percent, less than 100%."""

    def parse(self, text: str, label: str) -> Decimal | Problem:
        if re.fullmatch(r"100(\.0+)?%", text):
            message = f"{label} is {shown(text)}: nothing would be paid"
            return Problem(
                FaultCode.OUT_OF_RANGE, message, "what costs nothing has  price: 0  and no discount"
            )
        # Named, for zero-argument super() does not work in a dataclass with slots.
        return Percent.parse(self, text, label)


@dataclass(frozen=True, slots=True)
class RecordsOf(ValueSchema[tuple[Section, ...]]):
    """A list of records."""

    record: Record
    plural: str

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[tuple[Section, ...]] | None:
        if not isinstance(node, SequenceNode):
            hint = "write it in brackets:  [{ ... }]"
            wrong_type(node, at, faults, f"a list of {self.plural}", hint)
            return None
        read = (
            self.record.read(n, FieldPath((*at.path, i), n.mark), faults) for i, n in enumerate(node.items)
        )
        return ParsedValue(tuple(found.value for found in read if found is not None), at.key_location())

    def schema(self) -> Schema:
        return {"type": "array", "items": self.record.schema()}


# --- pools -----------------------------------------------------------------------------------------------

PRICE: Final = Key(
    "price",
    PriceOverTime(Price()),
    "Price per GPU-hour, in the fleet's currency; or prices with the day from which each applies.",
    example="1.90",
    required=True,
)
DISCOUNT: Final = Key(
    "discount", Discount(0, 99), "Reduction of the price. It does not apply to commitments or spot prices."
)
COMMITTED_GPUS: Final = Key("gpus", Integer(1, MAX_GPUS), "Number of GPUs.", example="32", required=True)
COMMITTED_PRICE: Final = Key(
    "price", Price(), "Price per GPU-hour, paid whether the GPUs are used or not.", required=True
)
COMMITTED_FROM: Final = Key(
    "from", Day(), "First day of the commitment.", example="2026-01-01", required=True
)
COMMITTED_UNTIL: Final = Key(
    "until", Day(), "First day after the commitment.", example="2027-01-01", required=True
)
COMMITTED_ID: Final = Key(
    "id",
    Text("an id: letters, digits and :/._-", "[A-Za-z0-9][A-Za-z0-9:/._-]*", 120, examples=("sp-0a1b2c",)),
    "Id of the commitment in FOCUS files, such as the provider's; otherwise its pool and first day.",
    example="sp-0a1b2c",
)
COMMITMENTS: Final = Key(
    "commitments",
    RecordsOf(
        Record(
            "A commitment", (COMMITTED_ID, COMMITTED_GPUS, COMMITTED_PRICE, COMMITTED_FROM, COMMITTED_UNTIL)
        ),
        "commitments",
    ),
    "GPUs that are paid for at a price of their own, whether or not they are there.",
)
SLICE_PRICES: Final = Key(
    "slice_prices",
    MapOf(values.SLICE, Price(), "prices by slice"),
    "Prices of slices per slice-hour; other slices cost their part of the GPU.",
)
POOL_PRICING: Final = (PRICE, DISCOUNT, COMMITMENTS, SLICE_PRICES)

# --- clusters and the fleet ------------------------------------------------------------------------------

OVERHEAD_NAME: Final = Text(
    "what it is for: small letters, digits and '-'",
    "[a-z]([a-z0-9-]{0,38}[a-z0-9])?",
    40,
    normalize=values.as_name,
    suggestions=("power", "space", "people", "storage"),
)
OVERHEAD: Final = Key(
    "overhead",
    MapOf(OVERHEAD_NAME, Price(1_000_000_000), "amounts a month"),
    "Monthly costs other than GPUs, by name: power, space, people, storage.",
)
CO2_PER_KWH: Final = Key(
    "co2_grams_per_kwh",
    Price(10_000),
    "Grams of CO2 per kWh from the grid; without it, reports show energy but no CO2.",
    example="363",
)
PUE: Final = Key(
    "pue",
    Price(10, minimum=1),
    "Power usage effectiveness: energy of the whole site divided by the energy of its machines, at least 1.",
    example="1.3",
)
ENERGY: Final = Key(
    "energy",
    Record("Energy settings of a site", (CO2_PER_KWH, PUE)),
    "CO2 per kWh and PUE of the site, for energy in reports.",
    example="{ co2_grams_per_kwh: 363, pue: 1.3 }",
)
TIMEZONE: Final = Key(
    "timezone",
    Text(
        "the name of a time zone",
        "[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*",
        64,
        examples=("Europe/Berlin", "UTC"),
    ),
    "Where days and months begin: a name of the IANA time zones.",
    default="UTC",
)
IDLE: Final = Key("idle", OneOf(Sharing), "Who pays for unused capacity.", default=Sharing.OWN_LINE)
OVERHEAD_RULE: Final = Key("overhead", OneOf(Sharing), "Who pays for overhead.", default=Sharing.OWN_LINE)
COST_LABELS: Final = Key(
    "labels",
    ListOf(replace(LABEL_KEY, rule=None), "keys of labels", MAX_COST_LABELS),
    f"Labels of jobs that reports can group by, at most {MAX_COST_LABELS} keys; applies to new jobs.",
    example="[experiment, model]",
)
COST: Final = Key(
    "cost",
    Record("Rules for charges", (TIMEZONE, IDLE, OVERHEAD_RULE, COST_LABELS)),
    "Where days begin, and who pays for unused capacity.",
)
