"""Format the plan to leave a cluster, and what people do afterwards. Pure: a ClusterPlan in, lines out."""

from __future__ import annotations

from itertools import groupby

from fairway.cli.output.format import ScreenLine, count, folded
from fairway.cli.output.plan import change_lines
from fairway.model.text import clean
from fairway.policy.objects import Action
from fairway.wire import policy as wire


def leave_lines(plan: wire.ClusterPlan, width: int | None, *, wide: bool) -> list[ScreenLine]:
    """Format what is restored, what is deleted, what stays, and the objections."""
    restored = [c for c in plan.changes if c.action is Action.RESTORE]
    deleted = [c for c in plan.changes if c.action is Action.DELETE]
    lines = [
        ScreenLine(
            f"leave {plan.cluster}: {count(len(restored), 'object')} restored to the state before Fairway, "
            f"{count(len(deleted), 'object')} deleted"
        )
    ]
    for title, changes in (("restored", restored), ("deleted", deleted)):
        by_kind = groupby(sorted(changes, key=lambda c: c.kind), key=lambda c: c.kind)
        for kind, group in by_kind:
            found = list(group)
            lines += folded(f"  {title}  {kind}: {', '.join(clean(c.name) for c in found)}", width)
            if wide:
                lines += [line for c in found for line in change_lines(c)]
    lines += [ScreenLine(), ScreenLine("  No running job is stopped.")]
    for n in plan.notices:
        lines += folded(f"  note: {clean(n.message)}", width)
        lines += folded(f"    hint: {clean(n.hint)}", width)
    for o in plan.objections:
        lines += folded(f"  refused: {clean(o.message)}", width, "red")
        lines += folded(f"    hint: {clean(o.hint)}", width)
    return [*lines, *after_lines(plan, width)] if plan.advice else lines


def after_lines(plan: wire.ClusterPlan, width: int | None) -> list[ScreenLine]:
    """Format what an administrator removes by hand, in this order."""
    if not plan.advice:
        return []
    lines = [
        ScreenLine(),
        ScreenLine(
            f"  An administrator of {plan.cluster} must remove these by hand, in this order:", "yellow"
        ),
    ]
    for number, a in enumerate(plan.advice, 1):
        lines += folded(f"  {number}. {a.file}:  {clean(a.line)}", width)
        lines += folded(f"     {clean(a.why)}", width)
        if a.restart:
            lines += folded(f"     then:  {a.restart}", width)
    return lines
