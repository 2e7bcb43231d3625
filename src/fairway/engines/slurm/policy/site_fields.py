"""Keep what a site has set on its own accounts and a fleet has no word for. Pure.

Fairway adopts accounts that people made. Their QOS, default QOS and limits that no fleet file can express
stay as they are: they are copied from the found object to the wanted one, so they are neither unset nor
drift.
Accounts that Fairway created have nothing of the site's, and any other value on them is drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fairway.engines.slurm.policy import names
from fairway.model.names import TeamName
from fairway.policy.objects import FoundObject, ObjectKey, Value, WantedObject

PARENT_SHARE: Final = 2_147_483_647
"""What `sacctmgr` writes for `Fairshare=parent`."""
STOPS: Final = {"GrpJobs": "GrpJobs", "MaxJobs": "MaxJobsPerUser", "GrpSubmit": "GrpSubmit"}
"""Limits that Fairway sets to 0 to stop a team, and the fields of a QOS that remember the site's."""
_FLEET_FIELDS: Final = frozenset({"Parent", "Fairshare", "QOS", "MaxWall"})
_USER_GPUS: Final = "MaxTRESPerUser.gres/gpu"
_ALL_GPUS: Final = "GrpTRES.gres/gpu"
_STILL_COUNT: Final = ("MaxWall", _USER_GPUS)
_NO_LIMITS: Final = ("Flags", "GraceTime", "Preempt", "PreemptMode", "Priority", "UsageFactor")
_FLEET_LIMITS: Final = ("GrpTRES.gres/gpu:", "MaxTRESPerJob.gres/gpu:")


