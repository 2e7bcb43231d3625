"""Find the root owner of pods and Workloads: what a person created, of any kind.

An owner chain follows controlling owners only, and compares uids at each hop: anybody who may create a pod
may write any name into its owner references. Only metadata is read, so that no kind needs to be known here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final

from msgspec import Struct

from fairway.engines.kubernetes.api.requests import METADATA, METADATA_LIST, KubeRequests, concurrently
from fairway.engines.kubernetes.api.wire import (
    EPOCH,
    ApiResources,
    OwnedMeta,
    Owner,
    PartialObject,
    moment,
)
from fairway.engines.kubernetes.policy.admission_policies import JOB, PRIORITY_CLASS, QUEUE_NAME, USER
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.model.workload_kinds import GROUP_KIND

MAX_HOPS: Final = 10
"""The length of an owner chain; a worker of a LeaderWorkerSet has four."""
LIST_FROM: Final = 50
"""From so many unknown objects of one kind on, one list is read instead of each object."""
GIVE_UP_SECONDS: Final = 60.0
"""How long an owner that cannot be read is tried. Its pods are not reported meanwhile."""
_MIN_KEPT: Final = 1000
_SCHEDULE: Final = re.compile("Cron|^Scheduled")
"""How kinds are named that create workloads on a schedule. Each of these is a workload of its own."""
_OWNER_KIND: Final = "kueue.x-k8s.io/job-owner-gvk"
_OWNER_NAME: Final = "kueue.x-k8s.io/job-owner-name"


class Root(Struct, frozen=True, gc=False):
    """An object that a person created. Of one that cannot be read, only the reference to it is known."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    created: datetime | None = None
    ours: bool = False
    """Whether Fairway submitted it."""
    user: str = ""
    priority: str = ""
    queue: str = ""
    """The LocalQueue it names; empty: none."""
    deleted_at: datetime | None = None


ITSELF: Final = Root("", "", "", "", "")
"""In place of the root of an object whose owner does not exist: the object has no other root than itself."""

Dependent = tuple[str, Owner]
"""An object's namespace and the owner that it belongs to."""


def controlling_owner(references: Sequence[Owner]) -> Owner | None:
    """Return the owner that an object belongs to. Returns None if the object is a root itself."""
    owner = next((o for o in references if o.controller), None)
    return None if owner is None or _SCHEDULE.search(owner.kind) else owner


def workload_owner(meta: OwnedMeta) -> Owner:
    """Return the object that a Kueue Workload queues.

    Those of StatefulSets, LeaderWorkerSets and pod groups have no controlling owner: their pods own them,
    beside the object that made these, and they carry its name. A pod group is nothing but its Workload.
    """
    references = meta.owner_references
    if (owner := next((o for o in references if o.controller), None)) is not None:
        return owner
    name, kind = meta.annotations.get(_OWNER_NAME, ""), meta.annotations.get(_OWNER_KIND, "")
    kind = kind.rpartition("Kind=")[2]
    others = [o for o in references if o.kind != "Pod"]
    named = (o for o in others if (o.name, o.kind) == (name, kind))
    found = next(named, others[0] if others else None)
    return found or Owner(GROUP_KIND, meta.name, meta.uid, controller=True)


def root_of(api_version: str, kind: str, meta: OwnedMeta) -> Root:
    """Return an object as a root."""
    return Root(
        api_version=api_version,
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=moment(meta.creation_timestamp) or EPOCH,
        ours=JOB in meta.labels,
        user=meta.annotations.get(USER, ""),
        priority=meta.labels.get(PRIORITY_CLASS, ""),
        queue=meta.labels.get(QUEUE_NAME, ""),
        deleted_at=moment(meta.deletion_timestamp),
    )


class _Link(Struct, frozen=True, gc=False):
    """One object of a chain and the owner that it belongs to."""

    root: Root
    owner: Owner | None


class Plurals:
    """The kinds that an API server has, read once for each group and version."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, tuple[str, bool]]] = {}

    async def find(self, requests: KubeRequests, api_version: str, kind: str) -> tuple[str, bool] | None:
        """Return a kind's plural, and whether it has namespaces. Returns None if there is no such kind."""
        known = self._known.get(api_version)
        if known is None or kind not in known:  # a CRD may have been added since
            found = await requests.get(group_path(api_version), "", ApiResources)
            resources = found.resources if found else ()
            known = {r.kind: (r.name, r.namespaced) for r in resources if "/" not in r.name}
            self._known[api_version] = known
        return known.get(kind)


