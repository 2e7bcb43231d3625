"""Keep the site's queues for jobs without GPUs. Pure.

A team's ClusterQueue has quota of GPUs only, and is for the team's namespace. Where it takes the name of one
that the site made, jobs without GPUs that used the site's would wait forever or lose its limits, and without
a queue they wait where Kueue holds such jobs (`manageJobsWithoutQueueName`). So the site's LocalQueues go on,
in front of a copy of the ClusterQueue without quota of GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import TEAM, Json
from fairway.engines.kubernetes.nodes.devices import looks_like_gpu
from fairway.engines.kubernetes.policy.fields import Fields, flatten, unflatten
from fairway.model.names import TeamName
from fairway.policy.objects import FoundObject, FoundPolicy, Notice, ObjectKey, Value, WantedObject

_TARGET: Final = "spec.clusterQueue"
_SELECTED_TEAM: Final = f"spec.namespaceSelector.matchLabels[{TEAM}]"


def site_queue(team: str) -> str:
    """Return the ClusterQueue for jobs without GPUs that used the site's queue of a team's name."""
    return f"{team}.site"


def site_queues(
    teams: Collection[TeamName], found: FoundPolicy, resources: Collection[str], own: Collection[ObjectKey]
) -> Iterator[WantedObject]:
    """Yield the site's LocalQueues to ClusterQueues that become a team's, and the copies of those.

    `resources` are the pools' device resources, `own` the LocalQueues that teams have anyway.
    """
    objects = {o.key: o for o in found.objects}
    for team in sorted(teams):
        copy = ObjectKey(kinds.CLUSTER_QUEUE.name, site_queue(team))
        have = objects.get(copy)
        source = objects.get(ObjectKey(kinds.CLUSTER_QUEUE.name, team))
        # An adopted queue is the site's until it is written; then it selects the team's own namespace.
        is_sites = source is not None and source.fields.get(_SELECTED_TEAM) != team
        local = [
            o
            for o in found.objects
            if o.key.kind == kinds.LOCAL_QUEUE.name
            and o.key not in own
            and _goes_on(o, team, teams, is_sites=is_sites, has_copy=have is not None)
        ]
        if not local:
            continue
        if have is not None and have.ours:
            fields = dict(have.fields)
        elif source is not None and is_sites:
            fields = _without_devices(source.fields, resources)
        else:
            continue
        yield WantedObject(copy, fields, team=team)
        for queue in local:
            namespace = ObjectKey(kinds.NAMESPACE.name, queue.key.name.partition("/")[0])
            yield WantedObject(
                queue.key, {**queue.fields, _TARGET: copy.name}, (namespace, copy), queue.team or team
            )


def _goes_on(
    queue: FoundObject, team: TeamName, teams: Collection[str], *, is_sites: bool, has_copy: bool
) -> bool:
    """Return whether a LocalQueue is the site's, and leads to this team's queue or to its copy."""
    target = queue.fields.get(_TARGET)
    if target == site_queue(team):
        return queue.ours
    return (
        target == team
        and queue.key.name.partition("/")[0] in teams
        and (is_sites or (has_copy and queue.ours))
    )


def _without_devices(fields: Mapping[str, Value], resources: Collection[str]) -> Fields:
    body = unflatten(fields)
    spec = body.get("spec", {})
    in_cohort = "cohortName" in spec
    for group in spec.get("resourceGroups", ()):
        for flavor in group["flavors"]:
            flavor["resources"] = [
                _none(r["name"], in_cohort) if r["name"] in resources or looks_like_gpu(r["name"]) else r
                for r in flavor["resources"]
            ]
    return flatten(kinds.CLUSTER_QUEUE, body)


def _none(resource: str, in_cohort: bool) -> Json:
    """Return a quota of nothing: a resource without any would not be counted where Kueue ignores those."""
    limit = {"borrowingLimit": 0} if in_cohort else {}  # Kueue refuses it outside a cohort
    return {"name": resource, "nominalQuota": 0, **limit}


def site_queue_notices(wanted: Collection[WantedObject], found: FoundPolicy) -> Iterator[Notice]:
    """Yield the notice about the site's queues that from now on are for jobs without GPUs."""
    before = {o.key: o.fields.get(_TARGET) for o in found.objects}
    moved = sorted(
        o.key.name
        for o in wanted
        if o.key.kind == kinds.LOCAL_QUEUE.name and before.get(o.key) != o.fields[_TARGET]
    )
    if moved:
        yield Notice(
            "SiteQueuesWithoutGpus",
            f"jobs without GPUs continue as before in LocalQueue {', '.join(moved)}; GPU jobs that name "
            "it get "
            "their team's queue instead",
            "nothing to do: GPU jobs that wait or run there already stay",
            promise="unharmed",
        )
