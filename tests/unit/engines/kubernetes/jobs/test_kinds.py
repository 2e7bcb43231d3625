"""Workloads of every kind, from what informers report to what is delivered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fairway.engines.kubernetes.api.wire import Owner
from fairway.engines.kubernetes.jobs.observed import RootStatus
from fairway.model.job import Attempt, Ending, JobState, SeenJob
from tests.unit.engines.kubernetes.jobs.cluster_events import (
    FLEET,
    T0,
    ClaimEvents,
    Events,
    at,
    condition,
    ref,
)

QUOTA = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed"
EVICTED = condition("Evicted", when=20, reason="Preempted", message="Preempted to accommodate another")


@pytest.fixture(params=[Events, ClaimEvents], ids=["extended", "claimed"])
def events(request: pytest.FixtureRequest) -> Events:
    """Every story is told twice: of GPUs in the limits of containers, and of GPUs that pods claim."""
    made: Events = request.param()
    return made


def span(attempt: Attempt) -> tuple[str, int, float, float | None]:
    """Its replica, its devices, and when it ran."""
    end = None if attempt.ended_at is None else (attempt.ended_at - T0).total_seconds()
    return attempt.replica, attempt.devices, (attempt.started_at - T0).total_seconds(), end


def device_seconds(job: SeenJob) -> float:
    return sum(
        a.devices * (a.ended_at - a.started_at).total_seconds()
        for a in job.attempts
        if a.ended_at is not None
    )


# services


def deployment(events: Events, name: str = "chat") -> Owner:
    return events.known(ref("ReplicaSet", f"{name}-1"), ref("Deployment", name), user="alice", queue="main")


def test_a_deployment_is_one_job_and_each_pod_a_replica_of_it(events: Events) -> None:
    owner = deployment(events)
    for i, start in enumerate((5, 7)):
        events.pod(f"chat-{i}", owner, started=start, restarts=True, workload=f"w{i}", node=f"gpu-{i}")
        events.workload(f"w{i}", ref("Pod", f"chat-{i}", "v1"), admitted=True)
    for i in (2, 3):
        events.pod(f"chat-{i}", owner, gated=True, restarts=True)
        events.workload(f"w{i}", ref("Pod", f"chat-{i}", "v1"), message=QUOTA)
    job = events.one()
    assert (job.engine_id, job.name, job.kind) == ("research/deployment/chat/deployme", "chat", "Deployment")
    assert (job.service, job.team, job.user) == (True, "research", "alice")
    assert (job.state, job.reason, job.reason_code) == (JobState.RUNNING, QUOTA, "QuotaInUse")
    assert (job.nodes, job.gpus, job.devices) == (4, 2, None)
    assert job.supply == FLEET.pool("a100").supplies[0]
    assert [span(a) for a in job.attempts] == [("chat-0", 2, 5, None), ("chat-1", 2, 7, None)]
    assert [a.nodes for a in job.attempts] == [("gpu-0",), ("gpu-1",)]


def test_a_replica_that_is_preempted_ends_so_and_another_waits(events: Events) -> None:
    owner = deployment(events)
    events.pod("chat-0", owner, started=5, restarts=True, workload="w0")
    events.workload("w0", ref("Pod", "chat-0", "v1"), admitted=True)
    stopped = condition(
        "TerminationTarget", when=20, reason="WorkloadEvictedDueToPreempted", message="Preempted for a job"
    )
    events.pod("chat-0", owner, started=5, ended=21, code=143, deletion=20, conditions=(stopped,))
    events.gone("Workload", "w0")
    events.gone("Pod", "chat-0")
    events.pod("chat-1", owner, created=21, gated=True, restarts=True)
    events.workload("w1", ref("Pod", "chat-1", "v1"), message=QUOTA)
    job = events.one()
    assert (job.state, job.nodes) == (JobState.WAITING, 1)
    (attempt,) = job.attempts
    assert (attempt.ending, attempt.reason) == (Ending.PREEMPTED, "Preempted for a job")
    assert span(attempt) == ("chat-0", 2, 5, 21)


def test_a_replica_is_preempted_by_what_its_workload_says(events: Events) -> None:
    """The pod's own condition comes late, or never."""
    owner = deployment(events)
    events.pod("chat-0", owner, started=5, workload="w0")
    events.workload("w0", ref("Pod", "chat-0", "v1"), admitted=True, conditions=(EVICTED,))
    events.pod("chat-0", owner, started=5, deletion=20, workload="w0")
    events.gone("Pod", "chat-0")
    (attempt,) = events.one().attempts
    assert attempt.ending is Ending.PREEMPTED
    assert span(attempt) == ("chat-0", 2, 5, 20)


