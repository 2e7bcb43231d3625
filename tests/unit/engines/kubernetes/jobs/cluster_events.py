"""A cluster of made objects, as informers report them to the mirror, and what this delivers of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fairway.engines.kubernetes.api.store import Added, Change, Deleted, Modified, StoredObject
from fairway.engines.kubernetes.api.wire import Owner
from fairway.engines.kubernetes.jobs.join import SupplyLookup
from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.engines.kubernetes.jobs.objects import (
    JobObject,
    JobPodObject,
    WorkloadObject,
    job_transform,
    pod_transform,
    workload_transform,
)
from fairway.engines.kubernetes.jobs.roots import Root, controlling_owner
from fairway.engines.kubernetes.nodes.claims import ClaimObject, claim_transform
from fairway.model.fleet import Fleet, KubernetesPlace
from fairway.model.job import SeenJob
from tests.unit.engines.kubernetes.api.connections import CLUSTER, Connections, connection
from tests.unit.engines.kubernetes.policy.fleets import fleet

FLEET = fleet()
T0 = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"
NAMESPACE = "research"

Json = dict[str, Any]


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def condition(type_: str, status: str = "True", when: float = 0, **more: str) -> Json:
    return {"type": type_, "status": status, "lastTransitionTime": at(when), **more}


def ref(kind: str, name: str, api_version: str = "apps/v1", *, controller: bool = True) -> Owner:
    return Owner(kind, name, f"{kind.lower()}-{name}", controller=controller, api_version=api_version)


def _references(*owners: Owner | None) -> list[Json]:
    return [
        {
            "apiVersion": o.api_version,
            "kind": o.kind,
            "name": o.name,
            "uid": o.uid,
            "controller": o.controller,
        }
        for o in owners
        if o is not None
    ]


class Events:
    """Objects that come, change and go."""

    fleet = FLEET

    def __init__(self) -> None:
        self.now = 0.0
        pools = self.fleet.pools
        self.mirror = KubernetesMirror(connection(Connections()), pools, clock=lambda: self.now)
        self.records = self.mirror._records
        self.supplies = SupplyLookup(self.fleet, CLUSTER.name)
        self._stored: dict[tuple[str, str], StoredObject[Any]] = {}
        self._transforms: dict[str, Any] = {
            "Job": (JobObject, job_transform(pools), self.records.on_job),
            "Pod": (JobPodObject, pod_transform(pools), self.records.on_pod),
            "Workload": (WorkloadObject, workload_transform(pools), self.records.on_workload),
        }

    def known(self, owner: Owner, *above: Owner, **meta: Any) -> Owner:
        """An owner that was read, and those above it."""
        chain = [owner, *above]
        for link, next_ in zip(chain, [*above, None], strict=True):
            root = Root(
                link.api_version,
                link.kind,
                NAMESPACE,
                link.name,
                link.uid,
                T0,
                **(meta if next_ is None else {}),
            )
            self.mirror._roots.add(root, controlling_owner([next_]) if next_ else None)
        return owner

    def put(self, kind: str, name: str, body: Json) -> None:
        wire, transform, callback = self._transforms[kind]
        meta = {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": at(0),
            "uid": f"{kind.lower()}-{name}",
        }
        body = {**body, "metadata": {**meta, **body.get("metadata", {})}}
        value = transform(msgspec.json.decode(msgspec.json.encode(body), type=wire))
        key, uid = (NAMESPACE, name), body["metadata"]["uid"]
        before = self._stored.get((kind, name))
        if before is not None and (value is None or before.uid != uid):
            del self._stored[kind, name]
            callback(Deleted(key, before))
            before = None
        if value is None:
            return
        now = StoredObject(uid, before.version + 1 if before else 1, value)
        self._stored[kind, name] = now
        change: Change[Any] = Modified(key, before, now) if before else Added(key, now)
        callback(change)

    def gone(self, kind: str, name: str) -> None:
        before = self._stored.pop((kind, name))
        self._transforms[kind][2](Deleted((NAMESPACE, name), before))

    def seen(self) -> dict[str, SeenJob]:
        """What the mirror would deliver now."""
        self.records.settle()
        return {job.engine_id: job for job in self.mirror._join_changed(self.supplies)}

    def one(self) -> SeenJob:
        (job,) = self.seen().values()
        return job

    def one_or_none(self) -> SeenJob | None:
        jobs = self.seen()
        return next(iter(jobs.values()), None)

    def stored(self) -> list[tuple[tuple[str, str], StoredObject[Any]]]:
        return list(self._stored.items())

    def confirm(self) -> None:
        """The last batch was delivered."""
        ended, self.mirror._ended_pods = self.mirror._ended_pods, []
        for uid, pods in ended:
            if (record := self.records.by_uid.get(uid)) is not None:
                self.records.delivered(record, pods)

    # objects

    def pod(
        self,
        name: str,
        owner: Owner | None = None,
        *,
        created: float = 0,
        started: float | None = None,
        ended: float | None = None,
        code: int = 0,
        gpus: int = 2,
        node: str = "gpu-1",
        gated: bool = False,
        gate: str = "",
        workload: str = "w",
        index: int | None = None,
        deletion: float | None = None,
        restarts: bool = False,
        conditions: tuple[Json, ...] = (),
        **meta: Any,
    ) -> None:
        annotations = {} if gated or not workload else {"kueue.x-k8s.io/workload": workload}
        labels = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
        about: Json = {
            "creationTimestamp": at(created), "ownerReferences": _references(owner),
            "annotations": annotations, "labels": {**labels, **meta.pop("labels", {})}, **meta,
        }  # fmt: skip
        if deletion is not None:
            about |= {"deletionTimestamp": at(deletion + 30), "deletionGracePeriodSeconds": 30}
        requests = {"requests": {GPU: str(gpus)}} if gpus else {}
        spec: Json = {
            "containers": [{"name": "main", "resources": requests}],
            "restartPolicy": "Always" if restarts else "Never",
        }
        given = list(conditions)
        if gated or gate:
            spec["schedulingGates"] = [{"name": gate or "kueue.x-k8s.io/admission"}]
            given.append(condition("PodScheduled", "False", reason="SchedulingGated", message="gates"))
        status: Json = {"phase": "Pending", "conditions": given}
        if started is not None:
            spec["nodeName"] = node
            state: Json = {"running": {"startedAt": at(started)}}
            status["phase"] = "Running"
            if ended is not None:
                state = {"terminated": {"startedAt": at(started), "finishedAt": at(ended), "exitCode": code}}
                status["phase"] = "Failed" if code else "Succeeded"
            status["containerStatuses"] = [{"name": "main", "state": state}]
        self.put("Pod", name, {"metadata": about, "spec": spec, "status": status})

    def workload(
        self,
        name: str,
        *owners: Owner,
        pods: int = 1,
        gpus: int = 2,
        sets: tuple[tuple[int, int], ...] = (),
        admitted: bool = False,
        active: bool = True,
        message: str = "",
        conditions: tuple[Json, ...] = (),
        required_topology: str = "",
        **meta: Any,
    ) -> None:
        pod_sets = [
            {
                "count": count,
                "topologyRequest": {"required": required_topology},
                "template": {
                    "spec": {
                        "containers": [{"name": "main", "resources": {"limits": {GPU: str(n)} if n else {}}}],
                        "restartPolicy": "Never",
                    }
                },
            }
            for count, n in sets or ((pods, gpus),)
        ]
        given = list(conditions)
        status: Json = {"conditions": given}
        if admitted:
            given.append(condition("QuotaReserved"))
            total = {GPU: str(sum(count * n for count, n in sets or ((pods, gpus),)))}
            assigned = {"flavors": {GPU: "a100"}, "resourceUsage": total}
            status["admission"] = {"clusterQueue": "q", "podSetAssignments": [assigned]}
        elif message:
            given.append(condition("QuotaReserved", "False", reason="Pending", message=message))
        about = {"ownerReferences": _references(*owners), **meta}
        spec = {"active": active, "queueName": "main", "podSets": pod_sets}
        self.put("Workload", name, {"metadata": about, "spec": spec, "status": status})

    def job(self, name: str, owner: Owner | None = None, **spec: Any) -> Owner:
        status = spec.pop("status", {})
        template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "2"}}}]}}
        meta = {"ownerReferences": _references(owner), "labels": {"kueue.x-k8s.io/queue-name": "main"}}
        self.put("Job", name, {"metadata": meta, "spec": {"template": template, **spec}, "status": status})
        return Owner("Job", name, f"job-{name}", controller=True, api_version="batch/v1")


CLASS = "gpu.example.com"
CLAIMED = f"{CLASS}/gpu"


def _claimed_fleet() -> Fleet:
    """The fleet with pool a100 by a DeviceClass."""
    pools = []
    for pool in FLEET.pools:
        place = pool.place
        assert isinstance(place, KubernetesPlace)
        own = replace(place, device_class=CLASS, resource=CLAIMED) if pool.name == "a100" else place
        pools.append(replace(pool, place=own))
    return replace(FLEET, pools=tuple(pools))


class ClaimEvents(Events):
    """The same, where pods claim their GPUs.

    A pod is reported before its claim, which Kubernetes deletes when the pod ends. What Kueue counts of
    claims is in the status of Workloads alone.
    """

    fleet = _claimed_fleet()

    def __init__(self) -> None:
        super().__init__()
        transform = claim_transform({CLASS: CLAIMED})
        self._transforms["Claim"] = (ClaimObject, transform, self.records.on_claim)

    def put(self, kind: str, name: str, body: Json) -> None:
        if kind == "Pod":
            gpus = _without_gpus(body["spec"])
            if _is_over(body) and (kind, name) not in self._stored:
                running = _while_it_ran(body)  # nobody knows what a pod claimed that was never seen to run
                super().put(kind, name, running)
                self._claim(name, running, gpus)
            super().put(kind, name, body)
            self._claim(name, body, gpus)
            return
        if kind == "Workload":
            _claimed_workload(body)
        elif kind == "Job":
            _without_gpus(body["spec"]["template"]["spec"])
        super().put(kind, name, body)

    def gone(self, kind: str, name: str) -> None:
        super().gone(kind, name)
        if kind == "Pod" and ("Claim", name) in self._stored:
            super().gone("Claim", name)

    def _claim(self, name: str, pod: Json, gpus: int) -> None:
        over = _is_over(pod)
        if over and ("Claim", name) in self._stored:
            super().gone("Claim", name)
        if over or not gpus:
            return
        exactly = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": gpus}
        results = [
            {"request": "g", "driver": CLASS, "pool": "n", "device": f"{name}-{i}"} for i in range(gpus)
        ]
        owner = ref("Pod", name, "v1")
        uid = pod.get("metadata", {}).get("uid", owner.uid)
        super().put(
            "Claim",
            name,
            {
                "metadata": {"ownerReferences": _references(msgspec.structs.replace(owner, uid=uid))},
                "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
                "status": {"allocation": {"devices": {"results": results}}}
                if "nodeName" in pod["spec"]
                else {},
            },
        )


def _is_over(pod: Json) -> bool:
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def _while_it_ran(pod: Json) -> Json:
    states = [{"running": {"startedAt": s["state"]["terminated"]["startedAt"]}} for s in _statuses(pod)]
    running = [{**s, "state": state} for s, state in zip(_statuses(pod), states, strict=True)]
    return {**pod, "status": {"phase": "Running", "containerStatuses": running}}


def _statuses(pod: Json) -> list[Json]:
    found: list[Json] = pod["status"]["containerStatuses"]
    return found


def _without_gpus(pod: Json) -> int:
    """Take the GPUs out of a pod's containers, put a claim in, and return how many there were."""
    gpus = 0
    for container in pod["containers"]:
        for amounts in container.get("resources", {}).values():
            gpus = max(gpus, int(amounts.pop(GPU, "0")))
    if gpus:
        pod["resourceClaims"] = [{"name": "gpus"}]
    return gpus


def _claimed_workload(body: Json) -> None:
    sets = body["spec"]["podSets"]
    counted = []
    for i, pod_set in enumerate(sets):
        pod_set["name"] = f"set-{i}"
        if gpus := _without_gpus(pod_set["template"]["spec"]):
            counted.append((pod_set["name"], {CLAIMED: str(gpus * pod_set["count"])}))
    if "admission" in body["status"]:
        body["status"]["admission"]["podSetAssignments"] = [
            {"name": name, "flavors": {CLAIMED: "a100"}, "resourceUsage": usage} for name, usage in counted
        ]
    else:
        body["status"]["resourceRequests"] = [{"name": name, "resources": usage} for name, usage in counted]
