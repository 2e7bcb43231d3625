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
    RowTemplate,
    RowTemplates,
    decimal_text,
    moment,
    statement_id,
)
from fairway.cost.focus.totals import (
    COST_PLACES,
    FINE_DIGITS,
    Carry,
    DayCharges,
    ExportContext,
    Group,
    Totals,
    divided,
    fine_of,
    label_index,
)
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply

__all__ = ["COLUMNS", "Correction", "DayCharges", "ExportContext", "Row", "Totals", "export", "rows"]

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
    billed_in: date
    """First day of the month that reports the correction."""
    amount: Decimal


def rows(totals: Totals, days: Iterable[DayCharges], corrections: Iterable[Correction] = ()) -> Iterator[Row]:
    """Yield the rows (second pass): one per day, supply, charge kind and set of labels, then corrections."""
    context, carriers = totals.context, totals.carriers()
    templates = RowTemplates(context.fleet, context.calendar)
    for day in days:
        yield from _Day(context, templates, day).rows(carriers)
    for correction in corrections:
        yield _correction_row(context, templates, correction)


def export(
    context: ExportContext, days: Sequence[DayCharges], corrections: Iterable[Correction] = ()
) -> Iterator[Row]:
    """Run both passes over charges in memory and yield the rows."""
    totals = Totals(context)
    for day in days:
        totals.add(day)
    return rows(totals, days, corrections)


@dataclass(slots=True)
class _Origin:
    """A sum of which other amounts are shares."""

    fine: int = 0


@dataclass(slots=True)
class _Part:
    """Charges of one kind and supply on one day."""

    template: RowTemplate
    gpus: _Origin | None
    """For a slice, the cost of the GPUs of its pool, which it is a share of; None otherwise."""
    shared: _Origin = field(default_factory=_Origin)
    """The sum of the part's charges that are shared out to labels."""
    carries: dict[str, Carry] = field(default_factory=dict)
    """Carry by team."""

    def origin(self, charge: Charge) -> _Origin | None:
        """Return the sum that the charge is a share of. Returns None if it is not a share."""
        is_share = charge.kind is not ChargeKind.USAGE and charge.labels is not None
        return self.shared if is_share else self.gpus


class _Day:
    """The rows of one day, computed in the integers of `totals`: exact fractions with many rates are long."""

    def __init__(self, context: ExportContext, templates: RowTemplates, day: DayCharges) -> None:
        self._context = context
        self._templates = templates
        self._day = day
        self._month = day.day.replace(day=1)
        self._parts: dict[tuple[ChargeKind, ClusterName, Supply | None], _Part] = {}
        self._gpus: dict[PoolName, _Origin] = {}
        self._tags: dict[tuple[str, ...], str] = {}
        self._team = label_index(context, Label.TEAM)
        self._user = label_index(context, Label.USER)
        self._priority = label_index(context, Label.PRIORITY)
        self._kind = label_index(context, Label.KIND)
        self._service = label_index(context, Label.SERVICE)

    def rows(self, carriers: dict[Group, Carry]) -> Iterator[Row]:
        charges = []
        for charge in self._day.charges:
            part, fine = self._part(charge), fine_of(charge.amount)
            charges.append((charge, part, fine))
            origin = part.origin(charge)
            if origin is not None:
                origin.fine += fine
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
            gpus = self._gpus.setdefault(supply.pool, _Origin()) if supply and supply.slice else None
            found = self._parts[key] = _Part(self._templates.template(*key, self._day.day), gpus)
        return found

    def _row(self, charge: Charge, part: _Part, fine: int, millionths: int) -> Row:
        cells = list(part.template.cells)
        cells[_BILLED] = cells[_EFFECTIVE] = cells[_PRICING_EFFECTIVE] = decimal_text(millionths, COST_PLACES)
        _quantities(cells, part.template, charge, fine)
        self._carrier(cells, charge)
        origin = part.origin(charge)
        if origin is not None:
            _allocation(cells, part.template, charge, fine, origin.fine)
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
            if charge.kind is ChargeKind.USAGE and self._service is not None and labels[self._service]:
                # Of a service, the resource is itself; its pool is in the tags.
                name = labels[self._service]
                cells[_RESOURCE_ID] = f"{self._context.fleet.name}/{charge.cluster}/{name}"
                cells[_RESOURCE_NAME] = name
                cells[_RESOURCE_TYPE] = labels[self._kind] if self._kind is not None else "Service"
        key = (charge.cluster, "" if charge.supply is None else charge.supply.pool, *labels)
        tags = self._tags.get(key)
        if tags is None:
            tags = self._tags[key] = self._tag_text(charge)
        cells[_TAGS] = tags

    def _tag_text(self, charge: Charge) -> str:
        tags = {"fairway/cluster": str(charge.cluster)}
        if charge.supply is not None:
            tags["fairway/pool"] = charge.supply.pool
        for label, value in zip(self._context.labels, charge.labels or (), strict=False):
            if value and label not in _OWN_COLUMNS:
                tags[f"fairway/{label}"] = value
        return json.dumps(tags)


