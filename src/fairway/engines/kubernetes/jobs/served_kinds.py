"""Know which kinds of workloads a cluster has, and which of them Kueue queues."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import ApiResources
from fairway.engines.kubernetes.jobs.roots import group_path
from fairway.engines.kubernetes.policy.read import kueue_frameworks
from fairway.model.workload_kinds import JOB_SET, WorkloadKind

KNOWN_SECONDS: Final = 60.0
"""How long an answer is used: operators are installed while a server runs."""


class ServedKinds:
    """A cache of what one API server serves, bounded by the registered kinds and their versions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[str, tuple[float, frozenset[str]]] = {}
        self.job_sets = False
        """Whether jobs on several nodes are JobSets, as far as is known."""

    async def has(self, requests: KubeRequests, kind: WorkloadKind) -> bool:
        """Return whether the API server has this kind, in the version that is named."""

        async def read() -> frozenset[str]:
            found = await requests.get(group_path(kind.api_version), "", ApiResources)
            return frozenset(resource.name for resource in found.resources) if found else frozenset()

        return kind.plural in await self._cached(kind.api_version, read)

    async def queues_job_sets(self, requests: KubeRequests) -> bool:
        """Return whether JobSet is installed, and Kueue says that it queues JobSets."""
        self.job_sets = await self.has(requests, JOB_SET) and JOB_SET.framework in await self._cached(
            "", lambda: kueue_frameworks(requests)
        )
        return self.job_sets

    async def _cached(self, key: str, read: Callable[[], Awaitable[frozenset[str]]]) -> frozenset[str]:
        until, known = self._groups.get(key, (float("-inf"), frozenset()))
        if self._clock() >= until:
            known = await read()
            self._groups[key] = (self._clock() + KNOWN_SECONDS, known)
        return known
