"""Convert charges to rows of FOCUS, whose amounts sum to the cents of the statement.

One pass, a day at a time, so that a year's rows are never in memory at once. Each row has its exact amount
rounded to millionths. At the end, each line of the statement whose rows do not sum to its cents has one more
row with the difference: rounding, or what a closed month billed otherwise than its charges come to today.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.cost.corrections import PATH_SEPARATOR, Line, round_lines
from fairway.cost.fleet_history import TeamPath, always
from fairway.cost.focus.columns import COLUMNS, PLACE
from fairway.cost.focus.rows import (
    AMOUNT_DIGITS,
    COST_DIGITS,
    HOUR,
    PRICE_DIGITS,
    QUANTITY_DIGITS,
    RowTemplate,
    RowTemplates,
    decimal_text,
    divided,
    moment,
    scaled,
    statement_id,
)
from fairway.model.charge import Charge, ChargeKind, Dimension, JobLabel, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.price import Commitment, cent
from fairway.model.team import Supply

__all__ = ["COLUMNS", "Billed", "Correction", "DayCharges", "ExportContext", "Row", "rows"]

Row = tuple[str, ...]
"""One string per column, as in CSV; an empty string is null."""

Billed = Mapping[tuple[str, ChargeKind, ClusterName, Supply | None, TeamPath], Decimal]
"""The amounts of a closed month by team, kind, cluster and supply; no team is empty."""

NO_TEAM: Final = "(no team)"
"""The sub-account of jobs without a team; what nobody pays has none."""
_RATIO: Final = 12
_FINE_DIGITS: Final = 20
_MILLIONTHS: Final = 10**AMOUNT_DIGITS


@dataclass(frozen=True, slots=True)
class ExportContext:
    """The newest fleet, the calendar, the labels and the payers of an export."""

    fleet: Fleet
    calendar: Calendar
    labels: tuple[Dimension, ...] = (Label.TEAM, Label.USER, Label.PRIORITY)
    """The labels of the charges, in order; the first is TEAM."""
    teams: frozenset[str] | None = None
    """The teams whose rows are exported, with those inside them then; None: all, and what nobody pays."""

    def includes(self, path: Sequence[str]) -> bool:
        """Return whether the rows of a team with this path are exported."""
        return self.teams is None or not self.teams.isdisjoint(path)


@dataclass(frozen=True, slots=True)
class DayCharges:
    """All itemised charges of one day, or of the part of it in which one fleet was in force."""

    span: Span
    fleet: Fleet
    charges: Sequence[Charge]
    paths: Mapping[str, TeamPath] | None = None
    """The path of each team; None: as the fleet has it."""


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


def rows(
    context: ExportContext,
    days: Iterable[DayCharges],
    corrections: Iterable[Correction] = (),
    billed: Billed | None = None,
) -> Iterator[Row]:
    """Yield a row per day, supply, commitment, charge kind and set of labels, then the differences.

    `billed` are the amounts of the one month of `days` if it is closed; an open one, or another window, is
    rounded as its statement or report is.
    """
    sums: dict[Line, _LineSum] = {}
    templates: dict[int, tuple[Fleet, RowTemplates]] = {}
    for day in days:
        found = templates.get(id(day.fleet))
        if found is None:
            builder = RowTemplates(context.fleet, day.fleet, context.calendar)
            found = templates[id(day.fleet)] = day.fleet, builder
        yield from _Day(context, found[1], day, sums).rows()
    newest = RowTemplates(context.fleet, context.fleet, context.calendar)
    for difference in _differences(context, sums, billed):
        yield _correction_row(context, newest, difference)
    for correction in corrections:
        yield _correction_row(context, newest, correction)


@dataclass(slots=True)
class _LineSum:
    """The sum of a line: as written, and exact by denominator. There are few; adding integers is fast."""

    exact: dict[int, int] = field(default_factory=dict)
    millionths: int = 0

    def add(self, amount: Fraction) -> int:
        """Add an amount. Returns its millionths."""
        number, of = amount.numerator, amount.denominator
        self.exact[of] = self.exact.get(of, 0) + number
        written = divided(number * _MILLIONTHS, of)
        self.millionths += written
        return written


def _differences(
    context: ExportContext, sums: Mapping[Line, _LineSum], billed: Billed | None
) -> Iterator[Correction]:
    """Yield what each line must have beyond its rows, without corrections of other months."""
    written: dict[_LineKey, Decimal] = {}
    wanted: dict[_LineKey, Decimal] = {}
    for line, found in sums.items():
        _add(written, line, Decimal(found.millionths).scaleb(-AMOUNT_DIGITS))
    if billed is None:
        exact = {
            line: sum((Fraction(n, d) for d, n in found.exact.items()), Fraction(0))
            for line, found in sums.items()
        }
        for line, amount in round_lines(exact, cent(context.fleet.currency)).items():
            _add(wanted, line, amount)
    elif sums:
        month = next(iter(sums)).month
        wanted = {(month, *key): amount for key, amount in billed.items()}
    for key in sorted({*written, *wanted}, key=str):
        month, team, kind, cluster, supply, inside = key
        amount = wanted.get(key, Decimal(0)) - written.get(key, Decimal(0))
        if amount and month is not None and context.includes((*inside, team)):
            payer = TeamName(team) if team else None
            yield Correction(kind, cluster, supply, payer, month, month, amount)


_LineKey = tuple[date | None, str, ChargeKind, ClusterName, Supply | None, TeamPath]


def _add(sums: dict[_LineKey, Decimal], line: Line, amount: Decimal) -> None:
    key = (line.month, *line.key)
    sums[key] = sums.get(key, Decimal(0)) + amount


@dataclass(slots=True)
class _Origin:
    """A sum of which other amounts are shares."""

    fine: int = 0


@dataclass(slots=True)
class _Part:
    """Charges of one kind, supply and commitment on one day."""

    template: RowTemplate
    gpus: _Origin | None
    """For a slice, the cost of the GPUs of its pool, which it is a share of; None otherwise."""
    shared: _Origin = field(default_factory=_Origin)
    """The sum of the part's charges that are shared out to labels."""
    lines: dict[tuple[str, bool], _LineSum] = field(default_factory=dict)
    """By team, and whether it is charged to anybody."""


