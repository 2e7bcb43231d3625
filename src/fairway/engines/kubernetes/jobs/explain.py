"""Explain one waiting Job from the API server's objects: its events, its queue and its pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import NodeObject, Owner
from fairway.engines.kubernetes.jobs.join import SupplyLookup, join
from fairway.engines.kubernetes.jobs.lookup import JOBS, job_path, look_up_workload
from fairway.engines.kubernetes.jobs.objects import JobObject, job_transform
from fairway.engines.kubernetes.jobs.observed import ObservedJob, job_of
from fairway.engines.kubernetes.jobs.roots import Root, Roots, workload_owner
from fairway.engines.kubernetes.nodes.devices import whole_number
from fairway.engines.kubernetes.nodes.facts import node_transform
from fairway.engines.kubernetes.nodes.observe import node_health
from fairway.engines.kubernetes.policy.workloads import Workload, list_workloads
from fairway.explain.engine_reasons import kueue_code, refused_pod_code, topology_text
from fairway.explain.findings import Finding, WaitFacts
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import EngineId
from fairway.model.names import ClusterName
from fairway.model.observation import Health
from fairway.model.text import first_few
from fairway.model.workload_kinds import GROUP_KIND

_SILENT: Final = timedelta(seconds=30)
_IGNORES: Final = (
    "If Kueue's configuration has quotaCheckStrategy: IgnoreUndeclared, it never admits a workload that has "
    "pods without GPUs beside others"
)
HOSTNAME: Final = "kubernetes.io/hostname"
_EVENTS: Final = "events"
_MAX_AHEAD: Final = 3
_MAX_NAMED: Final = 5
_NO_EVENTS: Final = (
    "Fairway may not list events, which show why pods are refused (deploy/kubernetes/rights.yaml)"
)
_GPU_QUOTA: Final = re.compile(
    r"requested: [^,=]+=(?P<asked>\d+), used: [^,=]+=(?P<used>\d+), limited: [^,=]+=(?P<limit>\d+)"
)


async def explain(
    requests: KubeRequests, id_: EngineId, fleet: Fleet, cluster: ClusterName, pools: tuple[Pool, ...]
) -> WaitFacts | None:
    """Return why a workload waits, or one of its replicas. Returns None if it is gone."""
    found = await look_up_workload(requests, id_, pools)
    if found is None:
        return None
    observed = found.observed()
    seen = join(observed, SupplyLookup(fleet, cluster))
    facts = WaitFacts(code=seen.reason_code, reason=seen.reason)
    if seen.reason_code in {"", "NotQueued"} or not observed.pods:
        facts = await _from_events(requests, observed, facts)
    if not facts.code and not facts.reason and any(not w.considered for w in observed.workloads):
        facts = await _from_others(requests, observed, facts, pools)
    if facts.code in {"", "NotConsidered"}:
        facts = _unconsidered(observed, facts, datetime.now(UTC))
    if facts.code == "QueueInactive":
        facts = await _from_queue(requests, observed, facts)
    if facts.code in {"NoNodeFits", "NotEnoughFree"}:
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
        case "NotQueued" if observed.kind:
            label = "label kueue.x-k8s.io/queue-name"
            yield Finding(code, f"{observed.kind} {where}/{observed.name} has no {label} that Kueue has seen")
        case "NotQueued":
            yield Finding(code, f"The job is in namespace {where} and has no label kueue.x-k8s.io/queue-name")
        case _:
            return


async def _from_events(requests: KubeRequests, observed: ObservedJob, facts: WaitFacts) -> WaitFacts:
    """Add why the API server refuses to create the Job's pods, which only an event tells."""
    try:
        events = await _events(requests, observed)
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


async def _events(requests: KubeRequests, observed: ObservedJob) -> Sequence[Json]:
    """Return the warnings about a Job, or about what creates the pods of another kind, the newest first."""
    namespace, uid = observed.namespace, observed.job.uid
    about = "reason=FailedCreate" if observed.kind else f"involvedObject.uid={uid}"
    query = {"fieldSelector": f"{about},type=Warning"}
    events = await requests.list_all(f"/api/v1/namespaces/{namespace}/events", _EVENTS, query)
    if observed.kind:
        owners = [(event, _involved(event)) for event in events]
        roots = Roots()
        await roots.resolve(requests, [(namespace, owner) for _, owner in owners])
        found = [(event, roots.find(namespace, owner)) for event, owner in owners]
        events = [event for event, root in found if root is not None and root.uid == uid]
    return sorted(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), reverse=True)


