"""Convert charges to rows of FOCUS, whose amounts sum to the cents of the report.

There are two passes over the same charges, a day at a time, so that a year's rows are never in memory at
once: `Totals` first, then `rows`. `export` does both for charges that are already in memory.

Rounding: the grand total is rounded to cents, then apportioned to cents by month, team, kind, cluster and
supply, as in a month's statement, and within each of those groups by row to millionths. So the file of a
month sums to its statement line by line. Within a group, rounding errors are carried from row to row, and
the difference made by rounding the group is spread by size: each row is within a millionth of that amount.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.cost.focus.columns import COLUMNS, PLACE
from fairway.cost.focus.rows import (
    COST_DIGITS,
    HOUR,
    PRICE_DIGITS,
    QUANTITY_DIGITS,
    Frame,
    Frames,
    decimal_text,
    moment,
    statement_id,
)
from fairway.cost.focus.totals import (
    FINE,
    MICRO,
    Book,
    Carry,
    DayCharges,
    Group,
    Totals,
    divided,
    fine_of,
    place_of,
)
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply

__all__ = ["COLUMNS", "Book", "Correction", "DayCharges", "Row", "Totals", "export", "rows"]

Row = tuple[str, ...]
"""One string per column, as in CSV; an empty string is null."""

_RATIO: Final = 12


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of a closed month, reported in a later month; negative if too much was charged."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    team: TeamName | None
    used_in: date
    """First day of the month that is corrected."""
    told_in: date
    """First day of the month that reports the correction."""
    amount: Decimal


def rows(totals: Totals, days: Iterable[DayCharges], corrections: Iterable[Correction] = ()) -> Iterator[Row]:
    """Yield the rows (second pass): one per day, supply, charge kind and set of labels, then corrections."""
    book, carriers = totals.book, totals.carriers()
    frames = Frames(book.fleet, book.calendar)
    for day in days:
        yield from _Day(book, frames, day).rows(carriers)
    for correction in corrections:
        yield _corrected(book, frames, correction)


def export(book: Book, days: Sequence[DayCharges], corrections: Iterable[Correction] = ()) -> Iterator[Row]:
    """Run both passes over charges in memory and yield the rows."""
    totals = Totals(book)
    for day in days:
        totals.add(day)
    return rows(totals, days, corrections)


@dataclass(slots=True)
class _Whole:
    """A sum of which other amounts are shares."""

    fine: int = 0


@dataclass(slots=True)
class _Part:
    """Charges of one kind and supply on one day."""

    frame: Frame
    gpus: _Whole | None
    """For a slice, the cost of the GPUs of its pool, which it is a share of; None otherwise."""
    shared: _Whole = field(default_factory=_Whole)
    """The sum of the part's charges that are shared out to labels."""
    carries: dict[str, Carry] = field(default_factory=dict)
    """Carry by team."""

    def whole(self, charge: Charge) -> _Whole | None:
        """Return the sum that the charge is a share of. Returns None if it is not a share."""
        is_share = charge.kind is not ChargeKind.USAGE and charge.labels is not None
        return self.shared if is_share else self.gpus


