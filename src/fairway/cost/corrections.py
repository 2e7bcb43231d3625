"""Compute corrections of closed months. Statements are immutable: differences go to the next open month."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from fairway.cost.rounding import apportion_paths
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.names import ClusterName
from fairway.model.team import Supply


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


_Key = tuple[str, ChargeKind, ClusterName, Supply | None]


def statement_amounts(
    charges: Iterable[Charge], labels: Sequence[Label], quantum: Decimal
) -> tuple[StatementAmount, ...]:
    """Round a month's charges to the lines of its statement; `labels` must include TEAM.

    The lines sum to the exact total rounded once; each team's lines sum to its own total within one quantum.
    """
    place = list(labels).index(Label.TEAM)
    amounts: dict[_Key, Fraction] = {}
    seconds: dict[_Key, int] = {}
    for charge in charges:
        team = "" if charge.labels is None else charge.labels[place]
        key = (team, charge.kind, charge.cluster, charge.supply)
        amounts[key] = amounts.get(key, Fraction(0)) + charge.amount
        seconds[key] = seconds.get(key, 0) + charge.device_seconds
    # In a fixed order, so that the same charges are rounded the same way in whatever order they came.
    paths = {key: amounts[key] for key in sorted(amounts, key=_order)}
    return tuple(_line(key, seconds[key], amount) for key, amount in apportion_paths(paths, quantum).items())


def correction(
    recomputed: Iterable[StatementAmount], billed: Iterable[StatementAmount]
) -> tuple[StatementAmount, ...]:
    """Return the lines to add to a month's statement and past corrections to match the recomputed month.

    `billed` is the month as closed plus every correction since. Unchanged lines are left out.
    """
    sums: dict[_Key, tuple[int, Decimal]] = {}
    for lines, sign in ((recomputed, 1), (billed, -1)):
        for line in lines:
            key = (line.team, line.kind, line.cluster, line.supply)
            seconds, amount = sums.get(key, (0, Decimal(0)))
            sums[key] = (seconds + sign * line.device_seconds, amount + sign * line.amount)
    return tuple(_line(key, *sums[key]) for key in sorted(sums, key=_order) if sums[key][0] or sums[key][1])


def _line(key: _Key, device_seconds: int, amount: Decimal) -> StatementAmount:
    team, kind, cluster, supply = key
    return StatementAmount(kind, cluster, supply, team, device_seconds, amount)


def _order(key: _Key) -> tuple[str, str, str, str]:
    team, kind, cluster, supply = key
    return (team, kind.value, cluster, "" if supply is None else str(supply))