def _quantities(cells: list[str], template: RowTemplate, charge: Charge, fine: int) -> None:
    """Fill in the quantities and their costs at list and contracted prices."""
    listed, paid = template.list_price, template.contracted_price
    seconds = charge.device_seconds
    if seconds:
        quantity = divided(seconds * 10**QUANTITY_DIGITS, HOUR)
        consumed = f"{seconds}.0"
        if template.derived is not None:
            cost, of = max(0, fine * HOUR), abs(seconds) * 10 ** (FINE_DIGITS - PRICE_DIGITS)
            paid = divided(cost, of)
            listed = divided(cost * template.derived.denominator, of * template.derived.numerator)
    else:
        # A share has the quantity that its amount would buy.
        quantity = divided(fine, paid * 10 ** (FINE_DIGITS - PRICE_DIGITS - QUANTITY_DIGITS)) if paid else 0
        consumed = decimal_text(quantity * (1 if charge.supply is None else HOUR), QUANTITY_DIGITS)
    hours = decimal_text(quantity, QUANTITY_DIGITS)
    cells[_PRICING_QUANTITY] = hours
    if template.consumes:
        cells[_CONSUMED] = consumed
    else:
        cells[_CONSUMED_UNIT] = ""
    if template.committed:
        cells[_COMMITMENT_QUANTITY] = hours
    list_price, list_cost = decimal_text(listed, PRICE_DIGITS), _product(listed, quantity)
    cells[_LIST_PRICE] = cells[_PRICING_LIST] = list_price
    cells[_LIST_COST] = list_cost
    same = paid == listed
    cells[_CONTRACTED_PRICE] = cells[_PRICING_CONTRACTED] = (
        list_price if same else decimal_text(paid, PRICE_DIGITS)
    )
    cells[_CONTRACTED_COST] = list_cost if same else _product(paid, quantity)


def _allocation(cells: list[str], template: RowTemplate, charge: Charge, fine: int, origin: int) -> None:
    """Fill in the allocation columns of FOCUS 1.3: origin, method and ratio of a share."""
    ratio = decimal_text(divided(fine * 10**_RATIO, origin) if origin else 0, _RATIO)
    names = [value for value in charge.labels or () if value]
    if charge.kind is not ChargeKind.USAGE and charge.labels is not None:
        cells[_METHOD] = template.sharing
        cells[_METHOD_DETAILS] = f'{{"Elements": [{{"AllocatedRatio": {ratio}}}]}}'
        cells[_ALLOCATED_TAGS] = f'{{"fairway/share-of": "{charge.kind}"}}'
    elif charge.supply is not None:
        cells[_METHOD] = template.slicing
        cells[_METHOD_DETAILS] = (
            f'{{"Elements": [{{"AllocatedRatio": {ratio}, "UsageUnit": "Slice-Seconds", '
            f'"UsageQuantity": {charge.device_seconds}}}]}}'
        )
        cells[_ALLOCATED_TAGS] = f'{{"fairway/slice": "{charge.supply.slice}"}}'
        names.insert(0, str(charge.supply.slice))
    # A charge without labels is the unallocated part: it has a method, but no allocated resource.
    if charge.labels is not None:
        cells[_ALLOCATED_ID] = cells[_ALLOCATED_NAME] = "/".join(names) or "no team"


def _correction_row(context: ExportContext, templates: RowTemplates, correction: Correction) -> Row:
    """Build the row of a correction: for a whole month, without quantities, which were already reported."""
    fleet, calendar = context.fleet, context.calendar
    used_in, billed_in, team = correction.used_in, correction.billed_in, correction.team or ""
    template = templates.template(correction.kind, correction.cluster, correction.supply, used_in)
    cells = dict(zip(COLUMNS, template.cells, strict=True)) | dict.fromkeys(_ONLY_MEASURED, "")
    cells |= dict.fromkeys(_COSTS, decimal_text(int(correction.amount.scaleb(COST_PLACES)), COST_PLACES))
    span = calendar.month_span(used_in)
    month = f"{used_in.year:04d}-{used_in.month:02d}"
    cells |= {
        "BillingPeriodStart": moment(calendar.month_start(billed_in)),
        "BillingPeriodEnd": moment(calendar.month_end(billed_in)),
        "ChargePeriodStart": moment(span.start),
        "ChargePeriodEnd": moment(span.end),
        "InvoiceId": statement_id(fleet, billed_in),
        "ChargeFrequency": "One-Time",
        "ChargeDescription": f"Correction of {month}: {cells['ChargeDescription']}",
        "SubAccountId": team,
        "SubAccountName": team,
        "SubAccountType": "Team" if team else "",
        "Tags": json.dumps({"fairway/cluster": correction.cluster}),
        "x_UsedIn": month,
    }
    # FOCUS has corrections of earlier periods only; within a period, an unmeasured amount is an adjustment.
    cells |= {"ChargeClass": "Correction"} if used_in < billed_in else {"ChargeCategory": "Adjustment"}
    return tuple(cells.values())


_OWN_COLUMNS: Final = frozenset({Label.TEAM, Label.POOL, Label.CLUSTER, Label.SLICE, Label.DAY})
"""Labels that have their own columns."""
_COSTS: Final = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost")
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
_RESOURCE_ID, _RESOURCE_NAME = PLACE["ResourceId"], PLACE["ResourceName"]
_RESOURCE_TYPE = PLACE["ResourceType"]
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