def test_a_replica_that_is_scaled_away_is_done(events: Events) -> None:
    owner = deployment(events)
    for i in (0, 1):
        events.pod(f"chat-{i}", owner, started=5, restarts=True)
    events.one()
    events.pod("chat-1", owner, started=5, ended=31, code=143, deletion=30, restarts=True)
    events.gone("Pod", "chat-1")
    job = events.one()
    assert (job.state, job.nodes) == (JobState.RUNNING, 1)
    ended = next(a for a in job.attempts if a.replica == "chat-1")
    assert (ended.ending, ended.exit_code, span(ended)[3]) == (Ending.DONE, 0, 31)


def test_the_workload_of_a_pod_that_is_gone_is_no_reason_to_wait(events: Events) -> None:
    """Kueue deletes it a moment after the pod."""
    owner = deployment(events)
    events.pod("chat-0", owner, started=5, restarts=True)
    events.pod("chat-1", owner, gated=True, restarts=True)
    events.workload("w1", ref("Pod", "chat-1", "v1"), message=QUOTA)
    assert events.one().reason == QUOTA
    events.gone("Pod", "chat-1")
    job = events.one()
    assert (job.nodes, job.reason) == (1, "")


def test_a_replica_that_fails_by_itself_failed(events: Events) -> None:
    owner = deployment(events)
    events.pod("chat-0", owner, started=5, ended=9, code=3)
    events.pod("chat-1", owner, started=5)
    ended, runs = events.one().attempts
    assert (ended.ending, ended.exit_code, runs.ended_at) == (Ending.FAILED, 3, None)


def test_a_service_is_scaled_to_0_and_up_again(events: Events) -> None:
    owner = deployment(events)
    events.pod("chat-0", owner, started=5)
    events.workload("w", ref("Pod", "chat-0", "v1"), admitted=True)
    events.one()
    events.pod("chat-0", owner, started=5, ended=10, deletion=9)
    events.gone("Pod", "chat-0")
    events.gone("Workload", "w")
    events.seen()
    ((record, root),) = events.records.to_check()
    assert root.kind == "Deployment"
    events.records.checked(record, RootStatus(replicas=0))
    job = events.one()
    assert (job.state, job.reason, job.nodes) == (JobState.HELD, "scaled to 0", 0)
    assert (job.gpus, job.supply) == (2, FLEET.pool("a100").supplies[0]), "what it had, while it had some"
    assert events.records.to_check() == [], "it is read again later"
    events.now = 100
    assert events.records.to_check()
    events.pod("chat-1", owner, created=50, started=51)
    assert events.one().state is JobState.RUNNING
    assert events.records.to_check() == []


