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
from fairway.cost.rates import memory_part
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Span
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.model.price import Commitment, commitment_ids
from fairway.model.team import Supply

HOUR: Final = 3600
AMOUNT_DIGITS: Final = 6
"""Decimal places of a row's amount."""
PRICE_DIGITS: Final = 10
QUANTITY_DIGITS: Final = 9
COST_DIGITS: Final = 12
"""Decimal places of price × quantity; the FOCUS validator compares to 1e-9."""

_ONE: Final = Fraction(1)

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
    commitment: Commitment | None
    scale: Fraction | None
    """Set if the list price must be derived from the cost, because a slice's part depends on how its GPU is
    cut: list price per effective price. None if the prices above apply."""
    contracted: Fraction
    """Contracted price per list price."""
    gpu_part: Fraction
    """The part of a GPU that a device is if it costs nothing."""
    sharing: str
    """The AllocatedMethodId of shares of the charge."""
    slicing: str
    """The AllocatedMethodId of a slice as a share of a GPU."""


@dataclass(frozen=True, slots=True)
class RowTemplates:
    """Builds the row templates of the fleet that was in force; `issuer` is today's, whose name is billed."""

    issuer: Fleet
    fleet: Fleet
    calendar: Calendar

    def template(
        self,
        kind: ChargeKind,
        cluster: ClusterName,
        supply: Supply | None,
        span: Span,
        commitment: Commitment | None = None,
    ) -> RowTemplate:
        """Build the template of one kind of charge in a span of one day."""
        day = self.calendar.day_of(span.start)
        cells = self._account(cluster, day, span) | {"x_Kind": kind}
        if supply is None:
            return self._overhead(cells, cluster, day)
        pool = next((p for p in self.fleet.pools if p.name == supply.pool), None)
        if pool is None:
            return self._removed_pool(cells, kind, cluster, supply)
        cells |= self._resource(kind, pool, supply)
        spot = pool.capacity is Capacity.SPOT
        cells["PricingCategory"] = "Dynamic" if spot else "Standard"
        part, contracted = memory_part(pool.gpu, supply.slice), 1 - Fraction(pool.pricing.discount)
        listed, scale = Fraction(pool.list_price(day)) * part, None
        slice_price = pool.pricing.slices.get(supply.slice) if supply.slice else None
        if kind is ChargeKind.COMMITMENT and commitment is not None:
            # What is missing was bought as a commitment: nothing else has its price.
            listed, contracted = Fraction(commitment.per_gpu_hour), _ONE
        elif slice_price is not None:
            listed, contracted = Fraction(slice_price), _ONE
        elif supply.slice and not spot:
            paid = contracted * Fraction(pool.list_price(day))
            paid = paid if commitment is None else Fraction(commitment.per_gpu_hour)
            scale = Fraction(pool.list_price(day)) / paid if paid else None
        if commitment is not None:
            cells |= self._commitment(kind, pool, commitment)
        return RowTemplate(
            _row(cells),
            scaled(listed, PRICE_DIGITS),
            scaled(listed * contracted, PRICE_DIGITS),
            # FOCUS: what a commitment leaves unused was not consumed.
            consumes=commitment is None or kind not in UNUSED_KINDS,
            commitment=commitment,
            scale=scale,
            contracted=contracted,
            gpu_part=part,
            sharing=f"fairway/idle-{self.fleet.cost.idle}",
            slicing="fairway/slice-by-memory" if slice_price is None else "fairway/slice-by-price",
        )

    def _account(self, cluster: ClusterName, day: date, span: Span) -> dict[str, str]:
        fleet, calendar = self.issuer, self.calendar
        return {
            "BillingAccountId": fleet.name,
            "BillingAccountName": fleet.name,
            "BillingAccountType": "Fleet",
            "BillingCurrency": fleet.currency,
            "BillingPeriodStart": moment(calendar.month_start(day)),
            "BillingPeriodEnd": moment(calendar.month_end(day)),
            "ChargePeriodStart": moment(span.start),
            "ChargePeriodEnd": moment(span.end),
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
            "ResourceId": f"{self.issuer.name}/{cluster}/{supply.pool}",
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
        cells = self._devices(kind, pool.cluster, supply, device, device)
        if pool.capacity is Capacity.RESERVED and kind is not ChargeKind.COMMITMENT:
            cells["CapacityReservationId"] = cells["ResourceId"]
            cells["CapacityReservationStatus"] = "Used" if kind is ChargeKind.USAGE else "Unused"
        return cells | {"SkuPriceDetails": json.dumps(details)}

    def _commitment(self, kind: ChargeKind, pool: Pool, commitment: Commitment) -> dict[str, str]:
        id_ = commitment_ids(pool.name, pool.pricing.commitments).get(commitment, commitment.id)
        name = f"{commitment.gpus} GPUs of {pool.name} from {commitment.since} until {commitment.until}"
        cells = {
            "CommitmentDiscountCategory": "Usage",
            "CommitmentDiscountId": id_,
            "CommitmentDiscountName": name,
            "CommitmentDiscountStatus": "Unused" if kind in UNUSED_KINDS else "Used",
            "CommitmentDiscountType": "Committed GPUs",
            "CommitmentDiscountUnit": "GPU-Hours",
            "PricingCategory": "Committed",
        }
        if kind is ChargeKind.COMMITMENT:
            cells |= {
                "ResourceId": f"{self.issuer.name}/{pool.cluster}/{pool.name}/{id_}",
                "ResourceName": name,
                "ResourceType": "Commitment",
                "SkuPriceId": f"{pool.cluster}/{pool.name}/{id_}",
            }
        return cells

    def _overhead(self, cells: dict[str, str], cluster: ClusterName, day: date) -> RowTemplate:
        cells |= {
            "ChargeDescription": f"Overhead of cluster {cluster}: power, space, people, storage",
            "ChargeFrequency": "Recurring",
            "ConsumedUnit": "Days",
            "PricingCategory": "Standard",
            "PricingUnit": "Days",
            "ResourceId": f"{self.issuer.name}/{cluster}",
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
            commitment=None,
            scale=None,
            contracted=_ONE,
            gpu_part=_ONE,
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
            commitment=None,
            scale=_ONE,
            contracted=_ONE,
            gpu_part=_ONE,
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


def divided(number: int, by: int) -> int:
    """Divide and round to the nearest integer, half up."""
    return (2 * number + by) // (2 * by)


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
