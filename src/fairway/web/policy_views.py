"""What the pages of policy say, from wire types. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from fairway.api import policy_wire as wire
from fairway.api.wire import Fault
from fairway.ledger.policy_records import AppliedCluster
from fairway.model.apply import ApplyState
from fairway.model.fleet import Fleet

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
    """What a cluster was last made to be, and whether it still is."""

    cluster: str
    engine: str
    revision: int | None
    """None: nothing was applied yet."""
    apply: int | None
    applied_at: datetime | None
    applied_by: str
    looked_at: datetime | None
    drifted: int
    """Objects that differ."""


@dataclass(frozen=True, slots=True)
class SaidLine:
    """One difference; several of a kind on one line."""

    sign: str
    sign_word: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TeamSaid:
    """What changes for one team, or for the whole fleet."""

    title: str
    sign: str
    """Of the team itself: empty when it was there and stays."""
    sign_word: str
    inside: str
    """The team a new one is in."""
    lines: tuple[SaidLine, ...]


@dataclass(frozen=True, slots=True)
class FileFault:
    """What is wrong with a fleet file, and where."""

    line: int
    column: int
    path: str
    severity: str
    message: str
    found: str
    expected: str
    hint: str
    also: tuple[tuple[int, str, str], ...]
    """Line, path and value of every other place that has to do with it."""


def clusters_policy(
    fleet: Fleet, applied: Iterable[AppliedCluster], drift: Iterable[wire.Drift]
) -> list[ClusterPolicy]:
    """A row for each cluster of the fleet, in the order of the file."""
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


def teams_said(said: Sequence[wire.Said]) -> list[TeamSaid]:
    """Differences by team. A new team, or one that goes, says so in its title."""
    return [_team_said(team, list(group)) for team, group in groupby(said, key=lambda s: s.team)]


def apply_state(state: ApplyState) -> tuple[str, str]:
    """The class and the sign of a state; its word stands beside them."""
    return _STATES[state]


def file_fault(fault: Fault) -> FileFault:
    """A fault of a fleet file as a page shows it."""
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
    """What a sign means, for who hears the page."""
    return _SIGN_WORDS.get(sign, "")


def _team_said(team: str | None, group: list[wire.Said]) -> TeamSaid:
    words = {s.what: s for s in group}
    whole = words.get("team") if team is not None else None
    inside = words.get("parent") if whole is not None and whole.sign == "+" else None
    rest = [s for s in group if s is not whole and s is not inside]
    sign = whole.sign if whole else ""
    return TeamSaid(
        team or "the fleet",
        sign,
        sign_word(sign),
        (inside.after or "") if inside else "",
        tuple(_said_lines(rest)),
    )


def _said_lines(said: Iterable[wire.Said]) -> Iterable[SaidLine]:
    for (sign, what), same in groupby(said, key=lambda s: (s.sign, s.what)):
        found = list(same)
        if sign == "~":
            for s in found:
                yield SaidLine(sign, sign_word(sign), what, s.before or "none", s.after or "none")
        else:
            before = ", ".join(s.before for s in found if s.before)
            after = ", ".join(s.after for s in found if s.after)
            yield SaidLine(sign, sign_word(sign), what, before, after)