def test_a_service_that_is_deleted_has_ended_with_its_last_pods(events: Events) -> None:
    owner = deployment(events)
    events.pod("chat-0", owner, started=5)
    events.pod("chat-1", owner, started=5)
    events.seen()
    events.pod("chat-0", owner, started=5, deletion=7)
    events.gone("Pod", "chat-0")
    events.pod("chat-1", owner, started=5, ended=31, code=143, deletion=30)
    events.gone("Pod", "chat-1")
    events.seen()
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    job = events.one()
    assert (job.state, job.reason) == (JobState.CANCELLED, "the Deployment was deleted")
    assert [(a.replica, a.ending) for a in job.attempts] == [
        ("chat-0", Ending.DONE),
        ("chat-1", Ending.CANCELLED),
    ]
    assert events.records.by_uid == {}, "it is forgotten"


def test_a_service_whose_pods_no_queue_counts(events: Events) -> None:
    events.pod("chat-0", deployment(events), started=5, workload="")
    job = events.one()
    assert (job.state, job.reason, job.reason_code) == (
        JobState.RUNNING, "not counted by any queue", "NotQueued",
    )  # fmt: skip
    assert job.team == "research", "its team pays all the same"


def test_a_stateful_set_waits_and_runs_as_one_workload(events: Events) -> None:
    llm = events.known(ref("StatefulSet", "llm"))
    annotations = {
        "kueue.x-k8s.io/job-owner-gvk": "apps/v1, Kind=StatefulSet",
        "kueue.x-k8s.io/job-owner-name": "llm",
    }
    owners = [ref("StatefulSet", "llm", controller=False), ref("Pod", "llm-0", "v1", controller=False)]
    events.workload("w", *owners, pods=3, message=QUOTA, annotations=annotations)
    events.pod("llm-0", llm, gated=True, restarts=True)
    job = events.one()
    assert (job.engine_id, job.kind, job.service) == (
        "research/statefulset/llm/stateful",
        "StatefulSet",
        True,
    )
    assert (job.state, job.nodes, job.reason_code) == (JobState.WAITING, 3, "QuotaInUse")
    events.workload("w", *owners, pods=3, active=False, message="The workload is deactivated")
    assert events.one().state is JobState.HELD


def test_a_stateful_set_reuses_names_and_each_pod_is_a_replica(events: Events) -> None:
    llm = events.known(ref("StatefulSet", "llm"))
    events.pod("llm-0", llm, started=5, uid="first")
    events.pod("llm-0", llm, started=5, ended=10, deletion=9, uid="first")
    events.pod("llm-0", llm, created=11, started=12, uid="second")
    assert [span(a) for a in events.one().attempts] == [("llm-0", 2, 5, 10), ("llm-0", 2, 12, None)]


def test_a_leader_worker_set_has_a_workload_for_each_replica(events: Events) -> None:
    lws = ref("LeaderWorkerSet", "llm", "leaderworkerset.x-k8s.io/v1")
    leaders, leader = ref("StatefulSet", "llm"), ref("Pod", "llm-0", "v1")
    workers = events.known(ref("StatefulSet", "llm-0"), leader, leaders, lws)
    owner = Owner(lws.kind, lws.name, lws.uid, controller=False, api_version=lws.api_version)
    events.workload("w0", owner, pods=2, admitted=True)
    events.workload("w1", owner, pods=2, message=QUOTA)
    events.pod("llm-0", leaders, started=5, workload="w0")
    events.pod("llm-0-1", workers, started=6, workload="w0")
    events.pod("llm-1", leaders, gated=True)
    job = events.one()
    assert (job.kind, job.state, job.nodes, job.gpus) == ("LeaderWorkerSet", JobState.RUNNING, 4, 2)
    assert (job.reason, len(job.attempts)) == (QUOTA, 2)


def test_a_ray_cluster_with_a_head_without_gpus(events: Events) -> None:
    ray = events.known(ref("RayCluster", "ray", "ray.io/v1"))
    events.workload("w", ray, sets=((1, 0), (2, 4)), message=QUOTA)
    job = events.one()
    assert (job.kind, job.state, job.nodes, job.gpus) == ("RayCluster", JobState.WAITING, 2, 4)
    events.workload("w", ray, sets=((1, 0), (2, 4)), admitted=True)
    events.pod("ray-head", ray, gpus=0, started=3)
    events.pod("ray-worker-1", ray, gpus=4, started=5)
    assert [span(a) for a in events.one().attempts] == [("ray-worker-1", 4, 5, None)]


