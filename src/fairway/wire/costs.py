"""Define the JSON of reports, statements and prices. Amounts are exact text; parts sum to the totals shown.

A caller who may see only some teams gets a document of those: `of_teams` names them, the total is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetPydanticSchema

from fairway.model.charge import JOB_LABEL_PATTERN, LABEL_PREFIX, ChargeKind, JobLabel, Label
from fairway.model.fleet import Capacity
from fairway.model.gpu_use import HeldKind
from fairway.model.labels import MAX_LABEL_LENGTH
from fairway.model.text import count
from fairway.wire.fleet import GivenMoment, Moment, Price, RequestBody, Wire

MAX_ROWS = 20_000
"""Of a report; what is beyond it is summed up in one row."""
MAX_POINTS = 20_000
MONTH_PATTERN = r"^(19|20|21)[0-9]{2}-(0[1-9]|1[0-2])$"

_LABEL_TEXT = Annotated[
    str,
    Field(pattern=JOB_LABEL_PATTERN, max_length=len(LABEL_PREFIX) + MAX_LABEL_LENGTH),
    AfterValidator(JobLabel),
]
JobLabelName = Annotated[JobLabel, GetPydanticSchema(lambda _source, handler: handler(_LABEL_TEXT))]
GroupedBy = Annotated[
    Label | JobLabelName, Field(description="a dimension, or label:KEY", examples=["label:experiment"])
]
Amount = Annotated[Price, Field(examples=["1234.50"])]
Hours = Annotated[Price, Field(examples=["96.25"])]


class Window(Wire):
    """Which time a document is about; days are of the fleet's time zone."""

    first_day: date
    last_day: date = Field(description="included")
    start: Moment
    end: Moment = Field(description="up to but not; of a window that lasts: until now")
    timezone: str


class ReportRow(Wire):
    """One line of a report."""

    labels: list[str] = Field(description="in the order of `by`; empty text: none")


class Document(Wire):
    """What every report says of itself."""

    fleet: str
    currency: str
    window: Window
    by: list[GroupedBy]
    of_teams: list[str] | None = Field(description="the caller sees only these; null: all")
    team: str | None = Field(default=None, description="only this team and those inside it")
    user: str | None = None
    pool: str | None = None
    project: str | None = None
    labels: dict[str, str] = Field(default={}, description="only jobs with all of these labels")
    notes: list[str] = Field(default=[], description="what a reader should know, in sentences")

    def table(self) -> tuple[Sequence[ReportRow], ReportRow]:
        """Return the rows and their total."""
        raise NotImplementedError

    def to_df(self) -> Any:
        """Return the rows, without the total, as a data frame of polars, or of pandas if only that is there.

        Each label is a column. Amounts and hours are floats; `hours` by reason become `hours_idle` and so on.
        """
        from fairway.wire.tables import data_frame  # noqa: PLC0415 - only Python sessions need it

        return data_frame([self._record(row) for row in self.table()[0]])

    def __repr__(self) -> str:
        return f"<{self._title()}: {count(len(self.table()[0]), 'row')}>"

    def _repr_html_(self) -> str:
        from fairway.wire.tables import MAX_SHOWN, html_table  # noqa: PLC0415

        rows, total = self.table()
        first = {self.by[0].value: "total"} if self.by else {}
        shown = [*map(self._record, rows[:MAX_SHOWN]), first | self._record(total) | first]
        columns = [name for name in shown[-1] if any(one.get(name) for one in shown)]
        left_out = len(rows) - MAX_SHOWN
        more = f"and {count(left_out, 'more row')}; to_df() has all of them" if left_out > 0 else ""
        return html_table(shown, columns, more, self._title())

    def _title(self) -> str:
        by = ", ".join(label.value for label in self.by) or "fleet"
        days = f"{self.window.first_day} to {self.window.last_day}"
        return f"{type(self).__name__.removesuffix('Report')} by {by}, {days}, {self.currency}"

    def _record(self, row: ReportRow) -> dict[str, Any]:
        from fairway.wire.tables import record  # noqa: PLC0415

        labels = {label.value: text for label, text in zip(self.by, row.labels, strict=False)}
        return labels | {name: value for name, value in record(row).items() if name != "labels"}