class _Day:
    """The rows of one day. Sums of which rows are shares are integers: fractions with many rates are long."""

    def __init__(
        self, context: ExportContext, templates: RowTemplates, day: DayCharges, sums: dict[Line, _LineSum]
    ) -> None:
        self._context = context
        self._templates = templates
        self._day = day
        self._sums = sums
        self._month = context.calendar.day_of(day.span.start).replace(day=1)
        self._parts: dict[tuple[ChargeKind, ClusterName, Supply | None, Commitment | None], _Part] = {}
        self._gpus: dict[PoolName, _Origin] = {}
        self._tags: dict[tuple[str, ...], str] = {}
        self._paths = always(day.fleet, day.span).paths if day.paths is None else day.paths
        places = {label: i for i, label in enumerate(context.labels)}
        self._user, self._priority = places.get(Label.USER), places.get(Label.PRIORITY)
        self._kind, self._service = places.get(Label.KIND), places.get(Label.SERVICE)
        self._project = places.get(Label.PROJECT)

    def rows(self) -> Iterator[Row]:
        charges = []
        for charge in self._day.charges:
            part = self._part(charge)
            is_share = charge.kind is not ChargeKind.USAGE and charge.labels is not None
            fine = 0
            if is_share or part.gpus is not None:
                fine = scaled(charge.amount, _FINE_DIGITS)
                if is_share:
                    part.shared.fine += fine
                if part.gpus is not None:
                    part.gpus.fine += fine
            charges.append((charge, part, part.shared if is_share else part.gpus, fine))
        for charge, part, origin, fine in charges:
            carried = charge.labels is not None
            team = charge.labels[0] if charge.labels else ""
            found = part.lines.get((team, carried))
            if found is None:
                inside = self._path(team)[:-1]
                line = Line(team, carried, charge.kind, charge.cluster, charge.supply, self._month, inside)
                found = part.lines[team, carried] = self._sums.setdefault(line, _LineSum())
            millionths = found.add(charge.amount)
            if self._context.teams is None or (carried and self._context.includes(self._path(team))):
                yield self._row(charge, part.template, millionths, origin, fine)

    def _part(self, charge: Charge) -> _Part:
        supply = charge.supply
        key = (charge.kind, charge.cluster, supply, charge.commitment)
        found = self._parts.get(key)
        if found is None:
            gpus = self._gpus.setdefault(supply.pool, _Origin()) if supply and supply.slice else None
            template = self._templates.template(
                charge.kind, charge.cluster, supply, self._day.span, charge.commitment
            )
            found = self._parts[key] = _Part(template, gpus)
        return found

    def _row(
        self, charge: Charge, template: RowTemplate, millionths: int, origin: _Origin | None, fine: int
    ) -> Row:
        cells = list(template.cells)
        amount = decimal_text(millionths, AMOUNT_DIGITS)
        cells[_BILLED] = cells[_EFFECTIVE] = cells[_PRICING_EFFECTIVE] = amount
        _quantities(cells, template, charge)
        self._carrier(cells, charge)
        if origin is not None:
            _allocation(cells, template, charge, fine, origin.fine)
        return tuple(cells)

    def _carrier(self, cells: list[str], charge: Charge) -> None:
        labels = charge.labels
        if labels:
            team = labels[0]
            cells[_SUB_ID] = cells[_SUB_NAME] = team or NO_TEAM
            cells[_SUB_TYPE] = "Team" if team else "No team"
            cells[_X_TEAM_PATH] = PATH_SEPARATOR.join(self._path(team))
            if self._user is not None:
                cells[_X_USER] = labels[self._user]
            if self._priority is not None:
                cells[_X_PRIORITY] = labels[self._priority]
            if self._project is not None:
                cells[_X_PROJECT] = labels[self._project]
            if charge.kind is ChargeKind.USAGE and self._service is not None and labels[self._service]:
                # Of a service, the resource is itself; its pool is in the tags.
                name = labels[self._service]
                cells[_RESOURCE_ID] = f"{self._context.fleet.name}/{charge.cluster}/{name}"
                cells[_RESOURCE_NAME] = name
                cells[_RESOURCE_TYPE] = labels[self._kind] if self._kind is not None else "Service"
        key = (charge.cluster, "" if charge.supply is None else charge.supply.pool, *(labels or ()))
        tags = self._tags.get(key)
        if tags is None:
            tags = self._tags[key] = self._tag_text(charge)
        cells[_TAGS] = tags

    def _path(self, team: str) -> TeamPath:
        """Return a team after its parents of that day."""
        return self._paths.get(team) or (TeamName(team),)

    def _tag_text(self, charge: Charge) -> str:
        tags = {"fairway/cluster": str(charge.cluster)}
        if charge.supply is not None:
            tags["fairway/pool"] = charge.supply.pool
        for label, value in zip(self._context.labels, charge.labels or (), strict=False):
            if value and label not in _OWN_COLUMNS:
                # Keys of people have no prefix: that is for tags of the provider.
                tags[label.key if isinstance(label, JobLabel) else f"fairway/{label}"] = value
        return json.dumps(tags)