@dataclass(frozen=True, slots=True)
class SiteFields:
    """What people set on accounts and users, as it was found."""

    objects: Mapping[ObjectKey, FoundObject]
    site_qos: frozenset[str]
    """QOS that exist and are not Fairway's."""
    root_qos: tuple[str, ...]
    root_default: str | None

    @classmethod
    def of(cls, found: Iterable[FoundObject], settings: Mapping[str, str]) -> SiteFields:
        objects = {o.key: o for o in found}
        site_qos = frozenset(o.key.name for o in objects.values() if o.key.kind == "qos" and not o.ours)
        root_qos = tuple(filter(None, settings.get(names.ROOT_QOS, "").split(",")))
        return cls(objects, site_qos, root_qos, settings.get(names.ROOT_DEFAULT_QOS) or None)

    def keep(
        self,
        wanted: Iterable[WantedObject],
        gpus: Collection[str] = (),
        *,
        counts_all: bool = True,
        stoppable: Collection[TeamName] = (),
        partition_qos: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> tuple[WantedObject, ...]:
        """Return the wanted objects with what the site has set on them already.

        `gpus` are the resources by which GPUs of the pools are limited; `counts_all`: no pool is without one;
        `stoppable` are teams that are stopped, or may be by a spent budget; `partition_qos` are the QOS that
        the site has on the partitions of each of these resources, empty where one has none.
        """
        of_user = {tres: self._user_limit(tres, qos) for tres, qos in partition_qos.items()}
        kept = tuple(wanted)
        accounts = {o.key.name for o in kept if o.key.kind == "account"}
        usual = self._usual_limits(kept)
        result = []
        for o in kept:
            account = o.key.name.partition("/")[0]
            found = self.objects.get(o.key)
            adopted = self.objects.get(names.account_key(account))
            if o.key.kind not in ("account", "association") or adopted is None or adopted.created:
                result.append(o)
            elif o.key.kind == "account":
                account_object = self._account(o, adopted, accounts, gpus if counts_all else ())
                memory = self._memory(adopted, stoppable=o.team in stoppable)
                if memory is not None:
                    memory = replace(memory, team=o.team)
                    account_object = replace(account_object, after=(*account_object.after, memory.key))
                    result.append(memory)
                result.append(account_object)
            else:
                member = found or FoundObject(o.key, {}, ours=True)  # a new one inherits what the account has
                result.append(self._member(o, member, usual.get(account, {}), gpus, of_user))
        return (*result, *self._by_partition(result))

    def site_stops(self, account: FoundObject) -> dict[str, Value]:
        """Return the limits on numbers of jobs that the site has set on an account, as before any stop.

        A 0 is Fairway's own once it has written the account, unless it is remembered as the site's.
        """
        memory = self.objects.get(names.qos_key(names.site_limits_qos(account.key.name)))
        remembered = memory.fields if memory is not None and memory.ours else {}
        listed = account.fields.get("QOS")
        written = names.LENT in (listed if isinstance(listed, tuple) else ())
        stops: dict[str, Value] = {}
        for field, qos_field in STOPS.items():
            value = account.fields.get(field)
            value = remembered.get(qos_field) if value == 0 and written else value
            if value is not None:
                stops[field] = value
        if not written and stops.get("GrpJobs") == stops.get("GrpSubmit") == 0:  # import says draining
            del stops["GrpJobs"], stops["GrpSubmit"]
        return stops

    def _memory(self, account: FoundObject, *, stoppable: bool) -> WantedObject | None:
        """Return the QOS that remembers the site's limits, where a stop hides them or one is 0 itself."""
        stops = self.site_stops(account)
        if not stops or not (stoppable or 0 in stops.values()):
            return None
        key = names.qos_key(names.site_limits_qos(account.key.name))
        return WantedObject(key, {STOPS[field]: value for field, value in stops.items()})

    def settings(self) -> dict[str, str]:
        """Return the site's QOS, and those of each account that Fairway did not create."""
        accounts = {
            f"{names.SITE_ACCOUNT}{o.key.name}": ",".join(sorted(self._site_listed(o)))
            for o in self.objects.values()
            if o.key.kind == "account" and not o.created
        }
        defaults = {
            f"{names.DEFAULT_QOS_OF}{o.key.name}": self._default_qos(o)
            for o in self.objects.values()
            if o.key.kind == "account" and not o.created
        }
        limits: dict[str, str] = {}
        for name in self.site_qos:
            fields = self.objects[names.qos_key(name)].fields
            for prefix, field in ((names.QOS_WALL, "MaxWall"), (names.QOS_USER_GPUS, _USER_GPUS)):
                if field in fields:
                    limits[f"{prefix}{name}"] = str(fields[field])
            others = [f"{f}={v}" for f, v in fields.items() if f not in _NO_LIMITS and f not in _STILL_COUNT]
            if others:
                limits[f"{names.QOS_LIMITS}{name}"] = " ".join(others)
        return {names.SITE_QOS: ",".join(sorted(self.site_qos)), **accounts, **defaults, **limits}

    def _account(
        self, wanted: WantedObject, found: FoundObject, accounts: Collection[str], gpus: Collection[str]
    ) -> WantedObject:
        others = {f: v for f, v in self._others(found).items() if f not in STOPS}
        others |= self.site_stops(found)
        by_type = [wanted.fields.get(f"GrpTRES.{tres}") for tres in gpus]
        if len(gpus) == 1 or any(limit != found.fields.get(_ALL_GPUS) for limit in by_type):
            # Import wrote it as the limit of each type; now the fleet file says something else.
            others.pop(_ALL_GPUS, None)
        fields = {**others, **wanted.fields, **self._qos(wanted, found)}
        parent = str(found.fields.get("Parent") or names.ROOT_ACCOUNT)
        if wanted.fields["Parent"] == names.ROOT_ACCOUNT and parent not in accounts:
            fields["Parent"] = parent  # an account that is no team
        if wanted.fields["Fairshare"] == 1 and found.fields.get("Fairshare") == PARENT_SHARE:
            fields["Fairshare"] = PARENT_SHARE
        return replace(wanted, fields=fields)

    def _member(
        self,
        wanted: WantedObject,
        found: FoundObject,
        usual: Mapping[str, Value],
        gpus: Collection[str],
        of_user: Mapping[str, int | None],
    ) -> WantedObject:
        others = self._others(found)
        if len(gpus) == 1 and any(f"GrpTRES.{tres}" in wanted.fields for tres in gpus):
            others.pop(_ALL_GPUS, None)
        fields = {**others, **wanted.fields, **self._qos(wanted, found)}
        if "MaxWall" in found.fields:
            fields["MaxWall"] = found.fields["MaxWall"]
        if "Fairshare" in found.fields:
            fields["Fairshare"] = found.fields["Fairshare"]
        for field, value in found.fields.items():
            if not field.startswith(_FLEET_LIMITS) or value == usual.get(field):
                continue
            limit = wanted.fields.get(field)
            if limit is None or (isinstance(limit, int) and isinstance(value, int) and value < limit):
                fields[field] = value  # a limit of this user, not of every member
        default = self.objects.get(names.qos_key(self._default_qos(found)))
        for tres in gpus:
            # Teams' GPU jobs no longer run as this QOS, but what it lets one user have is still the limit.
            # That of a partition is counted twice, by the gate and by the second partition.
            limits = [_user_gpus(default, tres) if default else None, of_user.get(tres)]
            field = f"GrpTRES.{tres}"
            known = [limit for limit in (*limits, fields.get(field)) if isinstance(limit, int)]
            if field not in wanted.fields and any(limit is not None for limit in limits):
                fields[field] = min(known)
        return replace(wanted, fields=fields)

    def _user_limit(self, tres: str, partition_qos: Collection[str]) -> int | None:
        """Return what the QOS of all partitions of a resource let one user have, if each has a limit."""
        qos = [self.objects.get(names.qos_key(name)) for name in partition_qos]
        limits = [None if o is None else _user_gpus(o, tres) for o in qos]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if known and len(known) == len(limits) else None

    def _others(self, found: FoundObject) -> dict[str, Value]:
        """Return fields of the found object that a fleet cannot express."""
        return {
            field: value
            for field, value in found.fields.items()
            if field not in _FLEET_FIELDS and not field.startswith(_FLEET_LIMITS)
        }

    def _qos(self, wanted: WantedObject, found: FoundObject) -> dict[str, Value]:
        kept = self._site_listed(found)
        ours = wanted.fields["QOS"]
        fields: dict[str, Value] = {
            "QOS": tuple(sorted({str(q) for q in (ours if isinstance(ours, tuple) else ())} | kept))
        }
        named = self._inherited(found, "DefaultQOS") or self.root_default
        if named is None and (default := self._default_qos(found)) != names.DEFAULT_QOS:
            # Slurm takes the only QOS of a list as the default, but with ours beside it there are several.
            fields["DefaultQOS"] = default
        return fields

    def _default_qos(self, found: FoundObject) -> str:
        """Return the QOS of the site's of a job that names none: the default, the only one, or `normal`."""
        listed = self._site_listed(found)
        only = next(iter(listed)) if len(listed) == 1 else None
        return str(self._inherited(found, "DefaultQOS") or only or self.root_default or names.DEFAULT_QOS)

    def _site_listed(self, found: FoundObject) -> set[str]:
        """Return the QOS that it may use and that are not Fairway's."""
        listed = self._inherited(found, "QOS")
        return {
            str(q) for q in (listed if isinstance(listed, tuple) else self.root_qos) if q in self.site_qos
        }

    def _inherited(self, found: FoundObject, field: str) -> Value:
        """Return a field of an association, or that of the nearest account above which has it."""
        here: FoundObject | None = found
        while here is not None:
            if value := here.fields.get(field):
                return value
            account, _, user = here.key.name.partition("/")
            parent = account if user else here.fields.get("Parent")
            here = self.objects.get(names.account_key(str(parent))) if parent else None
        return None

    def _usual_limits(self, wanted: Iterable[WantedObject]) -> dict[str, dict[str, Value]]:
        """Return the GPU limits that most members of each account have. None is as good as a number."""
        members: dict[str, list[FoundObject]] = {}
        for o in wanted:
            if o.key.kind == "association" and (found := self.objects.get(o.key)) is not None:
                members.setdefault(o.key.name.partition("/")[0], []).append(found)
        return {account: _usual(found) for account, found in members.items()}

    def _by_partition(self, wanted: Iterable[WantedObject]) -> Iterator[WantedObject]:
        """Yield associations for single partitions, as they are, of users whose account is adopted."""
        members = {o.key.name: o for o in wanted if o.key.kind == "association"}
        for found in self.objects.values():
            account, _, rest = found.key.name.partition("/")
            user, slash, _ = rest.partition("/")
            if found.key.kind != "association" or not slash or found.created:
                continue
            if (member := members.get(f"{account}/{user}")) is not None:
                qos = self._qos(member, found)
                yield WantedObject(found.key, {**found.fields, **qos}, after=member.after, team=member.team)


def _user_gpus(qos: FoundObject, tres: str) -> int | None:
    limit = qos.fields.get(f"MaxTRESPerUser.{tres}", qos.fields.get(_USER_GPUS))
    return limit if isinstance(limit, int) else None


def _usual(members: Collection[FoundObject]) -> dict[str, Value]:
    fields = {f for m in members for f in m.fields if f.startswith(_FLEET_LIMITS)}
    usual: dict[str, Value] = {}
    for field in fields:
        counts = Counter(m.fields.get(field) for m in members)
        most = max(counts.values())
        usual[field] = None if counts.get(None) == most else counts.most_common(1)[0][0]
    return usual
