"""Yield notices about where Kueue falls short of a promise, and advice on its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.nodes.devices import REPLICAS
from fairway.engines.kubernetes.policy.admission_policies import (
    EXEMPT,
    GATED,
    QUEUE,
    QUEUE_NAME,
    STRAYS,
)
from fairway.engines.kubernetes.policy.existing import FINISHED_POD, GPU_CLAIMS
from fairway.engines.kubernetes.policy.users import can_assign_queues
from fairway.model.fleet import Capacity, Fleet, KubernetesPlace
from fairway.model.team import Team
from fairway.model.workload_kinds import JOB, POD, WORKLOAD_KINDS
from fairway.policy.objects import Advice, FoundPolicy, GpuWorkload, Notice, ObjectKey

MEMBER_ROLE_SETTING: Final = "rbac.fairway-member"
CONFIGURATION: Final = "kueue.configuration"
VERSION: Final = "kueue.version"
STRATEGIES: Final = "kueue.fairSharing.preemptionStrategies"
QUOTA_CHECK: Final = "kueue.resources.quotaCheckStrategy"
FRAMEWORKS: Final = "kueue.integrations.frameworks"
GATES: Final = "kueue.featureGates"
MANAGES_ALL: Final = "kueue.manageJobsWithoutQueueName"
GROUPS: Final = "api.groups"
"""The setting for the API groups of workloads that the API server has, by commas."""
SELECTOR: Final = "kueue.managedJobsNamespaceSelector"
UNSELECTED: Final = "kueue.unselectedNamespaces"
"""Namespaces whose jobs Kueue leaves alone, whatever their queue."""
NOT_READABLE: Final = "not known"
UNDECLARED: Final = "devices.undeclared/"
"""Prefix of a pool: the slices that its devices are by their nodes' labels, and not in the pool."""
UNCLAIMED: Final = "devices.unclaimed"
"""The setting for devices of nodes that look like GPUs and belong to no pool."""

NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""The label that the API server gives every namespace."""
FILE: Final = "Kueue's configuration"
RESTART: Final = "kubectl -n kueue-system rollout restart deployment/kueue-controller-manager"
_EXCLUDED: Final = "cpu, memory, ephemeral-storage, hugepages-"
_WANTED_STRATEGIES: Final = "LessThanOrEqualToFinalShare, LessThanInitialShare"


def notices(
    fleet: Fleet, teams: Sequence[Team], capped: Sequence[Team], found: FoundPolicy
) -> Iterator[Notice]:
    """Yield the notices about `teams`, those with grants on this cluster.

    Low jobs of the `capped` ones count against their team's ceiling.
    """
    if not teams:
        return
    yield from _promise_notices(teams, capped, found)
    yield from _pool_notices(fleet, teams, found)
    yield from _cluster_notices(teams, found)


def _promise_notices(teams: Sequence[Team], capped: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    limited = [t.name for t in teams if t.limits.user_gpus is not None]
    if limited and can_assign_queues(found):
        yield Notice(
            "PriorityWithinUsers",
            f"{', '.join(limited)} counts by user: an urgent job preempts only jobs of its own user",
            "remove the limit per user where urgent jobs must preempt all jobs of the team",
            promise="priority",
        )
    elif limited:
        yield Notice(
            "UserLimitPerJobOnly",
            f"Kueue counts teams, not users: of {', '.join(limited)} a single job over the limit of a "
            "user is refused, several small ones together are not",
            "add a child team for users who need a limit of their own; Kubernetes 1.36 can count users",
            promise="limits",
        )
    if len(teams) > 1:
        yield Notice(
            "VictimsInKueuesOrder",
            "Kueue takes back by priority and the latest start, whole jobs at a time: at times it takes more "
            "GPUs than the least that would do, never from a team within its guarantee",
            "jobs of few sizes in one pool keep it exact",
            promise="least-harm",
        )
    if capped:
        yield Notice(
            "LowWithinGuarantee",
            f"low-priority jobs of {', '.join(t.name for t in capped)} count against its ceiling, so "
            "within its "
            "guarantee they keep their place against teams that only borrow",
            "leave borrow out where low jobs shall always yield",
            promise="low-only-idle",
        )


def _pool_notices(fleet: Fleet, teams: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    used = {g.supply for t in teams for g in t.grants}
    for pool in fleet.pools:
        if shared := found.settings.get(f"{UNDECLARED}{pool.name}"):
            yield Notice(
                "SharingNotDeclared",
                f"pods share the GPUs of nodes of pool {pool.name} ({shared}, by the label {REPLICAS}), and "
                f"the pool has {', '.join(pool.slices) or 'whole GPUs'}: reports and charges count each "
                "device as its part of a GPU, while guarantees and limits count it as one",
                f"write  slices: [{shared.partition(',')[0]}]  in pool {pool.name} and in grants, with the "
                "name of its devices:  kubernetes: { resource: NAME }; a pool for each kind of node",
            )
        if not isinstance(pool.place, KubernetesPlace) or not used & set(pool.supplies):
            continue
        supplies = [s for s in pool.supplies if f"capacity.{s}" in found.settings]
        empty = [s for s in supplies if found.settings[f"capacity.{s}"] == "0" and pool.gpus is None]
        if empty:
            yield Notice(
                "NothingToLend",
                f"no node of pool {pool.name} has {' or '.join(str(s) for s in empty)} now: beyond "
                "guarantees, none of it can be borrowed",
                f"say how many GPUs it has when it is full: gpus, in pool {pool.name}; then plan again",
                promise="borrow",
            )
        if supplies and pool.capacity is Capacity.SPOT and not pool.place.taints:
            yield Notice(
                "SpotWithoutTaint",
                f"pool {pool.name} is spot and names no taint: any job may be put there, whether it "
                "tolerates loss or not",
                "taint its nodes and set:  kubernetes: { taints: [fairway/spot=true:NoSchedule] }",
                promise="tolerance",
            )


def existing_notices(
    inside: Sequence[GpuWorkload], outside: Sequence[GpuWorkload], found: FoundPolicy, *, leaves: bool
) -> Iterator[Notice]:
    """Yield the notices about GPU workloads from before Fairway, in teams' namespaces and outside them."""
    first = ObjectKey(kinds.ADMISSION_POLICY.name, STRAYS) not in {o.key for o in found.objects}
    seen = {(w.namespace, w.kind, w.name) for w in found.workloads}
    if leaves:
        new = [w for w in inside if (w.namespace, w.kind, w.name) in seen]
        if new:
            yield Notice(
                "ExistingWorkloadsStay",
                f"GPU workloads of teams that no queue counts stay as they are: {name_workloads(new)}",
                "their pods restart as before; to count one, add a queue and restart it:  kubectl label KIND "
                f"NAME {QUEUE_NAME}={QUEUE}; to reject them instead, write in the fleet file, at the "
                "cluster:  existing_workloads: refuse",
                promise="unharmed",
            )
        if first and outside:
            names = sorted({w.namespace for w in outside})
            yield Notice(
                "NamespacesLeftAlone",
                f"GPU pods outside teams continue as before in {', '.join(names)}: {name_workloads(outside)}",
                "add teams for them to count them; to refuse them, write in the fleet file, at the "
                "cluster:  existing_workloads: refuse",
                promise="unharmed",
            )
        return
    if inside and can_queue_pods(found):
        yield Notice(
            "ExistingWorkloadsQueued",
            "running pods stay, and the next GPU pod of each of these waits in its team's queue: "
            f"{name_workloads(inside)}",
            f"to choose the queue, label them:  kubectl label KIND NAME {QUEUE_NAME}={QUEUE}; to leave them "
            "alone, remove  existing_workloads: refuse  from the fleet file",
        )


def rejected_workloads(
    inside: Sequence[GpuWorkload], outside: Sequence[GpuWorkload], found: FoundPolicy
) -> Notice | None:
    """Return what to say of workloads that are not left alone, if their next pod would be rejected."""
    first = ObjectKey(kinds.ADMISSION_POLICY.name, STRAYS) not in {o.key for o in found.objects}
    rejected = [*(() if can_queue_pods(found) else inside), *(outside if first else ())]
    if not (named := name_workloads(rejected)):
        return None
    return Notice(
        "ExistingWorkloadsRefused",
        f"running pods stay, and the next GPU pod of each of these would be rejected: {named}",
        "to leave them alone, remove  existing_workloads: refuse  from the fleet file. To have them counted, "
        "add a team for their namespace and enable the integrations of Kueue that the plan names; then "
        f"their label is  {QUEUE_NAME}: {QUEUE}.  Or apply with --force",
    )


def can_queue_pods(found: FoundPolicy) -> bool:
    """Return whether GPU pods of any kind get a queue where they are created."""
    return can_assign_queues(found) and POD.framework in frameworks(found)


