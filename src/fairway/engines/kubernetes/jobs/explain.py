"""Explain one waiting Job from the API server's objects: its events, its queue and its pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.jobs.join import ObservedJob, SupplyLookup, engine_id, join
from fairway.engines.kubernetes.jobs.lookup import JOBS, job_path, look_up_job
from fairway.engines.kubernetes.jobs.objects import JobObject, job_transform
from fairway.engines.kubernetes.nodes.devices import whole_number
from fairway.engines.kubernetes.policy.workloads import Workload, list_workloads
from fairway.engines.port import Refused
from fairway.explain.engine_reasons import kueue_code, refused_pod_code, topology_text
from fairway.explain.findings import Finding, WaitFacts
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import EngineId
from fairway.model.names import ClusterName

HOSTNAME: Final = "kubernetes.io/hostname"
_EVENTS: Final = "events"
_MAX_AHEAD: Final = 3
_NO_EVENTS: Final = (
    "Fairway may not list events, which show why pods are refused (deploy/kubernetes/rights.yaml)"
)
_GPU_QUOTA: Final = re.compile(
    r"requested: [^,=]+=(?P<asked>\d+), used: [^,=]+=(?P<used>\d+), limited: [^,=]+=(?P<limit>\d+)"
)


async def explain(
    requests: KubeRequests, id_: EngineId, fleet: Fleet, cluster: ClusterName, pools: tuple[Pool, ...]
) -> WaitFacts | None:
    """Return why a Job waits. Returns None if it is gone."""
    found = await look_up_job(requests, id_, pools)
    if found is None:
        return None
    observed = found.observed()
    seen = join(observed, SupplyLookup(fleet, cluster))
    facts = WaitFacts(code=seen.reason_code, reason=seen.reason)
    if seen.reason_code in {"", "NotQueued"} or not observed.pods:
        facts = await _from_events(requests, observed, facts)
    if not facts.code and not facts.reason and observed.workload is not None and not observed.pods:
        facts = await _from_others(requests, observed, facts, pools)
    if facts.code == "QueueInactive":
        facts = await _from_queue(requests, observed, facts)
    if facts.code == "NotEnoughFree":
        pool = next((p for p in pools if seen.supply and p.name == seen.supply.pool), None)
        of_what = _from_pods if observed.pods else partial(_from_nodes, pool)
        facts = await of_what(requests, observed, facts)
    return replace(facts, findings=(*facts.findings, *_details(observed, facts)))


def _details(observed: ObservedJob, facts: WaitFacts) -> Iterator[Finding]:
    where, job, code = observed.namespace, observed.job, facts.code
    match code:
        case "NoNodeFits" | "NotEnoughFree":
            if text := topology_text(facts.reason):
                yield Finding(code, text)
        case "NamespaceNotAllowed":
            yield Finding(code, f"Queue {job.queue} does not serve the job's namespace {where}")
        case "QueueMissing":
            yield Finding(code, f"The job names queue {job.queue}, which namespace {where} does not have")
        case "NotQueued":
            yield Finding(code, f"The job is in namespace {where} and has no label kueue.x-k8s.io/queue-name")
        case "OwnerHoldsIt":
            yield Finding(code, f"{job.owner} created this job and starts it")
        case _:
            return


async def _from_events(requests: KubeRequests, observed: ObservedJob, facts: WaitFacts) -> WaitFacts:
    """Add why the API server refuses to create the Job's pods, which only an event tells."""
    try:
        events = await _events(requests, observed.namespace, observed.job.uid)
    except Refused:
        return replace(facts, hidden_by=_NO_EVENTS)
    message = next((str(e.get("message", "")) for e in events if e.get("reason") == "FailedCreate"), "")
    code = refused_pod_code(message)
    if not code or (facts.code and code == "PodRefused"):
        return facts if facts.code or not message else replace(facts, reason=message)
    return replace(facts, code=code, reason=message, findings=(Finding(code, _refusal(message)),))


def _refusal(message: str) -> str:
    """Return what the API server says without the pod's name; of our own quota, who holds how much."""
    if refused_pod_code(message) == "TeamAtCeiling" and (found := _GPU_QUOTA.search(message)):
        asked, used, limit = found["asked"], found["used"], found["limit"]
        return (
            f"The team's pods, ending ones included, use {used} of {limit} GPUs, and the next needs {asked}"
        )
    return message.partition("forbidden: ")[2] or message


