"""Import an existing cluster's accounts, limits and QOS as a fleet. Pure.

An existing hard limit becomes a ceiling. Where the ceilings of all accounts fit into the pool together,
each is also what the account always gets, and so becomes its guarantee; otherwise nothing is promised.
Whatever a fleet cannot express stays on the cluster and gets a remark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairway.engines.port import ImportedPolicy, Remark
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import parse_time
from fairway.engines.slurm.policy.import_pools import device_count, import_pools
from fairway.engines.slurm.policy.partitions import SupplySite, sites
from fairway.engines.slurm.policy.read import ACCOUNTING, NO_ACCOUNTING
from fairway.engines.slurm.policy.translate import UNTYPED
from fairway.model.fleet import Fleet, SlurmPlace
from fairway.model.names import ClusterName, TeamName, UserName, is_team_name, to_team_name
from fairway.model.team import Fairness, Grant, Limits, Team
from fairway.model.text import duration_text, first_few
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Value

_PARENTS_SHARE: Final = 2**31 - 1
_MOST: Final = 8
_HALF_LIFE: Final = "PriorityDecayHalfLife"
_STAYS: Final = "has no word here and stays as it is"

Expressed = set[tuple[ObjectKey, str]]
"""Objects and their fields that are in the fleet."""


@dataclass(frozen=True, slots=True)
class _Account:
    """An account that may become a team, with its members' associations."""

    team: TeamName
    parent: TeamName | None
    found: FoundObject
    users: tuple[FoundObject, ...]
    apart: tuple[FoundObject, ...] = ()
    """Associations of users with one partition."""
    reserved: tuple[FoundObject, ...] = ()
    """Associations of users that may be no member of a team."""

    @property
    def name(self) -> str:
        return self.found.key.name

    @property
    def about(self) -> str:
        """What a remark about it is about. Remarks stand above the team they name last."""
        return f"account {self.name}" if self.name == self.team else f"account {self.name}, team {self.team}"

    def limit(self, field: str, site: SupplySite) -> int | None:
        """Return the limit on a site's resource: by type, or on GPUs of any type, which bounds each type."""
        return _limit(self.found, field, site, any_type=True)

    def may_guarantee(self, site: SupplySite, whole_types: int) -> bool:
        """Return whether its limit is on this resource alone, and so could be a guarantee of it.

        Slices count as GPUs in a limit without a type, but administrators who wrote one meant whole GPUs.
        """
        typed = f"GrpTRES.{site.tres}" in self.found.fields
        return typed or (site.supply.slice is None and whole_types == 1)


