"""Recover jobs on lost nodes: where nothing else does, Fairway marks their pods as failed.

A Job that distinguishes failures from disruptions gets no new pod before the old one has ended, and a node
that does not respond never reports that. Kueue has a remedy of its own (FailureRecoveryPolicy, alpha in
0.19), and so have clouds, which delete the Node; where neither helps, this does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import NodeObject, moment
from fairway.engines.kubernetes.jobs.objects import JobPodObject, pod_transform
from fairway.engines.kubernetes.policy.admission_policies import JOB
from fairway.policy.objects import Intervention

CHECK_SECONDS: Final = 15.0
GRACE: Final = timedelta(seconds=5)
"""How long after the end of a pod's grace period it is marked as failed."""
_OURS: Final = {"labelSelector": JOB, "fieldSelector": "status.phase=Running"}


class LostNodeRecovery:
    """A periodic check of one cluster for pods on lost nodes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_check = 0.0

    async def recover(self, requests: KubeRequests) -> tuple[Intervention, ...]:
        """Mark deleted pods as failed if their node is lost and cannot have received the deletion."""
        if self._clock() < self._next_check:
            return ()
        self._next_check = self._clock() + CHECK_SECONDS
        interventions = []
        now = datetime.now(UTC)  # against times of the API server: a clock skew of seconds is harmless
        pods: list[JobPodObject] = await requests.list_all("/api/v1/pods", "pods", _OURS, JobPodObject)
        for pod in pods:
            due = moment(pod.metadata.deletion_timestamp)
            if due is None or now < due + GRACE or not await _is_lost(requests, pod.spec.node_name):
                continue
            meta = pod.metadata
            path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
            facts = pod_transform(())(pod)
            why = f"node {pod.spec.node_name} does not respond, so the pod cannot report its end"
            status = {"phase": "Failed", "reason": "NodeLost", "message": why}
            await requests.merge(path, "pods/status", {"metadata": {"uid": meta.uid}, "status": status})
            verb = f"kubectl -n {meta.namespace} patch pod {meta.name} --subresource=status: phase Failed"
            interventions.append(
                Intervention(
                    "tolerance",
                    verb,
                    f"{meta.namespace}/{facts.owner.name if facts and facts.owner else ''}",
                    why,
                )
            )
        return tuple(interventions)


async def _is_lost(requests: KubeRequests, name: str) -> bool:
    node = await requests.get(f"/api/v1/nodes/{name}", "nodes", NodeObject)
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None) if node else None
    return ready is None or ready.status != "True"
