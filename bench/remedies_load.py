"""The load of the bench of remedies: four teams of three people, who keep a long queue.

Most jobs want the pool of owned GPUs, where they wait for ten minutes and longer; the spot nodes have room.
Each person has a few kinds of jobs, known by name, of which each runs about as long as the last one. Nearly a
third have a limit of hours, as people set it who do not know.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.job import Tolerates
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Fairness, Grant, Limits, Supply, Team
from fairway.wire import jobs as job_wire
from lab.kubernetes.kwok import RUN_FOR_ENV

GPU, SPOT = PoolName("gpu"), PoolName("spot")
ALICE, BOB, CAROL = (UserName(name) for name in ("alice", "bob", "carol"))
PEOPLE: Final = (ALICE, BOB, CAROL)
LOOK_SECONDS: Final = 2.0
MAX_AT_ONCE: Final = 40
"""Jobs that are submitted before the queue is counted again."""
HOURS_SECONDS: Final = 7200
NODES: Final = {GPU: 8, SPOT: 2}
"""The nodes of the cluster for which `TEAMS` are; on a larger one, each has so much more."""
_MEDIANS: Final = {"train": 150.0, "tune": 100.0, "eval": 60.0}
_SPREAD: Final = 0.35
_SHORTEST, _LONGEST = 20, 300


@dataclass(frozen=True, slots=True)
class Shape:
    """A team of the load."""

    members: tuple[UserName, ...]
    share: int
    guarantee: int
    """Of the owned pool."""
    borrow: int | None
    spot: int | None
    """What it may borrow of the spot pool; None: it has no grant there."""
    priorities: tuple[str, ...]
    weight: int
    """How many of a hundred jobs are of this team."""


TEAMS: Final = {
    "red": Shape((ALICE, BOB), 1, 16, 24, 16, ("urgent", "normal", "low"), 35),
    "green": Shape((BOB, CAROL), 1, 8, None, 8, ("normal", "low"), 25),
    "blue": Shape((CAROL,), 2, 0, 40, None, ("normal", "low"), 25),
    "grey": Shape((ALICE,), 1, 0, None, 16, ("urgent", "normal", "low"), 15),
}


def teams_fleet(fleet: Fleet, sizes: Mapping[PoolName, float]) -> Fleet:
    """Return the fleet of the lab with the teams of the load, whose grants are `sizes` times as large.

    Of its pools, the second is the spot pool.
    """
    supplies = [Supply(pool.name) for pool in fleet.pools]

    def times(pool: PoolName, gpus: int | None) -> int | None:
        return None if gpus is None else round(gpus * sizes[pool])

    teams = tuple(
        Team(
            TeamName(name),
            None,
            shape.share,
            tuple(
                grant
                for grant in (
                    Grant(supplies[0], times(GPU, shape.guarantee) or 0, times(GPU, shape.borrow)),
                    *(
                        Grant(supply, 0, times(SPOT, shape.spot))
                        for supply in supplies[1:]
                        if shape.spot is not None
                    ),
                )
            ),
            limits=Limits(job_gpus=32, job_seconds=2 * HOURS_SECONDS, user_gpus=None),
            priorities=tuple(map(PriorityName, shape.priorities)),
            members=shape.members,
        )
        for name, shape in TEAMS.items()
    )
    chosen = {ALICE: TeamName("red"), BOB: TeamName("red"), CAROL: TeamName("green")}
    return replace(fleet, teams=teams, chosen_teams=chosen, fairness=Fairness(half_life_seconds=3600))


@dataclass(slots=True)
class Load:
    """Draws jobs; the same for the same seed."""

    pods: bool
    """Whether jobs run as pods of KWOK, which take their time from a variable."""
    dice: random.Random = field(default_factory=lambda: random.Random(43))

    def draw(self, pool: PoolName) -> tuple[UserName, job_wire.JobSpec]:
        """Return a job for a pool, and who submits it."""
        dice = self.dice
        names = [name for name, shape in TEAMS.items() if pool == GPU or shape.spot]
        team = dice.choices(names, [TEAMS[name].weight for name in names])[0]
        shape = TEAMS[team]
        user = dice.choice(shape.members)
        nodes = dice.choices((1, 2), (94, 6))[0] if pool == GPU else 1
        gpus = 8 if nodes > 1 else dice.choices((1, 2, 4, 8), (45, 20, 20, 15))[0]
        kind, median = dice.choice([*_MEDIANS.items()])
        seconds = round(min(_LONGEST, max(_SHORTEST, median * dice.lognormvariate(0.0, _SPREAD))))
        limit = HOURS_SECONDS if dice.random() < 0.3 else 60 * -(-2 * seconds // 60)
        priority = dice.choices(("normal", "low", "urgent"), (83, 14, 3))[0]
        return user, job_wire.JobSpec(
            name=f"{kind}-{gpus * nodes}",
            gpus=job_wire.GpuRequest(count=gpus),
            nodes=nodes,
            command=["sleep", str(seconds)],
            env={RUN_FOR_ENV: f"{seconds}s"} if self.pods else {},
            team=team,
            priority=priority if priority in shape.priorities else "normal",
            pool=pool,
            time_seconds=limit,
            image="none",
            tolerates=[Tolerates.SPOT] if (shape.spot and dice.random() < 0.8) or pool == SPOT else [],
        )


class Feeder(threading.Thread):
    """Keeps so many jobs waiting in each pool."""

    def __init__(self, target: Target, load: Load, waiting: dict[PoolName, int]) -> None:
        super().__init__(name="feeder")
        self.submitted = 0
        self.problems: Counter[str] = Counter()
        self._target = target
        self._load = load
        self._waiting = waiting
        self._over = threading.Event()

    def run(self) -> None:
        with Client(self._target) as client:
            while not self._over.wait(LOOK_SECONDS):
                with suppress(FairwayError):
                    self._feed(client)

    def _feed(self, client: Client) -> None:
        have: Counter[str] = Counter()
        for row in client.job_counts():
            if row.state in ("queued", "waiting"):
                have[row.pool or ""] += row.jobs
        drawn: dict[UserName, list[job_wire.JobSpec]] = {}
        for pool, wanted in self._waiting.items():
            for _ in range(min(MAX_AT_ONCE, wanted - have[pool])):
                user, spec = self._load.draw(pool)
                drawn.setdefault(user, []).append(spec)
        for user, specs in drawn.items():
            try:
                self.submitted += len(client.submit(specs, as_user=user))
            except FairwayError as error:
                self.problems[error.code] += 1

    def end(self) -> None:
        """Submit no more."""
        self._over.set()
        self.join()


def wait_for_ended(client: Client, jobs: int, seconds: float) -> None:
    """Return when so many jobs have ended, so that run times are known."""
    deadline = time.monotonic() + seconds
    while sum(1 for _ in client.jobs(states=["ended"], most=jobs)) < jobs:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{jobs} jobs did not end in {seconds:g} s")
        time.sleep(LOOK_SECONDS)
