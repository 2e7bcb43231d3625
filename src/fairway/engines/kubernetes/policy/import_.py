"""Import a hand-made Kueue policy as a fleet. Pure.

A ClusterQueue becomes a team, named after the namespace of its LocalQueue; a Cohort with teams in it becomes
a parent team, unless it is the outermost: that is the fleet. What a fleet file cannot express becomes a
remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.nodes.devices import (
    MIG_PREFIX,
    PRODUCT,
    is_known_gpu,
    slice_of,
    supply_of,
    whole_number,
)
from fairway.engines.kubernetes.policy.advice import name_workloads
from fairway.engines.kubernetes.policy.device_classes import gpu_classes
from fairway.engines.kubernetes.policy.fields import format_taint, unflatten
from fairway.engines.kubernetes.policy.flavor_nodes import FLAVOR as FLAVOR_PRODUCT
from fairway.engines.kubernetes.policy.flavor_nodes import FLAVOR_REPLICAS, UNCOUNTED_REPLICAS
from fairway.engines.kubernetes.policy.flavors import HOSTNAME
from fairway.engines.kubernetes.policy.intervention.snapshot import LOW_SUFFIX
from fairway.engines.kubernetes.policy.mutating_policies import ANYWHERE
from fairway.engines.kubernetes.policy.read import KUEUE_SETTING, NOT_INSTALLED
from fairway.engines.port import ImportedPolicy, Remark
from fairway.model.fleet import Capacity, Fleet, KubernetesPlace, Pool
from fairway.model.gpu import GpuType, replicas_of
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import (
    PoolName,
    PriorityName,
    SliceName,
    TeamName,
    UserName,
    is_name,
    is_system_user,
    is_team_name,
)
from fairway.model.team import DEFAULT_PRIORITIES, Grant, Limits, Priority, Supply, Team
from fairway.policy.objects import FoundPolicy, GpuWorkload

_MEMBER_ROLES: Final = frozenset({"edit", "admin", "fairway-member"})
"""Users with one of these roles in a namespace are members."""

_DEFAULT_RANK: Final = 50
"""The rank of the default priority, unless a priority class would get a rank below 1."""


@dataclass(slots=True)
class _QuotaNode:
    """A Cohort or ClusterQueue that becomes a team."""

    name: str
    body: Json
    parent: str = ""
    queue: bool = True
    nominal: dict[Supply, int] = field(default_factory=dict)
    borrowing: dict[Supply, int | None] = field(default_factory=dict)


def import_policy(
    fleet: Fleet, found: FoundPolicy, products: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> ImportedPolicy:
    """Import teams, pools and priorities of the one cluster in `fleet`; `products` are its nodes' GPUs."""
    importer = _ClusterImport(fleet, found, products)
    return ImportedPolicy(importer.fleet(), tuple(importer.remarks))