class CostRow(ReportRow):
    """One line: who, and what it cost them. `total = usage + idle + overhead`."""

    kind: ChargeKind | None = Field(
        default=None, description="what nobody carries: a line of its own; null: somebody's"
    )
    others: int = Field(default=0, description="so many rows that were too many to list, in one")
    gpu_hours: Hours
    usage: Amount
    idle: Amount = Field(description="share of waste: idle, fragmented, drained, down, committed")
    overhead: Amount
    total: Amount
    count: int | None = Field(
        default=None,
        description="with `per`: units that jobs reported, or distinct values of the label; null: none",
    )
    per_unit: Amount | None = Field(
        default=None, description="total / count, times the number of units in `per`; null: no count"
    )


class CostReport(Document):
    """Cost by group, with shares of waste and overhead."""

    per: str | None = Field(
        default=None,
        description="what `per_unit` is the cost of",
        examples=["1000:steps", "label:experiment"],
    )

    rows: list[CostRow]
    total: CostRow

    def table(self) -> tuple[Sequence[CostRow], CostRow]:
        """Return the rows and their total."""
        return self.rows, self.total

    def _record(self, row: ReportRow) -> dict[str, Any]:
        found = super()._record(row)
        left_out = () if self.per is not None else ("count", "per_unit")
        return {name: value for name, value in found.items() if name not in left_out}


class UsageRow(ReportRow):
    """One line of what was held."""

    others: int = 0
    gpu_hours: Hours = Field(description="slices by their part of the GPU")
    slice_hours: Hours = Field(description="of slices alone")
    device_seconds: int = Field(description="GPU-seconds and slice-seconds, as they were held")
    slice_seconds: int


class UsageReport(Document):
    """What was held, by whom."""

    rows: list[UsageRow]
    total: UsageRow

    def table(self) -> tuple[Sequence[UsageRow], UsageRow]:
        """Return the rows and their total."""
        return self.rows, self.total


class WasteRow(ReportRow):
    """What a pool earned nothing with: device-hours and money by reason."""

    others: int = 0
    capacity_hours: Hours = Field(description="device-hours that were there")
    used_hours: Hours
    hours: dict[ChargeKind, Hours]
    amounts: dict[ChargeKind, Amount]
    amount: Amount
    held_hours: dict[HeldKind, Hours] = Field(
        default={}, description="used_hours by what the GPUs did meanwhile; they sum to it"
    )
    held_amounts: dict[HeldKind, Amount] = Field(
        default={}, description="what the used hours cost, likewise; not part of amount"
    )


class WasteReport(Document):
    """Waste by cause: idle, fragmented, drained, down, unused commitments; and usage."""

    rows: list[WasteRow]
    total: WasteRow

    def table(self) -> tuple[Sequence[WasteRow], WasteRow]:
        """Return the rows and their total."""
        return self.rows, self.total


Ratio = Annotated[float, Field(ge=0, le=1)]


class EfficiencyRow(ReportRow):
    """What was held and what the GPUs did meanwhile; `hours` and `amounts` sum to what was held."""

    labels: list[str] = Field(description="in the order of `by`; of name the pattern: finetune-*")
    others: int = Field(default=0, description="so many rows that were too many to list, in one")
    held_hours: Hours = Field(description="GPU-hours; slices by their part of the GPU")
    measured_hours: Hours
    hours: dict[HeldKind, Hours]
    amount: Amount = Field(description="what the held hours cost, without shares of idle and overhead")
    amounts: dict[HeldKind, Amount]
    engine: Ratio | None = Field(description="mean time that the engine was busy; null: not measured")
    sm: Ratio | None = Field(description="mean time that the multiprocessors had work")
    tensor: Ratio | None = Field(description="mean time that the tensor cores were busy")
    memory_gib: float | None = Field(description="mean memory in use on a device")
    memory_peak_gib: float | None
    watts: float | None = Field(description="mean power of a GPU")
    energy_kwh: Hours = Field(description="measured energy of the GPUs, times the site's PUE")
    co2_kg: Hours | None = Field(description="null: no cluster of the report has a grid factor")


class EfficiencyReport(Document):
    """What became of the GPU time that was held: busy, poorly used, idle, not measured."""

    rows: list[EfficiencyRow]
    total: EfficiencyRow

    def table(self) -> tuple[Sequence[EfficiencyRow], EfficiencyRow]:
        """Return the rows and their total."""
        return self.rows, self.total


class CapacityDay(Wire):
    """What one pool's capacity was, and cost, on one day, used or not."""

    day: date
    pool: str
    gpu_seconds: int
    cost: Amount = Field(description="not rounded to cents")


