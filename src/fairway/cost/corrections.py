"""Compute corrections of closed months. Statements are immutable: differences go to the next open month."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple

from fairway.cost.fleet_history import TeamPath
from fairway.cost.report import column_of
from fairway.cost.rounding import apportion, exact_sum, round_cells
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import Supply

PATH_SEPARATOR: Final = "/"
"""Separates the teams of a path that replaces a team's label: `research/nlp`."""


@dataclass(frozen=True, slots=True)
class StatementAmount:
    """A rounded line of a month's statement."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None for a charge on a whole cluster."""
    team: str
    """Empty for a line that no team pays, or for jobs without a team."""
    device_seconds: int
    amount: Decimal
    inside: TeamPath = ()
    """The teams that the team was inside of then, the top-level one first."""

    @property
    def path(self) -> TeamPath:
        """Return the team after those that it was inside of; empty if no team pays it."""
        return (*self.inside, TeamName(self.team)) if self.team else ()

    def is_of(self, teams: Collection[str]) -> bool:
        """Return whether it is a line of one of the teams, or of one that was inside it then."""
        return self.team in teams or any(above in teams for above in self.inside)


_Key = tuple[str, ChargeKind, ClusterName, Supply | None, TeamPath]


class Line(NamedTuple):
    """What a month's charges are summed by before they are rounded."""

    team: str
    carried: bool
    """Whether anybody pays: the jobs of no team have an empty team, too."""
    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    month: date | None = None
    """First day of the month, in a document over several."""
    inside: TeamPath = ()
    """The teams that the team was inside of then, the top-level one first."""

    @property
    def key(self) -> _Key:
        return self.team, self.kind, self.cluster, self.supply, self.inside


def statement_amounts(
    charges: Iterable[Charge], labels: Sequence[Label], quantum: Decimal
) -> tuple[StatementAmount, ...]:
    """Round a month's charges to the lines of its statement; `labels` must include TEAM, or TEAM as a path.

    Each column is rounded once; its parts are those of a report by team, and the team's lines sum to them.
    """
    place = list(labels).index(Label.TEAM)
    amounts: dict[Line, Fraction] = {}
    seconds: dict[_Key, int] = {}
    for charge in charges:
        *above, team = ("" if charge.labels is None else charge.labels[place]).split(PATH_SEPARATOR)
        inside = tuple(map(TeamName, above))
        carried = charge.labels is not None
        line = Line(team, carried, charge.kind, charge.cluster, charge.supply, inside=inside)
        amounts[line] = amounts.get(line, Fraction(0)) + charge.amount
        seconds[line.key] = seconds.get(line.key, 0) + charge.device_seconds
    found: dict[_Key, Decimal] = {}
    for line, amount in round_lines(amounts, quantum).items():
        found[line.key] = found.get(line.key, Decimal(0)) + amount
    return tuple(_line(key, seconds[key], found[key]) for key in sorted(found, key=_order))


def round_lines(amounts: Mapping[Line, Fraction], quantum: Decimal) -> dict[Line, Decimal]:
    """Round the lines of a statement: by column and kind, then by team as a report does, then by line."""
    cells: dict[tuple[str, str, str], list[Line]] = {}
    for line in sorted(amounts, key=_line_order):
        cell = (column_of(line.kind).value, "" if line.carried else line.kind.value, line.team)
        cells.setdefault(cell, []).append(line)
    rounded_cells = round_cells(
        {cell: exact_sum([amounts[line] for line in lines]) for cell, lines in cells.items()}, quantum
    )
    found: dict[Line, Decimal] = {}
    for cell, lines in cells.items():
        parts = apportion([amounts[line] for line in lines], rounded_cells[cell], quantum)
        found |= zip(lines, parts, strict=True)
    return found


def correction(
    recomputed: Iterable[StatementAmount], billed: Iterable[StatementAmount]
) -> tuple[StatementAmount, ...]:
    """Return the lines to add to a month's statement and past corrections to match the recomputed month.

    `billed` is the month as closed plus every correction since. Unchanged lines are left out.
    """
    sums: dict[_Key, tuple[int, Decimal]] = {}
    for lines, sign in ((recomputed, 1), (billed, -1)):
        for line in lines:
            key = (line.team, line.kind, line.cluster, line.supply, line.inside)
            seconds, amount = sums.get(key, (0, Decimal(0)))
            sums[key] = (seconds + sign * line.device_seconds, amount + sign * line.amount)
    return tuple(_line(key, *sums[key]) for key in sorted(sums, key=_order) if sums[key][0] or sums[key][1])


def _line(key: _Key, device_seconds: int, amount: Decimal) -> StatementAmount:
    team, kind, cluster, supply, inside = key
    return StatementAmount(kind, cluster, supply, team, device_seconds, amount, inside)


def _line_order(line: Line) -> tuple[object, ...]:
    return (*_order(line.key), line.carried, line.month or date.min)


def _order(key: _Key) -> tuple[str, str, str, str, TeamPath]:
    team, kind, cluster, supply, inside = key
    return (team, kind.value, cluster, "" if supply is None else str(supply), inside)