class _ClusterImport:
    """One import, with the lookups that every part of it needs."""

    def __init__(self, fleet: Fleet, found: FoundPolicy, products: Mapping[str, Sequence[str]]) -> None:
        self._fleet = fleet
        self._settings = found.settings
        self._workloads = found.workloads
        self.remarks: list[Remark] = []
        self._bodies: dict[str, dict[str, Json]] = {}
        for o in found.objects:
            self._bodies.setdefault(o.key.kind, {})[o.key.name] = unflatten(o.fields)
        self._pools: dict[str, Pool] = {}
        """By flavor."""
        self._expressed_quotas: set[tuple[str, str]] = set()
        """ResourceQuotas and their resources that are in the fleet."""
        self._read_pools()
        known = replace(fleet, pools=(*fleet.pools, *self._pools.values()))
        replicas = {
            key.removeprefix(UNCOUNTED_REPLICAS): value
            for key, value in found.settings.items()
            if key.startswith(UNCOUNTED_REPLICAS)
        }
        self._uncounted, remarks = pools_of_nodes(products, known, replicas)
        """Pools that no flavor counts."""
        self.remarks += remarks
        if found.settings.get(KUEUE_SETTING) == NOT_INSTALLED:
            self.remark(
                "Kueue", "is not installed, so there are no queues to make teams of: install it first"
            )

    def _all(self, kind: kinds.ObjectKind) -> Mapping[str, Json]:
        return self._bodies.get(kind.name, {})

    def remark(self, about: str, text: str) -> None:
        self.remarks.append(Remark(about, text))

    def fleet(self) -> Fleet:
        priorities = self._priorities()
        teams = tuple(self._teams(tuple(p.name for p in priorities)))
        self._remark_on_quotas()
        self._remark_on_namespaces({str(team.name) for team in teams})
        self._remark_on_workloads({str(team.name) for team in teams})
        default = next(p.name for p in priorities if p.default)
        existing = {p.name for p in self._fleet.pools}
        pools = (
            *self._fleet.pools,
            *(p for p in self._pools.values() if p.name not in existing),
            *self._uncounted,
        )
        order = {supply: i for i, pool in enumerate(pools) for supply in pool.supplies}
        teams = tuple(
            replace(t, grants=tuple(sorted(t.grants, key=lambda g: order[g.supply]))) for t in teams
        )
        if self._all(kinds.PRIORITY_CLASS) and default not in self._all(kinds.PRIORITY_CLASS):
            self.remark(default, "what a job without a priority class gets")
        return replace(self._fleet, pools=pools, teams=teams, priorities=priorities)

    # pools

    def _read_pools(self) -> None:
        resources: dict[str, list[str]] = {}
        classes = gpu_classes(self._settings)
        for body in (*self._all(kinds.CLUSTER_QUEUE).values(), *self._all(kinds.COHORT).values()):
            for group in _groups(body):
                for flavor in group["flavors"]:
                    names = resources.setdefault(flavor["name"], [])
                    names += [r["name"] for r in flavor.get("resources", ()) if r["name"] not in names]
        for name, body in self._all(kinds.FLAVOR).items():
            devices = [r for r in resources.get(name, ()) if is_known_gpu(r) or r in classes]
            if name in resources and not devices and name != ANYWHERE:
                self.remark(
                    f"ResourceFlavor {name}", f"counts {', '.join(resources[name])}, no GPUs: left out"
                )
            if devices:
                topology = self._all(kinds.TOPOLOGY).get(str(body["spec"].get("topologyName", "")), {})
                product = self._settings.get(f"{FLAVOR_PRODUCT}{name}", "")
                replicas = self._settings.get(f"{FLAVOR_REPLICAS}{name}", "")
                pool, remarks = pool_of(
                    name, body, topology, devices, self._fleet, product, replicas, classes
                )
                self._pools[name] = pool
                self.remarks += remarks

    # the tree

    def _teams(self, priorities: tuple[PriorityName, ...]) -> Iterator[Team]:
        nodes = self._nodes()
        children: dict[str, list[_QuotaNode]] = {}
        for node in nodes.values():
            children.setdefault(node.parent, []).append(node)
        taken: set[str] = set()
        for node in children.get("", ()):
            yield from self._team(node, None, children, priorities, taken)
        yield from self._ceilings_only(priorities, taken)

    def _nodes(self) -> dict[str, _QuotaNode]:
        """Return cohorts and queues by the name of the team they become, with their own quota."""
        cohorts = {name: body.get("spec", {}) for name, body in self._all(kinds.COHORT).items()}
        queues = self._all(kinds.CLUSTER_QUEUE)
        for body in queues.values():  # a queue may name a cohort without a Cohort object
            if cohort := str(body["spec"].get("cohortName", "")):
                cohorts.setdefault(cohort, {})
        outermost = {name for name, spec in cohorts.items() if not spec.get("parentName")}
        nodes: dict[str, _QuotaNode] = {}
        for name, spec in cohorts.items():
            if _is_internal(name, queues):
                continue
            if name not in outermost:
                parent = str(spec.get("parentName", ""))
                node = _QuotaNode(name, {"spec": spec}, "" if parent in outermost else parent, queue=False)
                self._read_quota(node, in_cohort=True)
                nodes[name] = node
            elif _groups({"spec": spec}):
                self.remark(
                    f"Cohort {name}", "its own quota is what nobody is guaranteed: Fairway works it out"
                )
        for name, body in queues.items():
            if _is_internal(name, queues):
                continue
            self._read_queue(name, body, nodes, outermost)
        return nodes

    def _read_queue(self, name: str, body: Json, nodes: dict[str, _QuotaNode], outermost: set[str]) -> None:
        cohort = str(body["spec"].get("cohortName", ""))
        node = _QuotaNode(name, body, "" if cohort in outermost else cohort)
        self._read_quota(node, in_cohort=bool(cohort))
        self._remark_on(name, body)
        parent = nodes.get(cohort)
        if parent is not None and parent.name == name:  # a team's own queue in its own cohort
            for supply, nominal in node.nominal.items():
                parent.nominal[supply] = parent.nominal.get(supply, 0) + nominal
                parent.borrowing.setdefault(supply, None)
            parent.queue = True
        else:
            nodes[name] = node

    def _read_quota(self, node: _QuotaNode, in_cohort: bool) -> None:
        for group in _groups(node.body):
            for flavor in group["flavors"]:
                pool = self._pools.get(flavor["name"])
                for quota in flavor.get("resources", ()) if pool else ():
                    supply = _supply(pool, quota["name"])
                    if supply is None:
                        continue
                    limit = quota.get("borrowingLimit")
                    node.nominal[supply] = whole_number(str(quota.get("nominalQuota", 0)))
                    node.borrowing[supply] = (
                        0 if not in_cohort else None if limit is None else whole_number(str(limit))
                    )
                    if "lendingLimit" in quota:
                        self.remark(
                            f"{node.name}",
                            f"lendingLimit on {supply}: Fairway lets other teams borrow all idle GPUs",
                        )

    def _team(
        self,
        node: _QuotaNode,
        parent: TeamName | None,
        children: Mapping[str, Sequence[_QuotaNode]],
        priorities: tuple[PriorityName, ...],
        taken: set[str],
    ) -> Iterator[Team]:
        node_children = children.get(node.name, ())
        name = self._team_name(node, taken)
        taken.add(name)
        weight = node.body["spec"].get("fairSharing", {}).get("weight", 1)
        share = int(weight) if str(weight).isdigit() and int(weight) > 0 else 1
        if str(share) != str(weight):
            self.remark(node.name, f"weight {weight} is no whole number above 0: share {share}")
        namespace = self._all(kinds.NAMESPACE).get(name, {})
        annotations = namespace.get("metadata", {}).get("annotations", {})
        team = Team(
            name=TeamName(name),
            parent=parent,
            share=share,
            grants=tuple(self._grants(node, children)),
            limits=_limits(annotations),
            priorities=_allowed_priorities(annotations, priorities),
            members=self._members(name),
            draining=self._is_stopped(name, node),
        )
        yield team
        namespaces = self._namespaces_of(node)
        for inside in namespaces if len(namespaces) > 1 else ():
            if inside not in taken and is_team_name(inside):
                taken.add(inside)
                yield self._team_inside(team, inside, node)
        for child in node_children:
            yield from self._team(child, TeamName(name), children, priorities, taken)

    def _team_inside(self, parent: Team, namespace: str, node: _QuotaNode) -> Team:
        """Return the team of a namespace that shares a queue: it has the queue's quota with the others."""
        ceilings = dict(self._quota_ceilings(namespace))
        grants = (Grant(g.supply, 0, ceilings.get(g.supply)) for g in parent.grants)
        return Team(
            name=TeamName(namespace),
            parent=parent.name,
            grants=tuple(g for g in grants if g.ceiling != 0),
            limits=parent.limits,
            priorities=parent.priorities,
            members=self._members(namespace),
            draining=parent.draining or self._is_stopped(namespace, node),
        )

    def _namespaces_of(self, node: _QuotaNode) -> list[str]:
        """Return the namespaces whose LocalQueues point to a ClusterQueue."""
        local_queues = self._all(kinds.LOCAL_QUEUE).items()
        return sorted({key.partition("/")[0] for key, q in local_queues if _cluster_queue(q) == node.name})

    def _grants(self, node: _QuotaNode, children: Mapping[str, Sequence[_QuotaNode]]) -> Iterator[Grant]:
        of_children = (s for child in children.get(node.name, ()) for s in child.nominal)
        for supply in dict.fromkeys((*node.nominal, *of_children)):
            guarantee = _guarantee(node, supply, children)
            borrow = node.borrowing.get(supply)
            if guarantee or borrow != 0:
                yield Grant(supply, guarantee, borrow)

    def _team_name(self, node: _QuotaNode, taken: set[str]) -> str:
        """Return the namespace whose LocalQueue points there, because Fairway gives both one name."""
        namespaces = self._namespaces_of(node)
        rename = node.queue and node.name not in namespaces and len(namespaces) == 1
        name = namespaces[0] if rename else node.name
        if len(namespaces) > 1:
            self.remark(
                f"ClusterQueue {node.name}",
                f"namespaces {', '.join(namespaces)} share it: each is a team inside {node.name}",
            )
        elif namespaces and namespaces[0] != node.name:
            self.remark(
                f"ClusterQueue {node.name}",
                f"becomes team {name}, with a queue of that name: move its jobs, then remove {node.name}",
            )
        plain = _plain(name)
        while plain in taken:
            plain = f"{plain[:38]}-2"
        return plain

    def _ceilings_only(self, priorities: tuple[PriorityName, ...], taken: set[str]) -> Iterator[Team]:
        """Yield a team without a guarantee for each namespace that only a ResourceQuota limits."""
        for namespace in dict.fromkeys(key.partition("/")[0] for key in self._all(kinds.RESOURCE_QUOTA)):
            if namespace in taken or not is_team_name(namespace):
                continue
            ceilings = dict(self._quota_ceilings(namespace))
            grants = tuple(Grant(supply, 0, ceiling) for supply, ceiling in ceilings.items() if ceiling)
            if grants:
                taken.add(namespace)
                self.remark(
                    f"ResourceQuota, team {namespace}",
                    "a ceiling without a guarantee; raise the guarantee as is meant",
                )
                members = self._members(namespace)
                yield Team(TeamName(namespace), grants=grants, priorities=priorities, members=members)

    def _quota_ceilings(self, namespace: str) -> Iterator[tuple[Supply, int]]:
        """Yield the most of each supply that a namespace's ResourceQuotas allow: the lowest of several."""
        lowest: dict[Supply, int] = {}
        for key, body in self._all(kinds.RESOURCE_QUOTA).items():
            if key.partition("/")[0] != namespace:
                continue
            for name, limit in body["spec"].get("hard", {}).items():
                resource = name.removeprefix("requests.")
                if resource == name or not is_known_gpu(resource):
                    continue
                pools = self._pools_with(resource)
                for pool in pools:
                    if (supply := _supply(pool, resource)) is not None:
                        count = whole_number(str(limit))
                        lowest[supply] = min(count, lowest.get(supply, count))
                if len(pools) == 1:
                    self._expressed_quotas.add((key, name))
                elif pools:
                    self.remark(
                        f"ResourceQuota {key}, team {namespace}",
                        f"{name}={limit} counts the GPUs of {', '.join(p.name for p in pools)} together, "
                        "which has no word here: it became the most of each, and the quota stays as it is",
                    )
                    self._expressed_quotas.add((key, name))
        yield from lowest.items()

    def _remark_on_quotas(self) -> None:
        """Name what ResourceQuotas limit and the fleet does not say."""
        for key, body in self._all(kinds.RESOURCE_QUOTA).items():
            hard = body["spec"].get("hard", {}).items()
            others = [f"{name}={v}" for name, v in hard if (key, name) not in self._expressed_quotas]
            if others:
                namespace = key.partition("/")[0]
                self.remark(
                    f"ResourceQuota {key}, team {namespace}",
                    f"{' '.join(sorted(others))} has no word here and stays as it is",
                )

    def _remark_on_namespaces(self, teams: set[str]) -> None:
        """Name the namespaces with queues or GPU quota that are no team's."""
        queues = {key.partition("/")[0] for key in self._all(kinds.LOCAL_QUEUE)}
        quotas = {
            key.partition("/")[0]
            for key, body in self._all(kinds.RESOURCE_QUOTA).items()
            if any(is_known_gpu(name.removeprefix("requests.")) for name in body["spec"].get("hard", {}))
        }
        for namespace in sorted((queues | quotas) - teams):
            self.remark(
                f"Namespace {namespace}",
                "has a queue or GPU quota and is no team here: the plan names what becomes of its GPU work",
            )

    def _remark_on_workloads(self, teams: set[str]) -> None:
        """Name the GPU workloads that no queue counts, by what people created."""
        by_namespace: dict[str, list[GpuWorkload]] = {}
        for workload in self._workloads:
            by_namespace.setdefault(workload.namespace, []).append(workload)
        for namespace, workloads in sorted(by_namespace.items()):
            if not (named := name_workloads(workloads)):
                continue
            if namespace in teams:
                text = f"no queue counts {named}: they are left alone, and charged to the team"
            else:
                text = f"is no team here, and no queue counts {named}: add a team for it, or it is left alone"
            self.remark(f"Namespace {namespace}", text)

    def _pools_with(self, resource: str) -> list[Pool]:
        pools = {p.name: p for p in (*self._fleet.pools, *self._pools.values(), *self._uncounted)}.values()
        return [p for p in pools if _supply(p, resource) is not None]

    # members, priorities, stopped queues

    def _members(self, namespace: str) -> tuple[UserName, ...]:
        members: dict[UserName, None] = {}
        for key, body in self._all(kinds.ROLE_BINDING).items():
            if key.partition("/")[0] != namespace:
                continue
            role = str(body.get("roleRef", {}).get("name", ""))
            for subject in body.get("subjects") or ():
                if subject["kind"] == "User" and role in _MEMBER_ROLES and is_system_user(subject["name"]):
                    self.remark(f"RoleBinding {key}", f"{subject['name']} is of the system: no member")
                elif subject["kind"] == "User" and role in _MEMBER_ROLES:
                    members[UserName(subject["name"])] = None
                elif subject["kind"] == "Group":
                    self.remark(
                        f"RoleBinding {key}",
                        f"group {subject['name']} has {role}: name its people as members",
                    )
        return tuple(sorted(members))

    def _priorities(self) -> tuple[Priority, ...]:
        values = {name: int(body.get("value", 0)) for name, body in self._all(kinds.PRIORITY_CLASS).items()}
        if not values:
            return DEFAULT_PRIORITIES
        queues = {key.partition("/")[2] for key in self._all(kinds.LOCAL_QUEUE)}
        base = max(_DEFAULT_RANK, 1 - min(values.values()))
        named = {_plain(name): value for name, value in values.items()}
        if 0 not in named.values():
            named["normal"] = 0
            self.remark(
                "WorkloadPriorityClass", "none has value 0, which a job without a word gets: normal is added"
            )
        default = next(name for name, value in sorted(named.items()) if value == 0)
        ranked: dict[int, str] = {}
        for name, value in sorted(named.items(), key=lambda item: (item[0] != default, item[0])):
            if base + value in ranked:
                self.remark(
                    f"WorkloadPriorityClass {name}", f"has the value of {ranked[base + value]}: left out"
                )
            else:
                ranked[base + value] = name
        return tuple(
            Priority(
                PriorityName(name), rank, default=name == default, preemptible=rank < base and name in queues
            )
            for rank, name in sorted(ranked.items(), reverse=True)
        )

    def _is_stopped(self, namespace: str, node: _QuotaNode) -> bool:
        stops = [
            str(q["spec"].get("stopPolicy", "")) for key, q in self._all(kinds.LOCAL_QUEUE).items()
            if key.partition("/")[0] == namespace and _cluster_queue(q).removesuffix(LOW_SUFFIX) == node.name
        ]  # fmt: skip
        return bool(stops) and all(stop.startswith("Hold") for stop in stops)

    def _remark_on(self, name: str, body: Json) -> None:
        spec, about = body["spec"], f"ClusterQueue {name}"
        if spec.get("queueingStrategy") == "StrictFIFO":
            self.remark(
                about, "StrictFIFO: Fairway keeps the order of arrival only for jobs overtaken too often"
            )
        if spec.get("admissionChecksStrategy"):
            self.remark(about, "admission checks have no word in a fleet file and would be taken away")
        if str(spec.get("stopPolicy", "None")) != "None":
            self.remark(about, f"stopPolicy {spec['stopPolicy']}: say  draining: true  of its team")
        reclaim = (spec.get("preemption") or {}).get("reclaimWithinCohort", "Never")
        if reclaim != "Any":
            self.remark(
                about, f"reclaimWithinCohort is {reclaim}: under Fairway a guarantee always comes back"
            )


