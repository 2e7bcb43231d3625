"""kill -9 of the server at any moment of an apply: the next one ends in the same state.

Four moments in every run, fifty nightly:
    FAIRWAY_TESTS=nightly pytest tests/integration/policy/test_apply_kill9.py --junitxml build/kill9.xml
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fairway.ledger import ApplyCluster, Ledger
from fairway.model.apply import ApplyState
from fairway.model.fleet import EngineKind, Fleet
from fairway.server import build_engine
from fairway.services.plans import plan_cluster
from tests.integration.policy.policy_lab import governed
from tests.integration.policy.policy_server import (
    ENDED,
    HERE,
    Policy,
    PolicyServer,
    fleet,
    policy_server,
    team,
)
from tests.integration.server_process import Home, temporary_home

TEAMS = 24
FEW, MANY = 4, 50
SEED = 20240611


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


def even() -> Fleet:
    return fleet(*(team(f"t{i:02}", share=10, guarantee=1, members=(f"u{i:02}",)) for i in range(TEAMS)))


def odd() -> Fleet:
    """A third of the teams is gone, a third is new, the rest has other shares, guarantees and members."""
    return fleet(
        *(
            team(f"t{i:02}", share=10 + i % 3, guarantee=i % 2, members=(f"u{i:02}", f"v{i:02}"))
            for i in range(TEAMS // 3, TEAMS + TEAMS // 3)
        )
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("slurm-24", marks=pytest.mark.slurm),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ],
)
async def test_killed_at_a_few_moments(
    engine: str, home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with policy_server(governed(engine), home, ledger, database_url) as served:
        record_property("kills", await _rounds(served, FEW))


@pytest.mark.nightly("fifty kills; CI runs four")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("slurm-24", marks=pytest.mark.slurm),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ],
)
async def test_killed_at_fifty_moments(
    engine: str, home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with policy_server(governed(engine), home, ledger, database_url) as served:
        record_property("kills", await _rounds(served, MANY))


async def _rounds(served: PolicyServer, rounds: int) -> str:
    chance = random.Random(SEED)
    fleets = (even(), odd())
    should_be: list[Policy] = []
    seconds: list[float] = []
    for wanted in (*fleets, fleets[0]):  # undisturbed, to know how it ends and how long it takes
        end = await served.applied(wanted)
        assert end.started_at is not None
        assert end.finished_at is not None
        seconds.append((end.finished_at - end.started_at).total_seconds())
        should_be.append(await served.policy())
    assert should_be[2] == should_be[0] != should_be[1]
    rows = await _rows(served)
    midway: Counter[str] = Counter()
    for number in range(rounds):
        turn = (number + 1) % 2
        # The first at once, one in eight before it begins, the rest spread over the whole of it.
        part = chance.uniform(0, 0.95) if number else 0.0
        wait = -1.0 if number % 8 == 7 else part * seconds[1 if turn else 2]
        queued = await served.queue(fleets[turn], force=True)
        if wait >= 0:
            await served.until(queued, ApplyState.RUNNING, ApplyState.DONE)
            await asyncio.sleep(wait)
        await served.kill()
        at = await served.state(queued)
        midway[at.state.value] += 1
        await served.start()
        end = await served.until(queued, *ENDED)
        _whole(end, at)
        assert await served.policy() == should_be[turn], f"round {number}, killed after {wait:.2f} s"
        await _nothing_left(served, fleets[turn])
        if turn == 0:
            assert await _rows(served) == rows, f"round {number}, killed after {wait:.2f} s"
    assert await served.ledger.applies.next_work(HERE) is None
    assert midway["running"], "no kill came in the middle of an apply"
    return f"{rounds} kills: {dict(midway)}; undisturbed {seconds[1]:.2f} and {seconds[2]:.2f} s"


def _whole(end: ApplyCluster, at: ApplyCluster) -> None:
    """The record says all that was to be done, all of it made, each object once."""
    assert end.state is ApplyState.DONE, f"{end.code}: {end.message}"
    assert (end.done, end.code) == (end.total, "")
    assert all(c.made for c in end.changes)
    keys = [c.change.key for c in end.changes]
    assert len(keys) == len(set(keys))
    if at.state is ApplyState.RUNNING:  # nothing of what was planned at first is forgotten
        assert {c.change.key for c in at.changes} <= set(keys)


async def _nothing_left(served: PolicyServer, wanted: Fleet) -> None:
    home = served.at_home(wanted)
    engine = build_engine(home.clusters[0], home.pools)
    try:
        plan = await plan_cluster(engine, home, HERE)
    finally:
        await engine.close()
    assert plan.changes == ()
    assert plan.in_the_way == ()


async def _rows(served: PolicyServer) -> list[str]:
    """What the engine's own tool shows, row by row: a doubled or half-made record would be one more."""
    if served.cluster.kind is not EngineKind.SLURM:
        return []
    shown: list[str] = []
    for what, columns in (
        ("account", "account,description"),
        ("association", "account,parentname,user,share,qos,grptres,grpjobs,grpsubmit"),
        ("qos", "name,priority,grptres,maxtrespu,maxtres,preempt,flags,gracetime"),
    ):
        done = await asyncio.to_thread(
            served.cluster.instance.run, "sacctmgr", "-nP", "show", what, f"format={columns}"
        )
        shown += sorted(f"{what} {line}" for line in done.stdout.splitlines())
    return shown
