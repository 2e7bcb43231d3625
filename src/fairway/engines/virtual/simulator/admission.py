"""Whether a job may wait at all: team, access, limits, size. What can never run is refused, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.engines.port import Refused
from fairway.engines.virtual.simulator.jobs import FOREVER, JobRequest, SimJob, TeamQuota
from fairway.engines.virtual.simulator.nodes import DeviceIndex
from fairway.engines.virtual.simulator.quota import BOUNDLESS
from fairway.engines.virtual.simulator.terms import ClusterTerms
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team


class _AdmissionRule:
    """What a team may submit to a supply under a priority, looked up once."""

    __slots__ = ("devices", "index", "nodes", "priority", "quota", "rack", "team")

    def __init__(self, team: Team, priority: Priority, quota: TeamQuota, index: DeviceIndex) -> None:
        self.team: Final = team
        self.priority: Final = priority
        self.quota: Final = quota
        self.index: Final = index
        self.nodes: Final = len(index.nodes)
        self.rack: Final = min(self.nodes, index.per_rack)
        ceilings = (b.ceiling for b in quota.path)
        limits = (n for n in (team.limits.job_gpus, team.limits.user_gpus) if n is not None)
        self.devices: Final = min((*ceilings, *limits))


_Asker = tuple[UserName, TeamName | None, PriorityName | None, PoolName, SliceName | None]


class JobAdmission:
    """Admits jobs to a cluster under certain terms, or refuses them."""

    def __init__(
        self,
        terms: ClusterTerms,
        indexes: Mapping[Supply, DeviceIndex],
        quotas: Mapping[Supply, Mapping[TeamName, TeamQuota]],
    ) -> None:
        self._terms: Final = terms
        self._indexes: Final = indexes
        self._quotas: Final = quotas
        self._teams: Final = {team.name: team for team in terms.teams}
        self._members: Final = {team.name: frozenset(team.members) for team in terms.teams}
        self._priorities: Final = {p.name: p for p in terms.priorities}
        self._default: Final = next((p for p in terms.priorities if p.default), None)
        self._rules: Final[dict[_Asker, _AdmissionRule]] = {}

    def admit(self, number: int, request: JobRequest, at: float) -> SimJob:
        """The record of a job that may wait. Raises Refused."""
        asker = (request.user, request.team, request.priority, request.pool, request.slice)
        rule = self._rules.get(asker)
        if rule is None:
            rule = self._rules[asker] = self._rule(request)
        gpus, nodes, index = request.gpus, request.nodes, rule.index
        if (
            not 0 < gpus <= index.most
            or not 0 < nodes <= (rule.rack if request.together else rule.nodes)
            or gpus * nodes > rule.devices
            or (index.spot and not request.tolerates_loss)
        ):
            self._refuse_spot(request, index)
            self._refuse_size(request, rule.team, rule.quota, index)
        priority = rule.priority
        job = SimJob(
            number, request, priority.name, priority.rank, priority.preemptible, rule.quota, index.number, at
        )
        job.limit = self._limit(request, rule.team)
        return job

    def _rule(self, request: JobRequest) -> _AdmissionRule:
        """What holds for all that ask under the same words. Raises Refused."""
        team = self._team(request)
        priority = self._priority(request, team)
        supply = request.supply
        index = self._indexes.get(supply)
        if index is None:
            raise Refused("UnknownPool", f"this cluster has no {supply}", "fairway get pools")
        quota = self._quotas[supply][team.name]
        self._refuse_no_access(team, quota, index)
        return _AdmissionRule(team, priority, quota, index)

    def may_touch(self, user: UserName, job: SimJob) -> bool:
        """Whether a person may read, change and cancel a job: its owner, and the members of its team."""
        return user == job.user or user in self._members.get(TeamName(job.quota.name), ())

    def _team(self, request: JobRequest) -> Team:
        user, name = request.user, request.team
        if name is None:
            name = self._terms.default_teams.get(user)
            if name is None:
                raise Refused(
                    "NoTeam",
                    f"the job names no team, and {user} is a member of none",
                    f"name a team, or add {user} to the members of one in the fleet file",
                )
        team = self._teams.get(name)
        if team is None:
            raise Refused("UnknownTeam", f"there is no team {name}", "fairway get teams")
        if user not in self._members[name]:
            raise Refused(
                "NotAMember",
                f"{user} is not a member of team {name}",
                f"add {user} to teams.{name}.members in the fleet file",
            )
        return team

    def _priority(self, request: JobRequest, team: Team) -> Priority:
        priority = self._default if request.priority is None else self._priorities.get(request.priority)
        if priority is None:
            raise Refused(
                "UnknownPriority",
                f"there is no priority {request.priority}",
                f"use one of {', '.join(self._priorities)}",
            )
        if team.priorities and priority.name not in team.priorities:
            raise Refused(
                "PriorityNotAllowed",
                f"team {team.name} may not use priority {priority.name}",
                f"use one of {', '.join(team.priorities)}",
            )
        return priority

    @staticmethod
    def _refuse_no_access(team: Team, quota: TeamQuota, index: DeviceIndex) -> None:
        if not all(b.granted for b in quota.path):
            raise Refused(
                "NoGrant",
                f"team {team.name} has no grant on {index.supply}",
                f"give it one in the fleet file:  borrow: {{ {index.supply}: 8 }}",
            )

    @staticmethod
    def _refuse_spot(request: JobRequest, index: DeviceIndex) -> None:
        if index.spot and not request.tolerates_loss:
            raise Refused(
                "SpotNeedsTolerance",
                f"{index.supply} is spot: its nodes can vanish, and the job does not say it tolerates that",
                "let the job tolerate loss, or use another pool",
            )

    @staticmethod
    def _refuse_size(request: JobRequest, team: Team, quota: TeamQuota, index: DeviceIndex) -> None:
        if request.gpus < 1 or request.nodes < 1:
            raise Refused("NothingAsked", "the job asks for no device", "ask for at least one")
        devices, limits = request.gpus * request.nodes, team.limits
        if not index.could_ever(request.nodes, request.gpus, request.together):
            rack = " in one rack" if request.together else ""
            raise Refused(
                "LargerThanPool",
                f"{index.supply} has no {request.nodes} nodes with {request.gpus} devices each{rack}",
                f"fairway get nodes --pool {index.supply.pool}",
            )
        if limits.job_gpus is not None and devices > limits.job_gpus:
            raise Refused(
                "JobTooLarge",
                f"the job asks for {devices}, a job of team {team.name} may have {limits.job_gpus}",
                f"ask for {limits.job_gpus} or fewer, or raise teams.{team.name}.limits.job.gpus",
            )
        if limits.user_gpus is not None and devices > limits.user_gpus:
            raise Refused(
                "JobAboveUserLimit",
                f"the job asks for {devices}, one user of team {team.name} may have {limits.user_gpus}",
                f"ask for {limits.user_gpus} or fewer, or raise teams.{team.name}.limits.user.gpus",
            )
        most = min(b.ceiling for b in quota.path)
        if devices > most and most < BOUNDLESS:
            raise Refused(
                "AboveCeiling",
                f"the job asks for {devices}, team {team.name} may hold {most} of {index.supply} at most",
                f"ask for {most} or fewer, or raise teams.{team.name}.borrow.{index.supply}",
            )

    @staticmethod
    def _limit(request: JobRequest, team: Team) -> float:
        most, asked = team.limits.job_seconds, request.limit_seconds
        if asked is None:
            return FOREVER if most is None else float(most)
        if most is not None and asked > most:
            raise Refused(
                "JobTooLong",
                f"the job asks for {asked:g} s, a job of team {team.name} may take {most} s",
                f"ask for {most} s or less, or raise teams.{team.name}.limits.job.time",
            )
        return float(asked)