def _groups(body: Mapping[str, Any]) -> list[Json]:
    groups: list[Json] = (body.get("spec") or {}).get("resourceGroups") or []
    return groups


def _is_internal(name: str, queues: Mapping[str, Json]) -> bool:
    """Return whether a queue or cohort is one of Fairway's for a team's low jobs or one of its users."""
    return "." in name and name.partition(".")[0] in queues


def _cluster_queue(queue: Mapping[str, Any]) -> str:
    return str((queue.get("spec") or {}).get("clusterQueue", ""))


def _supply(pool: Pool | None, resource: str) -> Supply | None:
    if pool is None:
        return None
    return supply_of(resource, pool)


def _guarantee(node: _QuotaNode, supply: Supply, children: Mapping[str, Sequence[_QuotaNode]]) -> int:
    """Return a node's guarantee, which includes its children's."""
    of_children = sum(_guarantee(child, supply, children) for child in children.get(node.name, ()))
    return node.nominal.get(supply, 0) + of_children


def _limits(annotations: Mapping[str, str]) -> Limits:
    def number(key: str) -> int | None:
        text = annotations.get(key, "")
        return int(text) if text.isdigit() else None

    return Limits(number(kinds.JOB_GPUS), number(kinds.JOB_SECONDS), number(kinds.USER_GPUS))


