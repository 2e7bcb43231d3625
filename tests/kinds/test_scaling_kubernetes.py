"""Services that scale at random while the control plane is killed: the ledger equals the pods' own times.

A new API server does not have the events before it: of a pod that ends while it comes back, anybody who
watches learns only that it is gone. Its end in the ledger is when this was noticed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from lab.errors import LabError
from lab.kubernetes.api import NOT_NOW
from tests.integration.server_process import Home, temporary_home
from tests.kinds.manifests import MANIFESTS
from tests.kinds.pods import gpus_of, pod_times
from tests.kinds.show import TEAM, Show, Workload, placed_in, showing
from tests.waiting import Deadline

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.lab,
    pytest.mark.timeout(1500),
    pytest.mark.nightly("minutes; a property test of the mirror adds up random scalings in CI"),
]

SERVICES = ("Deployment", "LeaderWorkerSet")
"""Kinds whose replicas may change while they run."""
SCALINGS = 200
MAX_REPLICAS = 6
AWAY = timedelta(seconds=20)
"""How long after a kill of the API server the mirror may not have caught up."""
KILLED = ("kube-apiserver", "kueue", "kube-controller-manager")


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


async def test_replica_seconds_equal_the_pods_own_times(home: Home, database_url: str) -> None:
    dice = random.Random(SCALINGS)
    async with showing(home, database_url) as show:
        services = [
            Workload(kind, name, MANIFESTS[kind](name, 1, 2))
            for kind in show.kinds(SERVICES)
            for name in [f"{kind.lower()}-scaled-{show.unique}"]
        ]
        for one in services:
            for wanted in one.objects:
                await asyncio.to_thread(show.create, show.alice, TEAM, wanted)
        late = await show.until("running", services, lambda one, row: show.pods(one))
        assert not late, [one.kind for one in late]
        kills = await _scale(show, services, dice)
        assert not await show.until("as wanted", services, lambda one, row: _agrees(show, one, row))
        for one in services:
            for wanted in one.objects:
                show.delete(wanted, TEAM)

        def over(one: Workload, _: object) -> bool:
            if show.pods(one):
                return False
            held = _in_ledger(database_url, one)
            seconds = [int((end - start).total_seconds()) for (_, start), end in held.items() if end]
            return len(seconds) == len(held) and sum(seconds) == show.held(one)[0]

        assert not await show.until("usage", services, over), "usage is the sum of the replicas in the ledger"
        pods, off, faults = 0, [], []
        for one in services:
            ledger = _in_ledger(database_url, one)
            for pod in show.recorder.started(one.name):
                pods += 1
                name, (start, end) = pod["metadata"]["name"], pod_times(pod)
                ended = ledger.pop((name, start), None)  # names are used again
                if ended == end:
                    continue
                assert end is not None
                seconds = int(((ended or start) - end).total_seconds())
                away = [at for daemon, at in kills if daemon == "kube-apiserver" and at <= end <= at + AWAY]
                if away and abs(seconds) <= AWAY.total_seconds():
                    off.append(seconds)
                else:
                    faults.append(f"{one.kind} {name} of {start}: ended {ended}, its pod {end}")
            faults += [f"{one.kind} {name} of {start}: in the ledger only" for name, start in ledger]
        logging.getLogger(__name__).warning(
            "%s scalings, kills %s, %s pods; pods that ended while the API server came back: off by %s s",
            SCALINGS, Counter(daemon for daemon, _ in kills), pods, off,
        )  # fmt: skip
        assert not faults, faults


def _in_ledger(database_url: str, one: Workload) -> dict[tuple[str, datetime], datetime | None]:
    """The ends of its replicas by name and start."""
    with psycopg.connect(database_url) as db:
        found = db.execute(
            "SELECT a.replica, a.started_at, a.ended_at FROM attempt a JOIN job j ON j.id = a.job"
            " WHERE j.name = %s AND a.replica <> ''",
            (one.name,),
        )
        return {(replica, start): end for replica, start, end in found}


def _agrees(show: Show, one: Workload, row: object) -> bool:
    """Whether the ledger holds as many GPUs as pods run."""
    return getattr(row, "devices", None) == sum(gpus_of(pod) for pod in show.pods(one)) > 0


async def _scale(show: Show, services: list[Workload], dice: random.Random) -> list[tuple[str, datetime]]:
    """Scale at random, and kill a part of the control plane now and then; what was killed, and when."""
    kills = []
    for number in range(SCALINGS):
        one = dice.choice(services)
        replicas = dice.randint(0, MAX_REPLICAS) if number < SCALINGS - len(services) else 3
        if number >= SCALINGS - len(services):  # at the end, all of them run
            one = services[number - SCALINGS]
        await asyncio.to_thread(_set_replicas, show, one, replicas)
        for daemon in show.instance.dead:  # without the API server they give up, and a kubelet starts them
            await asyncio.to_thread(_start, show, daemon)
        if dice.random() < 0.1:
            kills.append((dice.choice(KILLED), datetime.now(UTC).replace(microsecond=0)))
            await asyncio.to_thread(_kill, show, kills[-1][0])
        await asyncio.sleep(dice.uniform(0.1, 1.5))
    return kills


def _set_replicas(show: Show, one: Workload, replicas: int) -> None:
    path = show.api.path_of(placed_in(one.objects[0], TEAM)) + "/scale"
    deadline = Deadline(60)
    while True:
        try:
            show.api.merge(path, {"spec": {"replicas": replicas}})
        except NOT_NOW:
            assert not deadline.passed, f"{one.kind} cannot be scaled"
        else:
            return


def _kill(show: Show, daemon: str) -> None:
    show.instance.kill(daemon)
    _start(show, daemon)


def _start(show: Show, daemon: str) -> None:
    try:
        show.instance.start(daemon)
    except LabError:
        if show.instance.daemon(daemon) is None:
            raise
