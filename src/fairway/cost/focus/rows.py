"""Build the cells that all rows of one supply on one day have in common, and their unit prices.

Charges of a supply differ in who pays and how much; the other cells are built here once, and copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.cost.focus.columns import COLUMNS, PLACE
from fairway.cost.focus.totals import divided
from fairway.cost.slicing import memory_part
from fairway.model.charge import UNUSED_KINDS, ChargeKind
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.model.team import Supply

HOUR: Final = 3600
PRICE_DIGITS: Final = 10
QUANTITY_DIGITS: Final = 9
COST_DIGITS: Final = 12
"""Decimal places of price × quantity; the FOCUS validator compares to 1e-9."""

GPU_SERVICE: Final = "GPU capacity"
OVERHEAD_SERVICE: Final = "Cluster overhead"

_DESCRIPTIONS: Final[Mapping[ChargeKind, str]] = {
    ChargeKind.USAGE: "held by jobs",
    ChargeKind.IDLE: "free, used by nobody",
    ChargeKind.FRAGMENTED: "free, but too few on each node for what waited",
    ChargeKind.DRAINED: "on nodes closed to new work",
    ChargeKind.DOWN: "on nodes that were down",
    ChargeKind.COMMITMENT: "committed, but not there",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """The common part of rows: all cells except payer, quantity and amount."""

    cells: tuple[str, ...]
    list_price: int
    """Per unit, as an integer with PRICE_DIGITS decimal places."""
    contracted_price: int
    consumes: bool
    """Whether ConsumedQuantity is set."""
    committed: bool
    derived: Fraction | None
    """Set if the unit price must be derived from the cost, because a slice's part depends on how its GPU is
    cut: the fraction of the list price that is paid. None if the prices above apply."""
    sharing: str
    """The AllocatedMethodId of shares of the charge."""
    slicing: str
    """The AllocatedMethodId of a slice as a share of a GPU."""


@dataclass(frozen=True, slots=True)
class Frames:
    """A factory of the frames of one fleet."""

    fleet: Fleet
    calendar: Calendar

    def frame(self, kind: ChargeKind, cluster: ClusterName, supply: Supply | None, day: date) -> Frame:
        """Build the frame of one kind of charge on one day."""
        pool = self._pool(supply)
        cells = [""] * len(COLUMNS)
        self._account(cells, cluster, day)
        cells[PLACE["x_Kind"]] = kind
        if supply is None:
            return self._overhead(cells, cluster, day)
        if pool is None:
            return self._gone(cells, kind, supply)
        self._resource(cells, kind, pool, supply)
        committed = any(c.since <= day < c.until for c in pool.pricing.commitments)
        committed = committed or kind is ChargeKind.COMMITMENT
        if committed:
            self._commitment(cells, kind, pool)
        category = "Committed" if committed else "Dynamic" if pool.capacity is Capacity.SPOT else "Standard"
        cells[PLACE["PricingCategory"]] = category
        own = pool.pricing.slices.get(supply.slice) if supply.slice else None
        whole = Fraction(pool.list_price(day))
        listed = Fraction(own) if own is not None else whole * memory_part(pool.gpu, supply.slice)
        paid = listed if own is not None else listed * (1 - Fraction(pool.pricing.discount))
        return Frame(
            tuple(cells),
            scaled(listed, PRICE_DIGITS),
            scaled(paid, PRICE_DIGITS),
            consumes=not (committed and kind in UNUSED_KINDS),
            committed=committed,
            # With blended or spot rates, a list price cannot be derived from the cost of slices.
            derived=1 - Fraction(pool.pricing.discount)
            if supply.slice and own is None and not committed and pool.capacity is not Capacity.SPOT
            else None,
            sharing=f"fairway/idle-{self.fleet.cost.idle}",
            slicing="fairway/slice-by-memory" if own is None else "fairway/slice-by-price",
        )

    def _pool(self, supply: Supply | None) -> Pool | None:
        return next((p for p in self.fleet.pools if supply and p.name == supply.pool), None)

    def _account(self, cells: list[str], cluster: ClusterName, day: date) -> None:
        fleet, calendar = self.fleet, self.calendar
        told = {
            "BillingAccountId": fleet.name,
            "BillingAccountName": fleet.name,
            "BillingAccountType": "Fleet",
            "BillingCurrency": fleet.currency,
            "BillingPeriodStart": moment(calendar.month_start(day)),
            "BillingPeriodEnd": moment(calendar.month_end(day)),
            "ChargePeriodStart": moment(calendar.day_start(day)),
            "ChargePeriodEnd": moment(calendar.day_end(day)),
            "ChargeCategory": "Usage",
            "InvoiceId": statement_id(fleet, day),
            "InvoiceIssuerName": fleet.name,
            "PricingCurrency": fleet.currency,
            "ProviderName": fleet.name,
            "PublisherName": fleet.name,
            "RegionId": cluster,
            "RegionName": cluster,
            "x_Cluster": cluster,
        }
        for column, text in told.items():
            cells[PLACE[column]] = text

    def _resource(self, cells: list[str], kind: ChargeKind, pool: Pool, supply: Supply) -> None:
        where = f"{self.fleet.name}/{pool.cluster}/{pool.name}"
        device = f"{pool.gpu.name}/{supply.slice}" if supply.slice else pool.gpu.name
        unit = "Slice" if supply.slice else "GPU"
        details = {"x_Slice": supply.slice} if supply.slice else {"GpuCount": 1}
        told = {
            "CapacityReservationId": where,
            "CapacityReservationStatus": "Used" if kind is ChargeKind.USAGE else "Unused",
            "ChargeDescription": f"{device} of pool {pool.name}, {_DESCRIPTIONS[kind]}",
            "ChargeFrequency": "Usage-Based",
            "ConsumedUnit": f"{unit}-Seconds",
            "PricingUnit": f"{unit}-Hours",
            "ResourceId": where,
            "ResourceName": pool.name,
            "ResourceType": "GPU pool",
            "ServiceCategory": "Compute",
            "ServiceName": GPU_SERVICE,
            "ServiceSubcategory": "Other (Compute)",
            "SkuId": device,
            "SkuMeter": f"{unit} time",
            "SkuPriceDetails": json.dumps(details),
            "SkuPriceId": f"{pool.cluster}/{supply}",
            "x_Pool": pool.name,
            "x_Slice": supply.slice or "",
        }
        for column, text in told.items():
            cells[PLACE[column]] = text

    def _commitment(self, cells: list[str], kind: ChargeKind, pool: Pool) -> None:
        name = f"{self.fleet.name}/{pool.cluster}/{pool.name}/commitments"
        told = {
            "CommitmentDiscountCategory": "Usage",
            "CommitmentDiscountId": name,
            "CommitmentDiscountName": f"Commitments of {pool.name}",
            "CommitmentDiscountStatus": "Unused" if kind in UNUSED_KINDS else "Used",
            "CommitmentDiscountType": "Committed GPUs",
            "CommitmentDiscountUnit": cells[PLACE["PricingUnit"]],
        }
        if kind is ChargeKind.COMMITMENT:
            told |= {"ResourceId": name, "ResourceName": f"Commitments of {pool.name}"}
            told |= {
                "ResourceType": "Commitment",
                "CapacityReservationId": "",
                "CapacityReservationStatus": "",
            }
        for column, text in told.items():
            cells[PLACE[column]] = text

    def _overhead(self, cells: list[str], cluster: ClusterName, day: date) -> Frame:
        told = {
            "ChargeDescription": f"Overhead of cluster {cluster}: power, space, people, storage",
            "ChargeFrequency": "Recurring",
            "ConsumedUnit": "Days",
            "PricingCategory": "Standard",
            "PricingUnit": "Days",
            "ResourceId": f"{self.fleet.name}/{cluster}",
            "ResourceName": cluster,
            "ResourceType": "Cluster",
            "ServiceCategory": "Management and Governance",
            "ServiceName": OVERHEAD_SERVICE,
            "ServiceSubcategory": "Other (Management and Governance)",
            "SkuId": "overhead",
            "SkuMeter": "Overhead a day",
            "SkuPriceDetails": "{}",
            "SkuPriceId": f"{cluster}/overhead",
        }
        for column, text in told.items():
            cells[PLACE[column]] = text
        monthly = sum(
            (Fraction(a) for c in self.fleet.clusters if c.name == cluster for a in c.overhead.values()),
            Fraction(0),
        )
        price = scaled(monthly / self.calendar.days_in_month(day), PRICE_DIGITS)
        return Frame(
            tuple(cells),
            price,
            price,
            consumes=True,
            committed=False,
            derived=None,
            sharing=f"fairway/overhead-{self.fleet.cost.overhead}",
            slicing="",
        )

    def _gone(self, cells: list[str], kind: ChargeKind, supply: Supply) -> Frame:
        """Build the frame of a pool that the fleet no longer has: only its name is known."""
        unit = "Slice" if supply.slice else "GPU"
        told = {
            "ChargeDescription": f"{unit} of pool {supply.pool}, {_DESCRIPTIONS[kind]}",
            "ChargeFrequency": "Usage-Based",
            "ConsumedUnit": f"{unit}-Seconds",
            "PricingCategory": "Other",
            "PricingUnit": f"{unit}-Hours",
            "ResourceId": f"{self.fleet.name}/{cells[PLACE['x_Cluster']]}/{supply.pool}",
            "ResourceName": supply.pool,
            "ResourceType": "GPU pool",
            "ServiceCategory": "Compute",
            "ServiceName": GPU_SERVICE,
            "ServiceSubcategory": "Other (Compute)",
            "SkuId": f"{supply.pool}/{supply.slice}" if supply.slice else str(supply.pool),
            "SkuMeter": f"{unit} time",
            "SkuPriceDetails": "{}",
            "SkuPriceId": f"{cells[PLACE['x_Cluster']]}/{supply}",
            "x_Pool": supply.pool,
            "x_Slice": supply.slice or "",
        }
        for column, text in told.items():
            cells[PLACE[column]] = text
        return Frame(
            tuple(cells),
            0,
            0,
            consumes=True,
            committed=False,
            derived=Fraction(1),
            sharing=f"fairway/idle-{self.fleet.cost.idle}",
            slicing="fairway/slice-by-memory",
        )


def statement_id(fleet: Fleet, day: date) -> str:
    """Return the id of the month's statement, used as the invoice id."""
    return f"{fleet.name}-{day.year:04d}-{day.month:02d}"


def moment(at: int) -> str:
    """Format a timestamp: `2026-07-01T00:00:00Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def scaled(value: Fraction, digits: int) -> int:
    """Convert to an integer with `digits` decimal places, rounded to the nearest."""
    return divided(value.numerator * 10**digits, value.denominator)


def decimal_text(value: int, digits: int) -> str:
    """Format an integer with `digits` decimal places: 1750000 with six is `1.75`.

    Always with a point, so that tools that infer a column's type from its first rows infer a decimal.
    """
    if value < 0:
        return f"-{decimal_text(-value, digits)}"
    text = str(value)
    if len(text) <= digits:
        text = text.rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:].rstrip('0') or '0'}"