class CapacityReport(Wire):
    """What a provider would bill."""

    fleet: str
    currency: str
    window: Window
    days: list[CapacityDay]


class CommitmentRow(Wire):
    """What became of the GPU-hours of one commitment."""

    pool: str
    id: str
    gpus: int
    since: date
    until: date = Field(description="the first day after it")
    price: Amount = Field(description="per committed GPU-hour")
    list_price: Amount = Field(description="of the same GPU-hour without it")
    used_hours: Hours = Field(description="committed GPU-hours in which jobs held the GPU")
    idle_hours: Hours = Field(description="of GPUs that existed and that no job held")
    absent_hours: Hours = Field(description="for which no GPU existed")
    uncovered_hours: Hours = Field(description="GPU-hours of the pool that jobs held beyond its commitments")
    coverage: Decimal | None = Field(description="covered part of what jobs held, in percent")
    utilisation: Decimal | None = Field(description="used part of what is paid for, in percent")
    break_even: Decimal | None = Field(description="utilisation from which it is cheaper, in percent")
    saved: Amount = Field(description="negative while the utilisation is below the break-even")


class CommitmentReport(Wire):
    """What became of every commitment that was in force in a window."""

    fleet: str
    currency: str
    window: Window
    commitments: list[CommitmentRow]


class StatementLine(Wire):
    """One amount of a statement."""

    used_in: str = Field(description="the month it is about; earlier than the statement's in a correction")
    kind: ChargeKind
    cluster: str
    pool: str = Field(description="empty: of the cluster as a whole")
    slice: str = Field(description="empty: whole GPUs")
    hours: Hours = Field(description="device-hours; 0 of shares")
    amount: Amount


class TeamStatement(Wire):
    """What one team is charged for a month."""

    team: str = Field(description="empty: nobody, what is a line of its own")
    lines: list[StatementLine]
    corrections: Amount = Field(description="part of total that is about earlier months")
    total: Amount


class Statements(Wire):
    """A month's charges by team."""

    fleet: str
    month: str
    currency: str
    timezone: str
    closed_at: Moment | None = Field(description="null: open, and still changing")
    closed_by: str | None
    over: bool = Field(description="whether the month has ended")
    of_teams: list[str] | None
    statements: list[TeamStatement]
    total: Amount
    notes: list[str] = Field(default=[])


class StatementDocument(Wire):
    """The statements of a month as one HTML file."""

    name: str = Field(description="a name for the file")
    html: str


class PricePoint(RequestBody):
    """A price that holds from a moment on, until the next."""

    at: GivenMoment
    per_gpu_hour: Annotated[Price, Field(ge=0, le=10**6, max_digits=20, decimal_places=10)]


class PricePointsRequest(RequestBody):
    """A piece of a spot pool's price series."""

    points: list[PricePoint] = Field(min_length=1, max_length=MAX_POINTS)
    allow_jumps: bool = Field(
        default=False, description="store prices that differ by more than half from the one before them"
    )


class StoredPricePoints(Wire):
    """How many were kept; one of a moment that is there already replaces it from now on."""

    pool: str
    kept: int


class WithdrawnPricePoints(Wire):
    """How many prices were withdrawn. The history keeps them."""

    pool: str
    withdrawn: int


class PricePointReport(Wire):
    """A spot price that somebody stored, or withdrew."""

    at: Moment
    per_gpu_hour: Price | None = Field(description="null: withdrawn")
    by: str
    stored_at: Moment
    in_force: bool = Field(description="false: withdrawn, or replaced by a later one of the same time")


class PricePoints(Wire):
    """The price series of a pool, newest first."""

    pool: str
    currency: str
    points: list[PricePointReport]


class PoolPrice(Wire):
    """What a pool costs now."""

    pool: str
    cluster: str
    gpu: str
    capacity: Capacity
    list_price: Price
    discount: Price
    spot: Price | None = Field(description="the last point of its price series")
    spot_at: Moment | None
    slices: dict[str, Price] = Field(description="slices with a price of their own, per slice-hour")
    committed_gpus: int
    commitment_price: Price | None = Field(description="the mean of today's commitments")
    next_price: Price | None
    next_since: date | None


class Prices(Wire):
    """Prices of today, by pool."""

    currency: str
    day: date
    pools: list[PoolPrice]