class _Day:
    """The rows of one day, computed in the integers of `totals`: exact fractions with many rates are long."""

    def __init__(self, book: Book, frames: Frames, day: DayCharges) -> None:
        self._book = book
        self._frames = frames
        self._day = day
        self._month = day.day.replace(day=1)
        self._parts: dict[tuple[ChargeKind, ClusterName, Supply | None], _Part] = {}
        self._gpus: dict[PoolName, _Whole] = {}
        self._tags: dict[tuple[str, ...], str] = {}
        self._team = place_of(book, Label.TEAM)
        self._user = place_of(book, Label.USER)
        self._priority = place_of(book, Label.PRIORITY)

    def rows(self, carriers: dict[Group, Carry]) -> Iterator[Row]:
        charges = []
        for charge in self._day.charges:
            part, fine = self._part(charge), fine_of(charge.amount)
            charges.append((charge, part, fine))
            whole = part.whole(charge)
            if whole is not None:
                whole.fine += fine
        for charge, part, fine in charges:
            team = charge.labels[self._team] if charge.labels and self._team is not None else ""
            carry = part.carries.get(team)
            if carry is None:
                group = (self._month, team, charge.kind, charge.cluster, charge.supply)
                # A group without a carry appeared between the passes: round its rows on their own.
                carry = part.carries[team] = carriers.setdefault(group, Carry(0, 0))
            yield self._row(charge, part, fine, carry.next(fine))

    def _part(self, charge: Charge) -> _Part:
        key = (charge.kind, charge.cluster, charge.supply)
        found = self._parts.get(key)
        if found is None:
            supply = charge.supply
            gpus = self._gpus.setdefault(supply.pool, _Whole()) if supply and supply.slice else None
            found = self._parts[key] = _Part(self._frames.frame(*key, self._day.day), gpus)
        return found

    def _row(self, charge: Charge, part: _Part, fine: int, millionths: int) -> Row:
        cells = list(part.frame.cells)
        cells[_BILLED] = cells[_EFFECTIVE] = cells[_PRICING_EFFECTIVE] = decimal_text(millionths, MICRO)
        _quantities(cells, part.frame, charge, fine)
        self._carrier(cells, charge)
        whole = part.whole(charge)
        if whole is not None:
            _allocation(cells, part.frame, charge, fine, whole.fine)
        return tuple(cells)

    def _carrier(self, cells: list[str], charge: Charge) -> None:
        labels = charge.labels or ()
        if labels:
            if self._team is not None and labels[self._team]:
                cells[_SUB_ID] = cells[_SUB_NAME] = labels[self._team]
                cells[_SUB_TYPE] = "Team"
            if self._user is not None:
                cells[_X_USER] = labels[self._user]
            if self._priority is not None:
                cells[_X_PRIORITY] = labels[self._priority]
        key = (charge.cluster, "" if charge.supply is None else charge.supply.pool, *labels)
        tags = self._tags.get(key)
        if tags is None:
            tags = self._tags[key] = self._tag_text(charge)
        cells[_TAGS] = tags

    def _tag_text(self, charge: Charge) -> str:
        told = {"fairway/cluster": str(charge.cluster)}
        if charge.supply is not None:
            told["fairway/pool"] = charge.supply.pool
        for label, word in zip(self._book.labels, charge.labels or (), strict=False):
            if word and label not in _ELSEWHERE:
                told[f"fairway/{label}"] = word
        return json.dumps(told)


def _quantities(cells: list[str], frame: Frame, charge: Charge, fine: int) -> None:
    """Fill in the quantities and their costs at list and contracted prices."""
    listed, paid = frame.list_price, frame.contracted_price
    seconds = charge.device_seconds
    if seconds:
        quantity = divided(seconds * 10**QUANTITY_DIGITS, HOUR)
        consumed = f"{seconds}.0"
        if frame.derived is not None:
            cost, of = max(0, fine * HOUR), abs(seconds) * 10 ** (FINE - PRICE_DIGITS)
            paid = divided(cost, of)
            listed = divided(cost * frame.derived.denominator, of * frame.derived.numerator)
    else:
        # A share has the quantity that its amount would buy.
        quantity = divided(fine, paid * 10 ** (FINE - PRICE_DIGITS - QUANTITY_DIGITS)) if paid else 0
        consumed = decimal_text(quantity * (1 if charge.supply is None else HOUR), QUANTITY_DIGITS)
    hours = decimal_text(quantity, QUANTITY_DIGITS)
    cells[_PRICING_QUANTITY] = hours
    if frame.consumes:
        cells[_CONSUMED] = consumed
    else:
        cells[_CONSUMED_UNIT] = ""
    if frame.committed:
        cells[_COMMITMENT_QUANTITY] = hours
    list_price, list_cost = decimal_text(listed, PRICE_DIGITS), _product(listed, quantity)
    cells[_LIST_PRICE] = cells[_PRICING_LIST] = list_price
    cells[_LIST_COST] = list_cost
    same = paid == listed
    cells[_CONTRACTED_PRICE] = cells[_PRICING_CONTRACTED] = (
        list_price if same else decimal_text(paid, PRICE_DIGITS)
    )
    cells[_CONTRACTED_COST] = list_cost if same else _product(paid, quantity)


def _allocation(cells: list[str], frame: Frame, charge: Charge, fine: int, origin: int) -> None:
    """Fill in the allocation columns of FOCUS 1.3: origin, method and ratio of a share."""
    ratio = decimal_text(divided(fine * 10**_RATIO, origin) if origin else 0, _RATIO)
    words = [word for word in charge.labels or () if word]
    if charge.kind is not ChargeKind.USAGE and charge.labels is not None:
        cells[_METHOD] = frame.sharing
        cells[_METHOD_DETAILS] = f'{{"Elements": [{{"AllocatedRatio": {ratio}}}]}}'
        cells[_ALLOCATED_TAGS] = f'{{"fairway/share-of": "{charge.kind}"}}'
    elif charge.supply is not None:
        cells[_METHOD] = frame.slicing
        cells[_METHOD_DETAILS] = (
            f'{{"Elements": [{{"AllocatedRatio": {ratio}, "UsageUnit": "Slice-Seconds", '
            f'"UsageQuantity": {charge.device_seconds}}}]}}'
        )
        cells[_ALLOCATED_TAGS] = f'{{"fairway/slice": "{charge.supply.slice}"}}'
        words.insert(0, str(charge.supply.slice))
    # A charge without labels is the unallocated part: it has a method, but no allocated resource.
    if charge.labels is not None:
        cells[_ALLOCATED_ID] = cells[_ALLOCATED_NAME] = "/".join(words) or "no team"


