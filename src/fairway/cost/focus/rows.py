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
from fairway.cost.focus.columns import COLUMNS
from fairway.cost.focus.totals import divided
from fairway.cost.rates import memory_part
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
class RowTemplate:
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
class RowTemplates:
    """Builds the row templates of one fleet."""

    fleet: Fleet
    calendar: Calendar

    def template(
        self, kind: ChargeKind, cluster: ClusterName, supply: Supply | None, day: date
    ) -> RowTemplate:
        """Build the template of one kind of charge on one day."""
        cells = self._account(cluster, day) | {"x_Kind": kind}
        if supply is None:
            return self._overhead(cells, cluster, day)
        pool = next((p for p in self.fleet.pools if p.name == supply.pool), None)
        if pool is None:
            return self._removed_pool(cells, kind, cluster, supply)
        cells |= self._resource(kind, pool, supply)
        committed = any(c.since <= day < c.until for c in pool.pricing.commitments)
        committed = committed or kind is ChargeKind.COMMITMENT
        if committed:
            cells |= self._commitment(kind, pool, cells["PricingUnit"])
        category = "Committed" if committed else "Dynamic" if pool.capacity is Capacity.SPOT else "Standard"
        cells["PricingCategory"] = category
        slice_price = pool.pricing.slices.get(supply.slice) if supply.slice else None
        if slice_price is not None:
            listed = paid = Fraction(slice_price)
        else:
            listed = Fraction(pool.list_price(day)) * memory_part(pool.gpu, supply.slice)
            paid = listed * (1 - Fraction(pool.pricing.discount))
        return RowTemplate(
            _row(cells),
            scaled(listed, PRICE_DIGITS),
            scaled(paid, PRICE_DIGITS),
            consumes=not (committed and kind in UNUSED_KINDS),
            committed=committed,
            # With blended or spot rates, a list price cannot be derived from the cost of slices.
            derived=1 - Fraction(pool.pricing.discount)
            if supply.slice and slice_price is None and not committed and pool.capacity is not Capacity.SPOT
            else None,
            sharing=f"fairway/idle-{self.fleet.cost.idle}",
            slicing="fairway/slice-by-memory" if slice_price is None else "fairway/slice-by-price",
        )

    def _account(self, cluster: ClusterName, day: date) -> dict[str, str]:
        fleet, calendar = self.fleet, self.calendar
        return {
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

    def _devices(
        self, kind: ChargeKind, cluster: ClusterName, supply: Supply, device: str, sku: str
    ) -> dict[str, str]:
        unit = "Slice" if supply.slice else "GPU"
        return {
            "ChargeDescription": f"{device} of pool {supply.pool}, {_DESCRIPTIONS[kind]}",
            "ChargeFrequency": "Usage-Based",
            "ConsumedUnit": f"{unit}-Seconds",
            "PricingUnit": f"{unit}-Hours",
            "ResourceId": f"{self.fleet.name}/{cluster}/{supply.pool}",
            "ResourceName": supply.pool,
            "ResourceType": "GPU pool",
            "ServiceCategory": "Compute",
            "ServiceName": GPU_SERVICE,
            "ServiceSubcategory": "Other (Compute)",
            "SkuId": sku,
            "SkuMeter": f"{unit} time",
            "SkuPriceId": f"{cluster}/{supply}",
            "x_Pool": supply.pool,
            "x_Slice": supply.slice or "",
        }

    def _resource(self, kind: ChargeKind, pool: Pool, supply: Supply) -> dict[str, str]:
        device = f"{pool.gpu.name}/{supply.slice}" if supply.slice else pool.gpu.name
        details = {"x_Slice": supply.slice} if supply.slice else {"GpuCount": 1}
        return self._devices(kind, pool.cluster, supply, device, device) | {
            "CapacityReservationId": f"{self.fleet.name}/{pool.cluster}/{pool.name}",
            "CapacityReservationStatus": "Used" if kind is ChargeKind.USAGE else "Unused",
            "SkuPriceDetails": json.dumps(details),
        }

    def _commitment(self, kind: ChargeKind, pool: Pool, unit: str) -> dict[str, str]:
        id_ = f"{self.fleet.name}/{pool.cluster}/{pool.name}/commitments"
        cells = {
            "CommitmentDiscountCategory": "Usage",
            "CommitmentDiscountId": id_,
            "CommitmentDiscountName": f"Commitments of {pool.name}",
            "CommitmentDiscountStatus": "Unused" if kind in UNUSED_KINDS else "Used",
            "CommitmentDiscountType": "Committed GPUs",
            "CommitmentDiscountUnit": unit,
        }
        if kind is ChargeKind.COMMITMENT:
            cells |= {
                "ResourceId": id_,
                "ResourceName": f"Commitments of {pool.name}",
                "ResourceType": "Commitment",
                "CapacityReservationId": "",
                "CapacityReservationStatus": "",
            }
        return cells

    def _overhead(self, cells: dict[str, str], cluster: ClusterName, day: date) -> RowTemplate:
        cells |= {
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
        monthly = sum(
            (Fraction(a) for c in self.fleet.clusters if c.name == cluster for a in c.overhead.values()),
            Fraction(0),
        )
        price = scaled(monthly / self.calendar.days_in_month(day), PRICE_DIGITS)
        return RowTemplate(
            _row(cells),
            price,
            price,
            consumes=True,
            committed=False,
            derived=None,
            sharing=f"fairway/overhead-{self.fleet.cost.overhead}",
            slicing="",
        )

    def _removed_pool(
        self, cells: dict[str, str], kind: ChargeKind, cluster: ClusterName, supply: Supply
    ) -> RowTemplate:
        """Build the template of a pool that the fleet no longer has: only its name is known."""
        device = "Slice" if supply.slice else "GPU"
        cells |= self._devices(kind, cluster, supply, device, str(supply))
        cells |= {"PricingCategory": "Other", "SkuPriceDetails": "{}"}
        return RowTemplate(
            _row(cells),
            0,
            0,
            consumes=True,
            committed=False,
            derived=Fraction(1),
            sharing=f"fairway/idle-{self.fleet.cost.idle}",
            slicing="fairway/slice-by-memory",
        )


def _row(cells: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(cells.get(column, "") for column in COLUMNS)


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
