"""Store the objects of an informer and notify subscribers of changes: in memory, never back in time.

Subscribers get their changes by a plain callback, in the same step in which the store takes them. A queue
would have to be bounded, and then either lose events or stop the informer just the same; a callback needs no
bound, and while it works TCP slows the API server down. So a callback must be fast and must not wait.

An object costs its stored value plus about 400 bytes here (a slot of the dictionary, its key, uid, version):
a node with eight GPUs 850 bytes in all, of the 4 to 40 kB that the API server sends for it.
A relist holds the old and the new state side by side for as long as it takes.

Versions only grow: a state with a lower `resourceVersion` than the stored one is ignored. A cluster whose
etcd was restored from a backup counts from an older version again; restart Fairway's server after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

Key = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name."""


class StoredObject(Struct, Generic[T], frozen=True, gc=False):
    """One state of one object."""

    uid: str
    version: int
    value: T


@dataclass(frozen=True, slots=True)
class Added(Generic[T]):
    """A new object."""

    key: Key
    now: StoredObject[T]


@dataclass(frozen=True, slots=True)
class Modified(Generic[T]):
    """A newer state of an object that stays the same object (same uid)."""

    key: Key
    before: StoredObject[T]
    now: StoredObject[T]


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """A deleted object, in its last state."""

    key: Key
    before: StoredObject[T]


Change = Added[T] | Modified[T] | Deleted[T]


class Store(Generic[T]):
    """Objects by key. Each call applies one fact and notifies subscribers of what it changed."""

    def __init__(self) -> None:
        self._objects: dict[Key, StoredObject[T]] = {}
        self._subscribers: list[Callable[[Change[T]], None]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def items(self) -> Iterator[tuple[Key, StoredObject[T]]]:
        """Iterate over every object; do not await while iterating."""
        return iter(self._objects.items())

    def values(self) -> Iterator[T]:
        """Iterate over the stored value of every object; do not await while iterating."""
        return (stored.value for stored in self._objects.values())

    def subscribe(self, callback: Callable[[Change[T]], None]) -> None:
        """Call `callback` with every change from now on; the objects it has come first, as Added."""
        for key, stored in self._objects.items():
            callback(Added(key, stored))
        self._subscribers.append(callback)

    def put(self, key: Key, now: StoredObject[T]) -> None:
        """Store an object's state."""
        self._notify(self._update(key, now))

    def remove(self, key: Key, uid: str, version: int) -> None:
        """Remove the object with this uid, as of this version."""
        before = self._objects.get(key)
        if before is None or before.uid != uid or version < before.version:
            return
        del self._objects[key]
        self._notify([Deleted(key, before)])

    def replace(self, listed: Mapping[Key, StoredObject[T]], version: int) -> None:
        """Replace all objects as of `version`: take over what differs, drop what is missing."""
        missing = [k for k, o in self._objects.items() if k not in listed and o.version <= version]
        changes: list[Change[T]] = [Deleted(k, self._objects.pop(k)) for k in missing]
        for key, now in listed.items():
            changes += self._update(key, now)
        self._notify(changes)

    def _update(self, key: Key, now: StoredObject[T]) -> list[Change[T]]:
        before = self._objects.get(key)
        if before is not None and now.version <= before.version:
            return []
        self._objects[key] = now
        if before is None:
            return [Added(key, now)]
        if before.uid != now.uid:
            return [Deleted(key, before), Added(key, now)]
        return [Modified(key, before, now)]

    def _notify(self, changes: list[Change[T]]) -> None:
        for change in changes:
            for callback in self._subscribers:
                callback(change)
