"""Changes of pending jobs on Slurm: what is sent, what is refused, and what is so already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairway.engines.slurm.jobs.change import check_change, update
from fairway.engines.slurm.policy.partitions import SupplySite
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, GpuRequest, JobId, JobSpec, Order, engine_name
from fairway.model.job_change import JobChange, WaitingChange
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply

FLEET = Fleet("acme", "USD", (), ())
SITE = SupplySite(Supply(PoolName("gpu")), ("gpu", "big"), "a100")
BEFORE = Order(
    JobId(7),
    1,
    engine_name("mark", JobId(7), 1, "train"),
    JobSpec("train", GpuRequest(8), ("true",), nodes=2, time_seconds=7200),
    UserName("alice"),
    TeamName("research"),
    PriorityName("normal"),
    SITE.supply,
)


def changed(change: JobChange, before: Order = BEFORE) -> WaitingChange:
    after = replace(before, spec=change.apply_to(before.spec), priority=change.priority or before.priority)
    return WaitingChange(EngineId("42"), before, after)


def job(**more: Any) -> dict[str, Any]:
    """A job as slurmrestd shows it, after job_submit.lua."""
    one = {
        "job_id": 42,
        "job_state": ["PENDING"],
        "partition": "gpu,gpu-lent",
        "tres_per_node": "gres/gpu:a100:8",
        "node_count": {"set": True, "number": 2},
        "time_limit": {"set": True, "number": 120},
        "admin_comment": "fairway:normal",
        **more,
    }
    return {"jobs": [one]}


def test_only_what_differs_is_sent() -> None:
    assert update(changed(JobChange(time_seconds=3601)), SITE, job()) == {
        "time_limit": {"set": True, "number": 61}
    }
    assert update(changed(JobChange(nodes=1)), SITE, job()) == {
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "tasks": 1,
        "minimum_cpus": 1,
    }
    assert update(changed(JobChange()), SITE, job()) == {}
    assert update(changed(JobChange(gpus=4)), SITE, None) == {}, "it is gone"


def test_what_job_submit_lua_checks_goes_with_the_priority_by_name() -> None:
    gpus = {"partition": "gpu", "tres_per_node": "gres/gpu:a100:4"}
    assert update(changed(JobChange(gpus=4)), SITE, job()) == gpus | {"qos": "normal"}
    assert update(changed(JobChange(gpus=4)), SITE, job(admin_comment="")) == gpus, "a site without it"
    assert update(changed(JobChange(priority=PriorityName("low"))), SITE, job()) == {"qos": "low"}
    moved = update(changed(JobChange()), SITE, job(partition="cpu,cpu-lent"))
    assert moved == {"partition": "gpu", "tres_per_node": "gres/gpu:a100:8", "qos": "normal"}
    assert update(changed(JobChange()), SITE, job(partition="big")) == {}, "any partition of the pool"


def test_a_job_that_moves_to_spot_nodes_says_that_it_may_be_lost() -> None:
    spot = replace(SITE, supply=Supply(PoolName("spot")), partitions=("spot",), spot=True)
    to_spot = {"partition": "spot", "tres_per_node": "gres/gpu:a100:8", "qos": "normal"}
    assert update(changed(JobChange()), spot, job(comment="fairway:7 project=a")) == to_spot | {
        "comment": "fairway:7 project=a tolerates-loss"
    }
    assert update(changed(JobChange()), spot, job()) == to_spot | {"comment": "tolerates-loss"}
    there = job(comment="fairway:7 tolerates-loss", partition="spot,spot-lent")
    assert update(changed(JobChange(priority=PriorityName("low"))), spot, there) == {"qos": "low"}
    assert update(changed(JobChange()), spot, there) == {}


def test_a_job_that_has_started_is_as_wanted_or_refused() -> None:
    with pytest.raises(Refused) as late:
        update(changed(JobChange(gpus=4)), SITE, job(job_state=["RUNNING"]))
    assert late.value.code == "JobStarted"
    assert update(changed(JobChange(gpus=4)), SITE, job(job_state=["COMPLETED"])) == {}
    as_wanted = job(job_state=["RUNNING"], tres_per_node="gres/gpu:a100:4", partition="gpu-lent")
    assert update(changed(JobChange(gpus=4)), SITE, as_wanted) == {}


def test_what_slurm_does_not_change() -> None:
    def check(change: JobChange, before: Order = BEFORE) -> None:
        one = changed(change, before)
        check_change(one.before, one.after, FLEET)

    check(JobChange(nodes=1, gpus=1, priority=PriorityName("low")))
    with pytest.raises(Refused, match="urgent ranks above"):
        check(JobChange(priority=PriorityName("urgent")))
    with pytest.raises(Refused, match="urgent ranks above"):
        check(JobChange(priority=PriorityName("low")), replace(BEFORE, priority=PriorityName("urgent")))
    single = replace(BEFORE, spec=replace(BEFORE.spec, nodes=1))
    with pytest.raises(Refused, match="does not start on several"):
        check(JobChange(nodes=2), single)
    check(JobChange(nodes=2), replace(single, spec=replace(single.spec, command=(), script="#!/bin/sh\n")))
