"""Define the tables of usage, capacity and cost. A test compares them with what the migrations create."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    Identity,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.types import TypeEngine

from fairway.ledger.schema.tables import Moment, Name, metadata


def _key(name: str, kind: TypeEngine[Any] = Name) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _count(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _sum(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _moment(name: str, *, now: bool = False) -> Column[Any]:
    return Column(name, Moment, nullable=False, server_default=func.now() if now else None)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


# Rows are only added; a correction has negative devices. No index: queries use the sums, and raw rows are
# read by whole months. Partitions, one per UTC month, are created with the first row of a month.
usage: Final = Table(
    "usage",
    metadata,
    _moment("hour"),
    _moment("started_at"),
    _moment("kept_at", now=True),
    _sum("job"),
    _count("attempt"),
    _count("class"),
    _count("seconds"),
    _count("devices"),
    postgresql_partition_by="RANGE (hour)",
)

# Sums of `usage`, updated in the transaction that adds the rows.
usage_hour: Final = Table(
    "usage_hour", metadata, _key("hour", Moment), _key("class", Integer()), _sum("device_seconds")
)
usage_day: Final = Table(
    "usage_day", metadata, _key("day", Date()), _key("class", Integer()), _sum("device_seconds")
)
# What `usage_day` sums to by team: far fewer rows, as a team has many classes. Its triggers keep it.
usage_team_day: Final = Table(
    "usage_team_day",
    metadata,
    *(_key("day", Date()), _key("cluster"), _key("team"), _key("pool"), _key("slice")),
    _sum("device_seconds"),
)

# The same for services alone, each for itself. They are few, so their sums are: one for each hour and day.
service_hour: Final = Table(
    "service_hour",
    metadata,
    *(_key("hour", Moment), _key("class", Integer()), _key("job", BigInteger())),
    _sum("device_seconds"),
)
service_day: Final = Table(
    "service_day",
    metadata,
    *(_key("day", Date()), _key("class", Integer()), _key("job", BigInteger())),
    _sum("device_seconds"),
)

# The highest total that a job reported of a unit of work, such as steps.
unit_total: Final = Table(
    "unit_total", metadata, _key("job", BigInteger()), _key("unit"), _sum("total"), _moment("reported_at")
)
# Sums of what was added to `unit_total`, by the job's class and the day when it was reported.
unit_day: Final = Table(
    "unit_day",
    metadata,
    *(_key("unit"), _key("day", Date()), _key("class", Integer())),
    Column("units", Numeric, nullable=False),
)
# The units that jobs may report, and when each was first reported; new ones are limited.
unit_name: Final = Table("unit_name", metadata, _key("unit"), _moment("added_at", now=True))

# The sum of an attempt's usage rows: the actual usage minus this is what remains to be written.
# An attempt without `metered_to` is running, and is metered up to its cluster's mark.
metered: Final = Table(
    "metered",
    metadata,
    _key("job", BigInteger()),
    _key("attempt", Integer()),
    _count("class"),
    _count("devices"),
    _moment("started_at"),
    Column("metered_to", Moment),
    Index("metered_running_idx", "class", postgresql_where=text("metered_to IS NULL")),
)

# Queue of jobs whose attempts changed. A writer that changes one adds a row in the same transaction; the
# meter removes it in the one that writes the usage. Duplicates do no harm.
to_meter: Final = Table(
    "to_meter",
    metadata,
    _key("cluster"),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _sum("job"),
    # The replica that changed; NULL: all attempts of the job.
    Column("attempt", Integer),
)

# The hour up to which running jobs are metered; moved in the transaction that adds the hour.
meter_mark: Final = Table("meter_mark", metadata, _key("cluster"), _moment("metered_to"))

usage_archive: Final = Table(
    "usage_archive",
    metadata,
    _key("month", Date()),
    _key("path", Text()),
    _sum("rows"),
    _sum("bytes"),
    _text("digest"),
    _moment("archived_at", now=True),
)

_SUPPLY: Final = ("cluster", "pool", "slice")
_STATES: Final = ("total", "drained", "down", "fragmented")

capacity: Final = Table(
    "capacity",
    metadata,
    *map(_key, _SUPPLY),
    _key("started_at", Moment),
    _moment("ended_at"),
    *map(_count, (*_STATES, "gpus")),
)
capacity_now: Final = Table(
    "capacity_now",
    metadata,
    *map(_key, _SUPPLY),
    _moment("metered_to"),
    *map(_count, (*_STATES, "gpus")),
)
capacity_hour: Final = Table(
    "capacity_hour",
    metadata,
    _key("hour", Moment),
    *map(_key, _SUPPLY),
    *map(_sum, (*_STATES, "gpu_seconds")),
)
# Devices that jobs waited for, sampled by the meter; `seconds` of the hour were observed.
queue_hour: Final = Table(
    "queue_hour",
    metadata,
    _key("hour", Moment),
    *map(_key, _SUPPLY),
    _count("seconds"),
    _sum("device_seconds"),
)
capacity_day: Final = Table(
    "capacity_day",
    metadata,
    _key("day", Date()),
    *map(_key, _SUPPLY),
    *map(_sum, (*_STATES, "gpu_seconds")),
)

# Of several rows for one moment, the one with the newest `kept_at` is in force; without a price it withdraws
# the others.
price_point: Final = Table(
    "price_point",
    metadata,
    _key("pool"),
    _key("at", Moment),
    Column("kept_at", Moment, primary_key=True, server_default=func.now()),
    _text("by_whom"),
    Column("per_gpu_hour", Numeric),
)

# A closed month's charges as they were reported; `used_in` is an earlier month in a correction.
closed_month: Final = Table(
    "closed_month",
    metadata,
    _key("month", Date()),
    _moment("closed_at", now=True),
    _text("by_whom"),
    _text("currency"),
    _text("timezone"),
)
closed_charge: Final = Table(
    "closed_charge",
    metadata,
    _key("month", Date()),
    _key("id", Integer()),
    Column("used_in", Date, nullable=False),
    _text("kind"),
    *(Column(name, Name, nullable=False) for name in (*_SUPPLY, "team")),
    _sum("device_seconds"),
    Column("amount", Numeric, nullable=False),
    Column("inside", Text),
)

budget_standing: Final = Table(
    "budget_standing",
    metadata,
    _key("team"),
    Column("period", Date, nullable=False),
    *(Column(name, Numeric, nullable=False) for name in ("amount", "spent", "per_day")),
    Column("runs_out", Date),
    _text("level"),
    Column("hold", Text),
    *(Column(name, Numeric) for name in ("expected", "low", "high")),
    _moment("since"),
    _moment("checked_at"),
    CheckConstraint("level IN ('ok', 'warned', 'spent')", name="level"),
    CheckConstraint("hold IN ('low-only', 'stop')", name="hold"),
)
spending_forecast: Final = Table(
    "spending_forecast",
    metadata,
    _key("label", Text()),
    _key("payer"),
    Column("month", Date, nullable=False),
    *(Column(name, Numeric, nullable=False) for name in ("spent", "expected", "low", "high")),
    _moment("checked_at"),
)
# Raises of team budgets in one period, as requested and decided. Rows are never deleted.
budget_raise: Final = Table(
    "budget_raise",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("team", Name, nullable=False),
    _text("every"),
    Column("period", Date, nullable=False),
    Column("amount", Numeric, nullable=False),
    _text("reason"),
    Column("requested_by", Name, nullable=False),
    _moment("requested_at", now=True),
    Column("state", Text, nullable=False, server_default="requested"),
    Column("decided_by", Name),
    Column("decided_at", Moment),
    Column("comment", Text, nullable=False, server_default=""),
    CheckConstraint("every IN ('month', 'quarter')", name="every"),
    CheckConstraint("amount > 0", name="amount"),
    CheckConstraint("state IN ('requested', 'approved', 'denied')", name="state"),
    CheckConstraint("(state = 'requested') = (decided_at IS NULL)", name="decided"),
    Index(
        "budget_raise_open_key",
        *("team", "every", "period"),
        unique=True,
        postgresql_where=text("state = 'requested'"),
    ),
    Index("budget_raise_period_idx", "period"),
)
budget_event: Final = Table(
    "budget_event",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _moment("at", now=True),
    Column("team", Name, nullable=False),
    _text("text"),
)