def name_workloads(workloads: Sequence[GpuWorkload]) -> str:
    """Name what people created, with the GPUs that it holds and since when."""
    gpus: dict[str, int] = {}
    since: dict[str, str] = {}
    for w in workloads:
        if w.since or w.kind not in {"Job", FINISHED_POD}:
            gpus[str(w)] = gpus.get(str(w), 0) + w.gpus
            since[str(w)] = min(s for s in (since.get(str(w)) or w.since, w.since or since.get(str(w), "")))
    return ", ".join(
        f"{name} ({held} {'GPU' if held == 1 else 'GPUs'} since {since[name][:16].replace('T', ' ')})"
        if since[name]
        else f"{name} (no pods now)"
        for name, held in gpus.items()
    )


def _cluster_notices(teams: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    if ObjectKey(kinds.ADMISSION_POLICY.name, STRAYS) not in {o.key for o in found.objects}:
        yield Notice(
            "GpuPodsOnlyInTeams",
            "GPU pods in namespaces outside teams that used none before will be refused",
            f"for drivers and monitoring:  kubectl label namespace NAMESPACE {EXEMPT}=true",
            promise="native",
        )
    if unclaimed := found.settings.get(UNCLAIMED):
        yield Notice(
            "DevicesOfNoPool",
            f"nodes have {unclaimed}, which belong to no pool: jobs of teams that request them are refused",
            "add a pool for them:  kubernetes: { resource: NAME }",
            promise="unharmed",
        )
    if found.settings.get(GPU_CLAIMS) == "yes":
        yield Notice(
            "ClaimsRefused",
            "GPUs can be had by resource claims (DRA) here, which no queue counts: in teams' namespaces new "
            "jobs and pods with claims are refused",
            "to count them, name the class in a pool:  kubernetes: { device_class: NAME }; claims from "
            "before are left alone",
            promise="unharmed",
        )
    if unselected := _unselected(teams, found):
        yield Notice(
            "NamespacesNotSelected",
            f"Kueue leaves alone the jobs of {', '.join(unselected)}: its managedJobsNamespaceSelector does "
            "not select the namespace, so GPU jobs there wait forever",
            "give these namespaces the labels that it asks for, or widen it in Kueue's configuration:  "
            "kubectl -n kueue-system edit configmap kueue-manager-config",
            promise="guarantee",
        )
    if not can_assign_queues(found):
        yield Notice(
            "JobsWithoutGpusWait",
            "Kueue puts every job of a team's namespace into its queue here, and one without GPUs "
            "never starts there",
            "run jobs without GPUs in another namespace; from Kubernetes 1.36 on only GPU jobs are put "
            "into queues",
        )
    if found.settings.get(CONFIGURATION, NOT_READABLE) == NOT_READABLE:
        yield Notice(
            "KueueConfigurationNotKnown",
            "Kueue's configuration cannot be read: whether shares are kept and jobs with cpu requests start "
            "is not known",
            "let Fairway read it:  kubectl apply -f deploy/kubernetes/rights.yaml",
        )
    if found.settings.get(MEMBER_ROLE_SETTING) == "missing" and any(t.members for t in teams):
        yield Notice(
            "MemberRoleMissing",
            "ClusterRole fairway-member does not exist: members have no rights",
            "create it:  kubectl apply -f deploy/kubernetes/rights.yaml",
            promise="access",
        )


def _unselected(teams: Sequence[Team], found: FoundPolicy) -> list[str]:
    """Return the teams whose namespace Kueue leaves alone, or will once it is made."""
    selector = json.loads(found.settings.get(SELECTOR) or "null")
    existing = {o.key.name for o in found.objects if o.key.kind == kinds.NAMESPACE.name}
    left_alone = set((found.settings.get(UNSELECTED) or "").split(","))
    return [
        team.name
        for team in teams
        if (team.name in left_alone)
        or (
            team.name not in existing
            and not selects(selector, {NAME_LABEL: team.name, kinds.TEAM: team.name})
        )
    ]


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects something with these labels; without one everything is."""
    wanted = (selector or {}).get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for term in (selector or {}).get("matchExpressions") or ():
        value, values = labels.get(term["key"]), term.get("values") or ()
        match term["operator"]:
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return True


def settings_of(configuration: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the relevant part of Kueue's configuration as text; `not known` where it cannot be read."""
    if configuration is None:
        return {CONFIGURATION: NOT_READABLE}
    fair = configuration.get("fairSharing")
    resources = configuration.get("resources") or {}
    gates = configuration.get("featureGates") or {}
    return {
        CONFIGURATION: "read",
        STRATEGIES: _strategies(fair),
        QUOTA_CHECK: _quota_check(resources),
        FRAMEWORKS: ", ".join((configuration.get("integrations") or {}).get("frameworks") or ["batch/job"]),
        GATES: ", ".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items())),
        MANAGES_ALL: str(bool(configuration.get("manageJobsWithoutQueueName"))).lower(),
        SELECTOR: json.dumps(configuration.get("managedJobsNamespaceSelector"), sort_keys=True),
    }


