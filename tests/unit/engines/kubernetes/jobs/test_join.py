"""Jobs, Workloads and pods joined: states, attempts, endings, of objects as the API server writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.kubernetes.jobs.attempts import count_forgotten_attempts, group_by_attempt
from fairway.engines.kubernetes.jobs.join import SupplyLookup, join
from fairway.engines.kubernetes.jobs.objects import (
    JobObject,
    JobPodObject,
    WorkloadObject,
    job_transform,
    keep_start,
    pod_transform,
    workload_transform,
)
from fairway.engines.kubernetes.jobs.observed import ObservedJob, ObservedPod, job_of
from fairway.engines.kubernetes.jobs.roots import Root
from fairway.engines.kubernetes.policy.admission_policies import JOB, PRIORITY_CLASS
from fairway.engines.kubernetes.policy.intervention.intervene import DEACTIVATED_FOR
from fairway.model.job import AttemptEnd, Ending, JobState, SeenJob
from fairway.model.names import ClusterName
from fairway.model.price import CostRules
from tests.unit.engines.kubernetes.policy.fleets import fleet

FLEET = fleet()
PLACES = SupplyLookup(FLEET, ClusterName("cloud"))
GPU = {"resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}}
T0 = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def a_job(
    pods: int = 1, *, ours: bool = True, suspend: bool = False, priority: str = "normal", **status: Any
) -> Any:
    written = {
        "metadata": {
            "name": "train", "namespace": "research", "uid": "job-uid-1", "creationTimestamp": at(0),
            "labels": {PRIORITY_CLASS: priority, **({JOB: "0001"} if ours else {})},
            "annotations": {"fairway.dev/user": "alice"},
        },
        "spec": {
            "suspend": suspend, "parallelism": pods, "completions": pods,
            "template": {"spec": {"containers": [{"name": "job", **GPU}]}},
        },
        "status": status,
    }  # fmt: skip
    return job_transform(FLEET.pools)(decoded(written, JobObject))


def a_pod(
    name: str = "p",
    created: float = 1,
    started: float | None = 2,
    ended: float | None = None,
    code: int = 0,
    *,
    index: int = 0,
    told: float | None = None,
    disrupted: str = "",
    gone: bool = False,
    conditions: Sequence[dict[str, str]] = (),
    reported: dict[str, Any] | None = None,
) -> ObservedPod:
    state = {"running": {}} if ended is None else {"terminated": {"exitCode": code, "finishedAt": at(ended)}}
    phase = "Running" if ended is None else "Failed" if code else "Succeeded"
    given = [*conditions]
    if disrupted:
        given.append({"type": "DisruptionTarget", "status": "True", "reason": disrupted})
    meta: dict[str, Any] = {
        "name": name, "uid": f"uid-{name}", "namespace": "research", "creationTimestamp": at(created),
        "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
        "ownerReferences": [{"kind": "Job", "name": "train", "uid": "job-uid-1", "controller": True}],
    }  # fmt: skip
    if told is not None:
        meta |= {"deletionTimestamp": at(told + 30), "deletionGracePeriodSeconds": 30}
    status: dict[str, Any] = {"phase": phase, "conditions": given}
    if started is not None:
        status |= {"startTime": at(started), "containerStatuses": [{"name": "job", "state": state}]}
    status |= reported or {}
    spec = {"nodeName": f"node-{name}", "containers": [{"name": "job", **GPU}]}
    facts = pod_transform(FLEET.pools)(
        decoded({"metadata": meta, "spec": spec, "status": status}, JobPodObject)
    )
    assert facts is not None
    return ObservedPod(facts, gone)


def a_workload(
    *conditions: dict[str, str], active: bool = True, evictions: int = 0, put_back: bool = False
) -> Any:
    written = {
        "metadata": {
            "name": "w", "namespace": "research", "uid": "w",
            "annotations": {DEACTIVATED_FOR: "another"} if put_back else {},
            "ownerReferences": [{"kind": "Job", "name": "train", "uid": "job-uid-1", "controller": True}],
        },
        "spec": {"active": active},
        "status": {
            "conditions": list(conditions),
            "schedulingStats": {"evictions": [{"reason": "Preempted", "count": evictions}]},
        },
    }  # fmt: skip
    return workload_transform(FLEET.pools)(decoded(written, WorkloadObject))


def decoded(written: Any, type_: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(written), type=type_)


def condition(type_: str, status: str = "True", when: float = 0, **more: str) -> dict[str, str]:
    return {"type": type_, "status": status, "lastTransitionTime": at(when), **more}


def ended(type_: str, when: float, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"conditions": [condition(type_, when=when, reason=reason)], "startTime": at(1), **more}


def seen(job: Any, *pods: ObservedPod, workload: Any = None, **more: Any) -> SeenJob:
    workloads = (workload,) if workload else ()
    flavors = workload.flavors if workload else ()
    observed = ObservedJob("research", "train", job, workloads=workloads, pods=pods, flavors=flavors, **more)
    return join(observed, PLACES)


LABELLED = SupplyLookup(replace(FLEET, cost=CostRules(labels=("experiment", "model"))), ClusterName("cloud"))


def test_project_and_labels_are_those_of_the_job_and_its_pods() -> None:
    written = {
        "metadata": {
            "name": "train", "namespace": "research", "uid": "u", "creationTimestamp": at(0),
            "labels": {"fairway.dev/project": "llm", "kueue.x-k8s.io/queue-name": "main", "owner": "bob"},
        },
        "spec": {"template": {"metadata": {"labels": {"experiment": "e1", "model": "m"}},
                              "spec": {"containers": [{"name": "job", **GPU}]}}},
        "status": {},
    }  # fmt: skip
    job = job_transform(FLEET.pools)(decoded(written, JobObject))
    assert dict(job.labels) == {
        "fairway.dev/project": "llm",
        "owner": "bob",
        "experiment": "e1",
        "model": "m",
    }
    found = join(ObservedJob("research", "train", job), LABELLED)
    assert (found.project, found.labels) == ("llm", (("experiment", "e1"), ("model", "m")))
    plain = join(ObservedJob("research", "train", a_job()), LABELLED)
    assert (plain.project, plain.labels) == ("", ())
    root = Root("apps/v1", "Deployment", "research", "llm", "uid-d")
    service = ObservedJob("research", "llm", job_of(root, (), ()), root=root, service=True)
    assert (join(service, LABELLED).project, join(service, LABELLED).labels) == (None, None)


def test_waiting_says_why() -> None:
    pending = condition("QuotaReserved", "False", reason="Pending", message="2 more needed")
    job = seen(a_job(suspend=True), workload=a_workload(pending))
    assert (job.state, job.reason, job.attempts) == (JobState.WAITING, "2 more needed", ())
    assert (job.user, job.team, job.gpus, job.priority) == ("alice", "research", 2, "normal")
    assert job.engine_id == "research/train"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a", "QuotaInUse"),
        ('topology "racks" allows to fit only 1 out of 2 pod(s)', "NotEnoughFree"),
        ("ClusterQueue research is inactive", "QueueInactive"),
        ("2 more needed", ""),
    ],
)
def test_what_kueue_says_has_its_code(message: str, code: str) -> None:
    pending = condition("QuotaReserved", "False", reason="Pending", message=message)
    assert seen(a_job(suspend=True), workload=a_workload(pending)).reason_code == code


@pytest.mark.parametrize("message", ["0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", "kein Platz"])
def test_a_pod_without_a_node_waits_for_room_however_the_scheduler_says_so(message: str) -> None:
    admitted = a_workload(condition("QuotaReserved"))
    unbound = condition("PodScheduled", "False", reason="Unschedulable", message=message)
    job = seen(a_job(), a_pod(started=None, conditions=(unbound,)), workload=admitted)
    assert (job.state, job.reason) == (JobState.WAITING, f"Unschedulable: {message}")
    assert job.reason_code == "NotEnoughFree"
    gated = condition("PodScheduled", "False", reason="SchedulingGated", message=message)
    assert (
        seen(a_job(), a_pod(started=None, conditions=(gated,)), workload=admitted).reason_code
        == "AdmissionCheck"
    )


def test_held_has_the_code_of_it_whatever_kueue_said_last() -> None:
    said = condition("QuotaReserved", "False", reason="Pending", message="insufficient unused quota")
    held = seen(a_job(suspend=True), workload=a_workload(said, active=False))
    assert (held.state, held.reason_code) == (JobState.HELD, "Held")
    native = seen(a_job(ours=False, suspend=True, priority=""))
    assert (native.state, native.reason, native.reason_code) == (JobState.WAITING, "suspended", "Held")
    assert seen(a_job(ours=False, suspend=True)).reason_code == ""


def test_what_runs_or_is_over_waits_for_nothing() -> None:
    said = a_workload(condition("QuotaReserved", "False", reason="Pending", message="insufficient quota"))
    assert seen(a_job(), a_pod(), workload=said).reason_code == ""
    assert seen(a_job(**ended("Complete", 11)), a_pod(ended=9), workload=said).reason_code == ""
    assert seen(a_job(), workload=said, deleted_at=T0).reason_code == ""


def test_held_gated_or_put_back() -> None:
    assert seen(a_job(suspend=True), workload=a_workload(active=False)).state is JobState.HELD
    gated = condition("QuotaReserved", "False", reason="AdmissionGated")
    assert seen(a_job(suspend=True), workload=a_workload(gated)).state is JobState.HELD

    def gated_by(gates: str) -> tuple[JobState, str]:
        message = f"Admission is gated by: {gates}"
        found = condition("QuotaReserved", "False", reason="AdmissionGated", message=message)
        job = seen(a_job(suspend=True), workload=a_workload(found))
        return job.state, job.reason_code

    assert gated_by("fairway.dev/hold")[0] is JobState.HELD
    assert gated_by("example.com/review,fairway.dev/hold")[0] is JobState.HELD
    assert gated_by("example.com/review") == (JobState.WAITING, "AdmissionCheck"), "nobody's hold"
    put_back = a_workload(active=False, put_back=True)
    assert seen(a_job(suspend=True), workload=put_back).state is JobState.WAITING, "no hold"


def test_running_then_done_by_the_pods_own_times() -> None:
    running = seen(a_job(), a_pod())
    assert running.state is JobState.RUNNING
    assert running.attempts[0].ended_at is None
    between = seen(a_job(), a_pod(ended=9))
    assert between.state is JobState.RUNNING, "the Job is about to say so"
    done = seen(a_job(**ended("Complete", 11, completionTime=at(11))), a_pod(ended=9))
    assert (done.state, done.exit_code, done.ended_at) == (JobState.DONE, 0, T0 + timedelta(seconds=9))


def containers(*statuses: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": "job", **status} for status in statuses]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    "reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError", "ContainerCreating"]
)
def test_a_pod_that_cannot_start_its_containers_waits_and_is_in_no_attempt(reason: str) -> None:
    stuck = a_pod(reported=containers(waiting(reason, "no such image"), phase="Pending"))
    job = seen(a_job(), stuck, workload=a_workload(condition("QuotaReserved")))
    assert (job.state, job.attempts) == (JobState.WAITING, ())
    assert job.reason == f"{reason}: no such image"


def test_an_attempt_begins_with_its_first_container() -> None:
    pulled = a_pod(started=2, reported=containers({"state": {"running": {"startedAt": at(300)}}}))
    assert seen(a_job(), pulled).attempts[0].started_at == T0 + timedelta(seconds=300)
    second = a_pod(
        started=2,
        reported=containers(waiting("ImagePullBackOff"), {"state": {"running": {"startedAt": at(7)}}}),
    )
    assert seen(a_job(), second).attempts[0].started_at == T0 + timedelta(seconds=7), "one of two runs"
    initial = a_pod(
        started=2,
        reported={
            **containers(waiting("PodInitializing"), phase="Pending"),
            "initContainerStatuses": [{"name": "fetch", "state": {"running": {"startedAt": at(4)}}}],
        },
    )
    assert seen(a_job(), initial).attempts[0].started_at == T0 + timedelta(seconds=4)


def test_a_gang_is_charged_for_the_pods_that_run() -> None:
    runs = a_pod("a", index=0)
    stuck = a_pod("b", index=1, reported=containers(waiting("ErrImagePull"), phase="Pending"))
    job = seen(a_job(2), runs, stuck)
    assert (job.state, job.reason) == (JobState.RUNNING, "ErrImagePull")
    assert job.reason_code == "ImagePullFailed"
    assert [(a.devices, a.nodes) for a in job.attempts] == [(2, ("node-a",))]


def test_a_container_that_restarts_keeps_its_first_start() -> None:
    first = a_pod(reported=containers({"state": {"running": {"startedAt": at(60)}}})).facts
    once = {"state": {"running": {"startedAt": at(90)}}, "restartCount": 1}
    again = a_pod(
        reported=containers({**once, "lastState": {"terminated": {"exitCode": 1, "startedAt": at(60)}}})
    )
    assert again.facts.started == first.started
    often = a_pod(reported=containers({**once, "restartCount": 7})).facts
    assert not often.start_is_exact
    assert keep_start(first, often).started == first.started


def test_a_pod_deleted_before_its_containers_ran_has_not_run() -> None:
    stuck = a_pod(reported=containers(waiting("ImagePullBackOff"), phase="Pending")).facts
    unknown = {"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}
    deleted = a_pod(told=50, reported=containers(unknown, phase="Failed")).facts
    kept = keep_start(stuck, deleted)
    assert kept.started is None
    job = seen(a_job(), ObservedPod(kept, deleted=True), deleted_at=T0 + timedelta(seconds=50))
    assert (job.state, job.attempts) == (JobState.CANCELLED, ())
    assert deleted.started is not None, "of a node that lost its records it is not known"


def test_failed_with_its_code_and_never_waiting_in_between() -> None:
    assert seen(a_job(), a_pod(ended=9, code=3)).state is JobState.RUNNING
    job = seen(a_job(**ended("Failed", 11, "PodFailurePolicy")), a_pod(ended=9, code=139))
    assert (job.state, job.exit_code, job.attempts[0].signal) == (JobState.FAILED, 139, 11)
    assert job.reason == "exit code 139"


def test_too_long() -> None:
    job = seen(a_job(**ended("Failed", 9, "DeadlineExceeded")), a_pod(ended=8, code=143, told=7, gone=True))
    assert (job.state, job.attempts[0].ending) == (JobState.TIMED_OUT, Ending.TIMED_OUT)
    nobody_looked = seen(a_job(**ended("Failed", 9, "DeadlineExceeded")))
    assert nobody_looked.attempts[0].started_at == T0 + timedelta(seconds=1)
    assert nobody_looked.attempts[0].ended_at == T0 + timedelta(seconds=9)
    never_began = seen(a_job(**ended("Failed", 9, "DeadlineExceeded")), watched=True)
    assert (never_began.state, never_began.attempts) == (JobState.TIMED_OUT, ())


def test_preempted_and_back() -> None:
    first = a_pod("a", ended=9, told=8, gone=True)
    evicted = ((T0 + timedelta(seconds=8), "Preempted", "to accommodate another"),)
    waiting = seen(a_job(suspend=True), first, evictions=evicted)
    assert (waiting.state, waiting.attempts[0].ending) == (JobState.WAITING, Ending.PREEMPTED)
    again = seen(a_job(), first, a_pod("b", created=20, started=21), evictions=evicted)
    assert [a.ending for a in again.attempts] == [Ending.PREEMPTED, None]
    assert again.attempts[0].ended_at == T0 + timedelta(seconds=9)
    assert again.state is JobState.RUNNING


def test_preempted_before_it_had_begun() -> None:
    """A slow kubelet starts what is already told to go."""
    slow = a_pod("a", created=3, started=9, ended=10, told=8, gone=True)
    evicted = ((T0 + timedelta(seconds=8), "Preempted", "to accommodate another"),)
    job = seen(a_job(suspend=True), slow, evictions=evicted)
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED]


def test_preempted_again_before_its_pods_were_made() -> None:
    """A Job controller that lags makes pods for a Job that was sent back already."""
    first = a_pod("a", ended=8, told=8, code=143, gone=True)
    second = a_pod("b", created=11, started=11, ended=12, told=12, code=143, gone=True)
    evicted = tuple((T0 + timedelta(seconds=at), "Preempted", f"by {at}") for at in (8, 10))
    job = seen(a_job(suspend=True), first, second, evictions=evicted)
    assert [(a.ending, a.reason) for a in job.attempts] == [
        (Ending.PREEMPTED, "by 8"),
        (Ending.PREEMPTED, "by 10"),
    ]
    # However soon after the first it is sent back again.
    soon = a_pod("b", created=9, started=9, ended=10, told=9, code=143, gone=True)
    at_once = (evicted[0], (T0 + timedelta(seconds=9), "Preempted", "by 9"))
    job = seen(a_job(suspend=True), first, soon, evictions=at_once)
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED, Ending.PREEMPTED]
    # A node that is lost meanwhile is what ended it.
    lost = a_pod("b", created=11, started=11, told=12, disrupted="DeletionByTaintManager", gone=True)
    job = seen(a_job(suspend=True), first, lost, evictions=evicted)
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED, Ending.NODE_LOST]
    # One that runs on for longer than pods have to save was not ended by it.
    stays = a_pod("b", created=11, started=11, ended=200, told=200, code=143, gone=True)
    job = seen(a_job(suspend=True), first, stays, evictions=evicted)
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED, Ending.REQUEUED]
    # One that nobody sent back is not taken for preempted by what sent back the one before it.
    job = seen(a_job(suspend=True), first, second, evictions=evicted[:1])
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED, Ending.REQUEUED]


def test_a_node_lost_under_a_gang() -> None:
    stays, lost = a_pod("a", index=0), a_pod("b", index=1, told=8, disrupted="DeletionByTaintManager")
    assert seen(a_job(2), stays, lost).state is JobState.RUNNING
    job = seen(
        a_job(2), stays, ObservedPod(lost.facts, deleted=True), a_pod("c", created=20, started=21, index=1)
    )
    assert [(a.ending, a.devices, a.nodes) for a in job.attempts] == [
        (Ending.NODE_LOST, 4, ("node-a", "node-b")),
        (None, 4, ("node-a", "node-c")),
    ]
    assert [[(g.node, g.holders) for g in a.gpus] for a in job.attempts] == [
        [("node-a", ("research/a",)), ("node-b", ("research/b",))],
        [("node-a", ("research/a",)), ("node-c", ("research/c",))],
    ]
    assert job.attempts[1].started_at == T0 + timedelta(seconds=21)


def test_cancelled_while_it_runs_and_while_it_waits() -> None:
    gone = T0 + timedelta(seconds=8)
    still = seen(a_job(), a_pod(told=8), deleted_at=gone)
    assert still.state is JobState.RUNNING, "its pods hold their GPUs"
    over = seen(a_job(), a_pod(told=8, ended=12, code=143, gone=True), deleted_at=gone)
    assert (over.state, over.attempts[0].ending) == (JobState.CANCELLED, Ending.CANCELLED)
    assert over.ended_at == T0 + timedelta(seconds=12)
    assert seen(a_job(suspend=True), deleted_at=gone).ended_at == gone


def test_what_nobody_tells_of_any_more_is_counted() -> None:
    def earlier(job: Any, *pods: ObservedPod, evictions: int) -> int:
        known = ObservedJob("research", "train", job, workloads=(a_workload(evictions=evictions),), pods=pods)
        return count_forgotten_attempts(known).forgotten_attempts

    assert earlier(a_job(), a_pod(), evictions=0) == 0
    assert earlier(a_job(), a_pod(), evictions=2) == 2
    assert earlier(a_job(suspend=True), evictions=1) == 1
    assert earlier(a_job(**ended("Complete", 9)), a_pod(ended=8), evictions=1) == 1
    assert earlier(a_job(**ended("Failed", 9, "DeadlineExceeded")), evictions=0) == 0


def test_how_an_attempt_ended_of_which_no_pods_are_left() -> None:
    """The node was deleted while Fairway was away: Kueue's Workload is all that tells of it."""
    gone = condition("Evicted", when=40, reason="NodeFailures", message="no replacement for node-a")
    workload = a_workload(gone, evictions=1)
    known = ObservedJob(
        "research", "train", a_job(suspend=True), workloads=(workload,), evictions=(workload.evicted,)
    )
    job = join(count_forgotten_attempts(known), PLACES)
    assert (job.earlier_attempts, job.attempts) == (1, ())
    assert job.earlier_end == AttemptEnd(
        T0 + timedelta(seconds=40), Ending.NODE_LOST, "no replacement for node-a"
    )
    assert seen(a_job(), a_pod(), workload=workload, evictions=(workload.evicted,)).earlier_end is None


