"""Whether a job may wait at all: team, access, limits, size. What can never run is refused, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.engines.port import Refused
from fairway.engines.virtual.desk import Desk
from fairway.engines.virtual.jobs import FOREVER, Job, JobRequest
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, Branch
from fairway.engines.virtual.terms import Terms
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team


class _Door:
    """A team's way to a supply under a priority: looked up once, and the most that passes."""

    __slots__ = ("branch", "desk", "devices", "nodes", "priority", "rack", "stock", "team")

    def __init__(self, team: Team, priority: Priority, branch: Branch, desk: Desk) -> None:
        self.team: Final = team
        self.priority: Final = priority
        self.branch: Final = branch
        self.desk: Final = desk
        self.stock: Final = desk.stock
        self.nodes: Final = len(desk.stock.nodes)
        self.rack: Final = min(self.nodes, desk.stock.per_rack)
        ceilings = (b.ceiling for b in branch.path)
        limits = (n for n in (team.limits.job_gpus, team.limits.user_gpus) if n is not None)
        self.devices: Final = min((*ceilings, *limits))


_Asker = tuple[UserName, TeamName | None, PriorityName | None, PoolName, SliceName | None]


class Admission:
    """The door of a cluster under certain terms."""

    def __init__(
        self,
        terms: Terms,
        desks: Mapping[Supply, Desk],
        branches: Mapping[Supply, Mapping[TeamName, Branch]],
    ) -> None:
        self._terms: Final = terms
        self._desks: Final = desks
        self._branches: Final = branches
        self._teams: Final = {team.name: team for team in terms.teams}
        self._members: Final = {team.name: frozenset(team.members) for team in terms.teams}
        self._priorities: Final = {p.name: p for p in terms.priorities}
        self._default: Final = next((p for p in terms.priorities if p.default), None)
        self._doors: Final[dict[_Asker, _Door]] = {}

    def admit(self, number: int, request: JobRequest, at: float) -> Job:
        """The record of a job that may wait. Raises Refused."""
        asker = (request.user, request.team, request.priority, request.pool, request.slice)
        door = self._doors.get(asker)
        if door is None:
            door = self._doors[asker] = self._door(request)
        gpus, nodes, stock = request.gpus, request.nodes, door.stock
        if (
            not 0 < gpus <= stock.most
            or not 0 < nodes <= (door.rack if request.together else door.nodes)
            or gpus * nodes > door.devices
            or (stock.spot and not request.tolerates_loss)
        ):
            self._refuse_spot(request, stock)
            self._refuse_size(request, door.team, door.branch, stock)
        priority = door.priority
        job = Job(
            number, request, priority.name, priority.rank, priority.preemptible, door.branch, door.desk, at
        )
        job.limit = self._limit(request, door.team)
        return job

    def _door(self, request: JobRequest) -> _Door:
        """What holds for all that ask under the same words. Raises Refused."""
        team = self._team(request)
        priority = self._priority(request, team)
        supply = request.supply
        desk = self._desks.get(supply)
        if desk is None:
            raise Refused("UnknownPool", f"this cluster has no {supply}", "fairway get pools")
        branch = self._branches[supply][team.name]
        self._refuse_no_access(team, branch, desk.stock)
        return _Door(team, priority, branch, desk)

    def may_touch(self, user: UserName, job: Job) -> bool:
        """Whether a person may read, change and cancel a job: its owner, and the members of its team."""
        return user == job.request.user or user in self._members.get(TeamName(job.branch.name), ())

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
    def _refuse_no_access(team: Team, branch: Branch, stock: Stock) -> None:
        if not all(b.granted for b in branch.path):
            raise Refused(
                "NoGrant",
                f"team {team.name} has no grant on {stock.supply}",
                f"give it one in the fleet file:  borrow: {{ {stock.supply}: 8 }}",
            )

    @staticmethod
    def _refuse_spot(request: JobRequest, stock: Stock) -> None:
        if stock.spot and not request.tolerates_loss:
            raise Refused(
                "SpotNeedsTolerance",
                f"{stock.supply} is spot: its nodes can vanish, and the job does not say it tolerates that",
                "let the job tolerate loss, or use another pool",
            )

    @staticmethod
    def _refuse_size(request: JobRequest, team: Team, branch: Branch, stock: Stock) -> None:
        if request.gpus < 1 or request.nodes < 1:
            raise Refused("NothingAsked", "the job asks for no device", "ask for at least one")
        devices, limits = request.gpus * request.nodes, team.limits
        if not stock.could_ever(request.nodes, request.gpus, request.together):
            rack = " in one rack" if request.together else ""
            raise Refused(
                "LargerThanPool",
                f"{stock.supply} has no {request.nodes} nodes with {request.gpus} devices each{rack}",
                f"fairway get nodes --pool {stock.supply.pool}",
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
        most = min(b.ceiling for b in branch.path)
        if devices > most and most < BOUNDLESS:
            raise Refused(
                "AboveCeiling",
                f"the job asks for {devices}, team {team.name} may hold {most} of {stock.supply} at most",
                f"ask for {most} or fewer, or raise teams.{team.name}.borrow.{stock.supply}",
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