def _corrected(book: Book, frames: Frames, told: Correction) -> Row:
    """Build the row of a correction: for a whole month, without quantities, which were already reported."""
    cells = list(frames.frame(told.kind, told.cluster, told.supply, told.used_in).cells)
    for column in _ONLY_MEASURED:
        cells[PLACE[column]] = ""
    calendar, amount = book.calendar, decimal_text(int(told.amount.scaleb(MICRO)), MICRO)
    for column in (
        "BilledCost",
        "ContractedCost",
        "EffectiveCost",
        "ListCost",
        "PricingCurrencyEffectiveCost",
    ):
        cells[PLACE[column]] = amount
    span = calendar.month_span(told.used_in)
    cells[PLACE["BillingPeriodStart"]] = moment(calendar.month_start(told.told_in))
    cells[PLACE["BillingPeriodEnd"]] = moment(calendar.month_end(told.told_in))
    cells[PLACE["ChargePeriodStart"]] = moment(span.start)
    cells[PLACE["ChargePeriodEnd"]] = moment(span.end)
    cells[PLACE["InvoiceId"]] = statement_id(book.fleet, told.told_in)
    cells[PLACE["ChargeFrequency"]] = "One-Time"
    # FOCUS has corrections of earlier periods only; within a period, an unmeasured amount is an adjustment.
    if told.used_in < told.told_in:
        cells[PLACE["ChargeClass"]] = "Correction"
    else:
        cells[PLACE["ChargeCategory"]] = "Adjustment"
    month = f"{told.used_in.year:04d}-{told.used_in.month:02d}"
    cells[PLACE["ChargeDescription"]] = f"Correction of {month}: {cells[PLACE['ChargeDescription']]}"
    cells[PLACE["x_UsedIn"]] = month
    cells[_TAGS] = json.dumps({"fairway/cluster": told.cluster})
    if told.team:
        cells[_SUB_ID] = cells[_SUB_NAME] = told.team
        cells[_SUB_TYPE] = "Team"
    return tuple(cells)


_ELSEWHERE: Final = frozenset({Label.TEAM, Label.POOL, Label.CLUSTER, Label.SLICE, Label.DAY})
"""Labels that have their own columns."""
_ONLY_MEASURED: Final = (
    "CapacityReservationId",
    "CapacityReservationStatus",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedUnit",
    "PricingUnit",
)

_BILLED, _EFFECTIVE = PLACE["BilledCost"], PLACE["EffectiveCost"]
_LIST_COST, _LIST_PRICE = PLACE["ListCost"], PLACE["ListUnitPrice"]
_CONTRACTED_COST, _CONTRACTED_PRICE = PLACE["ContractedCost"], PLACE["ContractedUnitPrice"]
_PRICING_QUANTITY, _COMMITMENT_QUANTITY = PLACE["PricingQuantity"], PLACE["CommitmentDiscountQuantity"]
_CONSUMED, _CONSUMED_UNIT = PLACE["ConsumedQuantity"], PLACE["ConsumedUnit"]
_SUB_ID, _SUB_NAME, _SUB_TYPE = PLACE["SubAccountId"], PLACE["SubAccountName"], PLACE["SubAccountType"]
_PRICING_EFFECTIVE = PLACE["PricingCurrencyEffectiveCost"]
_PRICING_LIST = PLACE["PricingCurrencyListUnitPrice"]
_PRICING_CONTRACTED = PLACE["PricingCurrencyContractedUnitPrice"]
_TAGS, _X_USER, _X_PRIORITY = PLACE["Tags"], PLACE["x_User"], PLACE["x_Priority"]
_METHOD, _METHOD_DETAILS = PLACE["AllocatedMethodId"], PLACE["AllocatedMethodDetails"]
_ALLOCATED_ID, _ALLOCATED_NAME = PLACE["AllocatedResourceId"], PLACE["AllocatedResourceName"]
_ALLOCATED_TAGS = PLACE["AllocatedTags"]


def _product(price: int, quantity: int) -> str:
    spare = PRICE_DIGITS + QUANTITY_DIGITS - COST_DIGITS
    return decimal_text(divided(price * quantity, 10**spare), COST_DIGITS)
