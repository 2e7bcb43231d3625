"""Format applies: what was changed, what was not, and why. Pure: wire types in, views and lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from fairway.cli.output.format import Column, Fit, ScreenLine, TableView, count, folded, moment, since, span
from fairway.cli.output.plan import change_lines, diff_lines
from fairway.model.apply import OPEN_STATES, ApplyKind, ApplyState
from fairway.model.text import clean
from fairway.views.plans import apply_kind, outcome
from fairway.wire import policy as wire

_MAX_LISTED: Final = 10
_KINDS: Final = {
    ApplyKind.APPLY: "apply",
    ApplyKind.ADOPT: "adoption",
    ApplyKind.LEAVE: "leave",
    ApplyKind.RELEASE: "release of all limits",
}


def applies_view(applies: Sequence[wire.Apply], now: datetime, *, filtered: bool) -> TableView:
    """Return a table with one row for each apply and cluster, newest first."""
    columns = [
        Column("APPLY", right=True),
        Column("WHEN"),
        Column("BY", fit=Fit.MIDDLE),
        Column("WHAT"),
        Column("CLUSTER", fit=Fit.MIDDLE),
        Column("STATE"),
        *Column.numbers("CHANGES", "TOOK"),
        Column("REASON", fit=Fit.END, hide_if_empty=True),
    ]
    rows: list[list[str]] = []
    alarming: set[int] = set()
    for a in applies:
        for c in a.clusters:
            if c.state in (ApplyState.REFUSED, ApplyState.FAILED):
                alarming.add(len(rows))
            rows.append(
                [
                    str(a.id),
                    moment(a.created_at, ""),
                    a.created_by,
                    f"{apply_kind(a)} {a.options}".rstrip(),
                    c.cluster,
                    c.state.value,
                    f"{c.done}/{c.total}",
                    _took(c, now),
                    f"{c.code}: {c.message}" if c.code else "",
                ]
            )
    return TableView(
        columns,
        rows,
        empty="no applies of this cluster" if filtered else "nothing has been applied yet",
        hint="plan a fleet file:  fairway plan -f fleet.yaml",
        alarming=frozenset(alarming),
    )


def apply_lines(
    detail: wire.ApplyDetail, now: datetime, width: int | None, *, wide: bool
) -> list[ScreenLine]:
    """Format one apply: user, time, changes in the user's terms, and the outcome on each cluster."""
    kind = _KINDS[detail.kind]
    options = f", with {detail.options}" if detail.options else ""
    revision = f", fleet revision {detail.revision}" if detail.revision is not None else ""
    if detail.rollback_to is not None:
        revision += f" (rollback to {detail.rollback_to})"
    ago = since(detail.created_at, now)
    when = moment(detail.created_at, "")
    lines = [
        ScreenLine(f"{kind} {detail.id} by {clean(detail.created_by)}, {when} ({ago} ago){revision}{options}")
    ]
    diff = diff_lines(detail.diff, wide=wide)
    if diff:
        lines += [ScreenLine(), *diff]
    lines.append(ScreenLine())
    for c in detail.clusters:
        lines += _cluster_lines(c, width)
        if wide:
            lines += [line for change in c.changes for line in change_lines(change)]
    if not wide and any(c.changes for c in detail.clusters):
        lines += [
            ScreenLine(),
            ScreenLine(f"  fairway history {detail.id} -o wide  lists every object, before and after"),
        ]
    return lines


def outcome_lines(detail: wire.ApplyDetail, width: int | None) -> list[ScreenLine]:
    """Format the outcome of a finished apply."""
    lines = [line for c in detail.clusters for line in _cluster_lines(c, width)]
    return [*lines, ScreenLine(f"  recorded as:  fairway history {detail.id}")]


def _cluster_lines(c: wire.ApplyClusterDetail, width: int | None) -> list[ScreenLine]:
    done = c.state is ApplyState.DONE
    colour = "green" if done else None if c.state in OPEN_STATES else "yellow"
    lines = [ScreenLine(f"  {c.cluster}: {outcome(c)}", colour)]
    if c.code:
        lines += folded(f"    {c.code}: {c.message}", width, "red")
        lines += folded(f"    hint: {c.hint}", width)
    missing = [change for change in c.changes if not change.made]
    if missing and c.state is ApplyState.FAILED:
        lines.append(ScreenLine(f"    not made: {count(len(missing), 'change')}"))
        lines += [
            ScreenLine(f"      {change.action.value} {clean(change.kind)} {clean(change.name)}")
            for change in missing[:_MAX_LISTED]
        ]
        if len(missing) > _MAX_LISTED:
            lines.append(ScreenLine(f"      … and {len(missing) - _MAX_LISTED} more"))
    return lines


def _took(c: wire.ApplyCluster, now: datetime) -> str:
    if c.started_at is None:
        return ""
    return span(((c.finished_at or now) - c.started_at).total_seconds())
