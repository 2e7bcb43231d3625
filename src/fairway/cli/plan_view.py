"""How a plan reads: the user's words first, the engine's objects on demand. Pure: a Plan in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from fairway.api import policy_wire as wire
from fairway.cli.layout import Line, cells_wide, clean, fold
from fairway.cli.words import count
from fairway.policy.objects import Action

MOST_SAID: Final = 40
"""Lines of prose before a plan only counts them; -o wide has them all."""
_MOST_VALUE: Final = 60
_SIGNS: Final = {Action.CREATE: "+", Action.UPDATE: "~", Action.DELETE: "-", Action.ADOPT: "="}
_COLOURS: Final = {"+": "green", "~": "yellow", "-": "red", "=": "cyan"}


def plan_lines(plan: wire.Plan, width: int | None, *, wide: bool) -> list[Line]:
    """The whole plan. `width` None: lines are as long as they must be."""
    blocks = [
        [Line(_headline(plan))],
        said_lines(plan.said, None if wide else MOST_SAID),
        _clusters(plan.clusters, wide=wide),
        _advice(plan.clusters, width),
        [*_quiet(plan.clusters), *_notices(plan.clusters, width)],
        _objections(plan.clusters, width),
    ]
    lines: list[Line] = []
    for block in blocks:
        if block:
            lines += [Line(), *block] if lines else block
    return lines


def value_text(value: wire.Value) -> str:
    """A field's value on one line."""
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
        case list():
            text = ", ".join(value_text(v) for v in value) or "none"
        case _:
            text = clean(str(value)) or '""'
    return text if len(text) <= _MOST_VALUE else text[: _MOST_VALUE - 1] + "…"


def engine_text(cluster: wire.ClusterPlan) -> str:
    """The engine with its version: `slurm 24.11`."""
    version = clean(cluster.engine_version)
    return version if version[:1].isalpha() else f"{cluster.engine.value} {version}".strip()


def objects_text(actions: Iterable[Action]) -> str:
    """`5 objects: 3 new, 2 changed`."""
    found = list(actions)
    named = (
        (Action.CREATE, "new"),
        (Action.UPDATE, "changed"),
        (Action.DELETE, "removed"),
        (Action.ADOPT, "adopted"),
    )
    parts = [f"{found.count(action)} {word}" for action, word in named if action in found]
    return f"{count(len(found), 'object')}: {', '.join(parts)}" if found else "no changes"


def _headline(plan: wire.Plan) -> str:
    changed = [c for c in plan.clusters if c.changes]
    name = clean(plan.fleet)
    if not plan.clusters:
        return f"{name}: no cluster could be planned" if plan.failures else f"{name}: no cluster to change"
    if plan.said and changed:
        return f"{name}: {count(len(plan.said), 'change')} on {count(len(changed), 'cluster')}"
    if plan.said:
        return f"{name}: {count(len(plan.said), 'change')}, and no cluster has to change for it"
    if changed:
        objects, verb = count(plan.changes, "object"), "is" if plan.changes == 1 else "are"
        return f"{name}: the policy is as it was, {objects} on {count(len(changed), 'cluster')} {verb} not"
    return f"{name}: no changes"


def said_lines(said: Sequence[wire.Said], most: int | None) -> list[Line]:
    """Differences between two fleets, whose they are above them."""
    shown = said if most is None else said[:most]
    wide = max((cells_wide(clean(s.what)) for s in shown), default=0)
    lines = []
    for team, group in groupby(shown, key=lambda s: s.team):
        lines.append(Line(f"  {clean(team)}" if team else "  the fleet"))
        for s in group:
            what = clean(s.what)
            padding = " " * (max(wide, 28) - cells_wide(what) + 3)
            value = _before_after(s.before, s.after)
            lines.append(Line(f"    {s.sign} {what}{padding if value else ''}{value}", _COLOURS.get(s.sign)))
    if len(shown) < len(said):
        lines.append(Line(f"    … and {len(said) - len(shown)} more (-o wide shows all)"))
    return lines