def _involved(event: Json) -> Owner:
    about = {key: str(value) for key, value in (event.get("involvedObject") or {}).items()}
    kind, name, uid = (about.get(key, "") for key in ("kind", "name", "uid"))
    return Owner(kind, name, uid, controller=True, api_version=about.get("apiVersion", ""))


def _unconsidered(observed: ObservedJob, facts: WaitFacts, now: datetime) -> WaitFacts:
    """Add that Kueue has been silent for long: on a Workload, or on pods that have none."""
    counted = {w.owner.uid for w in observed.workloads} | {w.name for w in observed.workloads}
    texts = [
        (f"Workload {w.name}, which Kueue has neither admitted nor refused", w.created)
        for w in observed.workloads
        if not w.considered and not w.finished and not w.replaced and not w.held
    ]
    texts += [
        (f"pod {p.facts.name}, which has no Workload", p.facts.created)
        for p in observed.pods
        if p.facts.gated and not p.ended and p.facts.uid not in counted and not observed.workloads
    ]
    old = [(what, at) for what, at in texts if now - at > _SILENT]
    if not old:
        return facts
    what, at = min(old, key=lambda pair: pair[1])
    text = f"It waits with {what} since {at.isoformat().replace('+00:00', 'Z')}"
    findings: tuple[Finding, ...] = (Finding("NotConsidered", text),)
    if observed.kind and any(w.name in what and w.owner.kind != "Pod" for w in observed.workloads):
        findings += (Finding("NotConsidered", _IGNORES),)
    return replace(facts, code="NotConsidered", findings=findings)


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
    mine = {w.uid for w in observed.workloads}
    own = next((w for w in workloads if w.metadata.uid in mine and _waits(w)), None)
    if own is None:
        return facts
    queue = own.spec.queue_name
    others = [w for w in workloads if w.metadata.uid not in mine and w.spec.queue_name == queue and _waits(w)]
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


def _waits(workload: Workload) -> bool:
    active = workload.spec.active and not workload.finished
    return active and workload.status.admission is None


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
    owner, namespace = workload_owner(workload.metadata), workload.metadata.namespace
    if owner.kind != "Job":
        roots = Roots()
        await roots.resolve(requests, [(namespace, owner)] if owner.kind != GROUP_KIND else [])
        root = roots.find(namespace, owner) or Root("", owner.kind, namespace, owner.name, owner.uid)
        return ObservedJob(namespace, root.name, job_of(root, (), ()), root=root).engine_id
    job = await requests.get(job_path(namespace, owner.name), JOBS, JobObject)
    name = owner.name
    if job is None:
        return EngineId(workload.job)
    return ObservedJob(namespace, name, job_transform(pools)(job)).engine_id


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
    """Tell what no node could ever hold, and nodes that take no work, from a wait for room.

    Kueue says nearly the same of all: it excludes a cordoned node by its taint, as one that never fits.
    """
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
    if text := _unavailable(nodes, observed, pool):
        return replace(facts, code="NodesUnavailable", findings=(Finding("NodesUnavailable", text),))
    return facts


def _unavailable(nodes: Sequence[NodeObject], observed: ObservedJob, pool: Pool | None) -> str:
    """Return which nodes take no work. Returns nothing if the others, empty, could hold the Job."""
    devices = [(resource, asked) for resource, asked in observed.job.devices if asked]

    def pods_on(node: NodeObject) -> int:
        """Return how many of the Job's pods an empty node holds."""
        capacity = node.status.capacity
        return min((whole_number(capacity.get(name, "0")) // asked for name, asked in devices), default=0)

    to_facts = node_transform((pool,) if pool else ())
    states = [(node, node_health(to_facts(node))) for node in nodes]
    ready = sum(pods_on(node) for node, (state, _) in states if state is Health.READY)
    away = [(node, why) for node, (state, why) in states if state is not Health.READY and pods_on(node)]
    if not away or ready >= observed.job.pods:
        return ""
    texts = [f"{node.metadata.name} ({why})" for node, why in away]
    named = HOSTNAME in dict(observed.job.selector)
    return f"{'The job requires a specific node' if named else 'Unavailable'}: {first_few(texts, _MAX_NAMED)}"


async def _get(requests: KubeRequests, kind: kinds.ObjectKind, name: str) -> Json | None:
    return await requests.get(kind.path(name), kind.resource, Json)
