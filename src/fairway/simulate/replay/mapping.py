"""Map the jobs of a trace to requests on a fleet. What cannot be mapped is counted, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, SlurmPlace
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.team import Supply
from fairway.model.trace import TraceJob
from fairway.simulate.cluster import ClusterTerms, JobRequest, Simulator, terms_of


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Jobs of a trace that were not replayed, all for the same reason."""

    code: str
    message: str
    """What is wrong with the first of them."""
    jobs: int = 1
    gpu_hours: float = 0.0
    """GPUs times run time that the trace gives them."""


class TraceTeams:
    """Finds the team of a job of a trace: by name, by a former name, or by its user."""

    def __init__(self, fleet: Fleet) -> None:
        self._names: Final[dict[str, TeamName]] = {
            **{team.renamed_from: team.name for team in fleet.teams if team.renamed_from},
            **{team.account_name: team.name for team in fleet.teams},
            **{team.name: team.name for team in fleet.teams},
        }
        self._of_users: Final = fleet.default_teams()

    def find(self, job: TraceJob) -> TeamName:
        """Return the team of the job in the fleet. Raises Refused if it has none."""
        team = self._names.get(job.team) or self._of_users.get(job.user)
        if team is not None:
            return team
        if job.team:
            raise Refused(
                "UnknownTeam",
                f"there is no team {job.team} in the fleet",
                "add it to the fleet file, or name the team that has its jobs:  renamed_from",
            )
        raise Refused(
            "NoTeam", f"the job has no team, and {job.user or 'its user'} is in none", "name a team"
        )

    def user(self, job: TraceJob, team: TeamName) -> UserName:
        """Return the job's user, or one for the whole team if the trace does not tell."""
        return job.user or UserName(f"{team}-jobs")


def terms_for(fleet: Fleet, trace: Iterable[TraceJob], teams: TraceTeams) -> ClusterTerms:
    """Return the terms of the fleet, with each user of the trace a member of the team of their jobs.

    Who may submit is not in question: the jobs of a trace were submitted.
    """
    members: dict[TeamName, set[UserName]] = {team.name: set(team.members) for team in fleet.teams}
    seen: set[tuple[TeamName, UserName]] = set()
    for job in trace:
        if (key := (job.team, job.user)) not in seen:
            seen.add(key)
            try:
                team = teams.find(job)
            except Refused:
                continue
            members[team].add(teams.user(job, team))
    return replace(
        terms_of(fleet),
        teams=tuple(replace(team, members=tuple(sorted(members[team.name]))) for team in fleet.teams),
    )


_ShapeKey = tuple[TeamName, str, int, int, bool, bool, str | None, bool]


class RequestMapping:
    """Maps jobs to requests; jobs without a pool go where they fit and the least is asked for already."""

    def __init__(self, fleet: Fleet, places: Fleet, teams: TraceTeams, simulator: Simulator) -> None:
        """`fleet` names the pools; `places` has the same pools with their sizes."""
        self._teams: Final = teams
        self._simulator: Final = simulator
        self._priorities: Final = frozenset(p.name for p in fleet.priorities)
        self._pools: Final = tuple(pool.name for pool in places.pools)
        self._named: Final[dict[str, PoolName]] = {
            **{
                partition: pool.name
                for pool in fleet.pools
                if isinstance(pool.place, SlurmPlace)
                for partition in pool.place.partitions
            },
            **{pool.name: pool.name for pool in fleet.pools},
        }
        self._fitting: Final[dict[_ShapeKey, tuple[Supply, ...]]] = {}
        self._limits: Final = {team.name: team.limits.job_seconds for team in fleet.teams}

    def request(self, job: TraceJob, seconds: float, load: Callable[[Supply], float]) -> JobRequest:
        """Return the request of a job. Raises Refused if it could never run.

        `load` returns the devices asked for on a supply, running or waiting, over its size.
        """
        team = self._teams.find(job)
        user = self._teams.user(job, team)
        pool = self._named.get(job.pool)
        if pool is None:
            pool = self._choose(job, team, user, load)
        return JobRequest(
            user,
            pool,
            job.gpus,
            job.nodes,
            job.slice,
            team,
            seconds,
            job.limit_seconds,
            job.priority if job.priority in self._priorities else None,
            job.tolerates_loss,
            job.together,
        )

    def _choose(
        self, job: TraceJob, team: TeamName, user: UserName, load: Callable[[Supply], float]
    ) -> PoolName:
        key = (
            team,
            job.priority or "",
            job.gpus,
            job.nodes,
            job.tolerates_loss,
            job.together,
            job.slice,
            self._exceeds_limit(job, team),
        )
        fitting = self._fitting.get(key)
        if fitting is None:
            fitting = self._fitting[key] = self._find_fitting(job, team, user)
        return min(fitting, key=load).pool

    def _exceeds_limit(self, job: TraceJob, team: TeamName) -> bool:
        limit = self._limits[team]
        return limit is not None and job.limit_seconds is not None and job.limit_seconds > limit

    def _find_fitting(self, job: TraceJob, team: TeamName, user: UserName) -> tuple[Supply, ...]:
        found: list[Supply] = []
        reasons: list[Refused] = []
        for pool in self._pools:
            request = JobRequest(
                user,
                pool,
                job.gpus,
                job.nodes,
                job.slice,
                team,
                limit_seconds=job.limit_seconds,
                priority=job.priority if job.priority in self._priorities else None,
                tolerates_loss=job.tolerates_loss,
                together=job.together,
            )
            try:
                self._simulator.check(request)
            except Refused as refused:
                reasons.append(refused)
            else:
                found.append(request.supply)
        if found:
            return tuple(found)
        if len(reasons) == 1:
            raise reasons[0]
        raise Refused(
            "NoPoolFits",
            f"no pool of the fleet takes a job of {team} with {job.nodes} x {job.gpus} GPUs: "
            + "; ".join(sorted({reason.message for reason in reasons})[:3]),
            "fairway get pools",
        )