def _before_after(before: str | None, after: str | None) -> str:
    match before, after:
        case None, None:
            return ""
        case None, str():
            return clean(after)
        case str(), None:
            return clean(before)
        case _:
            return f"{clean(before or '')} → {clean(after or '')}"


def _clusters(clusters: Sequence[wire.ClusterPlan], *, wide: bool) -> list[Line]:
    names = max((cells_wide(c.cluster) for c in clusters), default=0)
    engines = max((cells_wide(engine_text(c)) for c in clusters), default=0)
    lines = []
    for c in clusters:
        engine = engine_text(c)
        gap = " " * (engines - cells_wide(engine))
        objects = objects_text(change.action for change in c.changes)
        lines.append(Line(f"  {c.cluster:{names}}   {engine}{gap}   {objects}"))
        if wide:
            lines += [line for change in c.changes for line in change_lines(change)]
    if not wide and any(c.changes for c in clusters):
        last = max(i for i, c in enumerate(clusters) if c.changes)
        lines[last] = Line(lines[last].text + "   (-o wide lists them)")
    return lines


def change_lines(change: wire.Change) -> Iterator[Line]:
    """One object, and under it what differs."""
    sign = _SIGNS[change.action]
    yield Line(f"    {sign} {clean(change.kind)} {clean(change.name)}", _COLOURS[sign])
    if change.action is Action.DELETE:
        return
    fields = [f for f in change.fields if f.before is not None or f.after is not None]
    names = max((cells_wide(f.field) for f in fields), default=0)
    for f in fields:
        before, after = value_text(f.before), value_text(f.after)
        value = after if change.action is Action.CREATE else f"{before} → {after}"
        yield Line(f"        {clean(f.field):{names}}   {value}")


def _advice(clusters: Sequence[wire.ClusterPlan], width: int | None) -> list[Line]:
    """What people must write themselves, file by file, ready to be copied."""
    lines: list[Line] = []
    for c in clusters:
        for file, group in groupby(sorted(c.advice, key=lambda a: a.file), key=lambda a: a.file):
            wanted = list(group)
            if lines:
                lines.append(Line())
            lines.append(Line(f"  {file} of {c.cluster} needs, and Fairway does not write it:", "yellow"))
            for a in wanted:
                lines += [Line(f"      {line}") for line in a.line.splitlines()]
                now = f"now: {a.running}; " if a.running else ""
                lines += _folded(f"        {now}{a.why}", width)
            restarts = dict.fromkeys(a.restart for a in wanted if a.restart)
            if restarts:
                lines.append(Line(f"    then:  {';  '.join(restarts)}"))
    return lines


def _quiet(clusters: Sequence[wire.ClusterPlan]) -> list[Line]:
    """The sentence everybody looks for; where jobs are touched, notices and objections say how many."""
    touched = any(t.running or t.waiting for c in clusters for t in c.touched)
    if touched or not any(c.changes for c in clusters):
        return []
    return [Line("  Nothing that runs is touched.")]


def _notices(clusters: Sequence[wire.ClusterPlan], width: int | None) -> list[Line]:
    where: dict[tuple[str, str, str | None], list[str]] = {}
    for c in clusters:
        for n in c.notices:
            where.setdefault((n.message, n.hint, n.promise), []).append(c.cluster)
    lines = []
    for (message, hint, promise), named in where.items():
        about = f"promise {promise} on {', '.join(named)}" if promise else f"on {', '.join(named)}"
        lines += _folded(f"  note: {message} ({about})", width)
        if hint:
            lines += _folded(f"    hint: {hint}", width)
    return lines


def _objections(clusters: Sequence[wire.ClusterPlan], width: int | None) -> list[Line]:
    lines = []
    for c in clusters:
        for o in c.objections:
            force = "; --force overrules it" if o.forceable else ""
            lines += _folded(f"  not as it stands: {o.message} (on {c.cluster}{force})", width, "red")
            lines += _folded(f"    hint: {o.hint}", width)
    return lines


def _folded(text: str, width: int | None, colour: str | None = None) -> list[Line]:
    cleaned = clean(text)
    return [Line(line, colour) for line in (fold(cleaned, width) if width else [cleaned])]