def _quantities(cells: list[str], template: RowTemplate, charge: Charge) -> None:
    """Fill in the quantities and their costs at list and contracted prices."""
    listed, paid = template.list_price, template.contracted_price
    number, of = charge.quantity.numerator, charge.quantity.denominator
    if charge.supply is not None:
        consumed = f"{number}.0" if of == 1 else _seconds_text(charge)
        of *= HOUR
        quantity = _nano(number, of)
        hours = decimal_text(quantity, QUANTITY_DIGITS)
    else:
        quantity = _nano(number, of)
        hours = consumed = decimal_text(quantity, QUANTITY_DIGITS)
    amount = charge.amount
    if template.scale is not None and number > 0:
        price = Fraction(max(0, amount.numerator) * of, amount.denominator * number) * template.scale
        listed, paid = scaled(price, PRICE_DIGITS), scaled(price * template.contracted, PRICE_DIGITS)
    cells[_PRICING_QUANTITY] = hours
    if template.consumes:
        cells[_CONSUMED] = consumed
    else:
        cells[_CONSUMED_UNIT] = ""
    commitment = template.commitment
    if commitment is not None:
        cells[_COMMITMENT_QUANTITY] = hours if charge.supply and not charge.supply.slice else ""
        if not cells[_COMMITMENT_QUANTITY]:
            # A slice's part of a GPU depends on how the GPU was cut: the amount says which it was.
            price = Fraction(commitment.per_gpu_hour)
            gpu_hours = amount / price if price else charge.quantity * template.gpu_part / HOUR
            cells[_COMMITMENT_QUANTITY] = decimal_text(scaled(gpu_hours, QUANTITY_DIGITS), QUANTITY_DIGITS)
    list_price, list_cost = _price_text(listed), _product(listed, quantity)
    cells[_LIST_PRICE] = cells[_PRICING_LIST] = list_price
    cells[_LIST_COST] = list_cost
    same = paid == listed
    cells[_CONTRACTED_PRICE] = cells[_PRICING_CONTRACTED] = list_price if same else _price_text(paid)
    cells[_CONTRACTED_COST] = list_cost if same else _product(paid, quantity)


