"""What the ledger takes and gives back of usage and money: frozen values. Times are aware UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from fairway.model.budget import Hold
from fairway.model.charge import ChargeKind, Label, Span
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply


class LocalTime(Protocol):
    """Where hours and days begin for the fleet; `cost.calendar.Calendar` is one."""

    def day_of(self, at: int, /) -> date:
        """The day a moment is in."""

    def day_start(self, day: date, /) -> int:
        """When a day begins."""

    def hour_start(self, at: int, /) -> int:
        """When the hour that a moment is in began."""

    def next_hour(self, at: int, /) -> int:
        """When the one after it begins."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Whose usage; None: anybody's. Names of a kind are alternatives, kinds must all hold."""

    teams: frozenset[str] | None = None
    """A subtree is the names of all its teams; empty text: of no team."""
    users: frozenset[str] | None = None
    pools: frozenset[str] | None = None
    clusters: frozenset[str] | None = None
    priorities: frozenset[str] | None = None
    slices: frozenset[str] | None = None
    """Empty text: whole GPUs."""
    names: frozenset[str] | None = None
    """Of jobs: like the label NAME, read from the raw rows."""


@dataclass(frozen=True, slots=True)
class UsageView:
    """One way to look at usage: whose, in which spans of each pool, told apart by what."""

    spans: Mapping[PoolName, Sequence[Span]]
    by: tuple[Label, ...] = ()
    which: UsageFilter = UsageFilter()

    @property
    def raw(self) -> bool:
        """Whether it asks for names of jobs, which the sums do not know."""
        return Label.NAME in self.by or self.which.names is not None


@dataclass(frozen=True, slots=True)
class PricePointRow:
    """A spot price as somebody told it."""

    pool: PoolName
    at: datetime
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A month whose charges were told and stay as they are."""

    month: date
    """Its first day."""
    closed_at: datetime
    by: str
    currency: str
    timezone: str


@dataclass(frozen=True, slots=True)
class ClosedCharge:
    """One amount of a closed month, in whole cents."""

    used_in: date
    """First day of the month it is for: an earlier one in a correction."""
    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None: of a cluster as a whole."""
    team: TeamName | None
    """None: nobody's, or of no team."""
    device_seconds: int
    amount: Decimal


class BudgetLevel(StrEnum):
    """How far a budget is spent."""

    OK = "ok"
    WARNED = "warned"
    SPENT = "spent"


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """How a team stands in the running period of its budget."""

    team: TeamName
    period: date
    """Its first day."""
    amount: Decimal
    spent: Decimal
    per_day: Decimal
    """How fast it is being spent."""
    runs_out: date | None
    """None: not in this period."""
    level: BudgetLevel
    hold: Hold | None
    since: datetime | None = None
    """When it came to this level and hold; the ledger knows, whoever keeps one need not."""
    checked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """What happened to a budget, in a sentence."""

    id: int
    at: datetime
    team: TeamName
    text: str


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Rows of a month that are in the object store and no longer in PostgreSQL."""

    month: date
    path: str
    """Within the store."""
    rows: int
    bytes: int
    digest: str
    """SHA-256 of the object."""
