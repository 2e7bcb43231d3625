"""Map the columns of bills: AWS Cost and Usage Reports, legacy and 2.0, and FOCUS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fairway.model.bill import BillForm


@dataclass(frozen=True, slots=True)
class Columns:
    """The column names of one bill format; of several names, the first present in the file is used."""

    form: BillForm
    needed: tuple[str, ...]
    """The required columns, by which the format is detected."""
    start: str
    cost: str
    amount: tuple[str, ...]
    unit: tuple[str, ...]
    currency: str
    resource: str
    region: tuple[str, ...]
    instance: tuple[str, ...]
    gpus: tuple[str, ...]
    kind: str
    service: tuple[str, ...]
    tags: str
    """The JSON column with all tags; empty if each tag has its own column."""


AWS: Final = Columns(
    BillForm.AWS,
    ("lineItem/UsageStartDate", "lineItem/UnblendedCost"),
    start="lineItem/UsageStartDate",
    cost="lineItem/UnblendedCost",
    amount=("lineItem/UsageAmount",),
    unit=("pricing/unit",),
    currency="lineItem/CurrencyCode",
    resource="lineItem/ResourceId",
    region=("product/regionCode", "product/region"),
    instance=("product/instanceType",),
    gpus=("product/gpu",),
    kind="lineItem/LineItemType",
    service=("lineItem/ProductCode", "product/ProductName"),
    tags="",
)
AWS_2: Final = Columns(
    BillForm.AWS_2,
    ("line_item_usage_start_date", "line_item_unblended_cost"),
    start="line_item_usage_start_date",
    cost="line_item_unblended_cost",
    amount=("line_item_usage_amount",),
    unit=("pricing_unit",),
    currency="line_item_currency_code",
    resource="line_item_resource_id",
    region=("product_region_code", "product_region"),
    instance=("product_instance_type",),
    gpus=("product_gpu",),
    kind="line_item_line_item_type",
    service=("line_item_product_code",),
    tags="resource_tags",
)
FOCUS: Final = Columns(
    BillForm.FOCUS,
    ("ChargePeriodStart", "EffectiveCost"),
    start="ChargePeriodStart",
    cost="EffectiveCost",
    amount=("ConsumedQuantity", "PricingQuantity"),
    unit=("ConsumedUnit", "PricingUnit"),
    currency="BillingCurrency",
    resource="ResourceId",
    region=("RegionId",),
    instance=("x_InstanceType", "x_SkuInstanceType"),
    gpus=(),
    kind="ChargeCategory",
    service=("ServiceName",),
    tags="Tags",
)
FORMS: Final = (AWS, AWS_2, FOCUS)

AMORTIZED: Final[Mapping[str, Sequence[tuple[str, int]]]] = MappingProxyType(
    {
        "DiscountedUsage": (("reservation/EffectiveCost", 1),),
        "SavingsPlanCoveredUsage": (("savingsPlan/SavingsPlanEffectiveCost", 1),),
        "SavingsPlanNegation": (),
        "RIFee": (
            ("reservation/UnusedRecurringFee", 1),
            ("reservation/UnusedAmortizedUpfrontFeeForBillingPeriod", 1),
        ),
        "SavingsPlanRecurringFee": (
            ("savingsPlan/TotalCommitmentToDate", 1),
            ("savingsPlan/UsedCommitment", -1),
        ),
        "SavingsPlanUpfrontFee": (),
    }
)
"""AWS line types whose unblended cost is not the cost of the line's hours, and the columns that have it."""

AMORTIZED_2: Final[Mapping[str, Sequence[tuple[str, int]]]] = MappingProxyType(
    {
        "DiscountedUsage": (("reservation_effective_cost", 1),),
        "SavingsPlanCoveredUsage": (("savings_plan_savings_plan_effective_cost", 1),),
        "SavingsPlanNegation": (),
        "RIFee": (
            ("reservation_unused_recurring_fee", 1),
            ("reservation_unused_amortized_upfront_fee_for_billing_period", 1),
        ),
        "SavingsPlanRecurringFee": (
            ("savings_plan_total_commitment_to_date", 1),
            ("savings_plan_used_commitment", -1),
        ),
        "SavingsPlanUpfrontFee": (),
    }
)

INSTANCE_GPUS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "p3.2xlarge": 1,
        "p3.8xlarge": 4,
        "p3.16xlarge": 8,
        "p3dn.24xlarge": 8,
        "p4d.24xlarge": 8,
        "p4de.24xlarge": 8,
        "p5.4xlarge": 1,
        "p5.48xlarge": 8,
        "p5e.48xlarge": 8,
        "p5en.48xlarge": 8,
        "p6-b200.48xlarge": 8,
        "g4dn.12xlarge": 4,
        "g4dn.metal": 8,
        "g5.12xlarge": 4,
        "g5.24xlarge": 4,
        "g5.48xlarge": 8,
        "g6.12xlarge": 4,
        "g6.24xlarge": 4,
        "g6.48xlarge": 8,
        "g6e.12xlarge": 4,
        "g6e.24xlarge": 4,
        "g6e.48xlarge": 8,
    }
)
"""GPUs per AWS instance type, if the bill has none; other sizes of ONE_GPU_FAMILIES have one."""
ONE_GPU_FAMILIES: Final = ("g4dn.", "g5.", "g6.", "g6e.")
