"""Import an existing cluster's accounts, limits and QOS as a fleet. Pure.

An existing hard limit becomes a ceiling. Where the ceilings of all accounts fit into the pool together,
each is also what the account always gets, and so becomes its guarantee; otherwise nothing is promised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from fairway.engines.port import ImportedPolicy, Remark
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import parse_time
from fairway.engines.slurm.policy.partitions import SupplySite, is_profile, partition_types, sites
from fairway.engines.slurm.policy.translate import UNTYPED
from fairway.model.fleet import Capacity, Fleet, Pool, SlurmPlace
from fairway.model.gpu import GpuType
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName, is_name
from fairway.model.team import Fairness, Grant, Limits, Team
from fairway.policy.objects import FoundObject, FoundPolicy, Value

# Fields that a fleet file can express; any other that is set gets a remark.
_IMPORTED_FIELDS: Final = re.compile(
    r"Parent|Fairshare|QOS|MaxWall|GrpJobs|GrpSubmit|(GrpTRES|MaxTRESPerJob)\.gres/gpu.*"
)
_PARENTS_SHARE: Final = 2**31 - 1
_DEFAULT_GPU: Final = "A100-80GB"
_NODES_KEY: Final = re.compile(r"partition/([^/]+)/Nodes")


@dataclass(frozen=True, slots=True)
class _Account:
    """An account that becomes a team, with its members' associations."""

    name: TeamName
    parent: TeamName | None
    found: FoundObject
    users: tuple[FoundObject, ...]

    def limit(self, field: str, site: SupplySite) -> int | None:
        """Return the limit on a site's resource: by type, or on GPUs of any type, which bounds each type."""
        value = self.found.fields.get(f"{field}.{site.tres}")
        if value is None:
            value = self.found.fields.get(f"{field}.{UNTYPED}")
        return value if isinstance(value, int) else None

    def may_guarantee(self, site: SupplySite, whole_types: int) -> bool:
        """Return whether its limit is on this resource alone, and so could be a guarantee of it.

        Slices count as GPUs in a limit without a type, but administrators who wrote one meant whole GPUs.
        """
        typed = f"GrpTRES.{site.tres}" in self.found.fields
        return typed or (site.supply.slice is None and whole_types == 1)


