"""Pods that claim their GPUs: what is known of them when, and in which order."""

from __future__ import annotations

import pytest

from fairway.model.job import JobState
from tests.unit.engines.kubernetes.jobs.cluster_events import (
    CLAIMED,
    ClaimEvents,
    Events,
    Json,
    at,
    condition,
    ref,
)

QUOTA = f"couldn't assign flavors: insufficient unused quota for {CLAIMED} in flavor a100, 2 more needed"


@pytest.fixture
def events() -> ClaimEvents:
    return ClaimEvents()


def test_a_job_that_waits_shows_what_kueue_counts_of_its_claims(events: ClaimEvents) -> None:
    owner = events.job("train", parallelism=3, completions=3)
    assert events.one().gpus == 0, "before Kueue has looked, nobody has counted"
    events.workload("w", owner, pods=3, gpus=2, message=QUOTA)
    job = events.one()
    assert (job.state, job.reason_code) == (JobState.WAITING, "QuotaInUse")
    assert (job.gpus, job.nodes, job.supply) == (2, 3, events.fleet.pool("a100").supplies[0])


def test_a_gang_holds_the_gpus_of_all_its_claims(events: ClaimEvents) -> None:
    owner = events.job("train", parallelism=3, completions=3)
    events.workload("w", owner, pods=3, gpus=2, admitted=True)
    for i in range(3):
        events.pod(f"train-{i}", owner, started=5 + i, index=i)
    job = events.one()
    assert (job.gpus, job.nodes, job.attempts[0].devices) == (2, 3, 6)
    for i in range(3):
        events.pod(f"train-{i}", owner, started=5 + i, ended=60, index=i)
    status = {"conditions": [condition("Complete", when=61)], "startTime": at(0), "completionTime": at(61)}
    events.job("train", parallelism=3, completions=3, status=status)
    assert events.one().attempts[0].devices == 6, "the claims are gone, and what they held is known"


def test_pods_that_ended_before_they_were_seen_held_what_kueue_counted(events: ClaimEvents) -> None:
    """A server that starts finds them without their claims."""
    owner = events.job("train", parallelism=2, completions=2)
    for i in range(2):
        Events.put(events, "Pod", f"train-{i}", _ended(i))
    events.workload("w", owner, pods=2, gpus=4, admitted=True)
    (attempt,) = events.one().attempts
    assert attempt.devices == 8


def _ended(index: int) -> Json:
    """A pod with a claim that is gone."""
    meta = {
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-train", "controller": True}
        ],
        "annotations": {"kueue.x-k8s.io/workload": "w"},
        "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    state = {"terminated": {"startedAt": at(5), "finishedAt": at(60), "exitCode": 0}}
    return {
        "metadata": meta,
        "spec": {"containers": [{}], "nodeName": "gpu-1", "resourceClaims": [{"name": "gpus"}]},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]},
    }


def test_a_claim_that_comes_late_changes_a_pod_that_runs(events: ClaimEvents) -> None:
    body = _ended(0)
    body["metadata"] = {"annotations": {}}
    body["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": at(5)}}}],
    }
    Events.put(events, "Pod", "alone", body)
    assert not events.seen(), "a claim for a network card, for all that is known"
    events._claim("alone", body, 4)
    job = events.one()
    assert (job.kind, job.gpus, job.attempts[0].devices) == ("Pod", 4, 4)
    assert (job.reason, job.reason_code) == ("not counted by any queue", "NotQueued")


def test_replicas_that_were_delivered_keep_their_devices_when_all_is_delivered_again(
    events: ClaimEvents,
) -> None:
    owner = events.known(ref("ReplicaSet", "chat-1"), ref("Deployment", "chat"), queue="main")
    events.pod("chat-0", owner, started=5, ended=50, restarts=True, workload="w0")
    events.pod("chat-1", owner, started=5, restarts=True, workload="w1")
    assert [a.devices for a in events.one().attempts] == [2, 2]
    events.confirm()
    events.records.deliver_again(stored.value for (kind, _), stored in events.stored() if kind == "Pod")
    events.mirror._delivered.clear()
    assert [a.devices for a in events.one().attempts] == [2, 2]
