"""Define the section `slos` of a fleet file, and read its objectives."""

from __future__ import annotations

from typing import Final

from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record, Section
from fairway.files.schema.values import NAME, DurationValue, Integer, Percent, Price
from fairway.model.names import PoolName, PriorityName, TeamName
from fairway.model.slo import (
    DAY,
    DEFAULT_WINDOW,
    MAX_BOUND,
    MAX_WINDOW,
    DeliveredWithin,
    Promise,
    Slo,
    StartsWithin,
)

_BOUND: Final = DurationValue(60, MAX_BOUND)

STARTS_WITHIN: Final = Key(
    "starts_within",
    _BOUND,
    "A job that starts within this time of being able to is good; time on hold does not count.",
    example="1h",
)
GPU_HOURS: Final = Key(
    "gpu_hours",
    Price(10**9, 3),
    "GPU-hours of demand in any period of `within` that must be delivered within that time.",
    example="100",
)
WITHIN: Final = Key(
    "within", _BOUND, "With gpu_hours: the time from submission until they are delivered.", example="24h"
)
TARGET: Final = Key(
    "target",
    Percent(1, 100),
    "Part of the jobs, or of the GPU-hours, that must be good; below 100%.",
    example="95%",
    required=True,
)
WINDOW: Final = Key(
    "window", DurationValue(DAY, MAX_WINDOW), "Period before now that the target is for.", default="30d"
)
TEAM: Final = Key("team", NAME, "Count this team and all teams inside it; default: all teams.")
POOLS: Final = Key("pools", ListOf(NAME, "pools"), "Count jobs in these pools only; default: all.")
GPUS: Final = Key("gpus", Integer(1, 100_000), "Count jobs of up to this many GPUs only; default: all.")
PRIORITY: Final = Key("priority", NAME, "Count jobs of this priority only; default: all.")
SLO: Final = Record(
    "A service level objective",
    (STARTS_WITHIN, GPU_HOURS, WITHIN, TARGET, WINDOW, TEAM, POOLS, GPUS, PRIORITY),
    ExactlyOne(
        (STARTS_WITHIN, GPU_HOURS),
        "write  starts_within: 1h  for a waiting time, or  gpu_hours: 100  and  within: 24h  for throughput",
    ),
)
SLOS: Final = Key(
    "slos",
    MapOf(NAME, SLO, "service level objectives"),
    "Service level objectives (SLOs), by name, which are measured and shown, and alerted on.",
    example="{ research: { team: research, starts_within: 1h, target: 95% } }",
)


def slos_of(file: Section) -> tuple[Slo, ...]:
    """Return the fleet's objectives, in file order."""
    return tuple(_slo(name, found.value) for name, found in (file.get(SLOS) or {}).items())


def _slo(name: str, section: Section) -> Slo:
    team, priority = section.get(TEAM), section.get(PRIORITY)
    return Slo(
        name,
        _promise(section),
        section.require(TARGET),
        section.get(WINDOW) or DEFAULT_WINDOW,
        TeamName(team) if team else None,
        tuple(PoolName(item.value) for item in section.get(POOLS) or ()),
        section.get(GPUS),
        PriorityName(priority) if priority else None,
    )


def _promise(section: Section) -> Promise:
    starts_within = section.get(STARTS_WITHIN)
    if starts_within is not None:
        return StartsWithin(starts_within)
    return DeliveredWithin(section.require(GPU_HOURS), section.require(WITHIN))
