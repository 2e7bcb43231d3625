"""Open jobs of a cluster that left the fleet say so, and do not count on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fairway.cli.output.jobs import JobGroup, jobs_view
from fairway.ledger.records.fleet import LeftCluster
from fairway.model.job import JobState
from fairway.model.names import ClusterName
from fairway.services.convert.jobs import with_left_cluster
from fairway.views.jobs import STATE_WORDS, headline
from fairway.views.why import build_why
from tests.unit.views.test_why import NOW, job

SEEN = NOW - timedelta(hours=3)
LEFT = {ClusterName("hpc"): LeftCluster(ClusterName("hpc"), 7, NOW - timedelta(hours=2), SEEN)}
TEXT = (
    f"Cluster hpc was removed from the fleet in revision 7; the job was last seen at {SEEN:%Y-%m-%d %H:%MZ}"
)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.WAITING, JobState.QUEUED, JobState.HELD])
def test_an_open_job_of_a_cluster_that_left_says_so(state: JobState) -> None:
    found = with_left_cluster(job(state=state, cluster="hpc", started_at=SEEN - timedelta(hours=1)), LEFT)
    assert headline(found, NOW).endswith(f"was {STATE_WORDS[state]} when it was last seen 3 h ago: {TEXT}")
    why = build_why(found, [], "", NOW)
    assert [(r.code, r.text) for r in why.reasons] == [("ClusterNotTracked", TEXT)]
    assert "fairway rollback N" in why.reasons[0].hint
    (row,) = jobs_view([JobGroup(found)], NOW, wide=False, filtered=False, more=False).rows
    assert f"{STATE_WORDS[state]}, untracked" in row and TEXT in row
    if state is JobState.RUNNING:
        assert "60 min" in row  # it ran until it was last seen, as far as anybody knows


def test_others_are_as_they_were() -> None:
    ended = job(state=JobState.DONE, cluster="hpc", ended_at=datetime(2026, 1, 1, tzinfo=UTC))
    elsewhere = job(state=JobState.RUNNING, cluster="cloud")
    assert with_left_cluster(ended, LEFT) is ended
    assert with_left_cluster(elsewhere, LEFT) is elsewhere
