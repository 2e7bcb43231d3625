"""What a cluster's watches add up to: what became of each job, and what it held at every instant."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.scenarios.hand import JobSeen, State
from tests.scenarios.stages.kubernetes_watch import Watch

if TYPE_CHECKING:
    from lab.kubernetes.api import Api, Json

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
JOBS = "/apis/batch/v1/jobs"
PODS = "/api/v1/pods"
_SYNC_SECONDS = 30.0
_OUT_OF_TIME = "DeactivatedDueToMaximumExecutionTimeExceeded"

Look = Mapping[str, JobSeen]
"""Every job at one instant, by `namespace/name`."""


@dataclass(slots=True)
class Known:
    """What the watches have told of one job: a Job, or a pod that nobody's Job made."""

    job: Json | None = None
    gone: bool = False
    pods: dict[str, Json] = field(default_factory=dict)
    workload: Json | None = None
    starts: int = 0
    seen: JobSeen = field(default_factory=lambda: JobSeen(State.WAITING))


class Eye:
    """Three watches, and the questions a scenario asks of them. Safe from any thread."""

    def __init__(self, api: Api, others: Collection[str] = ()) -> None:
        """`others` are namespaces with work that is no scenario's."""
        self._others = frozenset(others)
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._now: Look = {}
        self._missed: list[Look] = []
        self._watches = (
            Watch(api, JOBS, self._job),
            Watch(api, WORKLOADS, self._workload),
            Watch(api, PODS, self._pod),
        )

    def open(self) -> None:
        """Begin; returns when what is there now is known."""
        for watch in self._watches:
            watch.start()
        for watch in self._watches:
            assert watch.synced.wait(_SYNC_SECONDS), f"{watch.name} did not begin"

    def close(self) -> None:
        for watch in self._watches:
            watch.stop()

    def forget(self) -> None:
        """Forget every job that is gone, and every instant before this."""
        with self._lock:
            self._known = {name: k for name, k in self._known.items() if _left(k)}
            self._now = {name: k.seen for name, k in self._known.items()}
            self._missed.clear()

    def look(self) -> Look:
        """Every job as it is now."""
        with self._lock:
            return self._now

    def missed(self) -> list[Look]:
        """Every instant since this was last asked, in order, however short it was."""
        with self._lock:
            missed, self._missed = self._missed, []
            return missed

    def known(self, name: str) -> Known | None:
        """All that was told of one job; not to be changed."""
        with self._lock:
            return self._known.get(name)

    def left(self) -> list[str]:
        """Jobs of scenarios of which something is still there: the Job, its Workload or a pod."""
        with self._lock:
            return [
                name
                for name, known in self._known.items()
                if _left(known) and name.partition("/")[0] not in self._others
            ]

    # how it learns

    def _job(self, kind: str, job: Json) -> None:
        if kind == "LIST":
            present = {_name(each): each for each in job["items"]}
            for name, known in self._every(present):
                if name in present or known.job:  # else: a pod that no Job made
                    known.job, known.gone = present.get(name, known.job), name not in present
                    self._note(name, known)
            return
        known = self._of(_name(job))
        known.job, known.gone = job, kind == "DELETED"
        self._note(_name(job), known)

    def _workload(self, kind: str, workload: Json) -> None:
        if kind == "LIST":
            present = {_owner(each): each for each in workload["items"]}
            for name, known in self._every(present):
                known.workload = present.get(name)
                self._note(name, known)
            return
        known = self._of(_owner(workload))
        if kind != "DELETED":
            known.workload = workload
        elif known.workload and known.workload["metadata"]["uid"] == workload["metadata"]["uid"]:
            known.workload = None
        self._note(_owner(workload), known)

    def _pod(self, kind: str, pod: Json) -> None:
        if kind == "LIST":
            present: dict[str, dict[str, Json]] = {}
            for each in pod["items"]:
                present.setdefault(_job_of(each), {})[each["metadata"]["uid"]] = each
            for name, known in self._every(present):
                known.pods = present.get(name, {})
                self._note(name, known)
            return
        known = self._of(_job_of(pod))
        if kind == "DELETED":
            known.pods.pop(pod["metadata"]["uid"], None)
        else:
            known.pods[pod["metadata"]["uid"]] = pod
        self._note(_job_of(pod), known)

    def _every(self, present: Mapping[str, object]) -> list[tuple[str, Known]]:
        """What was known before a list came, and what it shows."""
        with self._lock:
            names = list(self._known)
        return [(name, self._of(name)) for name in dict.fromkeys((*names, *present))]

    def _of(self, name: str) -> Known:
        with self._lock:
            return self._known.setdefault(name, Known())

    def _note(self, name: str, known: Known) -> None:
        with self._lock:
            seen = seen_of(known)
            if seen.state is State.RUNNING and known.seen.state is not State.RUNNING:
                known.starts += 1
            seen = replace(seen, attempts=known.starts)
            if seen != known.seen or name not in self._now:
                known.seen = seen
                self._now = {**self._now, name: seen}
                self._missed.append(self._now)


