"""Format what a plan removes, for terminal and page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from fairway.model.text import clean, count
from fairway.policy.removals import RemovalKind
from fairway.wire import policy as wire

MAX_SINGLE: Final = 24
"""Clusters, pools and teams that get a line each; more of them share one line a kind."""
_COUNTED: Final = (RemovalKind.CLUSTER, RemovalKind.POOL, RemovalKind.TEAM)
_PLURALS: Final = {RemovalKind.PRIORITY: "priorities", RemovalKind.OVERHEAD: "overhead costs"}
_NOUNS: Final = {RemovalKind.OVERHEAD: "overhead cost"}


def removals_headline(removals: Sequence[wire.Removal]) -> str:
    """Count what is removed: `removes 1 cluster, 5 budgets and 2 members`. Empty if nothing is."""
    removed = [r for r in removals if r.kind is not RemovalKind.LOWERED]
    counts = [_counted(kind, len(list(group))) for kind, group in groupby(removed, key=lambda r: r.kind)]
    parts = []
    if counts:
        parts.append("removes " + " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]])))
    if len(removed) < len(removals):
        parts.append(f"lowers {count(len(removals) - len(removed), 'limit')}")
    return "; ".join(parts)


def removal_lines(removals: Sequence[wire.Removal]) -> list[str]:
    """Return one line for each cluster, pool and team, and one for all removals of any other kind."""
    single = sum(r.kind in _COUNTED for r in removals) <= MAX_SINGLE
    lines: list[str] = []
    for kind, group in groupby(removals, key=lambda r: r.kind):
        found = list(group)
        if kind in _COUNTED and single:
            lines += [f"removes {removal_text(r)}" for r in found]
        elif kind is RemovalKind.LOWERED:
            several = f"{count(len(found), 'limit')}: " if len(found) > 1 else ""
            lines.append(f"lowers {several}{_joined(found)}{_unused(found)}")
        elif len(found) == 1:
            lines.append(f"removes {removal_text(found[0])}")
        else:
            lines.append(f"removes {_counted(kind, len(found))}: {_joined(found)}{_unused(found)}")
    return lines


def taken_lines(clusters: Iterable[wire.ClusterPlan]) -> list[str]:
    """Return a line for everything that a policy takes from people of a cluster, with who used it."""
    return [
        f"removes on {clean(c.cluster)}: {clean(t.what)}; {used_text(t.used, one=t.user is not None)}"
        for c in clusters
        for t in c.taken
    ]


def used_text(use: wire.RecentUse, *, one: bool = False) -> str:
    """Format who used something: `used in the last 30 days by alice (120 GPU-hours), bob (3) and 4 more`.

    `one`: only one user can have used it, who is named already.
    """
    if use.unknown:
        return f"usage in the last 30 days is unknown: {clean(use.unknown)}"
    if not use.users:
        return "not used in the last 30 days"
    if one:
        return f"{_hours(use.gpu_hours)} GPU-hours in the last 30 days"
    first, *rest = use.users
    named = [f"{clean(first.user)} ({_hours(first.gpu_hours)} GPU-hours)"]
    named += [f"{clean(u.user)} ({_hours(u.gpu_hours)})" for u in rest]
    last = [f"{use.more} more"] if use.more else [named.pop()] if len(named) > 1 else []
    return f"used in the last 30 days by {' and '.join([', '.join(named), *last])}"


def _hours(hours: float) -> str:
    if hours < 0.1:
        return "under 0.1"
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}".removesuffix(".0")


def confirmation_names(removals: Iterable[wire.Removal]) -> list[str]:
    """Return the names that confirm all removals that need it, in their order."""
    return list(dict.fromkeys(r.name for r in removals if r.needs_force))


def removal_text(r: wire.Removal) -> str:
    """Format one removal: `cluster cloud: 72 GPUs, 41 running jobs no longer tracked`."""
    if r.kind not in _COUNTED:
        return f"{_NOUNS.get(r.kind, r.kind.value)} {_item(r)}{_unused([r])}"
    parts = "; ".join(filter(None, [_facts(r), clean(r.detail)]))
    return f"{r.kind.value} {clean(r.name)}" + (f": {parts}" if parts else "")


def _facts(r: wire.Removal) -> str:
    facts = [] if r.gpus is None else [count(r.gpus, "GPU")]
    if r.recent:
        facts.append(f"{count(r.recent, 'job')} in the last 30 days")
    jobs = [f"{n} {word}" for n, word in ((r.running, "running"), (r.waiting, "waiting")) if n]
    if jobs and r.kind is RemovalKind.CLUSTER:
        one = r.running + r.waiting == 1
        facts.append(f"{' and '.join(jobs)} {'job' if one else 'jobs'} no longer tracked")
    elif jobs and r.recent:
        facts += jobs
    elif jobs:
        facts.append(f"{' and '.join(jobs)} {'job' if r.running + r.waiting == 1 else 'jobs'}")
    elif r.kind is RemovalKind.TEAM and r.needs_force and not r.recent:
        facts.append("jobs more than 30 days ago")
    if r.used is not None:
        facts.append(used_text(r.used))
    return ", ".join(facts)


def _joined(removals: Sequence[wire.Removal]) -> str:
    separator = "; " if any(r.used and r.used.users for r in removals) else ", "
    return separator.join(_item(r) for r in removals)


def _unused(removals: Sequence[wire.Removal]) -> str:
    """Format once for a whole line that some of its items were not used, or that it is not known."""
    asked = [r.used for r in removals if r.used is not None]
    silent = [use for use in asked if not use.users]
    if not silent:
        return ""
    if len(silent) == len(asked):
        return f"; {used_text(silent[0])}"
    return f"; the other{'s' if len(silent) > 1 else ''} {used_text(silent[0])}"


def _item(r: wire.Removal) -> str:
    """Format one removal without its kind, as an item of a list."""
    item = _item_name(r)
    if r.used is None or not r.used.users or r.kind in _COUNTED:
        return item
    return f"{item}, {used_text(r.used, one=r.kind is RemovalKind.MEMBER)}"


def _item_name(r: wire.Removal) -> str:
    name, what, value = clean(r.name), clean(r.what), clean(r.value)
    match r.kind:
        case RemovalKind.BUDGET:
            return f"of {name} ({value})"
        case RemovalKind.GUARANTEE | RemovalKind.GRANT:
            return f"of {name} on {what}" + (f" ({value})" if value else "")
        case RemovalKind.DEFAULT_TEAM:
            return f"of {name} ({what})"
        case RemovalKind.LOWERED:
            return f"{what} for {name} ({value})"
        case RemovalKind.CLUSTER | RemovalKind.POOL | RemovalKind.TEAM:
            return f"{name}{_in_brackets(r)}"
        case _:
            item = f"{what} of {name}" if what else name
            return f"{item} ({value})" if value else item


def _in_brackets(r: wire.Removal) -> str:
    """Format what a grouped cluster, pool or team takes with it."""
    parts = ", ".join(filter(None, [_facts(r), clean(r.detail)]))
    return f" ({parts})" if parts else ""


def _counted(kind: RemovalKind, n: int) -> str:
    noun = _NOUNS.get(kind, kind.value)
    return f"{n} {_PLURALS[kind]}" if n != 1 and kind in _PLURALS else count(n, noun)