# batch work


def test_a_job_set_is_one_gang_and_its_jobs_are_no_jobs(events: Events) -> None:
    """An index counts inside one of its Jobs: two pods may both be the first."""
    gang = events.known(ref("JobSet", "gang", "jobset.x-k8s.io/v1alpha2"), user="bob")
    leader, workers = events.job("gang-leader-0", gang), events.job("gang-workers-0", gang)
    events.workload("w", gang, sets=((1, 2), (2, 4)), message=QUOTA)
    job = events.one()
    assert (job.engine_id, job.kind, job.service) == ("research/jobset/gang/jobset-g", "JobSet", False)
    assert (job.state, job.user, job.nodes, job.devices) == (JobState.WAITING, "bob", 3, 10)
    events.workload("w", gang, sets=((1, 2), (2, 4)), admitted=True)
    events.pod("leader", leader, started=5, index=0)
    events.pod("worker-0", workers, started=6, index=0, gpus=4)
    events.pod("worker-1", workers, started=7, index=1, gpus=4)
    (attempt,) = events.one().attempts
    assert (attempt.devices, span(attempt)[2], attempt.replica) == (10, 5, "")
    finished = condition("Finished", when=40, reason="Succeeded", message="jobset completed")
    for name, owner, index, gpus in (
        ("leader", leader, 0, 2),
        ("worker-0", workers, 0, 4),
        ("worker-1", workers, 1, 4),
    ):
        events.pod(name, owner, started=5, ended=39, index=index, gpus=gpus)
    events.workload("w", gang, sets=((1, 2), (2, 4)), conditions=(finished,))
    job = events.one()
    assert (job.state, job.ended_at, job.exit_code) == (JobState.DONE, T0 + timedelta(seconds=39), 0)
    assert job.attempts[0].ending is Ending.DONE


def test_a_train_job_is_the_root_of_its_job_set(events: Events) -> None:
    train = ref("TrainJob", "train", "trainer.kubeflow.org/v1alpha1")
    events.known(ref("JobSet", "train", "jobset.x-k8s.io/v1alpha2"), train)
    owner = events.job("train-node-0", ref("JobSet", "train", "jobset.x-k8s.io/v1alpha2"))
    events.workload("w", train, pods=2, admitted=True)
    for i in (0, 1):
        events.pod(f"node-{i}", owner, started=5, index=i)
    job = events.one()
    assert (job.kind, job.nodes, job.attempts[0].devices) == ("TrainJob", 2, 4)


def test_a_gang_that_was_preempted_runs_again_with_the_same_workload(events: Events) -> None:
    gang = events.known(ref("JobSet", "gang", "jobset.x-k8s.io/v1alpha2"))
    owner = events.job("gang-0", gang)
    events.workload("w", gang, admitted=True)
    events.pod("a", owner, started=5, index=0)
    events.workload("w", gang, conditions=(EVICTED,), message="Preempted")
    events.pod("a", owner, started=5, ended=21, code=143, deletion=20, index=0)
    events.gone("Pod", "a")
    assert events.one().state is JobState.WAITING
    events.workload("w", gang, admitted=True)
    events.pod("b", owner, created=30, started=31, index=0)
    first, second = events.one().attempts
    assert (first.ending, span(first)[3], second.ended_at) == (Ending.PREEMPTED, 21, None)


