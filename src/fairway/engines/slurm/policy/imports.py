"""An existing cluster's accounts, limits and QOS as a fleet. Pure.

A hard limit that people set is a ceiling. Where the ceilings of all accounts fit into the pool together,
each is also what the account always gets, and so becomes its guarantee; otherwise nothing is promised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairway.engines.port import Imported, Remark
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.import_pools import pools_of
from fairway.engines.slurm.policy.settings import seconds_of
from fairway.engines.slurm.policy.sites import Site, sites
from fairway.engines.slurm.policy.wanted import UNTYPED
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName, UserName, is_name
from fairway.model.team import Fairness, Grant, Limits, Team
from fairway.policy.objects import FoundObject, FoundPolicy, Value

# What has a word in a fleet file; anything else that is set gets a remark.
_WORDS: Final = re.compile(
    r"Parent|Fairshare|QOS|MaxWall|GrpJobs|GrpSubmit|(GrpTRES|MaxTRESPerJob)\.gres/gpu.*"
)
_PARENTS_SHARE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Account:
    name: TeamName
    parent: TeamName | None
    found: FoundObject
    users: tuple[FoundObject, ...]

    def most(self, field: str, site: Site) -> int | None:
        """Its limit on a site's resource: by type, or on GPUs of any type, which bounds each of them."""
        value = self.found.fields.get(f"{field}.{site.tres}")
        if value is None:
            value = self.found.fields.get(f"{field}.{UNTYPED}")
        return value if isinstance(value, int) else None

    def promises(self, site: Site, whole_types: int) -> bool:
        """Whether its limit is one on this resource alone, and so could be a guarantee of it.

        Slices count as GPUs in a limit without a type, but people who wrote one meant whole GPUs.
        """
        typed = f"GrpTRES.{site.tres}" in self.found.fields
        return typed or (site.supply.slice is None and whole_types == 1)


