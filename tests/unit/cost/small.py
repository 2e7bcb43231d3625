"""A fleet small enough to reckon by hand: one pool of GPUs, one of slices, on one cluster, in UTC."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings

from fairway.cost.calendar import Calendar
from fairway.model.charge import CapacitySum, Span, UsageSum
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import CostRules, Sharing
from fairway.model.team import Grant, Supply, Team

patient = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
"""A machine that has other work is no fault."""
CALENDAR: Final = Calendar(ZoneInfo("UTC"))
H: Final = 3600
DAY: Final = 86400
MONDAY: Final = date(2026, 11, 2)
START: Final = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())
HPC: Final = ClusterName("hpc")
GPUS, MIG = PoolName("gpus"), PoolName("mig")
ONE: Final = SliceName("1g.10gb")
THREE: Final = SliceName("3g.40gb")
WHOLE: Final = Supply(GPUS)


def day(number: int, days: int = 1) -> Span:
    """Days from the Monday on."""
    return Span(START + number * DAY, START + (number + days) * DAY)


def gpus(price: str = "3.6") -> Pool:
    """Whole GPUs; 3.6 an hour is a thousandth a second."""
    return Pool(GPUS, HPC, CATALOGUE["H100-80GB"], Capacity.OWNED, Decimal(price), VirtualPlace(1))


def slices(price: str = "3.6") -> Pool:
    """GPUs cut up."""
    a100 = CATALOGUE["A100-80GB"]
    return Pool(MIG, HPC, a100, Capacity.OWNED, Decimal(price), VirtualPlace(1), (ONE, THREE))


def fleet(
    *pools: Pool,
    teams: tuple[Team, ...] = (),
    idle: Sharing = Sharing.OWN_LINE,
    overhead: Sharing = Sharing.OWN_LINE,
    monthly: str = "0",
) -> Fleet:
    """One cluster, and what is given."""
    amounts = {"power": Decimal(monthly)} if Decimal(monthly) else {}
    cluster = Cluster(HPC, VirtualConnection(), overhead=amounts)
    return Fleet("f", "USD", (cluster,), pools, teams, cost=CostRules("UTC", idle, overhead))


def team(name: str, parent: str | None = None, **guarantees: int) -> Team:
    """With guarantees of whole pools."""
    grants = tuple(Grant(Supply(PoolName(pool)), n) for pool, n in guarantees.items())
    return Team(TeamName(name), None if parent is None else TeamName(parent), grants=grants)


def had(
    hour: int, devices: int, supply: Supply = WHOLE, behind: int | None = None, **states: int
) -> CapacitySum:
    """Devices there through an hour of the Monday, and how many of them were drained, down, fragmented."""
    sums = {state: states.get(state, 0) * H for state in ("drained", "down", "fragmented")}
    gpu_seconds = (devices if behind is None else behind) * H
    return CapacitySum(START + hour * H, HPC, supply, devices * H, gpu_seconds=gpu_seconds, **sums)


def used(seconds: int, *labels: str, span: int = 0, supply: Supply = WHOLE) -> UsageSum:
    """Device-seconds in a span of the pool's rates."""
    return UsageSum(span, supply, labels, seconds)


def priced(pool: Pool, **changes: object) -> Pool:
    """The pool with other pricing."""
    return replace(pool, pricing=replace(pool.pricing, **changes))  # type: ignore[arg-type]