def seen_of(known: Known) -> JobSeen:
    """A job's state, from its Job, its Workload and its pods."""
    pods = known.pods.values()
    holding = [p for p in pods if devices_of(p)]
    nodes = tuple(sorted({p["spec"]["nodeName"] for p in holding}))
    state, reason = _state(known)
    devices = sum(devices_of(p) for p in holding)
    ending = bool(holding) and all(_ending(p) for p in holding)
    return JobSeen(state, nodes=nodes, devices=devices, reason=reason, ending=ending)


def _state(known: Known) -> tuple[State, str]:
    job = conditions_of(known.job)
    if _is_true(job, "Complete"):
        return State.DONE, ""
    if _is_true(job, "Failed"):
        return State.ENDED, f"{job['Failed']['reason']}: {job['Failed'].get('message', '')}"
    if known.gone:
        return State.ENDED, "deleted"
    workload = conditions_of(known.workload)
    if _is_true(workload, "Evicted") and workload["Evicted"]["reason"] == _OUT_OF_TIME:
        return State.ENDED, f"{_OUT_OF_TIME}: {workload['Evicted']['message']}"
    phases = [p["status"].get("phase") for p in known.pods.values() if not _ending(p)]
    parts = known.job["spec"].get("parallelism", 1) if known.job else 1
    up, well = phases.count("Running"), phases.count("Succeeded")
    if up >= parts:
        return State.RUNNING, ""
    if well and up + well >= parts:  # its end has begun, part by part
        return State.DONE, ""
    if known.job is None and phases and set(phases) <= {"Succeeded", "Failed"}:
        return (State.DONE if phases[-1] == "Succeeded" else State.ENDED), phases[-1]
    return State.WAITING, waiting_words(known)


def waiting_words(known: Known) -> str:
    """Why Kueue, or then the scheduler, lets it wait, in their own words."""
    for pod in known.pods.values():
        scheduled = conditions_of(pod).get("PodScheduled", {})
        if scheduled.get("status") == "False" and scheduled.get("reason") != "SchedulingGated":
            return f"{scheduled['reason']}: {scheduled.get('message', '')}"
    reserved = conditions_of(known.workload).get("QuotaReserved", {})
    if reserved.get("status") == "False":
        return f"{reserved['reason']}: {reserved.get('message', '')}"
    return ""


def devices_of(pod: Json) -> int:
    """GPUs or slices a pod keeps: from its binding to a node until it has ended, whatever asked it to end."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    return sum(
        int(count)
        for container in pod["spec"]["containers"]
        for resource, count in container.get("resources", {}).get("limits", {}).items()
        if resource.startswith("nvidia.com/")
    )


def conditions_of(thing: Json | None) -> Mapping[str, Json]:
    """Its conditions by type."""
    return {c["type"]: c for c in thing.get("status", {}).get("conditions", [])} if thing else {}


def _is_true(conditions: Mapping[str, Json], kind: str) -> bool:
    return kind in conditions and conditions[kind]["status"] == "True"


def _ending(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _left(known: Known) -> bool:
    return bool((known.job and not known.gone) or known.workload or known.pods)


def _name(thing: Json) -> str:
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def _owner(workload: Json) -> str:
    owners = workload["metadata"].get("ownerReferences") or [{"name": workload["metadata"]["name"]}]
    return f"{workload['metadata']['namespace']}/{owners[0]['name']}"


def _job_of(pod: Json) -> str:
    job = pod["metadata"].get("labels", {}).get("job-name", pod["metadata"]["name"])
    return f"{pod['metadata']['namespace']}/{job}"
