"""Services that scale at random while the control plane is killed: the ledger equals the pods' own times."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator

import pytest

from lab.errors import LabError
from lab.kubernetes.api import NOT_NOW
from tests.integration.server_process import Home, temporary_home
from tests.kinds.manifests import MANIFESTS
from tests.kinds.pods import gpu_seconds, gpus_of
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
        faults: list[str] = []

        def equal(one: Workload, _: object) -> bool:
            return not show.pods(one) and gpu_seconds(show.recorder.started(one.name)) == show.held(one)[0]

        for one in await show.until("usage", services, equal):
            pods = show.recorder.started(one.name)
            faults.append(f"{one.kind}: {show.held(one)[0]} GPU-seconds, its pods {gpu_seconds(pods)}")
        counts = {one.kind: len(show.recorder.started(one.name)) for one in services}
        logging.getLogger(__name__).info("%s scalings, %s kills, pods: %s", SCALINGS, kills, counts)
        assert not faults, faults


def _agrees(show: Show, one: Workload, row: object) -> bool:
    """Whether the ledger holds as many GPUs as pods run."""
    return getattr(row, "devices", None) == sum(gpus_of(pod) for pod in show.pods(one)) > 0


async def _scale(show: Show, services: list[Workload], dice: random.Random) -> int:
    """Scale at random, and kill a part of the control plane now and then; the number of kills."""
    kills = 0
    for number in range(SCALINGS):
        one = dice.choice(services)
        replicas = dice.randint(0, MAX_REPLICAS) if number < SCALINGS - len(services) else 3
        if number >= SCALINGS - len(services):  # at the end, all of them run
            one = services[number - SCALINGS]
        await asyncio.to_thread(_set_replicas, show, one, replicas)
        if dice.random() < 0.1:
            kills += 1
            await asyncio.to_thread(_kill, show, dice.choice(KILLED))
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
    try:
        show.instance.start(daemon)
    except LabError:
        if show.instance.daemon(daemon) is None:
            raise
