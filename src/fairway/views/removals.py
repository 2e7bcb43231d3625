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
    counts = [_counted(kind, len(list(group))) for kind, group in groupby(removals, key=lambda r: r.kind)]
    if not counts:
        return ""
    return "removes " + " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))


def removal_lines(removals: Sequence[wire.Removal]) -> list[str]:
    """Return one line for each cluster, pool and team, and one for all removals of any other kind."""
    single = sum(r.kind in _COUNTED for r in removals) <= MAX_SINGLE
    lines: list[str] = []
    for kind, group in groupby(removals, key=lambda r: r.kind):
        found = list(group)
        if kind in _COUNTED and single:
            lines += [f"removes {removal_text(r)}" for r in found]
        elif len(found) == 1:
            lines.append(f"removes {removal_text(found[0])}")
        else:
            lines.append(f"removes {_counted(kind, len(found))}: {_joined(found)}")
    return lines


def confirmation_names(removals: Iterable[wire.Removal]) -> list[str]:
    """Return the names that confirm all removals that need it, in their order."""
    return list(dict.fromkeys(r.name for r in removals if r.needs_force))


def removal_text(r: wire.Removal) -> str:
    """Format one removal: `cluster cloud: 72 GPUs, 41 running jobs no longer tracked`."""
    if r.kind not in _COUNTED:
        return f"{_NOUNS.get(r.kind, r.kind.value)} {_item(r)}"
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
    return ", ".join(facts)


def _joined(removals: Iterable[wire.Removal]) -> str:
    return ", ".join(_item(r) for r in removals)


def _item(r: wire.Removal) -> str:
    """Format one removal without its kind, as an item of a list."""
    name, what, value = clean(r.name), clean(r.what), clean(r.value)
    match r.kind:
        case RemovalKind.BUDGET:
            return f"of {name} ({value})"
        case RemovalKind.GUARANTEE:
            return f"of {name} on {what} ({value})"
        case RemovalKind.GRANT:
            return f"of {name} on {what}"
        case RemovalKind.DEFAULT_TEAM:
            return f"of {name} ({what})"
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
