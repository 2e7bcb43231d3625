"""What a suggestion must never do: change what its owner could not submit, or let a team exceed its ceiling.

Both are checked without Fairway's own code for them: against the fleet, and in what the engine holds.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import suppress
from typing import Any, Final

from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.team import Supply
from fairway.wire import jobs as job_wire
from lab import Instance
from lab.errors import LabError
from lab.kubernetes.cluster import Cluster as LabKubernetes

SAMPLE_SECONDS: Final = 5.0
_RUNNING: Final = "/api/v1/pods?fieldSelector=status.phase%3DRunning"
_COLUMNS: Final = "--format=%a|%D|%b|%N"
Held = Counter[tuple[TeamName, PoolName]]


def exceeded_right(fleet: Fleet, job: job_wire.Job, offered: job_wire.Alternative, user: UserName) -> str:
    """Return which right the change of a job would exceed; empty: none."""
    team = next((team for team in fleet.teams if team.name == job.team), None)
    if team is None or user not in team.members or job.user != user:
        return f"{user} has no job {job.id} of team {job.team}"
    words = offered.command.split()
    if "set-priority" in words and words[-1] not in team.priorities:
        return f"team {team.name} may not use the priority {words[-1]}"
    grant = team.grant(Supply(PoolName(offered.pool)))
    if grant is None:
        return f"team {team.name} has no grant on {offered.pool}"
    gpus = offered.gpus * offered.nodes
    most = [n for n in (grant.ceiling, team.limits.job_gpus, team.limits.user_gpus) if n is not None]
    if gpus > min(most, default=gpus):
        return f"{gpus} GPUs are more than a job of team {team.name} may have in {offered.pool}"
    if offered.kind == "resize" and gpus >= job.gpus * job.nodes:
        return f"{gpus} GPUs are not fewer than {job.gpus * job.nodes}"
    return ""


class CeilingWatch(threading.Thread):
    """Compares what each team holds on the engine with what it may hold."""

    def __init__(self, instance: Instance, fleet: Fleet) -> None:
        super().__init__(name="ceilings")
        self.samples = 0
        self.exceeded: list[str] = []
        self.most: Held = Counter()
        self._instance = instance
        self._fleet = fleet
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            with suppress(LabError, OSError):
                self._look(held(self._instance))

    def _look(self, now: Held) -> None:
        self.samples += 1
        self.most |= now
        for team in self._fleet.teams:
            ceilings = {g.supply.pool: g.ceiling for g in team.grants}
            of_team = {pool: n for (name, pool), n in now.items() if name == team.name}
            if self._instance.kind == "slurm":
                # The GPUs of both pools have one GRES type, which Slurm limits in all (PoolsShareType).
                known = [n for n in ceilings.values() if n is not None]
                of_team = {PoolName("all"): sum(of_team.values())}
                ceilings = {PoolName("all"): sum(known) if len(known) == len(ceilings) else None}
            for pool, devices in of_team.items():
                most = ceilings.get(pool, 0)
                if most is not None and devices > most:
                    self.exceeded.append(f"{team.name} holds {devices} of {pool}, and may hold {most}")

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def held(instance: Instance) -> Held:
    """Return the GPUs that jobs of each team hold now, as the engine's own tools have it."""
    return _held_on_slurm(instance) if instance.kind == "slurm" else _held_on_kubernetes(instance)


def _pool(node: str) -> PoolName:
    return PoolName("spot" if node.startswith("spot") else "gpu")


def _held_on_slurm(instance: Instance) -> Held:
    found: Held = Counter()
    for line in instance.run("squeue", "-h", "--states=R", _COLUMNS).stdout.splitlines():
        account, nodes, gres, names = line.strip().split("|")
        each = re.search(r":(\d+)$", gres)
        if each is not None:
            found[TeamName(account), _pool(names)] += int(nodes) * int(each[1])
    return found


def _held_on_kubernetes(instance: Instance) -> Held:
    api = LabKubernetes(instance).api
    teams = {
        one["metadata"]["name"]: one["metadata"].get("labels", {}).get("fairway.dev/team")
        for one in api.get("/api/v1/namespaces")["items"]
    }
    found: Held = Counter()
    for pod in api.get(_RUNNING)["items"]:
        team = teams.get(pod["metadata"]["namespace"])
        if team is not None and "deletionTimestamp" not in pod["metadata"]:
            found[TeamName(team), _pool(pod["spec"]["nodeName"])] += _gpus(pod)
    return found


def _gpus(pod: dict[str, Any]) -> int:
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)