def _allowed_priorities(
    annotations: Mapping[str, str], priorities: tuple[PriorityName, ...]
) -> tuple[PriorityName, ...]:
    listed = annotations.get(kinds.PRIORITIES, "").split(",")
    return tuple(p for p in priorities if p in listed) or priorities


def _plain(name: str) -> str:
    """Convert a name to one that Fairway accepts."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return plain if is_name(plain) else f"t-{plain}"[:40].rstrip("-")


def pool_of(
    name: str,
    flavor: Mapping[str, Any],
    topology: Mapping[str, Any],
    resources: Sequence[str],
    fleet: Fleet,
    product: str = "",
    replicas: str = "",
    classes: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Pool, list[Remark]]:
    """Return the fleet's pool that has the flavor's labels, or a new one.

    `product` is its nodes' GPU, `replicas` how many pods share each; `classes` has the DeviceClass of each
    resource by which Kueue counts claims.
    """
    spec = flavor.get("spec") or {}
    labels = dict(spec.get("nodeLabels") or {})
    remarks = list(_remarks(name, spec, resources))
    for pool in fleet.pools:
        if isinstance(pool.place, KubernetesPlace) and dict(pool.place.node_labels) == labels:
            if pool.name != name:
                remarks.append(
                    Remark(f"ResourceFlavor {name}", f"is pool {pool.name}; Fairway makes its own")
                )
            return pool, remarks
    gpu = _gpu(labels) or _gpu({PRODUCT: product})
    if gpu is None:
        gpu = CATALOGUE["A100-80GB"]
        remarks.append(
            Remark(f"ResourceFlavor {name}", f"its labels do not say which GPU it is: {gpu.name} is a guess")
        )
    remarks.append(Remark(f"ResourceFlavor {name}", "what a GPU-hour costs is not known here: price 0"))
    taints = tuple(format_taint(t) for t in spec.get("nodeTaints") or ())
    slices = tuple(s for r in resources if (s := slice_of(r)) is not None)
    whole = _whole_gpu(resources)
    if shared := _shared(f"ResourceFlavor {name}", whole, replicas, remarks):
        slices = (shared,)
    levels = [str(level["nodeLabel"]) for level in (topology.get("spec") or {}).get("levels") or ()]
    return (
        Pool(
            name=PoolName(name if is_name(name) else name.replace(".", "-").replace("_", "-").lower()[:40]),
            cluster=fleet.clusters[0].name,
            gpu=gpu,
            capacity=Capacity.SPOT if any("spot" in t for t in taints) else Capacity.OWNED,
            price=Decimal(0),
            place=KubernetesPlace(labels, taints, whole, None if slices else classes.get(whole)),
            slices=slices,
            topology=tuple(level for level in levels if level != HOSTNAME),
        ),
        remarks,
    )


def _shared(about: str, resource: str, replicas: str, remarks: list[Remark]) -> SliceName | None:
    """Return the slice that replicas of shared GPUs are. Returns None for whole GPUs."""
    known = SliceName(f"shared-{replicas}")
    if replicas_of(known) is not None:
        return known
    if not resource.endswith(".shared"):
        return None
    guess = SliceName("shared-2")
    remarks.append(Remark(about, f"its nodes do not say how many pods share a GPU: {guess} is a guess"))
    return guess


def pools_of_nodes(
    products: Mapping[str, Sequence[str]],
    fleet: Fleet,
    replicas: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Pool], list[Remark]]:
    """Return a pool for each GPU product that no flavor claims: a cluster without queues has GPUs too.

    `replicas` says by product how many pods share each GPU.
    """
    claimed = {p.place.node_labels.get(PRODUCT) for p in fleet.pools if isinstance(p.place, KubernetesPlace)}
    pools: list[Pool] = []
    remarks: list[Remark] = []
    for product, resources in sorted(products.items()):
        labels = {PRODUCT: product}
        gpu = _gpu(labels)
        if product in claimed or gpu is None:
            continue
        slices = tuple(s for r in sorted(set(resources)) if (s := slice_of(r)) is not None)
        name = PoolName(gpu.name.lower() + ("-mig" if slices else ""))
        whole = _whole_gpu(resources)
        if shared := _shared(f"pool {name}", whole, replicas.get(product, ""), remarks):
            name, slices = PoolName(f"{gpu.name.lower()}-shared"), (shared,)
        if name in {p.name for p in (*fleet.pools, *pools)}:
            continue
        place = KubernetesPlace(labels, (), whole)
        cluster = fleet.clusters[0].name
        pools.append(Pool(name, cluster, gpu, Capacity.OWNED, Decimal(0), place, slices=slices))
        remarks.append(Remark(f"pool {name}", "from the nodes, for no queue counts them; owned is a guess"))
        remarks.append(Remark(f"pool {name}", "what a GPU-hour costs is not known here: price 0"))
    return pools, remarks


def _whole_gpu(resources: Sequence[str]) -> str:
    """Return the resource of whole GPUs among these, else the usual one."""
    return next((r for r in resources if not r.startswith(MIG_PREFIX)), "nvidia.com/gpu")


def _gpu(labels: Mapping[str, str]) -> GpuType | None:
    product = labels.get(PRODUCT, "")
    matches = ((len(p), gpu) for gpu in CATALOGUE.values() for p in gpu.products if product.startswith(p))
    return max(matches, key=lambda pair: pair[0], default=(0, None))[1]


def _remarks(name: str, spec: Mapping[str, Any], resources: Sequence[str]) -> Iterator[Remark]:
    about = f"ResourceFlavor {name}"
    if not spec.get("topologyName"):
        yield Remark(about, "has no Topology, so Kueue gives out quota and not places; Fairway's own has one")
    if spec.get("tolerations"):
        yield Remark(
            about, "puts tolerations on every pod; under Fairway a job says itself what it tolerates"
        )
    whole_gpus = [r for r in resources if not r.startswith(MIG_PREFIX)]
    if 0 < len(whole_gpus) < len(resources):
        yield Remark(
            about, f"counts whole GPUs and slices; a pool is either: only {', '.join(resources)} of slices"
        )
