"""In which order objects are written and deleted: by what they need, in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairway.policy.objects import Change, ObjectKey


def depths(
    objects: Iterable[tuple[ObjectKey, tuple[ObjectKey, ...]]], *, forbid_cycles: bool
) -> dict[ObjectKey, int]:
    """How many objects deep each one's needs go; what is needed and is not among them counts for nothing.

    A circle has no order: raises ValueError, or puts all of it deepest where an engine was found to have one.
    """
    needs = dict(objects)
    # Many objects share one long list of needs, as all guarantees of a pool do: it is looked at once.
    alike: dict[int, list[ObjectKey]] = {}
    lists: dict[int, frozenset[ObjectKey]] = {}
    for key, after in needs.items():
        mine = id(after)
        if mine not in lists:
            lists[mine] = frozenset(after)
        if key in lists[mine]:  # itself is no need
            lists[id(key)] = lists[mine] - {key}
            mine = id(key)
        alike.setdefault(mine, []).append(key)
    needed_by: dict[ObjectKey, list[int]] = {}
    missing: dict[int, int] = {}
    for mine in alike:
        here = [need for need in lists[mine] if need in needs]
        missing[mine] = len(here)
        for need in here:
            needed_by.setdefault(need, []).append(mine)
    found: dict[ObjectKey, int] = {}
    ready, depth = [mine for mine, count in missing.items() if not count], 0
    while ready:
        following: list[int] = []
        for mine in ready:
            for key in alike[mine]:
                found[key] = depth
                for other in needed_by.get(key, ()):
                    missing[other] -= 1
                    if not missing[other]:
                        following.append(other)
        ready, depth = following, depth + 1
    circle = [key for key in needs if key not in found]
    if circle and forbid_cycles:
        raise ValueError(f"objects need each other in a circle: {', '.join(map(str, circle[:5]))}")
    return found | dict.fromkeys(circle, depth)


def stages(
    written: Iterable[Change],
    written_depths: Mapping[ObjectKey, int],
    deleted: Iterable[Change],
    deleted_depths: Mapping[ObjectKey, int],
) -> tuple[Change, ...]:
    """Every change with its stage: writes from the shallowest on, then deletions from the deepest."""
    levels = _levels(written, written_depths) + _levels(deleted, deleted_depths)[::-1]
    return tuple(replace(c, stage=number) for number, level in enumerate(levels) for c in level)


def _levels(changes: Iterable[Change], depth: Mapping[ObjectKey, int]) -> list[list[Change]]:
    by_depth: dict[int, list[Change]] = {}
    for change in changes:
        by_depth.setdefault(depth[change.key], []).append(change)
    return [sorted(by_depth[d], key=lambda c: c.key) for d in sorted(by_depth)]