def import_policy(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> Imported:
    """The cluster in Fairway's words, with a remark for whatever has none."""
    pools, remarks = pools_of(fleet, cluster, found.settings)
    base = replace(fleet, clusters=(fleet.cluster(cluster),), pools=tuple(pools), teams=())
    places = sites(base, cluster, found.settings)
    accounts, unfit = _accounts(found)
    remarks += [*unfit, *_qos_remarks(found), *_field_remarks(accounts)]
    remarks += [*_type_remarks(places), *_untyped_remarks(accounts, places)]
    teams = _Teams(accounts, places, found, base).all()
    half_life = seconds_of(found.settings.get("PriorityDecayHalfLife", ""))
    fairness = Fairness(half_life) if half_life else fleet.fairness
    chosen = dict(_chosen(teams, found.settings))
    return Imported(replace(base, teams=tuple(teams), fairness=fairness, chosen_teams=chosen), tuple(remarks))


class _Teams:
    def __init__(
        self, accounts: list[_Account], places: Iterable[Site], found: FoundPolicy, fleet: Fleet
    ) -> None:
        self.accounts = accounts
        self.sites = tuple(places)
        self.fleet = fleet
        self.objects = {o.key: o for o in found.objects}
        self.settings = found.settings
        self.whole_types = len({s.tres for s in self.sites if s.supply.slice is None})
        self.made: dict[TeamName, Team] = {}

    def all(self) -> list[Team]:
        """Parents first, children right after their parent."""
        self._family(None)
        return list(self.made.values())

    def _family(self, parent: Team | None) -> None:
        children = [a for a in self.accounts if a.parent == (parent.name if parent else None)]
        grants = self._grants(children, parent)
        for account in children:
            team = self._team(account, parent, tuple(grants[account.name]))
            self.made[team.name] = team
            self._family(team)

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
            room = above.guarantee if above else self._devices(site)
            caps = {a.name: a.most("GrpTRES", site) for a in children}
            if next(s for s in self.sites if s.tres == site.tres) != site:
                # One limit on two pools has no word: the first pool has it, and the other none.
                caps = {name: None if cap is None else 0 for name, cap in caps.items()}
            known = [cap for cap in caps.values() if cap is not None]
            one_meaning = all(a.promises(site, self.whole_types) for a in children)
            sure = one_meaning and len(known) == len(caps) and sum(known) <= room
            for account in children:
                cap = caps[account.name]
                own = self._guaranteed(account.name, site)
                if cap is not None and above and above.ceiling is not None:
                    cap = min(cap, above.ceiling)
                guarantee = own if own is not None else (cap or 0) if sure else 0
                if cap is None:
                    grants[account.name].append(Grant(site.supply, guarantee))
                elif cap > 0 or parent is not None:
                    grants[account.name].append(Grant(site.supply, guarantee, max(0, cap - guarantee)))
        return grants

    def _guaranteed(self, team: TeamName, site: Site) -> int | None:
        """What Fairway itself guaranteed, where the cluster is already under its policy."""
        family = [team, *(t for t in self._below(team))]
        limits = [self.objects.get(names.qos_key(names.own(t, site.supply))) for t in family]
        counts = [o.fields.get(f"GrpTRES.{UNTYPED}") for o in limits if o is not None and o.ours]
        return sum(c for c in counts if isinstance(c, int)) if counts else None

    def _below(self, team: TeamName) -> Iterator[TeamName]:
        for account in self.accounts:
            if account.parent == team:
                yield account.name
                yield from self._below(account.name)

    def _limits(self, account: _Account, parent: Team | None) -> Limits:
        above = parent.limits if parent else Limits()
        jobs = {account.most("MaxTRESPerJob", s) for s in self.sites} - {None}
        wall = account.found.fields.get("MaxWall")
        people = {
            limit
            for user in account.users
            for s in self.sites
            if isinstance(limit := user.fields.get(f"GrpTRES.{s.tres}"), int)
        }
        return Limits(
            job_gpus=min(j for j in jobs if j is not None) if jobs else above.job_gpus,
            job_seconds=wall * 60 if isinstance(wall, int) else above.job_seconds,
            user_gpus=max(people) if people else above.user_gpus,
        )

    def _devices(self, site: Site) -> int:
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
    fit = {o.key.name for o in found.objects if o.key.kind == "account" and is_name(o.key.name)}
    for o in found.objects:
        if o.key.kind != "account":
            continue
        parent = str(o.fields.get("Parent") or names.ROOT_ACCOUNT)
        if o.key.name not in fit:
            remarks.append(Remark(str(o.key), "is no name for a team (lower case, digits, '-'): left out"))
        elif parent != names.ROOT_ACCOUNT and parent not in fit:
            remarks.append(Remark(str(o.key), f"is inside {parent}, which is left out: left out too"))
            fit.discard(o.key.name)
        else:
            above = None if parent == names.ROOT_ACCOUNT else TeamName(parent)
            people = tuple(users.get(o.key.name, ()))
            accounts.append(_Account(TeamName(o.key.name), above, o, people))
    return accounts, remarks


def _type_remarks(places: Iterable[Site]) -> Iterator[Remark]:
    first: dict[str, Site] = {}
    for site in places:
        other = first.setdefault(site.tres, site)
        if other is not site:
            yield Remark(
                f"pool {site.supply.pool}",
                f"has the GRES type of pool {other.supply.pool}, and Slurm limits both together: an "
                f"account's limit became one on {other.supply.pool}, and none was granted here",
            )


def _untyped_remarks(accounts: Iterable[_Account], places: Iterable[Site]) -> Iterator[Remark]:
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
            if not _WORDS.fullmatch(field):
                yield _no_word(account.found, field, value)
        for user in account.users:
            inherited = {"Fairshare": 1, "QOS": account.found.fields.get("QOS")}
            for field, value in user.fields.items():
                if not field.startswith("GrpTRES.gres/gpu") and inherited.get(field) != value:
                    yield _no_word(user, field, value)


def _no_word(about: FoundObject, field: str, value: Value) -> Remark:
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return Remark(str(about.key), f"{field}={shown} has no word here; once adopted, applying unsets it")


def _qos_remarks(found: FoundPolicy) -> Iterator[Remark]:
    for o in found.objects:
        if o.key.kind != "qos" or o.ours or o.key.name == "normal":
            continue
        limits = " ".join(f"{field}={value}" for field, value in sorted(o.fields.items()))
        yield Remark(str(o.key), f"({limits or 'no limits'}) stays, but teams' jobs no longer run as it")


def _chosen(teams: Iterable[Team], settings: Mapping[str, str]) -> Iterator[tuple[UserName, TeamName]]:
    memberships: dict[UserName, list[TeamName]] = {}
    for team in teams:
        for member in team.members:
            memberships.setdefault(member, []).append(team.name)
    for user, mine in memberships.items():
        if len(mine) > 1:
            default = TeamName(settings.get(f"{names.DEFAULT_ACCOUNT}{user}", mine[0]))
            yield user, default if default in mine else mine[0]
