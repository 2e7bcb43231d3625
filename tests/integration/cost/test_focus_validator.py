"""The FOCUS validator accepts what Fairway exports, and would not accept a wrong row."""

from __future__ import annotations

import csv
import os
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from fairway.cost.focus import export
from fairway.cost.focus.columns import PLACE
from fairway.cost.focus.export import COLUMNS, Correction, Row
from fairway.model.charge import ChargeKind
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply
from tests.integration.cost.focus_validator import UNSATISFIABLE, NoValidator, environment, validate
from tests.unit.cost.focus_data import Days, fleet

pytestmark = pytest.mark.timeout(1800)

MARCH = date(2026, 3, 1)


@pytest.fixture(scope="module", autouse=True)
def _validator() -> None:
    try:
        environment()
    except NoValidator as missing:
        if os.environ.get("FAIRWAY_REQUIRE_FOCUS") == "1":
            raise
        pytest.skip(str(missing))


def rows() -> list[Row]:
    """Every kind of charge, share and correction there is."""
    days = Days(fleet(), MARCH, 2, users=1)
    where = (ClusterName("hpc"), Supply(PoolName("hpc-a100")))
    before = Correction(
        ChargeKind.USAGE, *where, TeamName("research"), date(2026, 2, 1), MARCH, Decimal("-1.5")
    )
    same = Correction(ChargeKind.OVERHEAD, ClusterName("hpc"), None, None, MARCH, MARCH, Decimal("0.05"))
    return list(export.rows(days.book, days, [before, same]))


def written(found: list[Row], path: Path) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *found])
    return path


def test_what_is_exported_is_accepted(tmp_path: Path) -> None:
    said = validate(written(rows(), tmp_path / "focus.csv"))
    assert said.failed == UNSATISFIABLE, said.text[-6000:]
    assert said.passed > 300


def test_a_wrong_row_is_found(tmp_path: Path) -> None:
    found = rows()
    wrong = list(found[7])
    wrong[PLACE["ListUnitPrice"]] = "-1.0"
    wrong[PLACE["PricingUnit"]] = ""
    wrong[PLACE["SkuId"]] = "another"
    found[7] = tuple(wrong)
    said = validate(written(found, tmp_path / "focus.csv"))
    assert {"ListUnitPrice-C-008-M", "PricingUnit-C-006-C", "SkuPriceId-C-008-M"} <= said.failed