def test_a_job_set_that_is_deleted_was_cancelled(events: Events) -> None:
    gang = events.known(ref("JobSet", "gang", "jobset.x-k8s.io/v1alpha2"))
    owner = events.job("gang-0", gang)
    events.workload("w", gang, admitted=True)
    events.pod("a", owner, started=5, index=0)
    events.seen()
    events.gone("Workload", "w")
    events.pod("a", owner, started=5, ended=31, code=143, deletion=30, index=0)
    events.gone("Pod", "a")
    events.seen()
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    job = events.one()
    assert (job.state, job.attempts[0].ending) == (JobState.CANCELLED, Ending.CANCELLED)
    assert job.ended_at == T0 + timedelta(seconds=31)


def test_a_workload_reported_before_its_job_keeps_its_newest_state(events: Events) -> None:
    """Its Job, and why it waits, may be reported before it is sorted in."""
    owner = Owner("Job", "train", "job-train", controller=True, api_version="batch/v1")
    events.workload("w", owner)
    events.job("train")
    events.workload("w", owner, message=QUOTA)
    assert events.one().reason_code == "QuotaInUse"


@pytest.mark.parametrize(("level", "code"), [("example.com/rack", "NoRackFits"), ("", "NotEnoughFree")])
def test_a_job_set_whose_pods_must_be_together_waits_for_a_rack(
    events: Events, level: str, code: str
) -> None:
    gang = events.known(ref("JobSet", "gang", "jobset.x-k8s.io/v1alpha2"))
    message = 'couldn\'t assign flavors to pod set n: topology "racks" allows to fit only 1 out of 2 pod(s)'
    events.workload("w", gang, pods=2, message=message, required_topology=level)
    assert events.one().reason_code == code


def test_a_job_set_that_was_deleted_before_it_was_read_is_cancelled(events: Events) -> None:
    name = "gang-fwab12-0001-1"
    gang = ref("JobSet", name, "jobset.x-k8s.io/v1alpha2")
    events.mirror._roots._links["research", gang.uid] = None
    events.workload("w", gang, message=QUOTA)
    job = events.one()
    assert (job.engine_id, job.kind, job.state) == (f"research/{name}", "JobSet", JobState.WAITING)
    events.gone("Workload", "w")
    events.seen()
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    events.now = 100
    assert events.one().state is JobState.CANCELLED


def test_a_job_set_that_was_deleted_with_its_workload_before_it_was_read(events: Events) -> None:
    gang = ref("JobSet", "gang-fwab12-0001-1", "jobset.x-k8s.io/v1alpha2")
    events.workload("w", gang, message=QUOTA)
    events.gone("Workload", "w")
    assert events.records.unresolved() == [("research", gang)]
    events.mirror._roots._links["research", gang.uid] = None  # as it was read: it no longer exists
    events.seen()
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    events.now = 100
    job = events.one()
    assert (job.name, job.state) == (gang.name, JobState.CANCELLED)


def test_a_bare_pod_that_is_deleted_was_cancelled_whatever_its_exit_code(events: Events) -> None:
    events.pod("debug", started=5)
    events.pod("debug", started=5, deletion=20)
    events.pod("debug", started=5, ended=21, code=143, deletion=20)
    events.pod("debug", started=5, ended=21, code=143, deletion=25)  # as the kubelet removes it
    events.gone("Pod", "debug")
    job = events.one()
    assert (job.state, job.attempts[-1].ending) == (JobState.CANCELLED, Ending.CANCELLED)
    assert job.attempts[-1].ended_at == T0 + timedelta(seconds=21)


def test_a_job_of_a_cron_job_is_a_job(events: Events) -> None:
    events.job("nightly-1", ref("CronJob", "nightly", "batch/v1"))
    job = events.one()
    assert (job.engine_id, job.kind) == ("research/nightly-1/job-nigh", "")


def test_an_elastic_job_goes_on_when_its_workload_is_replaced(events: Events) -> None:
    owner = events.job("train", parallelism=3, completions=3)
    replaced = condition("Finished", reason="WorkloadSliceReplaced", message="Replaced")
    events.workload("w1", owner, conditions=(replaced,))
    events.workload("w2", owner, message=QUOTA)
    job = events.one()
    assert (job.state, job.reason) == (JobState.WAITING, QUOTA)


