"""Format plans, their objects and the outcome of applies, for terminal and page alike. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from fairway.model.apply import ApplyState, DriftKind
from fairway.model.text import clean, count, span
from fairway.policy.objects import Action
from fairway.wire import policy as wire

SIGNS: Final = {
    Action.CREATE: "+",
    Action.UPDATE: "~",
    Action.DELETE: "-",
    Action.ADOPT: "=",
    Action.RESTORE: "~",
}
AFFECTED_JOBS_CODE: Final = "JobsUnderChanges"
"""The code of the notice that counts the jobs affected by changed objects."""
NOTHING_TOUCHED: Final = "Nothing that runs is touched."
_MAX_VALUE: Final = 60
_OUTCOMES: Final = {
    ApplyState.WAITING: "waits for its turn",
    ApplyState.RUNNING: "is being applied",
    ApplyState.DONE: "done",
    ApplyState.REFUSED: "refused, nothing was changed",
    ApplyState.FAILED: "stopped",
    ApplyState.SKIPPED: "skipped, it left the fleet",
}


def headline(plan: wire.Plan) -> str:
    """Summarize a plan in one line."""
    changed = [c for c in plan.clusters if c.changes]
    name = clean(plan.fleet)
    if not plan.clusters:
        return f"{name}: no cluster could be planned" if plan.failures else f"{name}: no cluster to change"
    if changed and is_new(plan):
        teams = sum((s.sign, s.what) == ("+", "team") for s in plan.diff)
        return f"{name}: a new fleet, {count(teams, 'team')} on {count(len(changed), 'cluster')}"
    if plan.diff and changed:
        return f"{name}: {count(len(plan.diff), 'change')} on {count(len(changed), 'cluster')}"
    if plan.diff:
        return f"{name}: {count(len(plan.diff), 'change')} to the fleet file; nothing changes on the clusters"
    if changed:
        objects, verb = count(plan.changes, "object"), "differs" if plan.changes == 1 else "differ"
        where = count(len(changed), "cluster")
        return f"{name}: the policy has not changed; {objects} on {where} {verb} from it"
    return f"{name}: no changes"


def is_new(plan: wire.Plan) -> bool:
    """Return whether nothing was applied before."""
    return any(s.team is None and (s.sign, s.what) == ("+", "fleet") for s in plan.diff)


def objections_of(plan: wire.Plan) -> list[tuple[str, wire.Objection]]:
    """Return the objections against a plan, each after the words that name its cluster, if it has one."""
    of_clusters = [(f" (on {c.cluster})", o) for c in plan.clusters for o in c.objections]
    return [*(("", o) for o in plan.objections), *of_clusters]


def affected_jobs(clusters: Sequence[wire.ClusterPlan]) -> list[tuple[str, str]]:
    """Return which running jobs a plan affects, as pairs of cluster and sentence.

    Empty if jobs are affected and no engine counts them: ending a job is an objection then.
    """
    counts = [
        (c.cluster, clean(n.message)) for c in clusters for n in c.notices if n.code == AFFECTED_JOBS_CODE
    ]
    any_jobs = any(t.running or t.waiting for c in clusters for t in c.touched)
    return [("", NOTHING_TOUCHED)] if not any_jobs and any(c.changes for c in clusters) else counts


def value_text(value: wire.Value) -> str:
    """Format a field's value on one line."""
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
        case list():
            text = ", ".join(value_text(v) for v in value) or "none"
        case _:
            text = clean(str(value)) or '""'
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def difference(field: wire.FieldChange, action: Action) -> str:
    """Format the change of one field."""
    if action is Action.CREATE:
        return value_text(field.after)
    if isinstance(field.before, list) and isinstance(field.after, list):  # only added and removed values
        added = [f"+ {value_text(v)}" for v in field.after if v not in field.before]
        removed = [f"- {value_text(v)}" for v in field.before if v not in field.after]
        if added or removed:
            return ", ".join([*added, *removed])
    return f"{value_text(field.before)} → {value_text(field.after)}"


def engine_text(cluster: wire.ClusterPlan) -> str:
    """Format the engine with its version: `slurm 24.11`."""
    version = clean(cluster.engine_version)
    return version if version[:1].isalpha() else f"{cluster.engine.value} {version}".strip()


def objects_text(actions: Iterable[Action]) -> str:
    """Count objects by action: `5 objects: 3 new, 2 changed`."""
    found = list(actions)
    words = (
        (Action.CREATE, "new"),
        (Action.UPDATE, "changed"),
        (Action.DELETE, "removed"),
        (Action.ADOPT, "adopted"),
        (Action.RESTORE, "restored"),
    )
    parts = [f"{found.count(action)} {word}" for action, word in words if action in found]
    return f"{count(len(found), 'object')}: {', '.join(parts)}" if found else "no changes"


def apply_kind(a: wire.Apply) -> str:
    """Format what an apply is: `apply`, `adopt`, or `rollback to 3`."""
    return a.kind.value if a.rollback_to is None else f"rollback to {a.rollback_to}"


def outcome(c: wire.ApplyCluster) -> str:
    """Format the outcome of an apply on one cluster: `done, 3 of 3 changes made in 4 s`."""
    took = ""
    if c.started_at and c.finished_at:
        seconds = (c.finished_at - c.started_at).total_seconds()
        took = f" in {span(seconds)}" if seconds >= 1 else ""
    if c.state is ApplyState.DONE and c.total == 0:
        return "nothing had to change"
    if c.state in (ApplyState.DONE, ApplyState.FAILED, ApplyState.RUNNING):
        return f"{_OUTCOMES[c.state]}, {c.done} of {count(c.total, 'change')} made{took}"
    return _OUTCOMES[c.state]


def wanted_and_found(d: wire.Drift) -> tuple[str, str]:
    """Format the applied and the found value of a drifted field or object."""
    match d.difference:
        case DriftKind.CHANGED:
            return value_text(d.wanted), value_text(d.found)
        case DriftKind.MISSING:
            return "there", "gone"
        case DriftKind.EXTRA:
            return "not there", "there, with Fairway's mark"
        case DriftKind.UNMARKED:
            return "with Fairway's mark", "without it"


def suggested_name(plan: wire.Plan) -> str:
    """Return a file name derived from the plan's content: `plan-7c1e.json`."""
    content = "".join(sorted(c.fingerprint for c in plan.clusters)) + plan.digest
    return f"plan-{hashlib.sha256(content.encode()).hexdigest()[:4]}.json"