def import_policy(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> ImportedPolicy:
    """Convert the cluster's policy to a fleet, with a remark for whatever a fleet cannot express."""
    pools, remarks = pools_of(fleet, cluster, found.settings)
    base = replace(fleet, clusters=(fleet.cluster(cluster),), pools=tuple(pools), teams=())
    places = sites(base, cluster, found.settings)
    accounts, left_out = _accounts(found)
    remarks += [*left_out, *_qos_remarks(found), *_field_remarks(accounts)]
    remarks += [*_type_remarks(places), *_untyped_remarks(accounts, places)]
    teams = tuple(_TeamImporter(accounts, places, found, base).teams())
    half_life = parse_time(found.settings.get("PriorityDecayHalfLife", ""))
    fairness = Fairness(half_life) if half_life else fleet.fairness
    chosen = dict(_default_teams(teams, found.settings))
    return ImportedPolicy(replace(base, teams=teams, fairness=fairness, chosen_teams=chosen), tuple(remarks))


class _TeamImporter:
    """Converts accounts to teams."""

    def __init__(
        self, accounts: list[_Account], places: Iterable[SupplySite], found: FoundPolicy, fleet: Fleet
    ) -> None:
        self.accounts = accounts
        self.sites = tuple(places)
        self.fleet = fleet
        self.objects = {o.key: o for o in found.objects}
        self.settings = found.settings
        self.whole_types = len({s.tres for s in self.sites if s.supply.slice is None})

    def teams(self, parent: Team | None = None) -> Iterator[Team]:
        """Yield the teams inside `parent`: parents first, children right after their parent."""
        children = [a for a in self.accounts if a.parent == (parent.name if parent else None)]
        grants = self._grants(children, parent)
        for account in children:
            team = self._team(account, parent, tuple(grants[account.name]))
            yield team
            yield from self.teams(team)

    def _team(self, account: _Account, parent: Team | None, grants: tuple[Grant, ...]) -> Team:
        fields = account.found.fields
        share = fields.get("Fairshare")
        draining = fields.get("GrpJobs") == 0 and fields.get("GrpSubmit") == 0
        return Team(
            name=account.name,
            parent=account.parent,
            share=share if isinstance(share, int) and 0 < share < _PARENTS_SHARE else 1,
            grants=tuple(sorted(grants, key=lambda g: g.supply)),
            limits=self._limits(account, parent),
            priorities=tuple(p.name for p in self.fleet.priorities),
            members=tuple(UserName(u.key.name.split("/")[1]) for u in account.users),
            draining=draining or bool(parent and parent.draining),
        )

    def _grants(self, children: list[_Account], parent: Team | None) -> dict[TeamName, list[Grant]]:
        grants: dict[TeamName, list[Grant]] = {a.name: [] for a in children}
        for site in self.sites:
            above = parent.grant(site.supply) if parent else None
            if parent is not None and (above is None or above.ceiling == 0):
                continue
            available = above.guarantee if above else self._devices(site)
            caps = {a.name: a.limit("GrpTRES", site) for a in children}
            if next(s for s in self.sites if s.tres == site.tres) != site:
                # A fleet cannot express one limit on two pools: the first pool has it, and the other none.
                caps = {name: None if cap is None else 0 for name, cap in caps.items()}
            limits = [cap for cap in caps.values() if cap is not None]
            unambiguous = all(a.may_guarantee(site, self.whole_types) for a in children)
            all_fit = unambiguous and len(limits) == len(caps) and sum(limits) <= available
            for account in children:
                cap = caps[account.name]
                own = self._guaranteed(account.name, site)
                if cap is not None and above and above.ceiling is not None:
                    cap = min(cap, above.ceiling)
                guarantee = own if own is not None else (cap or 0) if all_fit else 0
                if cap is None:
                    grants[account.name].append(Grant(site.supply, guarantee))
                elif cap > 0 or parent is not None:
                    grants[account.name].append(Grant(site.supply, guarantee, max(0, cap - guarantee)))
        return grants

    def _guaranteed(self, team: TeamName, site: SupplySite) -> int | None:
        """Return what Fairway guaranteed. Returns None if it does not govern the cluster yet."""
        family = (team, *self._descendants(team))
        found = [self.objects.get(names.qos_key(names.own_qos(t, site.supply))) for t in family]
        counts = [qos.fields.get(f"GrpTRES.{UNTYPED}") for qos in found if qos is not None and qos.ours]
        return sum(c for c in counts if isinstance(c, int)) if counts else None

    def _descendants(self, team: TeamName) -> Iterator[TeamName]:
        for account in self.accounts:
            if account.parent == team:
                yield account.name
                yield from self._descendants(account.name)

    def _limits(self, account: _Account, parent: Team | None) -> Limits:
        above = parent.limits if parent else Limits()
        per_job = [limit for s in self.sites if (limit := account.limit("MaxTRESPerJob", s)) is not None]
        wall = account.found.fields.get("MaxWall")
        of_users = [user.fields.get(f"GrpTRES.{s.tres}") for user in account.users for s in self.sites]
        per_user = [limit for limit in of_users if isinstance(limit, int)]
        return Limits(
            job_gpus=min(per_job) if per_job else above.job_gpus,
            job_seconds=wall * 60 if isinstance(wall, int) else above.job_seconds,
            user_gpus=max(per_user) if per_user else above.user_gpus,
        )

    def _devices(self, site: SupplySite) -> int:
        text = self.settings.get(f"partition/{site.partition}/TRES", "")
        found = re.search(rf"(?:^|,){re.escape(site.tres)}=(\d+)", text)
        return int(found[1]) if found else 0


def _accounts(found: FoundPolicy) -> tuple[list[_Account], list[Remark]]:
    users: dict[str, list[FoundObject]] = {}
    for o in found.objects:
        if o.key.kind == "association" and o.key.name.count("/") == 1:
            users.setdefault(o.key.name.partition("/")[0], []).append(o)
    accounts: list[_Account] = []
    remarks: list[Remark] = []
    usable = {o.key.name for o in found.objects if o.key.kind == "account" and is_name(o.key.name)}
    for o in found.objects:
        if o.key.kind != "account":
            continue
        parent = str(o.fields.get("Parent") or names.ROOT_ACCOUNT)
        if o.key.name not in usable:
            remarks.append(Remark(str(o.key), "is no name for a team (lower case, digits, '-'): left out"))
        elif parent != names.ROOT_ACCOUNT and parent not in usable:
            remarks.append(Remark(str(o.key), f"is inside {parent}, which is left out: left out too"))
            usable.discard(o.key.name)
        else:
            above = None if parent == names.ROOT_ACCOUNT else TeamName(parent)
            accounts.append(_Account(TeamName(o.key.name), above, o, tuple(users.get(o.key.name, ()))))
    return accounts, remarks


def _type_remarks(places: Iterable[SupplySite]) -> Iterator[Remark]:
    first: dict[str, SupplySite] = {}
    for site in places:
        other = first.setdefault(site.tres, site)
        if other is not site:
            yield Remark(
                f"pool {site.supply.pool}",
                f"has the GRES type of pool {other.supply.pool}, and Slurm limits both together: an "
                f"account's limit became one on {other.supply.pool}, and none was granted here",
            )


def _untyped_remarks(accounts: Iterable[_Account], places: Iterable[SupplySite]) -> Iterator[Remark]:
    if len({site.tres for site in places}) < 2:
        return
    for account in accounts:
        limit = account.found.fields.get(f"GrpTRES.{UNTYPED}")
        if isinstance(limit, int):
            yield Remark(
                str(account.found.key),
                f"GrpTRES={UNTYPED}={limit} counts GPUs and slices of every type together, which has no "
                "word here: it became the most of each",
            )


def _field_remarks(accounts: Iterable[_Account]) -> Iterator[Remark]:
    for account in accounts:
        for field, value in account.found.fields.items():
            if not _IMPORTED_FIELDS.fullmatch(field):
                yield _not_imported(account.found, field, value)
        for user in account.users:
            inherited = {"Fairshare": 1, "QOS": account.found.fields.get("QOS")}
            for field, value in user.fields.items():
                if not field.startswith("GrpTRES.gres/gpu") and inherited.get(field) != value:
                    yield _not_imported(user, field, value)


def _not_imported(about: FoundObject, field: str, value: Value) -> Remark:
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return Remark(str(about.key), f"{field}={shown} has no word here; once adopted, applying unsets it")


def _qos_remarks(found: FoundPolicy) -> Iterator[Remark]:
    for o in found.objects:
        if o.key.kind != "qos" or o.ours or o.key.name == "normal":
            continue
        limits = " ".join(f"{field}={value}" for field, value in sorted(o.fields.items()))
        yield Remark(str(o.key), f"({limits or 'no limits'}) stays, but teams' jobs no longer run as it")


def _default_teams(teams: Iterable[Team], settings: Mapping[str, str]) -> Iterator[tuple[UserName, TeamName]]:
    memberships: dict[UserName, list[TeamName]] = {}
    for team in teams:
        for member in team.members:
            memberships.setdefault(member, []).append(team.name)
    for user, own in memberships.items():
        if len(own) > 1:
            default = TeamName(settings.get(f"{names.DEFAULT_ACCOUNT}{user}", own[0]))
            yield user, default if default in own else own[0]


def pools_of(
    fleet: Fleet, cluster: ClusterName, settings: Mapping[str, str]
) -> tuple[list[Pool], list[Remark]]:
    """Return the known pools of the cluster, and a new one for each partition whose GPUs no pool has yet."""
    pools = list(fleet.pools_of(cluster))
    remarks: list[Remark] = []
    places = [p.place for p in pools if isinstance(p.place, SlurmPlace)]
    taken = {settings.get(f"partition/{place.partition}/Nodes", "") for place in places}
    for key, nodes in settings.items():
        found = _NODES_KEY.fullmatch(key)
        partition = found[1] if found else ""
        types = partition_types(settings, partition)
        if not types or any(place.partition == partition for place in places):
            continue
        if nodes in taken:
            remarks.append(
                Remark(f"partition {partition}", "is over the nodes of another pool: it stays as it is")
            )
            continue
        taken.add(nodes)
        new_pools, new_remarks = _pools_of_partition(cluster, partition, types)
        pools += new_pools
        remarks += new_remarks
    return pools, remarks


def _pools_of_partition(
    cluster: ClusterName, partition: str, types: Sequence[str]
) -> tuple[list[Pool], list[Remark]]:
    whole = [t for t in types if not is_profile(t)]
    slices = tuple(dict.fromkeys(SliceName(t.rpartition("_")[2]) for t in types if is_profile(t)))
    pools: list[Pool] = []
    remarks: list[Remark] = []
    for kind in whole:
        gpu, sure = _gpu(kind)
        name = _name(partition if len(types) == 1 else f"{partition}-{kind}")
        pools.append(_pool(cluster, name, gpu, SlurmPlace(partition, kind)))
        remarks += _gpu_remarks(name, kind, gpu, sure=sure)
    if slices:
        cut = next(
            (g for g in CATALOGUE.values() if all(g.profile(s) for s in slices)), CATALOGUE[_DEFAULT_GPU]
        )
        name = _name(f"{partition}-mig" if whole else partition)
        pools.append(_pool(cluster, name, cut, SlurmPlace(partition), slices))
        remarks += _gpu_remarks(name, ", ".join(slices), cut, sure=False)
    return pools, remarks


def _pool(
    cluster: ClusterName, name: PoolName, gpu: GpuType, place: SlurmPlace, slices: tuple[SliceName, ...] = ()
) -> Pool:
    capacity = Capacity.SPOT if "spot" in place.partition else Capacity.OWNED
    return Pool(name, cluster, gpu, capacity, Decimal(0), place, slices=slices)


def _gpu_remarks(name: PoolName, kind: str, gpu: GpuType, *, sure: bool) -> list[Remark]:
    guess = [] if sure else [Remark(f"pool {name}", f"{gpu.name} is a guess from the GRES type {kind}")]
    return [*guess, Remark(f"pool {name}", "Slurm knows no price: write what a GPU-hour costs")]


def _gpu(kind: str) -> tuple[GpuType, bool]:
    """Return the catalogue's GPU type that a GRES type means, and whether only one can be meant."""
    parts = set(re.split(r"[_\W]+", kind.lower()))
    similar = [gpu for name, gpu in CATALOGUE.items() if name.lower().partition("-")[0] in parts]
    exact = [gpu for gpu in similar if set(re.split(r"\W+", gpu.name.lower())) <= parts]
    best = exact or sorted(similar, key=lambda gpu: -gpu.memory_gb)
    return (best[0], len(best) == 1) if best else (CATALOGUE[_DEFAULT_GPU], False)


def _name(text: str) -> PoolName:
    if is_name(text):
        return PoolName(text)
    return PoolName(re.sub(r"[^a-z0-9]+", "-", f"p-{text}".lower()).strip("-")[:40].rstrip("-"))
