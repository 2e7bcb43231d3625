"""The demo's fleet file, with dates and budgets filled in so that it fits whatever day it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final

from fairway.model.names import TeamName

AMOUNTS: Final = MappingProxyType(
    {
        TeamName("research"): Decimal(180_000),
        TeamName("nlp"): Decimal(90_000),
        TeamName("product"): Decimal(170_000),
        TeamName("search"): Decimal(80_000),
        TeamName("students"): Decimal(20_000),
    }
)
"""Monthly budgets to use while nothing is known of the spending."""


PROMETHEUS: Final = "http://127.0.0.1:9090"
"""Where metrics would be, for a fleet file that nobody serves any for."""


def fleet_text(
    price_day: date, amounts: Mapping[TeamName, Decimal] = AMOUNTS, prometheus: str = PROMETHEUS
) -> str:
    """Fill in the fleet file, with a price that changed on `price_day`."""
    shape = files("fairway.demo").joinpath("fleet.yaml").read_text(encoding="utf-8")
    return Template(shape).substitute(
        price_day=price_day.isoformat(),
        prometheus=prometheus,
        **{str(team): str(amount) for team, amount in amounts.items()},
    )
