"""Read providers' bills row by row: AWS Cost and Usage Reports and FOCUS as CSV, plain or gzipped.

A bill is untrusted input: sizes are bounded, numbers are checked, and errors name the row.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from io import BufferedIOBase
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fairway.files.bill.columns import FOCUS, FORMATS, INSTANCE_GPUS, ONE_GPU_FAMILIES, Columns
from fairway.files.diagnostics import did_you_mean, shown
from fairway.model.bill import Bill, BillLine
from fairway.model.errors import PermanentError
from fairway.model.names import PoolName

MAX_ROWS: Final = 50_000_000
MAX_LINE_LENGTH: Final = 1024 * 1024
MAX_COLUMNS: Final = 2000
MAX_GROUPS: Final = 200_000
"""Maximum number of sums: one per day and pool, and one per day and description without a pool."""
_MAX_AMOUNT: Final = Decimal(10) ** 15
_HOURS: Final = {"hrs", "hr", "hour", "hours", "1 hour", "instance-hours", "gpu-hours"}
_SECONDS: Final = {"seconds", "second", "gpu-seconds"}
_AWS_DISCOUNTED: Final = {"DiscountedUsage", "SavingsPlanCoveredUsage"}
_OUR_TAG: Final = "fairway/pool"


@dataclass(frozen=True, slots=True)
class Matching:
    """How bill lines are matched to pools: by tag first, then by rule, the most specific one first."""

    pools: frozenset[PoolName]
    tag: str = "fairway-pool"
    """The tag whose value is a pool's name."""
    rules: tuple[tuple[str, PoolName], ...] = ()
    """Pairs of `p4d.24xlarge`, `p4d.24xlarge@us-east-1` or a resource id, and its pool."""
    gpus: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """GPUs per instance type, for types that Fairway does not know."""


