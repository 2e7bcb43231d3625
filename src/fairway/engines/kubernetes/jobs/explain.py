"""Explain one waiting Job from the API server's objects: its events, its queue and its pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.join import ObservedJob, SupplyLookup, join
from fairway.engines.kubernetes.jobs.lookup import look_up_job
from fairway.engines.port import Refused
from fairway.explain.engine_reasons import refused_pod_code
from fairway.explain.findings import Finding, WaitFacts
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import EngineId
from fairway.model.names import ClusterName

HOSTNAME: Final = "kubernetes.io/hostname"
_EVENTS: Final = "events"


async def explain(
    requests: KubeRequests, engine_id: EngineId, fleet: Fleet, cluster: ClusterName, pools: tuple[Pool, ...]
) -> WaitFacts | None:
    """Return why a Job waits. Returns None if it is gone."""
    found = await look_up_job(requests, engine_id, pools)
    if found is None:
        return None
    observed = found.observed()
    seen = join(observed, SupplyLookup(fleet, cluster))
    facts = WaitFacts(code=seen.reason_code, reason=seen.reason)
    if seen.reason_code in {"", "NotQueued"} or not observed.pods:
        facts = await _from_events(requests, observed, facts)
    if facts.code == "QueueInactive":
        facts = await _from_queue(requests, observed, facts)
    if facts.code == "NotEnoughFree" and observed.pods:
        facts = await _from_pods(requests, observed, facts)
    return replace(facts, findings=(*facts.findings, *_details(observed, facts.code)))


def _details(observed: ObservedJob, code: str) -> Iterator[Finding]:
    where, job = observed.namespace, observed.job
    match code:
        case "NamespaceNotAllowed":
            yield Finding(code, f"its namespace is {where}, and its queue {job.queue}")
        case "QueueMissing":
            yield Finding(code, f"it names queue {job.queue}, and namespace {where} has none of that name")
        case "NotQueued":
            yield Finding(code, f"its namespace is {where}, and it has no label kueue.x-k8s.io/queue-name")
        case "OwnerHoldsIt":
            yield Finding(code, f"{job.owner} made it")
        case _:
            return


async def _from_events(requests: KubeRequests, observed: ObservedJob, facts: WaitFacts) -> WaitFacts:
    """Add why the API server refuses to create the Job's pods, which only an event tells."""
    events = await _events(requests, observed.namespace, observed.job.uid)
    message = next((str(e.get("message", "")) for e in events if e.get("reason") == "FailedCreate"), "")
    code = refused_pod_code(message)
    if not code or (facts.code and code == "PodRefused"):
        return facts if facts.code or not message else replace(facts, reason=message)
    return replace(facts, code=code, reason=message, findings=(Finding(code, _refusal(message)),))


def _refusal(message: str) -> str:
    """Return what the API server says without the pod's name."""
    return message.partition("forbidden: ")[2] or message


async def _events(requests: KubeRequests, namespace: str, uid: str) -> Sequence[Json]:
    """Return the warnings about an object, the newest first; none if Fairway may not read them."""
    query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
    try:
        events = await requests.list_all(f"/api/v1/namespaces/{namespace}/events", _EVENTS, query)
    except Refused:
        return ()
    return sorted(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), reverse=True)


async def _from_queue(requests: KubeRequests, observed: ObservedJob, facts: WaitFacts) -> WaitFacts:
    """Tell a queue that was stopped from one of which a part is missing."""
    local = await _get(requests, kinds.LOCAL_QUEUE, f"{observed.namespace}/{observed.job.queue}")
    if local is None:
        return replace(facts, code="QueueMissing")
    name = str((local.get("spec") or {}).get("clusterQueue", ""))
    queue = await _get(requests, kinds.CLUSTER_QUEUE, name)
    if queue is None:
        text = f"ClusterQueue {name} does not exist"
        return replace(facts, code="QueueBroken", findings=(Finding("QueueBroken", text),))
    for kind, body in (("LocalQueue", local), ("ClusterQueue", queue)):
        if str((body.get("spec") or {}).get("stopPolicy", "None")) != "None":
            by, at = _writer(body, "f:stopPolicy")
            if by == FAIRWAY:
                return replace(facts, code="TeamHeld")
            who = f" by {by} at {at}" if by else ""
            text = f"stopPolicy of {kind} {body['metadata']['name']} was set{who}"
            return replace(facts, code="QueueStopped", findings=(Finding("QueueStopped", text),))
    for body in (queue, local):
        conditions = (body.get("status") or {}).get("conditions") or ()
        active = next((c for c in conditions if c["type"] == "Active" and c["status"] != "True"), None)
        if active is not None:
            text = f"Kueue reports {active.get('reason', '')}: {active.get('message', '')}"
            return replace(facts, code="QueueBroken", findings=(Finding("QueueBroken", text),))
    return facts


def _writer(body: Json, field: str) -> tuple[str, str]:
    """Return the field manager that set a field of the spec, and when; empty if nobody is recorded."""
    for entry in (body.get("metadata") or {}).get("managedFields") or ():
        if field in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return str(entry.get("manager", "")), str(entry.get("time", ""))
    return "", ""


async def _from_pods(requests: KubeRequests, observed: ObservedJob, facts: WaitFacts) -> WaitFacts:
    """Add which node Kueue has assigned to a pod that the scheduler cannot place there."""
    name = next((p.facts.name for p in observed.pods if not p.deleted and not p.facts.node), None)
    path = f"/api/v1/namespaces/{observed.namespace}/pods/{name}"
    pod: Any = await requests.get(path, "pods", Json) if name else None
    node = ((pod or {}).get("spec") or {}).get("nodeSelector", {}).get(HOSTNAME)
    if not node:
        return facts
    text = f"Kueue admitted it to node {node}, where other pods still hold the GPUs, so it waits for that one"
    return replace(facts, findings=(Finding("NotEnoughFree", text),))


async def _get(requests: KubeRequests, kind: kinds.ObjectKind, name: str) -> Json | None:
    return await requests.get(kind.path(name), kind.resource, Json)