def test_a_ray_cluster_that_grows_waits_with_what_it_has(events: Events) -> None:
    owner = events.known(ref("RayCluster", "ray", "ray.io/v1"))
    events.workload("w1", owner, pods=2, admitted=True)
    events.pod("a", owner, started=5, workload="w1")
    events.pod("b", owner, started=5, workload="w1")
    replacing = {"kueue.x-k8s.io/workload-slice-replacement-for": "research/w1"}
    events.workload("w2", owner, pods=3, message=QUOTA, annotations=replacing)
    events.pod("c", owner, workload="w1", gate="kueue.x-k8s.io/elastic-job")
    job = events.one()
    assert (job.state, job.nodes, job.reason) == (JobState.RUNNING, 3, QUOTA)


def test_a_bare_pod_is_a_job(events: Events) -> None:
    annotations = {"fairway.dev/user": "alice"}
    events.pod("debug", gated=True, annotations=annotations)
    events.workload("w", ref("Pod", "debug", "v1"), message=QUOTA)
    job = events.one()
    assert (job.engine_id, job.kind, job.service) == ("research/pod/debug/pod-debu", "Pod", False)
    assert (job.state, job.reason_code, job.user) == (JobState.WAITING, "QuotaInUse", "alice")
    events.pod("debug", started=5, ended=9)
    events.workload("w", ref("Pod", "debug", "v1"), admitted=True)
    assert (events.one().state, events.one_or_none()) == (JobState.DONE, None)


def test_a_pod_group_is_a_gang_named_by_its_workload(events: Events) -> None:
    labels = {"kueue.x-k8s.io/pod-group-name": "batch"}
    for i in (0, 1):
        events.pod(f"p{i}", gated=True, labels=labels)
    assert events.seen() == {}, "Kueue has not got them all yet"
    pods = [ref("Pod", f"p{i}", "v1", controller=False) for i in (0, 1)]
    events.workload("batch", *pods, pods=2, message=QUOTA)
    job = events.one()
    assert (job.engine_id, job.kind) == ("research/podgroup/batch/workload", "PodGroup")
    assert (job.state, job.nodes) == (JobState.WAITING, 2)
    events.workload("batch", *pods, pods=2, admitted=True)
    for i in (0, 1):
        events.pod(f"p{i}", started=5 + i, labels=labels, workload="batch")
    (attempt,) = events.one().attempts
    assert (attempt.devices, span(attempt)[2]) == (4, 5)
    for i in (0, 1):
        events.pod(f"p{i}", started=5 + i, ended=20, deletion=19, labels=labels, workload="batch")
        events.gone("Pod", f"p{i}")
    events.gone("Workload", "batch")
    assert events.one().state is JobState.CANCELLED


@pytest.mark.parametrize("restarts", [True, False])
def test_an_unknown_kind_is_what_its_pods_are(events: Events, restarts: bool) -> None:
    thing = events.known(ref("Cruncher", "c", "example.com/v1"))
    events.pod("c-0", thing, started=5, restarts=restarts, workload="")
    job = events.one()
    assert (job.engine_id, job.kind, job.service) == ("research/cruncher/c/cruncher", "Cruncher", restarts)
    assert job.attempts[0].replica == ("c-0" if restarts else "")


def test_an_unknown_kind_of_batch_work_ends_with_its_pods(events: Events) -> None:
    """Nothing tells whether more will come: no GPUs are held until they do."""
    thing = events.known(ref("Cruncher", "c", "example.com/v1"))
    events.pod("c-0", thing, started=5, ended=20, workload="")
    job = events.one()
    assert (job.state, span(job.attempts[0])[3]) == (JobState.WAITING, 20)
    ((record, _),) = events.records.to_check()
    events.records.checked(record, RootStatus(finished="Complete/"))
    assert events.one().state is JobState.DONE


