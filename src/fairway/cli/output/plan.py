"""Format a plan: first in the user's terms, engine objects with `-o wide`. Pure: a Plan in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from fairway.cli.output.format import ScreenLine, cell_width, count, folded
from fairway.model.text import clean, first_few
from fairway.policy.objects import Action
from fairway.views.plans import (
    AFFECTED_JOBS_CODE,
    NOTHING_TOUCHED,
    SIGNS,
    affected_jobs,
    difference,
    engine_text,
    headline,
    is_new,
    objections_of,
    objects_text,
)
from fairway.views.removals import confirmation_names, removal_lines, taken_lines
from fairway.views.stopped import stopped_notes
from fairway.wire import policy as wire

MAX_PROSE_LINES: Final = 24
"""Lines of prose after which the remaining teams are only counted; -o wide lists them all."""
_MAX_NAMES: Final = 8
"""The most names on one line."""
_FEW_NOTES: Final = 2
_LONG_NOTE: Final = 80
_FEW_OBJECTS: Final = 10
_FEW_TEAMS: Final = 2
"""So few remaining teams are shown rather than counted."""
_COLOURS: Final = {"+": "green", "~": "yellow", "-": "red", "=": "cyan"}


def plan_lines(plan: wire.Plan, width: int | None, *, wide: bool) -> list[ScreenLine]:
    """Format the whole plan. With `width` None, lines are not folded."""
    blocks = [
        [ScreenLine(headline(plan))],
        [*removal_screen(plan.removals, width), *_taken(plan.clusters, width)],
        _stopped(plan.stopped, width),
        diff_lines(plan.diff, wide=wide),
        _clusters(plan.clusters, wide=wide or _is_small_drift(plan)),
        _advice(plan.clusters, width, wide=wide),
        [*_affected_lines(plan.clusters), *_notices(plan, width, wide=wide)],
        _objections(plan, width),
    ]
    lines: list[ScreenLine] = []
    for block in blocks:
        if block:
            lines += [ScreenLine(), *block] if lines else block
    return lines


def removal_screen(removals: Sequence[wire.Removal], width: int | None) -> list[ScreenLine]:
    """List everything that is removed, never abridged, and the names that confirm it."""
    lines = [line for text in removal_lines(removals) for line in folded(f"  {text}", width, "red")]
    names = confirmation_names(removals)
    if any(r.refused for r in removals):
        lines += folded("    refused: the fleet file is partial, so it cannot remove anything", width)
    elif names:
        lines += folded(f"    confirm with --force, or by typing: {', '.join(map(clean, names))}", width)
    return lines


def _taken(clusters: Sequence[wire.ClusterPlan], width: int | None) -> list[ScreenLine]:
    """List what a policy takes from people of a cluster, with who used it."""
    return [line for text in taken_lines(clusters) for line in folded(f"  {text}", width, "red")]


def _stopped(stopped: Sequence[wire.StoppedApply], width: int | None) -> list[ScreenLine]:
    """List the applies that stopped before their end: the clusters are not as the last applied fleet says."""
    return [line for note in stopped_notes(stopped) for line in folded(f"  {note}", width, "yellow")]


def _is_small_drift(plan: wire.Plan) -> bool:
    """Return whether few objects drifted while the policy is unchanged: then the objects are listed."""
    return not plan.diff and plan.changes <= _FEW_OBJECTS


def diff_lines(diffs: Sequence[wire.FieldDiff], *, wide: bool) -> list[ScreenLine]:
    """Format the differences between two fleets, grouped by team."""
    teams = [(team, list(group)) for team, group in groupby(diffs, key=lambda s: s.team)]
    removed = [team for team, group in teams if team and _is_removed(group)]
    teams = [(team, group) for team, group in teams if not _is_removed(group)]
    column = max((cell_width(clean(s.what)) for s in diffs[:MAX_PROSE_LINES]), default=0)
    lines: list[ScreenLine] = []
    for i, (team, group) in enumerate(teams):
        if len(lines) >= MAX_PROSE_LINES and len(teams) - i > _FEW_TEAMS and not wide:
            lines.append(ScreenLine(f"  … and {count(len(teams) - i, 'team')} more (-o wide shows all)"))
            break
        lines += _team_lines(team, group, max(column, 26), wide=wide)
    if removed:
        lines.append(ScreenLine(f"  - {_names([clean(team) for team in removed], wide=wide)}", _COLOURS["-"]))
    return lines


def _is_removed(group: Sequence[wire.FieldDiff]) -> bool:
    """Return whether the whole team is removed: such teams are only listed by name."""
    return len(group) == 1 and (group[0].sign, group[0].what) == ("-", "team")


def _team_lines(
    team: str | None, group: Sequence[wire.FieldDiff], column: int, *, wide: bool
) -> Iterator[ScreenLine]:
    """Format a team and its differences. A new or removed team is marked in its own line."""
    by_what = {s.what: s for s in group}
    team_diff = by_what.get("team")
    title = clean(team) if team else "the fleet"
    if team_diff is None or team is None:
        yield ScreenLine(f"  {title}")
    else:
        parent = by_what.get("parent") if team_diff.sign == "+" else None
        above = f" in {clean(parent.after or '')}" if parent else ""
        yield ScreenLine(f"  {team_diff.sign} {title}{above}", _COLOURS.get(team_diff.sign))
        group = [s for s in group if s is not team_diff and s is not parent]
    for (sign, what), same_kind in groupby(group, key=lambda s: (s.sign, clean(s.what))):
        found = list(same_kind)
        if sign == "~":
            values = [_before_after(s.before, s.after) for s in found]
        else:  # several of a kind share one line
            values = [_names([clean(s.after or s.before or "") for s in found], wide=wide)]
        for value in values:
            padding = " " * (column - cell_width(what) + 3)
            yield ScreenLine(f"    {sign} {what}{padding if value else ''}{value}", _COLOURS.get(sign))


def _names(names: Sequence[str], *, wide: bool) -> str:
    return first_few(names, len(names) if wide else _MAX_NAMES)


def _before_after(before: str | None, after: str | None) -> str:
    return f"{clean(before or 'none')} → {clean(after or 'none')}"


def _clusters(clusters: Sequence[wire.ClusterPlan], *, wide: bool) -> list[ScreenLine]:
    names = max((cell_width(c.cluster) for c in clusters), default=0)
    engines = max((cell_width(engine_text(c)) for c in clusters), default=0)
    lines = []
    for c in clusters:
        engine = engine_text(c)
        gap = " " * (engines - cell_width(engine))
        objects = objects_text(change.action for change in c.changes)
        lines.append(ScreenLine(f"  {c.cluster:{names}}   {engine}{gap}   {objects}"))
        if wide:
            lines += [line for change in c.changes for line in change_lines(change)]
    if not wide and any(c.changes for c in clusters):
        last = max(i for i, c in enumerate(clusters) if c.changes)
        lines[last] = ScreenLine(lines[last].text + "   (-o wide lists them)")
    return lines


def change_lines(change: wire.Change) -> Iterator[ScreenLine]:
    """Format one object and, below it, the fields that differ."""
    sign = SIGNS[change.action]
    yield ScreenLine(f"    {sign} {clean(change.kind)} {clean(change.name)}", _COLOURS[sign])
    if change.action is Action.DELETE:
        return
    fields = [f for f in change.fields if f.before is not None or f.after is not None]
    names = max((cell_width(f.field) for f in fields), default=0)
    for f in fields:
        yield ScreenLine(f"        {clean(f.field):{names}}   {difference(f, change.action)}")


def _advice(clusters: Sequence[wire.ClusterPlan], width: int | None, *, wide: bool) -> list[ScreenLine]:
    """List lines that people must add to an engine's own configuration, by file, ready to be copied.

    Lines that the engine does not expose may exist already: they are counted, and listed with `wide`.
    """
    lines: list[ScreenLine] = []
    for c in clusters:
        listed = [a for a in c.advice if wide or not a.unseen]
        for file, group in groupby(sorted(listed, key=lambda a: a.file), key=lambda a: a.file):
            lines += [ScreenLine()] * bool(lines) + _file_lines(
                c.cluster, file, list(group), width, wide=wide
            )
        unlisted = Counter(a.file for a in c.advice if a.unseen and not wide)
        if unlisted:
            lines += [ScreenLine()] * bool(lines)
            needs = " and ".join(f"{count(n, 'line')} of {file}" for file, n in sorted(unlisted.items()))
            lines += folded(
                f"  {c.cluster} does not show {needs} that the policy needs: compare them once "
                "(-o wide lists them)",
                width,
            )
    return lines


def _file_lines(
    cluster: str, file: str, advice: Sequence[wire.Advice], width: int | None, *, wide: bool
) -> list[ScreenLine]:
    these = "this line, which" if len(advice) == 1 else "these lines, which"
    lines = [ScreenLine(f"  {file} of {cluster} needs {these} an administrator must add:", "yellow")]
    for a in advice:
        lines += [ScreenLine(f"      {clean(line)}") for line in a.line.splitlines()]
        if wide:
            now = f"now {a.running}; " if a.running else ""
            lines += folded(f"        # {now}{a.why}", width)
    restarts = dict.fromkeys(a.restart for a in advice if a.restart)
    if restarts:
        lines.append(ScreenLine(f"    then:  {';  '.join(restarts)}"))
    return lines


def _affected_lines(clusters: Sequence[wire.ClusterPlan]) -> list[ScreenLine]:
    """Format which running jobs are affected, by cluster."""
    return [
        ScreenLine(f"  {text}")
        if text == NOTHING_TOUCHED
        else ScreenLine(f"  {text} (on {cluster})", "yellow")
        for cluster, text in affected_jobs(clusters)
    ]


def _notices(plan: wire.Plan, width: int | None, *, wide: bool) -> list[ScreenLine]:
    """Format the notices; those on promises that hold regardless of the changes are counted unless `wide`."""
    clusters_by_notice: dict[tuple[str, str, str | None], dict[str, None]] = {}
    for c in plan.clusters:
        for n in (n for n in c.notices if n.code != AFFECTED_JOBS_CODE):
            clusters_by_notice.setdefault((n.message, n.hint, n.promise), {})[c.cluster] = None
    on_promises = [key for key in clusters_by_notice if key[2] is not None]
    long = len(on_promises) > _FEW_NOTES or any(len(message) > _LONG_NOTE for message, _, _ in on_promises)
    abridged = not wide and not is_new(plan) and (long or not plan.changes)
    lines = []
    for (message, hint, promise), named in clusters_by_notice.items():
        if promise and abridged:
            continue
        about = f"promise {promise} on {', '.join(named)}" if promise else f"on {', '.join(named)}"
        lines += folded(f"  note: {message} ({about})", width)
        if hint and (wide or not promise):
            lines += folded(f"    hint: {hint}", width)
    if abridged and on_promises:
        promises = ", ".join(dict.fromkeys(key[2] for key in on_promises if key[2]))
        notes = count(len(on_promises), "note")
        lines += folded(f"  {notes} on promises: {promises} (-o wide shows them)", width)
    return lines


def _objections(plan: wire.Plan, width: int | None) -> list[ScreenLine]:
    lines = []
    for where, o in objections_of(plan):
        word = f"needs {o.option}" if o.option else "refused"
        lines += folded(f"  {word}: {o.message}{where}", width, "red")
        lines += folded(f"    hint: {o.hint}", width)
    return lines
