"""What is said of a cluster that nobody could look at: never "no drift" and never "no jobs"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fairway.cli.output.fleet import clusters_view
from fairway.cli.output.jobs import jobs_view, with_unfollowed
from fairway.cli.output.policy import drift_view
from fairway.model.condition import Condition, ConditionType
from fairway.model.fleet import EngineKind
from fairway.model.job import JobState
from fairway.views.conditions import with_conditions
from fairway.wire import fleet as wire
from fairway.wire.jobs import Why

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def cluster(name: str, *conditions: wire.Condition) -> wire.Cluster:
    return wire.Cluster(
        name=name,
        engine=EngineKind.SLURM,
        engine_version="slurm 24.11.5",
        reachable=True,
        observed_at=NOW,
        age_seconds=0,
        reason=None,
        since=NOW,
        conditions=list(conditions),
        pools=[],
        gpus=None,
        slices=None,
        gpus_in_no_pool=None,
    )


def condition(type_: ConditionType, code: str, message: str) -> wire.Condition:
    return wire.Condition(
        type=type_, code=code, message=message, hint="do this", since=NOW - timedelta(minutes=7)
    )


AWAY = condition(ConditionType.DRIFT_NOT_CHECKED, "ClusterUnreachable", "no connection to slurmrestd")
UNFOLLOWED = condition(ConditionType.JOBS_NOT_FOLLOWED, "ToolMissing", "squeue cannot be run")


def test_a_cluster_that_was_not_compared_is_never_without_drift() -> None:
    alone = drift_view([], NOW, [cluster("hpc", AWAY)])
    assert "no drift" not in alone.empty
    assert alone.empty.startswith("hpc has not been checked for drift since 2026-03-01 11:53Z (7 min ago): ")
    assert "ClusterUnreachable" in alone.empty
    two = drift_view([], NOW, [cluster("cloud"), cluster("hpc", AWAY)])
    assert two.empty.endswith("no drift on the other clusters")
    assert drift_view([], NOW, [cluster("hpc")]).empty == "no drift: every cluster matches the applied policy"


def test_an_empty_list_of_jobs_says_that_they_are_not_followed() -> None:
    view = jobs_view([], NOW, wide=False, filtered=False, more=False)
    shown = with_unfollowed(view, [cluster("hpc", UNFOLLOWED)], NOW)
    assert shown.empty == "jobs of hpc have not been observed for 7 min: ToolMissing: squeue cannot be run"
    assert shown.hint == "do this"
    assert with_unfollowed(view, [cluster("hpc")], NOW) == view


def test_get_clusters_notes_every_condition_of_a_cluster_that_answers() -> None:
    view = clusters_view([cluster("hpc", AWAY, UNFOLLOWED)], NOW, wide=False)
    assert len(view.notes) == 4
    assert view.alarming == frozenset({0})


def test_why_says_first_that_nobody_follows_the_job() -> None:
    why = Why(
        id="8f3k",
        name="train",
        state=JobState.WAITING,
        summary="waits",
        cluster="hpc",
        pool=None,
        slice=None,
        nodes=[],
        submitted_at=NOW,
        started_at=None,
        ended_at=None,
        reasons=[],
    )
    found = Condition(ConditionType.JOBS_NOT_FOLLOWED, "ToolMissing", "squeue cannot be run", "install it")
    (reason,) = with_conditions(why, [found]).reasons
    assert (reason.code, reason.text) == (
        "ToolMissing",
        "Jobs of hpc are not observed: squeue cannot be run",
    )
    over = why.model_copy(update={"state": JobState.DONE})
    assert with_conditions(over, [found]) == over