async def _events(requests: KubeRequests, namespace: str, uid: str) -> Sequence[Json]:
    """Return the warnings about an object, the newest first."""
    query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
    events = await requests.list_all(f"/api/v1/namespaces/{namespace}/events", _EVENTS, query)
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
            text = f"The stopPolicy of {kind} {body['metadata']['name']} was set{who}"
            return replace(facts, code="QueueStopped", findings=(Finding("QueueStopped", text),))
    for body in (queue, local):
        conditions = (body.get("status") or {}).get("conditions") or ()
        active = next((c for c in conditions if c["type"] == "Active" and c["status"] != "True"), None)
        if active is not None:
            text = f"Kueue reports {active.get('reason', '')}: {active.get('message', '').rstrip('.')}"
            return replace(facts, code="QueueBroken", findings=(Finding("QueueBroken", text),))
    return facts


async def _from_others(
    requests: KubeRequests, observed: ObservedJob, facts: WaitFacts, pools: tuple[Pool, ...]
) -> WaitFacts:
    """Add why a Job waits that Kueue has not tried: it sets one aside that asks for the same as another.

    Of a Job that asks for something else, only who is ahead of it in its queue is known.
    """
    workloads = await list_workloads(requests, [observed.namespace])
    own = next((w for w in workloads if _uid(w) == observed.job.uid), None)
    if own is None:
        return facts
    queue = own.spec.queue_name
    others = [w for w in workloads if w is not own and w.spec.queue_name == queue and _waits(w)]
    for other in others:
        message = _pending_message(other)
        if message and _request(other) == _request(own):
            code = kueue_code(message, together=observed.job.together)
            same_as = await _engine_id(requests, other, pools)
            return replace(facts, code=code, reason=message, same_as=same_as)
    ahead = sorted((w for w in others if _rank(w) < _rank(own)), key=_rank)
    if not ahead:
        return facts
    ids = [await _engine_id(requests, w, pools) for w in ahead[:_MAX_AHEAD]]
    return replace(facts, code="NotItsTurn", ahead=tuple(ids), ahead_count=len(ahead))


def _uid(workload: Workload) -> str:
    owner = workload.metadata.owner("Job")
    return owner.uid if owner else ""


def _waits(workload: Workload) -> bool:
    active = workload.spec.active and not workload.finished
    return active and workload.status.admission is None and bool(_uid(workload))


def _pending_message(workload: Workload) -> str:
    conditions = workload.status.conditions
    return next((c.message for c in conditions if c.type == "QuotaReserved" and c.status == "False"), "")


def _request(workload: Workload) -> tuple[object, ...]:
    """Return what decides whether Kueue can start a Workload; equal ones it tries once for all."""
    sets = [(s.count, s.template.spec, s.topology_request) for s in workload.spec.pod_sets]
    return workload.spec.priority, sets


def _rank(workload: Workload) -> tuple[int, str]:
    return -workload.spec.priority, workload.metadata.creation_timestamp


async def _engine_id(requests: KubeRequests, workload: Workload, pools: tuple[Pool, ...]) -> EngineId:
    namespace, _, name = workload.job.partition("/")
    job = await requests.get(job_path(namespace, name), JOBS, JobObject)
    return engine_id(namespace, name, job_transform(pools)(job)) if job else EngineId(workload.job)


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
    text = f"Kueue assigned the job to node {node}, which has too few free GPUs, and does not assign another"
    return replace(facts, findings=(Finding("NotEnoughFree", text),))


async def _from_nodes(
    pool: Pool | None, requests: KubeRequests, observed: ObservedJob, facts: WaitFacts
) -> WaitFacts:
    """Tell a Job that no node could ever hold from one that waits for room: Kueue says the same of both."""
    labels = dict(observed.job.selector)
    if pool is not None and isinstance(pool.place, KubernetesPlace):
        labels |= pool.place.node_labels
    query = {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))}
    nodes: list[NodeObject] = await requests.list_all("/api/v1/nodes", "nodes", query, NodeObject)
    for resource, asked in observed.job.devices:
        most = max((whole_number(n.status.capacity.get(resource, "0")) for n in nodes), default=0)
        if nodes and asked > most:
            text = f"The job requests {asked} {resource} on one node, and the largest node has {most}"
            return replace(facts, code="NoNodeFits", findings=(Finding("NoNodeFits", text),))
    return facts


async def _get(requests: KubeRequests, kind: kinds.ObjectKind, name: str) -> Json | None:
    return await requests.get(kind.path(name), kind.resource, Json)