def import_policy(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> ImportedPolicy:
    """Convert the cluster's policy to a fleet, with a remark for whatever a fleet cannot express."""
    pools, remarks = import_pools(fleet, cluster, found.settings)
    base = replace(fleet, clusters=(fleet.cluster(cluster),), pools=tuple(pools), teams=())
    places = sites(base, cluster, found.settings)
    accounts = _accounts(found, base)
    importer = _TeamImporter(accounts, places, found, base)
    teams = tuple(importer.teams())
    governed = {team.name for team in teams}
    imported = [account for account in accounts if account.team in governed]
    remarks += [*_left_out(accounts, governed), *_qos_remarks(found)]
    for account in imported:
        remarks += _account_remarks(account, importer.expressed)
        if account.reserved:
            about = f"{_users([_user_of(o) for o in account.reserved])}, team {account.team}"
            remarks.append(Remark(about, "is of the system or Fairway's own: no member, and stays as it is"))
    remarks += [*_type_remarks(places), *_untyped_remarks(imported, places)]
    if found.settings.get(ACCOUNTING) == NO_ACCOUNTING:
        remarks.append(
            Remark(
                f"{ACCOUNTING}={NO_ACCOUNTING}", "Slurm has no accounts here: no teams, and none can be made"
            )
        )
    fairness, about_fairness = _fairness(fleet, found.settings)
    chosen, about_defaults = _default_teams(teams, accounts, found.settings)
    imported_fleet = replace(base, teams=teams, fairness=fairness, chosen_teams=chosen)
    return ImportedPolicy(imported_fleet, (*remarks, *about_fairness, *about_defaults))


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
        self.expressed: Expressed = set()
        self._by_team = {a.team: a for a in accounts}
        self._children: dict[TeamName | None, list[_Account]] = {}
        for account in accounts:
            self._children.setdefault(account.parent, []).append(account)

    def teams(self, parent: Team | None = None) -> Iterator[Team]:
        """Yield the teams inside `parent`: parents first, children right after their parent.

        An account that may use no GPUs is no team, and neither is one inside it.
        """
        children = self._children.get(parent.name if parent else None, [])
        grants = self._grants(children, parent)
        for account in children:
            own = grants[account.team]
            if all(grant.ceiling == 0 for grant in own):
                continue
            team = self._team(account, parent, tuple(own))
            yield team
            yield from self.teams(team)

    def _team(self, account: _Account, parent: Team | None, grants: tuple[Grant, ...]) -> Team:
        fields = account.found.fields
        self._express(account.found, "Parent")
        share = fields.get("Fairshare")
        if isinstance(share, int) and 0 < share < _PARENTS_SHARE:
            self._express(account.found, "Fairshare")
        else:
            share = 1
        draining = fields.get("GrpJobs") == 0 and fields.get("GrpSubmit") == 0
        if draining:
            self._express(account.found, "GrpJobs", "GrpSubmit")
        return Team(
            name=account.team,
            parent=account.parent,
            share=share,
            grants=tuple(sorted(grants, key=lambda g: g.supply)),
            limits=self._limits(account, parent, grants),
            priorities=tuple(p.name for p in self.fleet.priorities),
            members=tuple(UserName(_user_of(u)) for u in account.users),
            draining=draining or bool(parent and parent.draining),
            account=account.name if account.name != account.team else None,
        )

    def _grants(self, children: list[_Account], parent: Team | None) -> dict[TeamName, list[Grant]]:
        grants: dict[TeamName, list[Grant]] = {a.team: [] for a in children}
        for site in self.sites:
            above = parent.grant(site.supply) if parent else None
            if parent is not None and (above is None or above.ceiling == 0):
                continue
            available = above.guarantee if above else self._devices(site)
            caps = {a.team: self._cap(a, site) for a in children}
            limits = [cap for cap in caps.values() if cap is not None]
            unambiguous = all(a.may_guarantee(site, self.whole_types) for a in children)
            all_fit = unambiguous and len(limits) == len(caps) and sum(limits) <= available
            for account in children:
                cap = caps[account.team]
                own = self._guaranteed(account.team, site)
                if cap is not None and above and above.ceiling is not None:
                    cap = min(cap, above.ceiling)
                if not self._is_allowed(account, site):
                    cap = 0
                guarantee = own if own is not None else (cap or 0) if all_fit else 0
                if cap is None:
                    grants[account.team].append(Grant(site.supply, guarantee))
                elif cap > 0 or parent is not None:
                    guarantee = min(guarantee, cap)
                    grants[account.team].append(Grant(site.supply, guarantee, cap - guarantee))
        return grants

    def _cap(self, account: _Account, site: SupplySite) -> int | None:
        """Return the account's limit on a site.

        Pools of one GRES type share one limit on Slurm: it is divided by their sizes, and adds up again.
        """
        limit = account.limit("GrpTRES", site)
        if limit is None:
            return None
        self._express(account.found, f"GrpTRES.{site.tres}")
        if f"GrpTRES.{site.tres}" not in account.found.fields:
            self._express(account.found, f"GrpTRES.{UNTYPED}")
        same = [s for s in self.sites if s.tres == site.tres]
        return _divided(limit, [self._devices(s) for s in same])[same.index(site)]

    def _is_allowed(self, account: _Account, site: SupplySite) -> bool:
        """Return whether some partition of the pool lets the account in, or one above or inside it."""
        family = {account.name.lower(), *(a.name.lower() for a in self._ancestors(account))}
        family |= {self._by_team[t].name.lower() for t in self._descendants(account.team)}
        place = self.fleet.pool(site.supply.pool).place
        partitions = place.partitions if isinstance(place, SlurmPlace) else ()
        for partition in partitions:
            allowed = self.settings.get(f"partition/{partition}/AllowAccounts", "").lower()
            denied = self.settings.get(f"partition/{partition}/DenyAccounts", "").lower()
            if allowed and not family & set(allowed.split(",")):
                continue
            if not allowed and account.name.lower() in denied.split(","):
                continue
            return True
        return False

    def _guaranteed(self, team: TeamName, site: SupplySite) -> int | None:
        """Return what Fairway guaranteed. Returns None if it does not govern the cluster yet."""
        family = (team, *self._descendants(team))
        found = [self.objects.get(names.qos_key(names.own_qos(t, site.supply))) for t in family]
        counts = [qos.fields.get(f"GrpTRES.{site.untyped}") for qos in found if qos is not None and qos.ours]
        return sum(c for c in counts if isinstance(c, int)) if counts else None

    def _descendants(self, team: TeamName) -> Iterator[TeamName]:
        for account in self._children.get(team, ()):
            yield account.team
            yield from self._descendants(account.team)

    def _ancestors(self, account: _Account) -> Iterator[_Account]:
        while account.parent is not None:
            account = self._by_team[account.parent]
            yield account

    def _limits(self, account: _Account, parent: Team | None, grants: Iterable[Grant]) -> Limits:
        above = parent.limits if parent else Limits()
        usable = {g.supply for g in grants if g.ceiling != 0}
        places = [site for site in self.sites if site.supply in usable]
        wall = account.found.fields.get("MaxWall")
        per_job = self._same_on_all((account.found,), "MaxTRESPerJob", places)
        per_user = self._same_on_all(account.users, "GrpTRES", places)
        if isinstance(wall, int) and wall > 0:
            self._express(account.found, "MaxWall")
        return Limits(
            job_gpus=above.job_gpus if per_job is None else per_job,
            job_seconds=wall * 60 if isinstance(wall, int) and wall > 0 else above.job_seconds,
            user_gpus=per_user if account.users else above.user_gpus,
        )

    def _same_on_all(
        self, objects: Iterable[FoundObject], field: str, places: list[SupplySite]
    ) -> int | None:
        """Return the limit that all of these objects have on all sites. Returns None if they differ.

        A fleet has one limit of a job, and of a user, for every pool.
        """
        any_type = len({site.tres for site in self.sites}) == 1
        objects = tuple(objects)
        limits = {_limit(o, field, site, any_type=any_type) for o in objects for site in places}
        limit = limits.pop() if len(limits) == 1 else None
        if limit is None or limit < 1:
            return None
        for o in objects:
            for site in places:
                typed = f"{field}.{site.tres}"
                self._express(o, typed if typed in o.fields else f"{field}.{UNTYPED}")
        return limit

    def _devices(self, site: SupplySite) -> int:
        return device_count(self.fleet.pool(site.supply.pool), site.gres, self.settings)

    def _express(self, found: FoundObject, *fields: str) -> None:
        self.expressed.update((found.key, field) for field in fields)


def _limit(found: FoundObject, field: str, site: SupplySite, *, any_type: bool) -> int | None:
    value = found.fields.get(f"{field}.{site.tres}")
    if value is None and any_type:
        value = found.fields.get(f"{field}.{UNTYPED}")
    return value if isinstance(value, int) else None


def _divided(limit: int, sizes: list[int]) -> list[int]:
    """Divide a limit by sizes; the parts add up to it, and each is at least 1 if it suffices."""
    parts, rest, total = [], limit, sum(sizes) or len(sizes)
    for i, size in enumerate(sizes[:-1]):
        part = limit * (size if sum(sizes) else 1) // total
        part = min(max(1, part), max(0, rest - (len(sizes) - 1 - i)))
        parts.append(part)
        rest -= part
    return [*parts, rest]


def _user_of(association: FoundObject) -> str:
    return association.key.name.split("/")[1]


def _accounts(found: FoundPolicy, fleet: Fleet) -> list[_Account]:
    users: dict[str, list[FoundObject]] = {}
    apart: dict[str, list[FoundObject]] = {}
    reserved: dict[str, list[FoundObject]] = {}
    for o in found.objects:
        if o.key.kind == "association":
            account, user, *partition = o.key.name.split("/")
            whole = reserved if fleet.is_reserved(user) else users
            (apart if partition else whole).setdefault(account, []).append(o)
    every = [o for o in found.objects if o.key.kind == "account"]
    teams: dict[str, TeamName] = {}
    taken: set[str] = set()
    # Names that can stay are given first: `ml-team` is that of the account `ml-team`, not of `ml_team`.
    for o in sorted(every, key=lambda o: not is_team_name(o.key.name)):
        name = TeamName(to_team_name(o.key.name, taken))
        teams[o.key.name] = name
        taken.add(name)
    return [
        _Account(
            teams[o.key.name],
            teams.get(str(o.fields.get("Parent") or names.ROOT_ACCOUNT)),
            o,
            tuple(users.get(o.key.name, ())),
            tuple(apart.get(o.key.name, ())),
            tuple(reserved.get(o.key.name, ())),
        )
        for o in every
    ]


# --- remarks ----------------------------------------------------------------------------------------------


def _left_out(accounts: Iterable[_Account], governed: set[TeamName]) -> Iterator[Remark]:
    for account in accounts:
        if account.team not in governed:
            text = "may use no GPUs of a pool: it is no team, and stays as it is with its users"
            yield Remark(f"account {account.name}", text)


def _type_remarks(places: Iterable[SupplySite]) -> Iterator[Remark]:
    first: dict[str, SupplySite] = {}
    for site in places:
        other = first.setdefault(site.tres, site)
        if other is not site:
            yield Remark(
                f"pool {site.supply.pool}",
                f"has the GRES type of pool {other.supply.pool}, and Slurm limits both together: an "
                "account's limit was divided between them by their sizes, and adds up to what it was",
            )


def _untyped_remarks(accounts: Iterable[_Account], places: Iterable[SupplySite]) -> Iterator[Remark]:
    if len({site.tres for site in places}) < 2:
        return
    for account in accounts:
        limit = account.found.fields.get(f"GrpTRES.{UNTYPED}")
        if isinstance(limit, int):
            yield Remark(
                account.about,
                f"GrpTRES={UNTYPED}={limit} counts GPUs and slices of every type together, which has no "
                "word here: it became the most of each",
            )


def _account_remarks(account: _Account, expressed: Expressed) -> Iterator[Remark]:
    """Yield what the fleet does not have of an account and its users, each with what becomes of it."""
    fields = account.found.fields
    if fields.get("Fairshare") is None:
        yield Remark(account.about, "Fairshare=0 has no word here: it became  share: 1")
    if fields.get("Fairshare") == _PARENTS_SHARE:
        yield Remark(account.about, f"Fairshare=parent {_STAYS}, until a share is written")
    others = {
        field: value
        for field, value in fields.items()
        if (account.found.key, field) not in expressed and field != "Fairshare"
    }
    if others:
        yield Remark(account.about, f"{_shown(others)} {_STAYS}")
    by_text: dict[str, list[str]] = {}
    inherited = {"Fairshare": 1, "QOS": fields.get("QOS")}
    for user in account.users:
        own = {
            field: value
            for field, value in user.fields.items()
            if (user.key, field) not in expressed and inherited.get(field) != value
        }
        if own:
            by_text.setdefault(_shown(own), []).append(_user_of(user))
    for text, users in by_text.items():
        yield Remark(f"{_users(users)}, team {account.team}", f"{text} {_STAYS}")
    for o in account.apart:
        _, name, partition = o.key.name.split("/")
        fields_text = f" ({text})" if (text := _shown(o.fields)) else ""
        yield Remark(
            f"user {name}, team {account.team}",
            f"has an association for partition {partition} alone{fields_text}, which {_STAYS}",
        )


def _users(users: list[str]) -> str:
    return f"user {users[0]}" if len(users) == 1 else f"users {first_few(users, _MOST)}"


def _shown(fields: Mapping[str, Value]) -> str:
    """Format fields as `sacctmgr` has them: `GrpTRES=gres/gpu=6 MaxJobs=20`."""
    return " ".join(
        f"{field.replace('.', '=', 1)}={_value(value)}" for field, value in sorted(fields.items())
    )


def _value(value: Value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _qos_remarks(found: FoundPolicy) -> Iterator[Remark]:
    for o in found.objects:
        if o.key.kind != "qos" or o.ours or (o.key.name == "normal" and not o.fields):
            continue
        limits = _shown(o.fields) or "no limits"
        yield Remark(
            str(o.key), f"({limits}) stays, with the accounts that list it; teams' GPU jobs run as Fairway's"
        )


def _fairness(fleet: Fleet, settings: Mapping[str, str]) -> tuple[Fairness, list[Remark]]:
    written = settings.get(_HALF_LIFE)
    seconds = parse_time(written) if written else None
    if seconds:
        return Fairness(seconds), []
    why = (
        "is not shown by this slurmrestd (26.05 and later show it)"
        if written is None
        else f"is {written}, so that past use is never forgiven, which has no word here"
    )
    usual = duration_text(fleet.fairness.half_life_seconds)
    return fleet.fairness, [
        Remark(
            _HALF_LIFE,
            f"{why}: half_life is {usual} here. Compare:  scontrol show config | grep {_HALF_LIFE}; "
            f"and write  fairness: {{ half_life: {usual} }}",
        )
    ]


def _default_teams(
    teams: Iterable[Team], accounts: Iterable[_Account], settings: Mapping[str, str]
) -> tuple[dict[UserName, TeamName], list[Remark]]:
    """Return the default team of each member of several, and remarks where their account is no team."""
    by_account = {account.name: account.team for account in accounts}
    memberships: dict[UserName, list[TeamName]] = {}
    for team in teams:
        for member in team.members:
            memberships.setdefault(member, []).append(team.name)
    chosen: dict[UserName, TeamName] = {}
    remarks: list[Remark] = []
    for user, own in memberships.items():
        account = settings.get(f"{names.DEFAULT_ACCOUNT}{user}")
        default = by_account.get(account) if account else None
        if account and default not in own:
            text = f"the default account, {account}, is no team: jobs that name no account stay in it"
            remarks.append(Remark(f"user {user}", text))
        if len(own) > 1:
            chosen[user] = default if default in own else own[0]
    return chosen, remarks
