"""Bills are read: AWS, legacy and 2.0, FOCUS, plain and packed; hostile ones are refused with their row."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from datetime import UTC, date
from decimal import Decimal
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest

from fairway.files.bill import read as bill_reader
from fairway.files.bill.read import InvalidBill, Matching, read_bill
from fairway.model.bill import Bill, BillForm
from fairway.model.names import PoolName

POOL = PoolName("cloud-a100")
MATCHING = Matching(frozenset({POOL, PoolName("cloud-h100")}))
LEGACY = [
    "lineItem/LineItemType",
    "lineItem/UsageStartDate",
    "lineItem/ProductCode",
    "lineItem/ResourceId",
    "lineItem/UsageAmount",
    "lineItem/CurrencyCode",
    "lineItem/UnblendedCost",
    "product/instanceType",
    "product/regionCode",
    "product/gpu",
    "pricing/unit",
    "reservation/EffectiveCost",
    "reservation/UnusedRecurringFee",
    "savingsPlan/SavingsPlanEffectiveCost",
    "resourceTags/user:fairway-pool",
]


def line(**told: str) -> list[str]:
    """A legacy line: an hour of a p4d.24xlarge, unless told otherwise."""
    usual = {
        "lineItem/LineItemType": "Usage",
        "lineItem/UsageStartDate": "2026-03-01T00:00:00Z",
        "lineItem/ProductCode": "AmazonEC2",
        "lineItem/ResourceId": "i-1",
        "lineItem/UsageAmount": "1",
        "lineItem/CurrencyCode": "USD",
        "lineItem/UnblendedCost": "32.7726000000",
        "product/instanceType": "p4d.24xlarge",
        "product/regionCode": "us-east-1",
        "pricing/unit": "Hrs",
        "resourceTags/user:fairway-pool": "cloud-a100",
    }
    short = {column.split("/")[1].split(":")[-1].replace("-", "_"): column for column in LEGACY}
    usual |= {short.get(word, "savingsPlan/SavingsPlanEffectiveCost"): text for word, text in told.items()}
    return [usual.get(column, "") for column in LEGACY]


def text_of(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def read(
    tmp_path: Path,
    rows: Sequence[Sequence[str]] | str | bytes,
    matching: Matching = MATCHING,
    zone: str = "UTC",
) -> Bill:
    path = tmp_path / "bill.csv"
    data = rows if isinstance(rows, bytes) else (rows if isinstance(rows, str) else text_of(rows)).encode()
    path.write_bytes(data)
    return read_bill(path, matching, ZoneInfo(zone))


def test_lines_are_added_up_by_day_and_pool(tmp_path: Path) -> None:
    rows = [LEGACY, *(line(UsageStartDate=f"2026-03-0{d}T{h:02d}:00:00Z") for d in (1, 2) for h in range(24))]
    found = read(tmp_path, rows)
    assert (found.form, found.currency, found.rows) == (BillForm.AWS, "USD", 48)
    assert [(b.day, b.pool, b.gpu_hours, b.cost, b.lines) for b in found.lines] == [
        (date(2026, 3, d), POOL, Decimal(192), Decimal("786.5424"), 24) for d in (1, 2)
    ]


def test_days_are_those_of_the_zone(tmp_path: Path) -> None:
    rows = [LEGACY, line(UsageStartDate="2026-03-01T23:00:00Z")]
    assert read(tmp_path, rows, zone="Europe/Berlin").lines[0].day == date(2026, 3, 2)


def test_a_packed_bill_is_read_alike(tmp_path: Path) -> None:
    rows = [LEGACY, line(), line(resource="x")]
    assert read(tmp_path, gzip.compress(text_of(rows).encode())) == read(tmp_path, rows)


def test_commitments_are_spread_over_what_they_cover(tmp_path: Path) -> None:
    rows = [
        LEGACY,
        line(LineItemType="DiscountedUsage", UnblendedCost="0", EffectiveCost="20.5"),
        line(LineItemType="SavingsPlanCoveredUsage", UnblendedCost="32.77", SavingsPlanEffectiveCost="19"),
        line(LineItemType="SavingsPlanNegation", UnblendedCost="-32.77", UsageAmount="1"),
        line(LineItemType="RIFee", UnblendedCost="9999", UnusedRecurringFee="3", UsageAmount="744"),
    ]
    (found,) = read(tmp_path, rows).lines
    assert (found.cost, found.gpu_hours) == (Decimal("42.5"), Decimal(16))


def test_what_has_no_tag_is_mapped_or_named(tmp_path: Path) -> None:
    untagged = line(fairway_pool="")
    (found,) = read(tmp_path, [LEGACY, untagged]).lines
    assert (found.pool, found.about) == (None, "AmazonEC2 p4d.24xlarge us-east-1 Usage")
    for rule in ("p4d.24xlarge", "p4d.24xlarge@us-east-1", "i-1"):
        mapped = Matching(MATCHING.pools, rules=((rule, PoolName("cloud-h100")),))
        assert read(tmp_path, [LEGACY, untagged], mapped).lines[0].pool == "cloud-h100"
    other = Matching(MATCHING.pools, rules=(("p4d.24xlarge@eu-west-1", POOL),))
    assert read(tmp_path, [LEGACY, untagged], other).lines[0].pool is None


def test_gpus_of_an_instance(tmp_path: Path) -> None:
    told = {
        "p5.48xlarge": ("", 8),
        "g5.xlarge": ("", 1),
        "m5.large": ("", 0),
        "new.8xlarge": ("4", 4),
        "own.big": ("", 16),
        "m6.large": ("NA", 0),
    }
    matching = Matching(MATCHING.pools, gpus={"own.big": 16})
    for instance, (said, gpus) in told.items():
        (found,) = read(tmp_path, [LEGACY, line(instanceType=instance, gpu=said)], matching).lines
        assert found.gpu_hours == gpus, instance


def test_cur_2_0(tmp_path: Path) -> None:
    heading = [
        "line_item_line_item_type",
        "line_item_usage_start_date",
        "line_item_usage_amount",
        "line_item_unblended_cost",
        "line_item_currency_code",
        "product_instance_type",
        "pricing_unit",
        "resource_tags",
        "savings_plan_savings_plan_effective_cost",
    ]
    rows = [
        heading,
        [
            "Usage",
            "2026-03-01 05:00:00",
            "1",
            "32.77",
            "USD",
            "p4d.24xlarge",
            "Hrs",
            '{"user_fairway_pool": "cloud-a100"}',
            "",
        ],
        [
            "SavingsPlanCoveredUsage",
            "2026-03-01T06:00:00.000Z",
            "1",
            "32.77",
            "USD",
            "p4d.24xlarge",
            "Hrs",
            '{"user_fairway_pool": "cloud-a100"}',
            "20.00",
        ],
    ]
    found = read(tmp_path, rows)
    assert found.form is BillForm.AWS_2
    assert [(b.pool, b.gpu_hours, b.cost) for b in found.lines] == [(POOL, Decimal(16), Decimal("52.77"))]


def test_focus(tmp_path: Path) -> None:
    heading = ["ChargePeriodStart", "EffectiveCost", "BillingCurrency", "ChargeCategory", "ConsumedQuantity"]
    heading += ["ConsumedUnit", "PricingQuantity", "PricingUnit", "SkuPriceDetails", "Tags", "ServiceName"]
    details = '{"InstanceType": "p4d.24xlarge"}'
    rows = [
        heading,
        [
            "2026-03-01T00:00:00Z",
            "32.77",
            "USD",
            "Usage",
            "1",
            "Hours",
            "1",
            "Hours",
            details,
            '{"fairway-pool": "cloud-a100"}',
            "EC2",
        ],
        [
            "2026-03-01T00:00:00Z",
            "1.90",
            "USD",
            "Usage",
            "3600",
            "GPU-Seconds",
            "1",
            "GPU-Hours",
            "",
            '{"fairway/pool": "cloud-h100"}',
            "",
        ],
        ["2026-03-01T00:00:00Z", "100", "USD", "Tax", "", "", "", "", "", "", "VAT"],
    ]
    found = read(tmp_path, rows)
    assert found.form is BillForm.FOCUS
    assert [(b.pool, b.gpu_hours, b.cost, b.about) for b in found.lines] == [
        (POOL, Decimal(8), Decimal("32.77"), ""),
        ("cloud-h100", Decimal(1), Decimal("1.90"), ""),
        (None, Decimal(0), Decimal(100), "VAT Tax"),
    ]


HOSTILE: list[tuple[str | bytes, str]] = [
    ("", "is empty"),
    ("a,b\n1,2\n", "is no bill that Fairway knows"),
    (b"\xff\xfe\x00", "is not UTF-8"),
    (b"\x1f\x8bnot gzip", "cannot read"),
    (text_of([LEGACY, line()[:-1]]), "row 2 has 14 columns, its heading 15"),
    (text_of([LEGACY, line(UnblendedCost="NaN")]), "row 2 has NaN for lineItem/UnblendedCost"),
    (text_of([LEGACY, line(UnblendedCost="1e999")]), "which is no amount"),
    (text_of([LEGACY, line(UnblendedCost="=1+1")]), "which is no amount"),
    (text_of([LEGACY, line(UsageStartDate="yesterday")]), "begins at yesterday"),
    (text_of([LEGACY, line(), line(CurrencyCode="EUR")]), "row 3 is in EUR, rows before in USD"),
    (text_of([LEGACY]) + '"never closed', "is not CSV"),
    (text_of([LEGACY]) + "x" * (bill_reader.MAX_LINE_LENGTH + 2), "is longer than"),
    (text_of([LEGACY]) + "a\0b\n", "zero byte"),
    (",".join(["x"] * 3000) + "\n", "3,000 columns"),
]


@pytest.mark.parametrize(("data", "piece"), HOSTILE, ids=[piece for _, piece in HOSTILE])
def test_what_is_no_bill_is_refused(tmp_path: Path, data: str | bytes, piece: str) -> None:
    with pytest.raises(InvalidBill) as caught:
        read(tmp_path, data)
    assert piece in caught.value.message
    assert caught.value.hint


def test_a_folder_a_missing_file_and_a_wrong_map(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(InvalidBill):
            read_bill(path, MATCHING, UTC)
    wrong = Matching(MATCHING.pools, rules=(("x", PoolName("cloud-a10")),))
    with pytest.raises(InvalidBill) as caught:
        read_bill(tmp_path / "none.csv", wrong, UTC)
    assert "did you mean cloud-a100" in caught.value.hint


def test_too_many_kinds_of_lines_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bill_reader, "MAX_GROUPS", 5)
    rows = [LEGACY, *(line(fairway_pool="", instanceType=f"x{n}.large") for n in range(20))]
    found = read(tmp_path, rows)
    assert len(found.lines) == 6
    assert sum(b.cost for b in found.lines) == 20 * Decimal("32.7726")
    assert found.lines[0].about == "other" or any(b.about == "other" for b in found.lines)


def test_noise_is_refused_and_never_crashes(tmp_path: Path) -> None:
    random = Random(3)
    sound = text_of([LEGACY, *(line() for _ in range(5))]).encode()
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(random.randint(1, 12)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            read(tmp_path, bytes(data))
        except InvalidBill as refused:
            assert refused.hint
