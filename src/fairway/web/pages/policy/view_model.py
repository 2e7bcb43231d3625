"""Build the view model of the Policy pages from wire types. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from fairway.ledger import StoredCondition
from fairway.ledger.records.policy import AppliedCluster
from fairway.model.apply import ApplyState
from fairway.model.condition import ConditionType
from fairway.model.fleet import Cluster, Fleet
from fairway.services.convert import fleet as convert
from fairway.wire import policy as wire
from fairway.wire.fleet import Condition

SIGN_WORDS: Final = {"+": "new", "-": "gone", "~": "changed", "=": "adopted"}
"""The meanings of signs, for screen readers."""
APPLY_STATES: Final = {
    ApplyState.WAITING: ("dim", "…"),
    ApplyState.RUNNING: ("warn", "▸"),
    ApplyState.DONE: ("good", "✓"),
    ApplyState.REFUSED: ("warn", "✕"),
    ApplyState.FAILED: ("bad", "✕"),
    ApplyState.SKIPPED: ("dim", "–"),
}
"""The CSS class and sign of each state; its name is shown beside them."""


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """The last apply of a cluster, and its drift since."""

    cluster: Cluster
    applied: AppliedCluster | None
    """None if nothing was applied yet."""
    drifted: int
    """The number of objects that differ."""
    unchecked: Condition | None = None
    """Why it could not be compared with what was applied; None if it was."""
    pending: Condition | None = None
    """What an administrator has yet to install; None if nothing."""
    stopped: wire.StoppedApply | None = None
    """The newest apply, if it stopped before its end."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One difference; several of a kind share a line."""

    sign: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TeamDiffRows:
    """The changes of one team, or of the whole fleet."""

    title: str
    sign: str
    """The sign of the team itself; empty if it existed before and remains."""
    inside: str
    """The parent of a new team."""
    lines: tuple[DiffRow, ...]


def clusters_policy(
    fleet: Fleet,
    applied: Iterable[AppliedCluster],
    drift: Iterable[wire.Drift],
    conditions: Iterable[StoredCondition] = (),
    stopped: Iterable[wire.StoppedApply] = (),
) -> list[ClusterPolicy]:
    """Return one row for each cluster of the fleet, in file order."""
    by_cluster = {a.cluster: a for a in applied}
    drifted = Counter(cluster for cluster, _, _ in {(d.cluster, d.kind, d.name) for d in drift})
    stopped_on = {s.cluster: s for s in stopped}
    wrong = {(c.cluster, c.condition.type): convert.condition(c) for c in conditions}
    return [
        ClusterPolicy(
            c,
            by_cluster.get(c.name),
            drifted[c.name],
            wrong.get((c.name, ConditionType.DRIFT_NOT_CHECKED)),
            wrong.get((c.name, ConditionType.INSTALL_PENDING)),
            stopped_on.get(c.name),
        )
        for c in fleet.clusters
    ]


def diff_by_team(diff: Sequence[wire.FieldDiff]) -> list[TeamDiffRows]:
    """Group differences by team. A new or removed team is marked in its title."""
    return [_team_diff(team, list(group)) for team, group in groupby(diff, key=lambda d: d.team)]


def _team_diff(team: str | None, diff: list[wire.FieldDiff]) -> TeamDiffRows:
    by_field = {d.what: d for d in diff}
    itself = by_field.get("team") if team is not None else None
    parent = by_field.get("parent") if itself is not None and itself.sign == "+" else None
    rest = [d for d in diff if d is not itself and d is not parent]
    return TeamDiffRows(
        team or "the fleet",
        itself.sign if itself else "",
        (parent.after or "") if parent else "",
        tuple(_diff_rows(rest)),
    )


def _diff_rows(diff: Iterable[wire.FieldDiff]) -> Iterable[DiffRow]:
    for (sign, what), group in groupby(diff, key=lambda d: (d.sign, d.what)):
        same = list(group)
        if sign == "~":
            for d in same:
                yield DiffRow(sign, what, d.before or "none", d.after or "none")
        else:
            before = ", ".join(d.before for d in same if d.before)
            after = ", ".join(d.after for d in same if d.after)
            yield DiffRow(sign, what, before, after)