class Roots:
    """A cache of owner chains, by namespace and uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._links: dict[tuple[str, str], _Link | None] = {}
        """None: there is no such owner, or it is not one of this namespace."""
        self.plurals = Plurals()
        self._clock = clock
        self._failing: dict[tuple[str, str], float] = {}
        """Owners that could not be read, and since when."""
        self._prune_at = _MIN_KEPT

    def __len__(self) -> int:
        return len(self._links)

    def find(self, namespace: str, owner: Owner) -> Root | None:
        """Return the root of an object of this owner, or ITSELF. Returns None while it is not resolved."""
        found = self._walk(namespace, owner)
        return None if isinstance(found, Owner) else found

    def add(self, root: Root, owner: Owner | None) -> None:
        """Add an object that was read elsewhere."""
        self._links[root.namespace, root.uid] = _Link(root, owner)

    async def resolve(self, requests: KubeRequests, dependents: Iterable[Dependent]) -> None:
        """Read the unknown owners of these objects, and theirs.

        Those that cannot be read now stay unresolved, and end their chain after a minute.
        """
        waiting = set(dependents)
        for _ in range(MAX_HOPS):
            missing = {
                (namespace, step)
                for namespace, owner in waiting
                if isinstance(step := self._walk(namespace, owner), Owner)
            }
            failed = 0
            kinds = {(owner.api_version, owner.kind) for _, owner in missing}
            for api_version, kind in sorted(kinds):
                group = [d for d in missing if (d[1].api_version, d[1].kind) == (api_version, kind)]
                failed += await self._read(requests, api_version, kind, group)
            if failed == len(missing):
                return

    def prune(self, dependents: Callable[[], Iterable[Dependent]]) -> None:
        """Forget objects that none of these belongs to, once as many more have been added as were kept."""
        if len(self._links) <= self._prune_at:
            return
        kept: dict[tuple[str, str], _Link | None] = {}
        for namespace, first in dependents():
            owner: Owner | None = first
            while owner is not None and (key := (namespace, owner.uid)) in self._links and key not in kept:
                link = kept[key] = self._links[key]
                owner = link.owner if link else None
        self._links = kept
        self._failing = {key: since for key, since in self._failing.items() if key not in kept}
        self._prune_at = max(_MIN_KEPT, 2 * len(kept))

    def _walk(self, namespace: str, owner: Owner) -> Root | Owner:
        """Return the root of an object of this owner, or the first owner on the way that is not known."""
        root = ITSELF
        for _ in range(MAX_HOPS):
            key = (namespace, owner.uid)
            if key not in self._links:
                return owner
            link = self._links[key]
            if link is None:
                return root
            root = link.root
            if link.owner is None:
                return root
            owner = link.owner
        return root

    async def _read(
        self, requests: KubeRequests, api_version: str, kind: str, dependents: Sequence[Dependent]
    ) -> int:
        """Read owners of one kind. Returns how many of them could not be read, and will be tried again."""
        try:
            plural = await self.plurals.find(requests, api_version, kind)
            if plural is None:
                self._end(dependents, api_version)
                return 0
            name, namespaced = plural
            if not namespaced:  # as a Node of its static pods: its namespace would be that of no team
                for namespace, owner in dependents:
                    self._links[namespace, owner.uid] = None
                return 0
            resource = f"{name}.{api_version.rpartition('/')[0]}".rstrip(".")
            if len(dependents) >= LIST_FROM:
                await self._list(requests, name, resource, api_version, kind, dependents)
            else:
                await self._get_each(requests, name, resource, api_version, kind, dependents)
        except Refused as e:
            if e.code != "Forbidden":
                raise
            self._end(dependents, api_version)
        except Unreachable:
            return self._fail(dependents, api_version)
        for namespace, owner in dependents:
            self._failing.pop((namespace, owner.uid), None)
        return 0

    async def _get_each(
        self, requests: KubeRequests, plural: str, resource: str, api_version: str, kind: str,
        dependents: Sequence[Dependent],
    ) -> None:  # fmt: skip
        async def read(dependent: Dependent) -> tuple[Dependent, PartialObject | None]:
            namespace, owner = dependent
            path = f"{group_path(api_version)}/namespaces/{namespace}/{plural}/{owner.name}"
            return dependent, await requests.get(path, resource, PartialObject, METADATA)

        async with aclosing(concurrently(dependents, read)) as found:
            async for (namespace, owner), item in found:
                self._put(namespace, owner, api_version, kind, item.metadata if item else None)

    async def _list(
        self, requests: KubeRequests, plural: str, resource: str, api_version: str, kind: str,
        dependents: Sequence[Dependent],
    ) -> None:  # fmt: skip
        namespaces = {namespace for namespace, _ in dependents}
        where = f"namespaces/{next(iter(namespaces))}/" if len(namespaces) == 1 else ""
        path = f"{group_path(api_version)}/{where}{plural}"
        listed: list[PartialObject] = await requests.list_all(
            path, resource, type_=PartialObject, accept=METADATA_LIST
        )
        found = {(o.metadata.namespace, o.metadata.uid): o.metadata for o in listed}
        for namespace, owner in dependents:
            self._put(namespace, owner, api_version, kind, found.get((namespace, owner.uid)))

    def _put(self, namespace: str, owner: Owner, api_version: str, kind: str, meta: OwnedMeta | None) -> None:
        """Store an owner as it was read. One with another uid is another object of the same name."""
        link = None
        if meta is not None and meta.uid == owner.uid:
            link = _Link(root_of(api_version, kind, meta), controlling_owner(meta.owner_references))
        self._links[namespace, owner.uid] = link

    def _end(self, dependents: Sequence[Dependent], api_version: str) -> None:
        """End chains at owners that cannot be read: what is known of them is the reference."""
        for namespace, owner in dependents:
            root = Root(api_version, owner.kind, namespace, owner.name, owner.uid)
            self._links.setdefault((namespace, owner.uid), _Link(root, None))

    def _fail(self, dependents: Sequence[Dependent], api_version: str) -> int:
        now = self._clock()
        dependents = [d for d in dependents if (d[0], d[1].uid) not in self._links]
        since = [self._failing.setdefault((namespace, owner.uid), now) for namespace, owner in dependents]
        late = [d for d, at in zip(dependents, since, strict=True) if now - at >= GIVE_UP_SECONDS]
        self._end(late, api_version)
        return len(dependents) - len(late)


async def find_roots(
    requests: KubeRequests, dependents: Collection[Dependent]
) -> Mapping[Dependent, tuple[str, str]]:
    """Return kind and name of the roots of objects with these owners, as far as they can be read now."""
    roots = Roots()
    await roots.resolve(requests, dependents)
    found = {dependent: roots.find(*dependent) for dependent in dependents}
    return {d: (root.kind, root.name) for d, root in found.items() if root is not None and root.kind}


def group_path(api_version: str) -> str:
    """Return the path of a group and version, below which its kinds are."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
