"""Map the columns of bills: AWS Cost and Usage Reports, legacy and 2.0, and FOCUS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fairway.model.bill import BillForm

AmortizedColumns = Mapping[str, Sequence[tuple[str, int]]]
"""Line types whose unblended cost is not that of the line's hours, and the signed columns that have it."""


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
    amortized: AmortizedColumns = field(default_factory=lambda: MappingProxyType({}))


_AMORTIZED: Final[AmortizedColumns] = MappingProxyType(
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


def _snake_case(column: str) -> str:
    """Return the name in version 2.0 of a column of the legacy report."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|/", "_", column).lower()


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
    amortized=_AMORTIZED,
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
    amortized={
        kind: [(_snake_case(column), sign) for column, sign in columns]
        for kind, columns in _AMORTIZED.items()
    },
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
FORMATS: Final = (AWS, AWS_2, FOCUS)

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