# work queues


def work_queue(events: Events, **status: object) -> Owner:
    return events.job("sweep", parallelism=2, completions=6, status=status)


def test_pods_of_a_work_queue_are_charged_for_their_own_time(events: Events) -> None:
    """Six pods of two GPUs, two at a time, ten seconds each: 120 GPU-seconds, not 6 x 2 x 30."""
    owner = work_queue(events)
    for i in range(6):
        begin = 10 * (i // 2)
        events.pod(f"s{i}", owner, created=begin, started=begin, ended=begin + 10, index=i)
    events.job("sweep", parallelism=2, completions=6, status={
        "conditions": [condition("Complete", when=31)], "startTime": at(0), "completionTime": at(31),
    })  # fmt: skip
    job = events.one()
    assert device_seconds(job) == 120
    assert (job.state, job.service, job.nodes, job.gpus) == (JobState.DONE, False, 2, 2)
    assert {a.replica for a in job.attempts} == {f"s{i}" for i in range(6)}


def test_a_work_queue_that_has_reported_its_pods_reports_them_no_more(events: Events) -> None:
    owner = work_queue(events)
    for i in range(4):
        events.pod(f"s{i}", owner, started=1, ended=5, index=i)
    events.pod("s4", owner, created=5, started=6, index=4)
    assert len(events.one().attempts) == 5
    events.confirm()
    events.pod("s5", owner, created=5, started=7, index=5)
    assert [a.replica for a in events.one().attempts] == ["s4", "s5"]
    events.records.deliver_again([stored.value for (kind, _), stored in events.stored() if kind == "Pod"])
    assert len(events.one().attempts) == 6, "all that exist"


def test_a_work_queue_always_reports_a_pod(events: Events) -> None:
    owner = work_queue(events)
    for i in (0, 1):
        events.pod(f"s{i}", owner, started=1, ended=5 + i, index=i)
    events.seen()
    events.confirm()
    events.job("sweep", parallelism=2, completions=6, suspend=True)
    assert len(events.one().attempts) == 1


# what waits for its root


def test_a_pod_waits_until_its_root_is_known(events: Events) -> None:
    owner = ref("ReplicaSet", "chat-1")
    events.pod("chat-0", owner, started=5)
    assert events.seen() == {}
    assert events.records.unresolved() == [("research", owner)]
    deployment(events)
    assert events.one().kind == "Deployment"
    assert events.records.unresolved() == []


def test_a_pod_that_came_before_its_job(events: Events) -> None:
    owner = Owner("Job", "train", "job-train", controller=True, api_version="batch/v1")
    events.pod("p", owner, started=5)
    events.workload("w", owner, admitted=True)
    assert events.seen() == {}
    events.job("train")
    job = events.one()
    assert (job.state, job.supply) == (JobState.RUNNING, FLEET.pool("a100").supplies[0])


def test_a_pod_that_has_gone_before_its_job_is_reported(events: Events) -> None:
    """Pods and Jobs are reported by two watches, and one of them may be late."""
    owner = Owner("Job", "train", "job-train", controller=True, api_version="batch/v1")
    events.pod("p", owner, started=5)
    events.pod("p", owner, started=5, ended=20, code=143, deletion=19)
    events.mirror._roots._links["research", owner.uid] = None  # as it was read: it no longer exists
    assert events.seen() == {}
    events.gone("Pod", "p")
    assert events.seen() == {}
    events.job("train")
    job = events.one()
    assert [(a.started_at, a.ended_at) for a in job.attempts] == [
        (T0 + timedelta(seconds=5), T0 + timedelta(seconds=20))
    ]


def test_the_pods_of_a_job_set_that_was_deleted_before_it_was_read(events: Events) -> None:
    gang = ref("JobSet", "gang", "jobset.x-k8s.io/v1alpha2")
    owner = events.job("gang-0", gang)
    events.mirror._roots._links["research", gang.uid] = None
    events.pod("p", owner, started=5, index=0)
    events.pod("p", owner, started=5, ended=20, code=143, deletion=19, index=0)
    events.gone("Pod", "p")
    assert events.seen() == {}
    events.workload("w", gang, admitted=True)
    events.seen()
    events.gone("Workload", "w")
    events.seen()
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    events.now = 100
    job = events.one()
    assert (job.state, [a.ended_at for a in job.attempts]) == (
        JobState.CANCELLED,
        [T0 + timedelta(seconds=20)],
    )


def test_a_workload_that_changes_after_its_job_is_over_and_gone(events: Events) -> None:
    """As when Kueue takes its finalizer off it."""
    owner = events.job("train")
    events.workload("w", owner, admitted=True)
    events.pod("p", owner, started=5)
    events.pod("p", owner, started=5, ended=20, code=143, deletion=19)
    events.gone("Pod", "p")
    events.gone("Job", "train")
    assert events.one().state is JobState.CANCELLED
    events.workload("w", owner, admitted=True, message="later")
    assert events.seen() == {}
    events.gone("Workload", "w")
    assert events.seen() == {}


def test_a_pod_without_an_owner_and_a_report_of_it_is_forgotten(events: Events) -> None:
    owner = Owner("Job", "train", "job-train", controller=True, api_version="batch/v1")
    events.pod("p", owner, started=5)
    events.gone("Pod", "p")
    events.seen()
    events.now = 100
    assert events.seen() == {}
    assert events.records.unresolved() == []


def test_a_pod_without_a_reported_end_has_ended_when_it_was_last_deleted(events: Events) -> None:
    owner = events.job("train")
    events.pod("p", owner, started=5)
    events.pod("p", owner, started=5, deletion=20)
    events.pod("p", owner, started=5, deletion=24)  # by force
    events.gone("Pod", "p")
    assert events.one().attempts[0].ended_at == T0 + timedelta(seconds=24)


def test_a_replica_that_vanishes_has_ended_when_that_is_noticed(events: Events) -> None:
    """By force, or while the API server was away: nothing says when it ended."""
    owner = deployment(events)
    events.pod("chat-0", owner, started=5)
    events.pod("chat-1", owner, started=5)
    events.seen()
    before = datetime.now(UTC).replace(microsecond=0)
    events.gone("Pod", "chat-0")
    (ended,) = (a.ended_at for a in events.one().attempts if a.ended_at is not None)
    assert before <= ended <= datetime.now(UTC)


def test_a_pod_of_an_owner_that_is_gone_goes_too(events: Events) -> None:
    """What it held was charged before, under its owner: it must not count twice."""
    owner = ref("ReplicaSet", "chat-1")
    events.mirror._roots._links["research", owner.uid] = None
    events.pod("chat-0", owner, started=5, deletion=9)
    events.pod("chat-1", owner, started=5)
    assert events.seen() == {}
    events.now = 100
    job = events.one()
    assert (job.kind, job.name) == ("Pod", "chat-1"), "the garbage collector left it"


def test_nothing_stays_of_what_has_gone(events: Events) -> None:
    owner = deployment(events)
    for i in range(20):
        events.pod(f"chat-{i}", owner, started=5)
        events.workload(f"w{i}", ref("Pod", f"chat-{i}", "v1"), admitted=True)
        events.seen()
        events.pod(f"chat-{i}", owner, started=5, ended=10, deletion=9)
        events.gone("Pod", f"chat-{i}")
        events.gone("Workload", f"w{i}")
        events.seen()
        events.confirm()
    (record,) = events.records.by_uid.values()
    assert len(record.pods) == 1
    ((record, _),) = events.records.to_check()
    events.records.checked(record, None)
    events.seen()
    assert not events.records.by_uid and not events.records._record_of and not events.records._by_id
