"""Build the view model of the Policy pages from wire types. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from fairway.ledger.records.policy import AppliedCluster
from fairway.model.apply import ApplyState
from fairway.model.fleet import Fleet
from fairway.wire import policy as wire
from fairway.wire.fleet import Fault

_SIGN_WORDS: Final = {"+": "new", "-": "gone", "~": "changed", "=": "adopted"}
_STATES: Final = {
    ApplyState.WAITING: ("dim", "…"),
    ApplyState.RUNNING: ("warn", "▸"),
    ApplyState.DONE: ("good", "✓"),
    ApplyState.REFUSED: ("warn", "✕"),
    ApplyState.FAILED: ("bad", "✕"),
    ApplyState.SKIPPED: ("dim", "–"),
}


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """The last apply of a cluster, and its drift since."""

    cluster: str
    engine: str
    revision: int | None
    """None if nothing was applied yet."""
    apply: int | None
    applied_at: datetime | None
    applied_by: str
    looked_at: datetime | None
    drifted: int
    """The number of objects that differ."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One difference; several of a kind share a line."""

    sign: str
    sign_word: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TeamDiffRows:
    """The changes of one team, or of the whole fleet."""

    title: str
    sign: str
    """The sign of the team itself; empty if it existed before and remains."""
    sign_word: str
    inside: str
    """The parent of a new team."""
    lines: tuple[DiffRow, ...]


@dataclass(frozen=True, slots=True)
class FileFault:
    """A fault of a fleet file, and its location."""

    line: int
    column: int
    path: str
    severity: str
    message: str
    found: str
    expected: str
    hint: str
    also: tuple[tuple[int, str, str], ...]
    """Line, path and value of every related location."""


def clusters_policy(
    fleet: Fleet, applied: Iterable[AppliedCluster], drift: Iterable[wire.Drift]
) -> list[ClusterPolicy]:
    """Return one row for each cluster of the fleet, in file order."""
    known = {a.cluster: a for a in applied}
    objects = {(d.cluster, d.kind, d.name) for d in drift}
    rows = []
    for c in fleet.clusters:
        a, drifted = known.get(c.name), sum(cluster == c.name for cluster, _, _ in objects)
        if a is None:
            rows.append(ClusterPolicy(c.name, c.engine.value, None, None, None, "", None, drifted))
            continue
        rows.append(
            ClusterPolicy(
                c.name,
                c.engine.value,
                a.revision,
                a.apply,
                a.applied_at,
                a.applied_by,
                a.looked_at,
                drifted,
            )
        )
    return rows


def teams_said(said: Sequence[wire.FieldDiff]) -> list[TeamDiffRows]:
    """Group differences by team. A new or removed team is marked in its title."""
    return [_team_said(team, list(group)) for team, group in groupby(said, key=lambda s: s.team)]


def apply_state(state: ApplyState) -> tuple[str, str]:
    """Return the CSS class and sign of a state; its name is shown beside them."""
    return _STATES[state]


def file_fault(fault: Fault) -> FileFault:
    """Convert a fault of a fleet file for the page."""
    spot = fault.file
    if spot is None:
        return FileFault(0, 0, fault.where, "error", fault.message, "", "", "", ())
    return FileFault(
        spot.line,
        spot.column,
        spot.path,
        spot.severity,
        fault.message,
        spot.found,
        spot.expected,
        spot.hint,
        tuple((s.line, s.path, s.found) for s in spot.related),
    )


def sign_word(sign: str) -> str:
    """Return the meaning of a sign, for screen readers."""
    return _SIGN_WORDS.get(sign, "")


def _team_said(team: str | None, group: list[wire.FieldDiff]) -> TeamDiffRows:
    words = {s.what: s for s in group}
    whole = words.get("team") if team is not None else None
    inside = words.get("parent") if whole is not None and whole.sign == "+" else None
    rest = [s for s in group if s is not whole and s is not inside]
    sign = whole.sign if whole else ""
    return TeamDiffRows(
        team or "the fleet",
        sign,
        sign_word(sign),
        (inside.after or "") if inside else "",
        tuple(_said_lines(rest)),
    )


def _said_lines(said: Iterable[wire.FieldDiff]) -> Iterable[DiffRow]:
    for (sign, what), same in groupby(said, key=lambda s: (s.sign, s.what)):
        found = list(same)
        if sign == "~":
            for s in found:
                yield DiffRow(sign, sign_word(sign), what, s.before or "none", s.after or "none")
        else:
            before = ", ".join(s.before for s in found if s.before)
            after = ", ".join(s.after for s in found if s.after)
            yield DiffRow(sign, sign_word(sign), what, before, after)
