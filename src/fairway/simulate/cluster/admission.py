"""Admit jobs or refuse those that could never run: check team, access, limits and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairway.model.errors import Refused
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team
from fairway.simulate.cluster.jobs import FOREVER, JobRequest, SimJob, TeamQuota
from fairway.simulate.cluster.nodes import DeviceIndex
from fairway.simulate.cluster.quota import UNLIMITED
from fairway.simulate.cluster.terms import ClusterTerms


@dataclass(frozen=True, slots=True)
class _AdmissionRule:
    """What a team may submit to a supply with a priority."""

    team: Team
    priority: Priority
    quota: TeamQuota
    index: DeviceIndex
    max_devices: int
    """The lowest of the team's ceilings and limits."""


_RuleKey = tuple[UserName, TeamName | None, PriorityName | None, PoolName, SliceName | None]


class JobAdmission:
    """Admits jobs to a cluster under its terms, or refuses them."""

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
        self._rules: Final[dict[_RuleKey, _AdmissionRule]] = {}

    def admit(self, number: int, request: JobRequest, at: float) -> SimJob:
        """Create the record of a job. Raises Refused if it could never run."""
        key = (request.user, request.team, request.priority, request.pool, request.slice)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = self._rule(request)
        gpus, nodes, index = request.gpus, request.nodes, rule.index
        if (
            not 0 < gpus <= index.node_size
            or not 0 < nodes <= (index.per_rack if request.together else len(index.nodes))
            or gpus * nodes > rule.max_devices
            or (index.spot and not request.tolerates_loss)
        ):
            self._refuse(request, rule)
        priority = rule.priority
        job = SimJob(
            number, request, priority.name, priority.rank, priority.preemptible, rule.quota, index.number, at
        )
        job.time_limit = self._limit(request, rule.team)
        return job

    def restore(self, number: int, request: JobRequest, submitted: float) -> SimJob:
        """Create the record of a job that runs already, even if it would be refused now.

        Raises Refused if its team or its supply does not exist.
        """
        team = None if request.team is None else self._teams.get(request.team)
        priority = self._priorities.get(request.priority) if request.priority else None
        priority = priority or self._default
        index = self._indexes.get(request.supply)
        if team is None or priority is None or index is None:
            self._rule(request)
            raise AssertionError(f"job {number} was not refused, and cannot be restored")
        quota, limit = self._quotas[request.supply][team.name], request.limit_seconds
        job = SimJob(
            number,
            request,
            priority.name,
            priority.rank,
            priority.preemptible,
            quota,
            index.number,
            submitted,
        )
        if limit is None:
            limit = team.limits.job_seconds
        job.time_limit = FOREVER if limit is None else float(limit)
        return job

    def _rule(self, request: JobRequest) -> _AdmissionRule:
        """Look up what holds for all requests with the same key. Raises Refused."""
        team = self._team(request)
        priority = self._priority(request, team)
        supply = request.supply
        index = self._indexes.get(supply)
        if index is None:
            raise Refused("UnknownPool", f"this cluster has no {supply}", "fairway get pools")
        quota = self._quotas[supply][team.name]
        if not all(q.granted for q in quota.path):
            raise Refused(
                "NoGrant",
                f"team {team.name} has no grant on {supply}",
                f"give it one in the fleet file:  borrow: {{ {supply}: 8 }}",
            )
        limits = (n for n in (team.limits.job_gpus, team.limits.user_gpus) if n is not None)
        return _AdmissionRule(team, priority, quota, index, min((*(q.ceiling for q in quota.path), *limits)))

    def may_touch(self, user: UserName, job: SimJob) -> bool:
        """Return whether a user may read, change and cancel a job: its owner and its team may."""
        return user == job.user or user in self._members.get(TeamName(job.quota.name), ())

    def _team(self, request: JobRequest) -> Team:
        user, name = request.user, request.team
        if name is None:
            name = self._terms.default_teams.get(user)
            if name is None:
                raise Refused(
                    "NoTeam",
                    f"the job has no team, and {user} is a member of none",
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
                f"team {team.name} may not use the priority {priority.name}",
                f"use one of {', '.join(team.priorities)}",
            )
        return priority

    @staticmethod
    def _refuse(request: JobRequest, rule: _AdmissionRule) -> None:
        team, index = rule.team, rule.index
        if index.spot and not request.tolerates_loss:
            raise Refused(
                "SpotNeedsTolerance",
                f"{index.supply} is spot: its nodes can be lost at any time, and the job does not "
                "tolerate that",
                "submit it with  --tolerates spot, or use another pool",
            )
        if request.gpus < 1 or request.nodes < 1:
            raise Refused("NothingAsked", "the job requests no GPUs", "request at least one")
        devices, limits = request.gpus * request.nodes, team.limits
        max_nodes = index.per_rack if request.together else len(index.nodes)
        if request.gpus > index.node_size or request.nodes > max_nodes:
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
        ceiling = min(q.ceiling for q in rule.quota.path)
        if devices > ceiling and ceiling < UNLIMITED:
            raise Refused(
                "AboveCeiling",
                f"the job asks for {devices}, team {team.name} may hold {ceiling} of {index.supply} at most",
                f"ask for {ceiling} or fewer, or raise teams.{team.name}.borrow.{index.supply}",
            )

    @staticmethod
    def _limit(request: JobRequest, team: Team) -> float:
        limit, requested = team.limits.job_seconds, request.limit_seconds
        if requested is None:
            return FOREVER if limit is None else float(limit)
        if limit is not None and requested > limit:
            raise Refused(
                "JobTooLong",
                f"the job asks for {requested:g} s, a job of team {team.name} may take {limit} s",
                f"ask for {limit} s or less, or raise teams.{team.name}.limits.job.time",
            )
        return float(requested)
