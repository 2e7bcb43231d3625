"""Jobs on nodes that are gone: where nobody else says so, Fairway says that their pods are over.

A Job that tells failures from disruptions gets no new pod before the old one has ended, and of a node that
does not answer nobody ever hears that. Kueue has an answer of its own (FailureRecoveryPolicy, alpha in
0.19), and so have clouds, which delete the Node; where neither helps, this does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.engines.kubernetes.jobs.looking import get_typed
from fairway.engines.kubernetes.jobs.objects import JobPodObject, moment, pod_keeper
from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.guards import JOB
from fairway.engines.kubernetes.wire import NodeObject
from fairway.policy.objects import Nudge

EVERY_SECONDS: Final = 15.0
GRACE: Final = timedelta(seconds=5)
"""After the time a pod was given to end."""
_OURS: Final = {"labelSelector": JOB, "fieldSelector": "status.phase=Running"}


class Recoverer:
    """Looks now and then; one cluster."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_look = 0.0

    async def recover(self, access: Access) -> tuple[Nudge, ...]:
        """End what was told to go, cannot have heard of it, and is waited for."""
        if self._clock() < self._next_look:
            return ()
        self._next_look = self._clock() + EVERY_SECONDS
        given = []
        now = datetime.now(UTC)  # against the API server's own times: seconds do not matter here
        pods: list[JobPodObject] = await access.every("/api/v1/pods", "pods", _OURS, JobPodObject)
        for pod in pods:
            due = moment(pod.metadata.deletion_timestamp)
            if due is None or now < due + GRACE or not await _is_lost(access, pod.spec.node_name):
                continue
            meta = pod.metadata
            path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
            facts = pod_keeper(())(pod)
            why = f"node {pod.spec.node_name} does not answer, so nobody says that the pod is over"
            status = {"phase": "Failed", "reason": "NodeLost", "message": why}
            await access.merge(path, "pods/status", {"metadata": {"uid": meta.uid}, "status": status})
            verb = f"kubectl -n {meta.namespace} patch pod {meta.name} --subresource=status: phase Failed"
            given.append(Nudge("tolerance", verb, f"{meta.namespace}/{facts.job if facts else ''}", why))
        return tuple(given)


async def _is_lost(access: Access, name: str) -> bool:
    node = await get_typed(access, f"/api/v1/nodes/{name}", "nodes", NodeObject)
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None) if node else None
    return ready is None or ready.status != "True"