def frameworks(found: FoundPolicy) -> tuple[str, ...]:
    """Return the integrations that Kueue has enabled: those of its configuration, and what they imply."""
    names = found.settings.get(FRAMEWORKS, "batch/job").split(", ")
    return tuple(dict.fromkeys([*names, *(["pod"] if not set(names).isdisjoint(GATED) else [])]))


def _strategies(fair: object) -> str:
    if not isinstance(fair, Mapping) or fair.get("enable") is False:
        return ""
    return ", ".join(fair.get("preemptionStrategies") or ()) or _WANTED_STRATEGIES  # Kueue's own default


def _quota_check(resources: Mapping[str, Any]) -> str:
    excluded = resources.get("excludeResourcePrefixes") or ()
    if {"cpu", "memory"} <= set(excluded):
        return f"excludeResourcePrefixes: {', '.join(excluded)}"
    return str(resources.get("quotaCheckStrategy") or "")


def advise(found: FoundPolicy) -> Iterator[Advice]:
    """Yield the lines that must change; none where the configuration cannot be read, see `notices`."""
    settings = found.settings
    if settings.get(CONFIGURATION, NOT_READABLE) == NOT_READABLE:
        return
    if settings[STRATEGIES] != _WANTED_STRATEGIES:
        line = f"fairSharing: {{preemptionStrategies: [{_WANTED_STRATEGIES}]}}"
        why = "else shares are not kept, and what a team lends comes back by order of arrival only"
        yield _advice(settings, STRATEGIES, line, why)
    if not settings[QUOTA_CHECK].startswith("excludeResourcePrefixes"):
        line = f"resources: {{excludeResourcePrefixes: [{_EXCLUDED}]}}"
        why = "else a job that asks for cpu or memory never starts: only GPUs have quota"
        if settings[QUOTA_CHECK].startswith("IgnoreUndeclared"):
            why = (
                "instead of quotaCheckStrategy: IgnoreUndeclared, by which a workload with pods without GPUs "
                "(a Ray head) never starts, and GPUs without quota are used uncounted"
            )
        yield _advice(settings, QUOTA_CHECK, line, why)
    yield from _framework_advice(found)
    if "TopologyAwareScheduling=false" in settings[GATES]:
        line = "featureGates: {TopologyAwareScheduling: true}"
        why = "else Kueue gives out quota and not places: a guaranteed job may wait in the scheduler"
        yield _advice(settings, GATES, line, why)
    if "ElasticJobsViaWorkloadSlices=false" in settings[GATES]:
        line = "featureGates: {ElasticJobsViaWorkloadSlices: true}"
        why = "else a Ray cluster that grows is stopped and started again with its new size"
        yield _advice(settings, GATES, line, why)


def _framework_advice(found: FoundPolicy) -> Iterator[Advice]:
    """Yield the integrations that are missing: of Jobs, and where queues can be assigned, of all kinds."""
    settings = found.settings
    enabled = settings[FRAMEWORKS].split(", ")
    groups = {"", "batch", "apps", *settings.get(GROUPS, "").split(",")}
    wanted = [JOB.framework]
    if can_assign_queues(found):
        wanted = [k.framework for k in WORKLOAD_KINDS if k.framework and k.group in groups]
    if set(wanted) <= set(frameworks(found)):
        return
    if wanted != [JOB.framework] and settings.get(MANAGES_ALL) == "true":
        line = "manageJobsWithoutQueueName: false"
        why = (
            "before the integrations: else Kueue holds every pod and Deployment without a queue, also those "
            "without GPUs. Fairway gives what asks for GPUs a queue, and rejects GPU pods that have none"
        )
        yield Advice(FILE, line, "manageJobsWithoutQueueName: true", why, RESTART)
    line = f"integrations: {{frameworks: [{', '.join(dict.fromkeys([*enabled, *sorted(wanted)]))}]}}"
    why = "else Kueue does not queue GPU pods of these kinds, and they are rejected in teams' namespaces"
    if JOB.framework not in enabled:
        why = "else Kueue does not govern Jobs at all"
    yield _advice(settings, FRAMEWORKS, line, why)


def _advice(settings: Mapping[str, str], setting: str, line: str, why: str) -> Advice:
    current = f"{setting.removeprefix('kueue.')}: {settings[setting]}" if settings[setting] else ""
    return Advice(FILE, line, current, why, RESTART)
