"""The site's queues go on for jobs without GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy.admission_policies import workload_policy
from fairway.engines.kubernetes.policy.fields import flatten
from fairway.engines.kubernetes.policy.mutating_policies import queue_policy
from fairway.engines.kubernetes.policy.translate import translate
from fairway.model.names import ClusterName
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey
from tests.unit.engines.kubernetes.policy.fleets import FACTS, applied, fields_of, fleet, nothing

CLOUD = ClusterName("cloud")
TEAMS = """
teams:
  everyone:
    guarantee: { a100: 16 }
    teams:
      team-a: { members: [alice] }
"""


def cluster_queue(*, cohort: str = "") -> FoundObject:
    quotas = [
        {"name": "nvidia.com/gpu", "nominalQuota": 32, "lendingLimit": 4},
        {"name": "cpu", "nominalQuota": 400},
        {"name": "memory", "nominalQuota": "4Ti"},
    ]
    covered = ["nvidia.com/gpu", "cpu", "memory"]
    spec: dict[str, Any] = {
        "namespaceSelector": {},
        "resourceGroups": [
            {"coveredResources": covered, "flavors": [{"name": "site-flavor", "resources": quotas}]}
        ],
    }
    if cohort:
        spec["cohortName"] = cohort
    fields = flatten(kinds.CLUSTER_QUEUE, {"spec": spec})
    return FoundObject(ObjectKey("ClusterQueue", "everyone"), fields, ours=False)


def local_queue(name: str, target: str = "everyone") -> FoundObject:
    return FoundObject(ObjectKey("LocalQueue", name), {"spec.clusterQueue": target}, ours=False)


def site(*objects: FoundObject) -> FoundPolicy:
    return replace(nothing(), objects=objects)


@pytest.mark.parametrize("cohort", ["", "prod"])
def test_a_queue_of_the_sites_goes_on_in_a_copy_without_gpus(cohort: str) -> None:
    found = site(cluster_queue(cohort=cohort), local_queue("team-a/queue"))
    wanted = translate(fleet(TEAMS), CLOUD, found)
    copy = fields_of(wanted, "ClusterQueue", "everyone.site")
    flavor = "spec.resourceGroups[nvidia.com/gpu,cpu,memory].flavors[site-flavor]"
    assert copy[f"{flavor}.resources[cpu].nominalQuota"] == 400
    assert copy[f"{flavor}.resources[memory].nominalQuota"] == "4Ti"
    assert copy[f"{flavor}.resources[nvidia.com/gpu].nominalQuota"] == 0
    assert copy.get(f"{flavor}.resources[nvidia.com/gpu].borrowingLimit") == (0 if cohort else None)
    assert f"{flavor}.resources[nvidia.com/gpu].lendingLimit" not in copy
    assert copy.get("spec.cohortName") == (cohort or None)
    assert fields_of(wanted, "LocalQueue", "team-a/queue") == {"spec.clusterQueue": "everyone.site"}
    (notice,) = [n for n in wanted.notices if n.code == "SiteQueuesWithoutGpus"]
    assert "team-a/queue" in notice.message


def test_adopted_and_applied_it_stays_so() -> None:
    sites = (cluster_queue(), local_queue("team-a/queue"))
    first = translate(fleet(TEAMS), CLOUD, site(*sites))
    adopted = translate(fleet(TEAMS), CLOUD, site(*(replace(o, ours=True) for o in sites)))
    assert {o.key: o.fields for o in adopted.objects} == {o.key: o.fields for o in first.objects}
    again = translate(fleet(TEAMS), CLOUD, applied(first))
    assert {o.key: o.fields for o in again.objects} == {o.key: o.fields for o in first.objects}
    assert not [n for n in again.notices if n.code == "SiteQueuesWithoutGpus"]


def test_an_apply_that_stopped_before_the_local_queue_goes_on_with_it() -> None:
    first = translate(fleet(TEAMS), CLOUD, site(cluster_queue(), local_queue("team-a/queue")))
    done = applied(first)
    stopped = tuple(
        replace(o, fields={"spec.clusterQueue": "everyone"})
        if o.key == ObjectKey("LocalQueue", "team-a/queue")
        else o
        for o in done.objects
    )
    wanted = translate(fleet(TEAMS), CLOUD, replace(done, objects=stopped))
    assert fields_of(wanted, "LocalQueue", "team-a/queue") == {"spec.clusterQueue": "everyone.site"}


@pytest.mark.parametrize(
    "objects",
    [
        (),
        (cluster_queue(),),
        (cluster_queue(), local_queue("elsewhere/queue")),
        (cluster_queue(), local_queue("team-a/queue", "another")),
        (cluster_queue(), local_queue("team-a/main")),  # its name is a team's own queue
    ],
)
def test_other_queues_are_not_touched(objects: tuple[FoundObject, ...]) -> None:
    wanted = translate(fleet(TEAMS), CLOUD, site(*objects))
    assert not [o for o in wanted.objects if o.key.name.endswith((".site", "/queue"))]


def test_a_queue_made_by_hand_later_is_left_alone() -> None:
    done = applied(translate(fleet(TEAMS), CLOUD, nothing()))
    by_hand = replace(done, objects=(*done.objects, local_queue("team-a/mine")))
    assert "team-a/mine" not in {o.key.name for o in translate(fleet(TEAMS), CLOUD, by_hand).objects}


def test_a_gpu_job_gets_its_teams_queue_whichever_it_names() -> None:
    _, policy, _ = queue_policy(FACTS)
    assign = policy["mutations"][0]["jsonPatch"]["expression"]
    assert "!(variables.base in ['main', 'low'] && !(variables.queue in ['main', 'low']))" in assign
    assert "(variables.queue in ['main', 'low'] ? variables.queue : 'main')" in assign


def test_jobs_of_a_cron_job_are_checked_and_updates_of_controllers_are_not() -> None:
    _, policy, _ = workload_policy(FACTS)
    (condition,) = policy["matchConditions"]
    assert condition["expression"].startswith("request.operation == 'CREATE' || !(")
