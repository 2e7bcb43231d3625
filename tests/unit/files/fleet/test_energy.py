"""A cluster's grid factor and PUE are read, written as they were, and part of a plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from fairway.demo.fleet_text import fleet_text
from fairway.files import InvalidFile, parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import SiteEnergy
from fairway.policy.fleet_diff import describe

TEXT = fleet_text(date(2026, 11, 1))


def test_it_is_read_and_written() -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml")
    assert [c.energy for c in fleet.clusters] == [
        SiteEnergy(Decimal(363), Decimal("1.3")),
        SiteEnergy(Decimal(280), Decimal("1.1")),
    ]
    assert parse_fleet(compose_fleet(fleet), "fleet.yaml").clusters == fleet.clusters


@pytest.mark.parametrize("energy", ["{ pue: 0.9 }", "{ pue: 11 }", "{ co2_grams_per_kwh: -1 }", "{ co2: 3 }"])
def test_what_cannot_be_is_refused(energy: str) -> None:
    with pytest.raises(InvalidFile):
        parse_fleet(TEXT.replace("{ co2_grams_per_kwh: 363, pue: 1.3 }", energy), "fleet.yaml")


def test_a_plan_names_it() -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml")
    hpc, cloud = fleet.clusters
    other = replace(fleet, clusters=(replace(hpc, energy=SiteEnergy()), cloud))
    ((change,),) = (group.changes for group in describe(fleet, other))
    assert (change.sign, change.what, change.before, change.after) == (
        "-",
        "energy of cluster hpc",
        "363 g of CO2 a kWh, PUE 1.3",
        None,
    )