def test_supplies() -> None:
    assert PLACES.by_flavor([("nvidia.com/gpu", "a100.2")]) == FLEET.pool("a100").supplies[0]
    assert str(PLACES.by_flavor([("nvidia.com/mig-1g.10gb", "mig")])) == "mig/1g.10gb"
    assert str(PLACES.by_labels("nvidia.com/gpu", {"fairway/capacity": "spot"})) == "spot"
    assert PLACES.by_labels("nvidia.com/gpu", {}) is None


def test_native_ones_of_one_name_are_told_apart() -> None:
    assert seen(a_job(ours=False)).engine_id == "research/train/job-uid-"


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 9), st.integers(0, 3), st.booleans()),
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_attempts_are_in_order_and_none_ends_before_it_starts(
    lives: list[tuple[int, int, int, int, bool]], nodes: int
) -> None:
    """Whatever pods come and go: each that ran is in an attempt, only the last attempt may be open."""
    pods, clock = [], 0
    for i, (index, pause, length, code, told) in enumerate(lives):
        clock += pause
        end = clock + 1 + length
        pods.append(
            a_pod(
                f"p{i}", clock, clock + 1, end, code,
                index=index % nodes, told=end if told else None, gone=told,
            )
        )  # fmt: skip
        clock += length
    known = ObservedJob("research", "train", a_job(nodes, suspend=True), pods=tuple(pods))
    attempts = join(known, PLACES).attempts
    assert {p.facts.uid for pods_ in group_by_attempt(known) for p in pods_} == {p.facts.uid for p in pods}
    assert all(a.ended_at is not None and a.ended_at >= a.started_at for a in attempts)
    assert [a.started_at for a in attempts] == sorted(a.started_at for a in attempts)
    assert all(a.devices <= 2 * max(nodes, len(pods)) for a in attempts)
