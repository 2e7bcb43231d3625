"""Define the section `budgets` of a fleet file: budgets of the fleet, of projects, and of some capacity."""

from __future__ import annotations

from typing import Final

from fairway.files.fleet.schema_teams import EVERY, MAX_MONEY, WARN_AT
from fairway.files.schema import values
from fairway.files.schema.containers import Key, ListOf, MapOf, Record
from fairway.files.schema.values import OneOf, Price
from fairway.model.fleet import Capacity

AMOUNT: Final = Key(
    "amount",
    Price(MAX_MONEY, 3),
    "Amount that may be spent per period, in the fleet's currency.",
    example="50000",
    required=True,
)
TEAM: Final = Key("team", values.NAME, "Count this team and all teams inside it; default: the whole fleet.")
PROJECT: Final = Key("project", values.NAME, "Count the jobs of this project; default: the whole fleet.")
POOLS: Final = Key(
    "pools", ListOf(values.NAME, "pools"), "Count these pools only; default: all, and overhead."
)
CAPACITY: Final = Key(
    "capacity",
    ListOf(OneOf(Capacity), "kinds of capacity"),
    "Count pools of these kinds only; default: all, and overhead.",
    example="[on-demand, spot]",
)
BUDGETS: Final = Key(
    "budgets",
    MapOf(
        values.NAME,
        Record("A budget that warns", (AMOUNT, EVERY, WARN_AT, TEAM, PROJECT, POOLS, CAPACITY)),
        "budgets",
    ),
    "Budgets of the fleet, a team, a project or some capacity, which only warn.",
    example="{ cloud: { amount: 50000, capacity: [on-demand, spot] } }",
)