@lru_cache(maxsize=1024)
def _price_text(price: int) -> str:
    """Format a price: most rows have one of few."""
    return decimal_text(price, PRICE_DIGITS)


def _seconds_text(charge: Charge) -> str:
    return decimal_text(scaled(Fraction(charge.quantity), QUANTITY_DIGITS), QUANTITY_DIGITS)


def _nano(number: int, of: int) -> int:
    return divided(number * 10**QUANTITY_DIGITS, of)


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
            f'"UsageQuantity": {_seconds_text(charge)}}}]}}'
        )
        cells[_ALLOCATED_TAGS] = f'{{"fairway/slice": "{charge.supply.slice}"}}'
        names.insert(0, str(charge.supply.slice))
    # A charge without labels is the unallocated part: it has a method, but no allocated resource.
    if charge.labels is not None:
        cells[_ALLOCATED_ID] = cells[_ALLOCATED_NAME] = "/".join(names) or NO_TEAM


def _correction_row(context: ExportContext, templates: RowTemplates, correction: Correction) -> Row:
    """Build the row of a correction: for a whole month, without quantities, which were already reported."""
    fleet, calendar = context.fleet, context.calendar
    used_in, billed_in, team = correction.used_in, correction.billed_in, correction.team or ""
    span = calendar.month_span(used_in)
    template = templates.template(correction.kind, correction.cluster, correction.supply, span)
    cells = dict(zip(COLUMNS, template.cells, strict=True)) | dict.fromkeys(_ONLY_MEASURED, "")
    cells |= dict.fromkeys(_COSTS, decimal_text(int(correction.amount.scaleb(AMOUNT_DIGITS)), AMOUNT_DIGITS))
    month = f"{used_in.year:04d}-{used_in.month:02d}"
    what = "Correction of" if used_in < billed_in else "Adjustment to the statement of"
    cells |= {
        "BillingPeriodStart": moment(calendar.month_start(billed_in)),
        "BillingPeriodEnd": moment(calendar.month_end(billed_in)),
        "ChargePeriodStart": moment(span.start),
        "ChargePeriodEnd": moment(span.end),
        "InvoiceId": statement_id(fleet, billed_in),
        "ChargeFrequency": "One-Time",
        "ChargeDescription": f"{what} {month}: {cells['ChargeDescription']}",
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
_X_TEAM_PATH, _X_PROJECT = PLACE["x_TeamPath"], PLACE["x_Project"]
_METHOD, _METHOD_DETAILS = PLACE["AllocatedMethodId"], PLACE["AllocatedMethodDetails"]
_ALLOCATED_ID, _ALLOCATED_NAME = PLACE["AllocatedResourceId"], PLACE["AllocatedResourceName"]
_ALLOCATED_TAGS = PLACE["AllocatedTags"]


def _product(price: int, quantity: int) -> str:
    spare = PRICE_DIGITS + QUANTITY_DIGITS - COST_DIGITS
    return decimal_text(divided(price * quantity, 10**spare), COST_DIGITS)