class InvalidBill(PermanentError):
    """Raised for a file that is not a bill, or that cannot be parsed."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("InvalidBill", message, hint)


def read_bill(path: Path, matching: Matching, zone: tzinfo) -> Bill:
    """Read a bill from a file, with days in time zone `zone`. Raises InvalidBill if it is invalid."""
    for _, pool in matching.rules:
        if pool not in matching.pools:
            hint = did_you_mean(pool, matching.pools, "fairway get pools  lists them")
            raise InvalidBill(f"there is no pool {shown(pool)} to map lines to", hint)
    name = shown(str(path), 200)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                return _read(file, name, matching, zone)
            with gzip.open(file) as unpacked:
                return _read(unpacked, name, matching, zone)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidBill(
            f"cannot read {name}: {shown(reason)}", "name a CSV file, plain or gzipped"
        ) from None


def _read(file: BufferedIOBase, name: str, matching: Matching, zone: tzinfo) -> Bill:
    lines = _lines(file, name)
    reader = csv.reader(lines, strict=True)
    try:
        heading = next(reader, None)
        if heading is None:
            raise InvalidBill(f"{name} is empty", "name a bill: an AWS report or a FOCUS file, as CSV")
        bill = _BillReader(_detect_format(heading, name), heading, name, matching, zone)
        for number, row in enumerate(reader, 2):
            if number > MAX_ROWS:
                raise InvalidBill(f"{name} has more than {MAX_ROWS:,} rows", "split the bill by month")
            bill.add(row, number)
    except csv.Error as error:
        raise InvalidBill(
            f"{name}:{reader.line_num} is not CSV: {shown(str(error))}",
            "name an AWS report or a FOCUS file, as CSV",
        ) from None
    return bill.result()


def _lines(file: BufferedIOBase, name: str) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_LENGTH + 1):
        number += 1
        if len(line) > MAX_LINE_LENGTH:
            raise InvalidBill(
                f"{name}:{number} is longer than {MAX_LINE_LENGTH:,} bytes", "is it a CSV file?"
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InvalidBill(f"{name}:{number} is not UTF-8", "name a CSV file, plain or gzipped") from None
        if "\0" in text:
            raise InvalidBill(f"{name}:{number} has a zero byte", "name a CSV file, plain or gzipped")
        yield text


def _detect_format(heading: Sequence[str], name: str) -> Columns:
    if len(heading) > MAX_COLUMNS:
        raise InvalidBill(f"{name} has {len(heading):,} columns", "is it a bill?")
    for columns in FORMATS:
        if set(heading).issuperset(columns.needed):
            return columns
    formats = "; ".join(f"{columns.form}: {' and '.join(columns.needed)}" for columns in FORMATS)
    raise InvalidBill(
        f"{name} is no bill that Fairway knows: its heading begins {shown(', '.join(heading[:4]), 100)}",
        f"these columns tell one:  {formats}",
    )


@dataclass(slots=True)
class _BillTotal:
    gpu_hours: Decimal = Decimal(0)
    cost: Decimal = Decimal(0)
    lines: int = 0
    places: int = 0


class _BillReader:
    """Sums of a bill's rows by day and pool."""

    def __init__(
        self, columns: Columns, heading: Sequence[str], name: str, matching: Matching, zone: tzinfo
    ) -> None:
        self._columns = columns
        self._name = name
        self._matching = matching
        self._zone = zone
        self._index = {column: i for i, column in reversed(list(enumerate(heading)))}
        self._width = len(heading)
        tag = matching.tag
        wanted = {f"resourceTags/user:{tag}", f"resourceTags/{tag}", f"resource_tags_user_{_plain(tag)}"}
        self._tag_columns = [i for i, column in enumerate(heading) if column in wanted]
        self._rules = dict(reversed(matching.rules))
        self._totals: dict[tuple[date, PoolName | None, str], _BillTotal] = {}
        self._days: dict[str, date] = {}
        self._currency = ""
        self._rows = 0

    def add(self, row: Sequence[str], number: int) -> None:
        if not row:
            return
        if len(row) != self._width:
            raise self._invalid(number, f"has {len(row)} columns, its heading {self._width}")
        self._rows += 1
        currency = self._cell(row, self._columns.currency)
        if currency and currency != self._currency:
            if self._currency:
                raise self._invalid(number, f"is in {shown(currency)}, rows before in {self._currency}")
            self._currency = shown(currency)
        cost, places = self._cost(row, number)
        hours = self._gpu_hours(row, number)
        if not cost and not hours:
            return
        pool = self._pool(row)
        about = "" if pool else self._about(row)
        key = (self._day(row, number), pool, about)
        if key not in self._totals and len(self._totals) >= MAX_GROUPS:
            key = (key[0], pool, "" if pool else "other")
        total = self._totals.setdefault(key, _BillTotal())
        total.gpu_hours += hours
        total.cost += cost
        total.lines += 1
        total.places = max(total.places, places)

    def result(self) -> Bill:
        order = sorted(
            self._totals.items(),
            key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or "", item[0][2]),
        )
        lines = tuple(
            BillLine(day, pool, about, s.gpu_hours, s.cost, s.lines, s.places)
            for (day, pool, about), s in order
        )
        return Bill(self._columns.form, self._currency, lines, self._rows)

    def _cell(self, row: Sequence[str], *columns: str) -> str:
        for column in columns:
            index = self._index.get(column)
            if index is not None and row[index]:
                return row[index]
        return ""

    def _invalid(self, number: int, what: str) -> InvalidBill:
        return InvalidBill(f"{self._name}: row {number} {what}", "is the file whole? Download the bill again")

    def _number(self, text: str, number: int, column: str) -> Decimal:
        if not text:
            return Decimal(0)
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("nan")
        if not value.is_finite() or abs(value) > _MAX_AMOUNT or len(text) > 60:
            raise self._invalid(number, f"has {shown(text)} for {column}, which is no amount")
        return value

    def _cost(self, row: Sequence[str], number: int) -> tuple[Decimal, int]:
        """Return the amortized cost of a line and its number of decimal places."""
        kind = self._cell(row, self._columns.kind)
        cost, places = Decimal(0), 0
        for column, sign in self._columns.amortized.get(kind, [(self._columns.cost, 1)]):
            value = self._number(self._cell(row, column), number, column)
            exponent = value.as_tuple().exponent
            places = max(places, -exponent if isinstance(exponent, int) else 0)
            cost += sign * value
        return cost, places

    def _gpu_hours(self, row: Sequence[str], number: int) -> Decimal:
        kind = self._cell(row, self._columns.kind)
        if kind not in {"Usage", ""} and (self._columns is FOCUS or kind not in _AWS_DISCOUNTED):
            return Decimal(0)
        for amount, unit_column in zip(self._columns.amount, self._columns.unit, strict=True):
            text, unit = self._cell(row, amount), self._cell(row, unit_column).strip().lower()
            if not text:
                continue
            value = self._number(text, number, amount)
            if unit in _SECONDS:
                value /= 3600
            elif unit not in _HOURS:
                continue
            return value if unit.startswith("gpu") else value * self._gpus(row, number)
        return Decimal(0)

    def _gpus(self, row: Sequence[str], number: int) -> int:
        """Return the GPUs of the line's instance type: from the options, the bill, or the built-in table."""
        instance = self._instance(row)
        if instance in self._matching.gpus:
            return self._matching.gpus[instance]
        billed = self._cell(row, *self._columns.gpus) or self._detail(row, "GpuCount")
        if billed and billed.upper() != "NA":
            gpus = self._number(billed, number, "GPUs")
            return int(gpus) if 0 <= gpus <= 1024 and gpus == int(gpus) else 0
        return INSTANCE_GPUS.get(instance, int(instance.startswith(ONE_GPU_FAMILIES)))

    def _instance(self, row: Sequence[str]) -> str:
        return self._cell(row, *self._columns.instance) or self._detail(row, "InstanceType")

    def _detail(self, row: Sequence[str], key: str) -> str:
        """Return a value of the FOCUS column SkuPriceDetails; empty if there is none."""
        return _text(_mapping(self._cell(row, "SkuPriceDetails")).get(key)) if self._columns is FOCUS else ""

    def _pool(self, row: Sequence[str]) -> PoolName | None:
        for index in self._tag_columns:
            if row[index] in self._matching.pools:
                return PoolName(row[index])
        tags = _mapping(self._cell(row, self._columns.tags)) if self._columns.tags else {}
        tag = self._matching.tag
        for key in (tag, f"user:{tag}", f"user_{_plain(tag)}", _OUR_TAG):
            pool = _text(tags.get(key))
            if pool in self._matching.pools:
                return PoolName(pool)
        instance, region = self._instance(row), self._cell(row, *self._columns.region)
        for wanted in (self._cell(row, self._columns.resource), f"{instance}@{region}", instance):
            if wanted in self._rules:
                return self._rules[wanted]
        return None

    def _about(self, row: Sequence[str]) -> str:
        parts = (
            self._cell(row, *self._columns.service),
            self._instance(row),
            self._cell(row, *self._columns.region),
            self._cell(row, self._columns.kind),
        )
        return shown(" ".join(part for part in parts if part)) or "without a word of what it is for"

    def _day(self, row: Sequence[str], number: int) -> date:
        text = self._cell(row, self._columns.start)
        day = self._days.get(text)
        if day is None:
            try:
                at = datetime.fromisoformat(text)
                at = at if at.tzinfo else at.replace(tzinfo=UTC)
                day = at.astimezone(self._zone).date()
            except (ValueError, OverflowError):
                raise self._invalid(
                    number, f"begins at {shown(text) or 'no time'}, which is no moment"
                ) from None
            if len(self._days) < MAX_GROUPS:
                self._days[text] = day
        return day


def _plain(tag: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in tag.lower())


def _mapping(text: str) -> Mapping[str, object]:
    """Parse a JSON object of tags or details. Returns an empty mapping if it is none."""
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
