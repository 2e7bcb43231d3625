"""Define the records of usage and cost: frozen values. Times are aware UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Protocol

from fairway.model.budget import BudgetLevel, Every, Hold, RaiseState
from fairway.model.charge import LABEL_PREFIX, ChargeKind, Dimension, JobLabel, Label, Span
from fairway.model.labels import Labels
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.model.team import Supply


class LocalTime(Protocol):
    """The hour and day boundaries of the fleet's time zone; `cost.calendar.Calendar` implements it."""

    def day_of(self, at: int, /) -> date:
        """Return the day that contains a moment."""

    def day_start(self, day: date, /) -> int:
        """Return when a day begins."""

    def hour_start(self, at: int, /) -> int:
        """Return the start of the hour that contains a moment."""

    def next_hour(self, at: int, /) -> int:
        """Return the start of the hour after the one that contains a moment."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """A filter on usage; None: no condition. Values of one field are alternatives, fields must all match."""

    teams: frozenset[str] | None = None
    """For a subtree, the names of all its teams; empty string: no team."""
    users: frozenset[str] | None = None
    pools: frozenset[str] | None = None
    clusters: frozenset[str] | None = None
    priorities: frozenset[str] | None = None
    slices: frozenset[str] | None = None
    """Empty string: whole GPUs."""
    names: frozenset[str] | None = None
    """Names of jobs: like the label NAME, read from the raw rows."""
    projects: frozenset[str] | None = None
    """Empty string: no project."""
    labels: Labels = ()
    """Labels of jobs, all of which must match."""

    def by_dimension(self) -> dict[Dimension, frozenset[str]]:
        """Return the conditions that only usage by somebody can meet, by dimension."""
        names = {Label.TEAM: self.teams, Label.USER: self.users, Label.PROJECT: self.projects}
        found: dict[Dimension, frozenset[str]] = {label: of for label, of in names.items() if of is not None}
        return found | {JobLabel(f"{LABEL_PREFIX}{key}"): frozenset({value}) for key, value in self.labels}


@dataclass(frozen=True, slots=True)
class UsageView:
    """A query on usage: filter, spans of each pool, and the labels to group by."""

    spans: Mapping[PoolName, Sequence[Span]]
    by: tuple[Dimension, ...] = ()
    which: UsageFilter = UsageFilter()

    @property
    def raw(self) -> bool:
        """Whether it needs names of jobs or outcomes of attempts, which the sums do not have."""
        return Label.NAME in self.by or self.by_outcome or self.which.names is not None

    @property
    def by_outcome(self) -> bool:
        """Whether it needs the outcomes of attempts."""
        return Label.OUTCOME in self.by

    @property
    def by_job(self) -> bool:
        """Whether it needs names of jobs at all; those of services have sums of their own."""
        return self.raw or Label.SERVICE in self.by


@dataclass(frozen=True, slots=True)
class UnitSum:
    """Units of work that jobs reported, by the requested labels."""

    labels: tuple[str, ...]
    units: int


@dataclass(frozen=True, slots=True)
class ReportedUnits:
    """The totals of a job after a report, by unit, and what the report added."""

    totals: Mapping[str, int]
    added: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HeldAndThere:
    """Device-seconds of a supply in one hour: those that were metered as held, and those that existed."""

    supply: Supply
    held: int
    there: int


@dataclass(frozen=True, slots=True)
class PricePointRow:
    """A spot price as it was reported."""

    pool: PoolName
    at: datetime
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class StoredPricePoint:
    """A report of a spot price, or its withdrawal, with who sent it and when."""

    at: datetime
    per_gpu_hour: Decimal | None
    """None: withdrawn."""
    by: str
    kept_at: datetime
    newest: bool
    """Whether no later report about this moment replaces it."""


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A closed month: its reported charges do not change."""

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
    """First day of the month the usage was in; an earlier month in a correction."""
    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None: of a cluster as a whole."""
    team: TeamName | None
    """None: of no team."""
    device_seconds: int
    amount: Decimal
    inside: tuple[TeamName, ...] | None = ()
    """The teams that it was inside of, the top-level one first; None: closed before this was stored."""


@dataclass(frozen=True, slots=True)
class StoredBudgetStatus:
    """The state of a team's budget in the current period."""

    team: TeamName
    period: date
    """Its first day."""
    amount: Decimal
    spent: Decimal
    per_day: Decimal
    """The rate at which it is being spent."""
    runs_out: date | None
    """None: not in this period."""
    level: BudgetLevel
    hold: Hold | None
    since: datetime | None = None
    """When it reached this level and hold; set by the ledger, ignored on writing."""
    checked_at: datetime | None = None
    expected: Decimal | None = None
    """What will be spent when the period ends, in 80 % of cases between `low` and `high`; None while held."""
    low: Decimal | None = None
    high: Decimal | None = None


@dataclass(frozen=True, slots=True)
class NewBudgetRaise:
    """A request for a raise of a team's budget in one period."""

    team: TeamName
    every: Every
    period: date
    """Its first day."""
    amount: Decimal
    """What it adds, in the fleet's currency."""
    reason: str
    by: UserName


@dataclass(frozen=True, slots=True)
class BudgetRaise:
    """A raise of a team's budget in one period, as requested and decided."""

    id: int
    team: TeamName
    every: Every
    period: date
    """Its first day."""
    amount: Decimal
    """What it adds, in the fleet's currency."""
    reason: str
    requested_by: UserName
    requested_at: datetime
    state: RaiseState
    decided_by: UserName | None
    decided_at: datetime | None
    comment: str


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """What a team, with those inside it, or a project will have spent when the month ends."""

    label: Label
    payer: str
    month: date
    """Its first day."""
    spent: Decimal
    expected: Decimal
    """In 80 % of cases between `low` and `high`."""
    low: Decimal
    high: Decimal
    checked_at: datetime | None = None
    """Set by the ledger, ignored on writing."""


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """Something that happened to a budget, in a sentence."""

    id: int
    at: datetime
    team: TeamName
    text: str


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Rows of a month that are in the object store and no longer in PostgreSQL."""

    month: date
    path: str
    """Relative to the store."""
    rows: int
    bytes: int
    digest: str
    """SHA-256 of the object."""
