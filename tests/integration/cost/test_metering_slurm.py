"""A mixed load on a real Slurm: GPU-seconds of each team are what sacct and sreport say, to the second.

Small in every run; FAIRWAY_METER_JOBS chooses another size. sreport knows full hours only, an hour after the
other: FAIRWAY_METER_SREPORT=1 waits for the hour to be over and compares it too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.meter import MeterCluster
from fairway.control.metrics import UsageMetrics
from fairway.cost.calendar import Calendar
from fairway.engines.slurm import SlurmEngine
from fairway.files import parse_fleet
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Fleet
from fairway.model.job import Order
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply
from fairway.services.fleets import Fleets, LastApplied
from lab import Instance, obtain
from tests.integration.jobs.slurm_jobs import FLEET, Watch, in_thread, order, sbatch, send
from tests.integration.jobs.slurm_mix import Mix
from tests.metered import read
from tests.waiting import Deadline, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.lab]

TEAMS = ("lab", "second")
USERS = ("alice", "bob", "carol")
SLICES = ("1g.10gb", "3g.40gb")
TEXT = FLEET.replace(
    "teams:\n", "teams:\n  second: {{ share: 1, guarantee: {{ gpu: 8 }}, members: [dave] }}\n"
)
Used = Counter[tuple[str, str]]
"""Device-seconds by team and what of: `gpu`, or a slice."""


@pytest.fixture(scope="module", params=["slurm-24"])
def slurm() -> Iterator[Instance]:
    """One of its own: other tests take a shared one's accounting away again and again, and a slurmdbd 24.11
    that went through that stops answering sacct now and then, for minutes and through restarts."""
    instance = obtain("slurm", f"test-{os.getpid()}-meter", "24.11", {"spot_nodes": 2})
    try:
        instance.up()
        _prepare(instance)
        yield instance
    finally:
        instance.wipe()


def _prepare(instance: Instance) -> None:
    """A second team, and a QOS that takes places back: no policy of Fairway's is needed to see jobs."""
    if "second" not in instance.run("sacctmgr", "-nP", "show", "account", "format=account").stdout.split():
        instance.run("sacctmgr", "-i", "add", "account", "second")
        for user in USERS:
            instance.run("sacctmgr", "-i", "add", "user", user, "account=second")
    if "taker" not in instance.run("sacctmgr", "-nP", "show", "qos", "format=name").stdout.split():
        instance.run("sacctmgr", "-i", "add", "qos", "taker", "Priority=100", "Preempt=normal")
    for team in TEAMS:
        instance.run("sacctmgr", "-i", "modify", "account", team, "set", "qos+=taker", check=False)


@dataclass
class Line(Watch):
    """A mirror and a meter, as a server has them: what is seen is kept, and what is kept is metered."""

    ledger: Ledger | None = None
    mirror: Lease | None = None
    meter_lease: Lease | None = None
    meter: MeterCluster | None = None

    async def look(self) -> None:
        assert self.ledger is not None
        assert self.mirror is not None
        assert self.meter is not None
        assert self.meter_lease is not None
        batch = await self.engine.changes(self.mark, self.fleet)
        async with self.ledger.writing(self.mirror) as tx:
            await tx.mirror.write_jobs(batch.jobs, batch.mark)
        self.mark = batch.mark
        self.jobs |= {job.engine_id: job for job in batch.jobs}
        await self.meter(self.meter_lease)


@dataclass
class TwoTeams(Mix):
    """The mix, of two teams and with slices."""

    teams: Counter[str] = field(default_factory=Counter)

    async def _look(self, watch: Watch, within: float) -> None:
        """Until Slurm has nothing left."""
        deadline = Deadline(within)
        while True:
            await watch.look()
            if self.sent_all and not await in_thread(self.slurm, "squeue", "-h"):
                return
            assert not deadline.passed, "Slurm has not done with them"

    async def _wave(self, count: int) -> None:
        orders: list[Order] = []
        for _ in range(count):
            team = self.dice.choice(TEAMS)
            self.teams[team] += 1
            kind = self.dice.choices(("ok", "fail", "long", "slice", "gang", "array"), (8, 3, 5, 5, 2, 2))[0]
            self.done[kind] += 1
            gpus, seconds = self.dice.choice((1, 1, 2, 4)), f"{self.dice.uniform(0, 4):.1f}"
            user = self.dice.choice(USERS)
            if kind == "array":
                words = ["--array=0-2", f"--account={team}", f"--gres=gpu:a100:{gpus}"]
                number = await asyncio.to_thread(sbatch, self.slurm, user, *words, f"--wrap=sleep {seconds}")
                self.ids += [f"{number}_{task}" for task in range(3)]
                continue
            if kind == "slice":
                supply = Supply(PoolName("mig"), SliceName(self.dice.choice(SLICES)))
                made = order("sleep", seconds, user=user, supply=supply)
            elif kind == "gang":
                made = order("sleep", seconds, user=user, gpus=2, nodes=2)
            elif kind == "fail":
                made = order("bash", "-c", f"sleep {seconds}; exit 3", user=user, gpus=gpus)
            else:
                made = order("sleep", "20" if kind == "long" else seconds, user=user, gpus=gpus)
            orders.append(replace(made, team=TeamName(team)))
        if orders:
            self.ids += await send(self.engine, self.fleet, *orders)


@pytest.fixture
def fleet(slurm: Instance) -> Fleet:
    return parse_fleet(TEXT.format(**slurm.facts()), "fleet.yaml")


@pytest.fixture
async def line(slurm: Instance, fleet: Fleet, ledger: Ledger) -> AsyncIterator[Line]:
    engine = SlurmEngine(fleet.clusters[0], fleet.pools)
    await ledger.revisions.add("fleet", "digest", "test")
    applied = LastApplied(fleet.clusters[0].name, ledger, Fleets(ledger, lambda revision: fleet))
    made = Line(engine, fleet)
    made.ledger = ledger
    made.mirror = await ledger.leases.take("mirror", "lab", "test", 3600)
    made.meter_lease = await ledger.leases.take("meter", "lab", "test", 3600)
    made.meter = MeterCluster(fleet.clusters[0].name, ledger, applied, UsageMetrics(CollectorRegistry()))
    yield made
    await engine.close()


def accounted(slurm: Instance, since: datetime) -> Used:
    """What sacct says of every attempt (-D) that ran since, by its own account and TRES."""
    told = json.loads(
        slurm.run(
            "sacct", "-D", "-X", "-a", "--json", f"--starttime={since:%Y-%m-%dT%H:%M:%S}", timeout=60
        ).stdout
    )
    used: Used = Counter()
    for job in told["jobs"]:
        start, end = job["time"]["start"], job["time"]["end"]
        if not start or job["nodes"] in ("", "None assigned"):
            continue
        assert end, f"{job['job_id']} runs still"
        held = {t["name"]: t["count"] for t in job["tres"]["allocated"] if t["type"] == "gres"}
        slices = {name.partition(":")[2]: n for name, n in held.items() if ":" in name and "g." in name}
        for what, count in (slices or {"gpu": held.get("gpu", 0)}).items():
            used[job["account"], what] += count * (end - start)
    return +used


def metered(db: psycopg.Connection[Any], table: str) -> Used:
    """What Fairway says, by its rows or by its sums."""
    value = "devices::bigint * seconds" if table == "usage" else "device_seconds"
    found = db.execute(
        f"SELECT c.team, COALESCE(NULLIF(c.slice, ''), 'gpu'), sum({value}) FROM {table} u"
        " JOIN job_class c ON c.id = u.class GROUP BY 1, 2"
    )
    return +Counter({(team, what): int(total) for team, what, total in found})


def reported(slurm: Instance, start: int, end: int) -> Counter[str]:
    """What sreport says of full hours: GPU-seconds, slices too, by account."""
    form = "%Y-%m-%dT%H:%M:%S"
    said = slurm.run(
        "sreport", "-n", "-P", "-t", "seconds", "-T", "gres/gpu", "cluster", "AccountUtilizationByUser",
        f"start={datetime.fromtimestamp(start, UTC):{form}}",
        f"end={datetime.fromtimestamp(end, UTC):{form}}",
        "format=Account,Login,Used",
    ).stdout  # fmt: skip
    used: Counter[str] = Counter()
    for row in said.splitlines():
        account, login, seconds = row.split("|")
        if login:
            used[account] += int(seconds)
    return +used


@pytest.mark.timeout(1500)
async def test_gpu_seconds_of_teams_equal_the_accounting(
    slurm: Instance, line: Line, database_url: str
) -> None:
    count = int(os.environ.get("FAIRWAY_METER_JOBS", "40"))
    since = datetime.now(UTC).replace(microsecond=0)
    await line.look()
    tables = ("usage", "usage_hour", "usage_day")
    with psycopg.connect(database_url, autocommit=True) as db:
        before = {table: metered(db, table) for table in tables}  # what ended just before, of other tests
    mix = TwoTeams(slurm, line.engine, line.fleet, random.Random(count))
    await mix.run(count, line, within=1200)
    for team in TEAMS:
        await asyncio.to_thread(slurm.run, "scancel", f"--account={team}", check=False)
    said: list[str] = []

    async def equal() -> bool:
        await line.look()
        theirs = await asyncio.to_thread(_try_accounted, slurm, since)
        with psycopg.connect(database_url, autocommit=True) as db:
            ours = {table: metered(db, table) - before[table] for table in tables}
        said[:] = [
            f"{table} {key}: {used[key]}, sacct {theirs[key]}"
            for table, used in ours.items()
            for key in sorted({*used, *theirs})
            if used[key] != theirs[key]
        ]
        return bool(theirs) and not said

    deadline = Deadline(400)  # the accounting is written later, and later still after a restart
    while not await equal():
        assert not deadline.passed, said
        await asyncio.sleep(2)
    with psycopg.connect(database_url, autocommit=True) as db:
        assert read(db, 0).faults(Calendar(UTC)) == []
        used = metered(db, "usage") - before["usage"]
        attempts = db.execute("SELECT count(*), count(DISTINCT ending) FROM attempt").fetchone()
    assert {team for team, _ in used} == set(TEAMS)
    kinds = {what for _, what in used}
    assert "gpu" in kinds
    assert kinds & set(SLICES), "some slices were held"
    told = f"{len(mix.ids)} jobs {dict(mix.done)}, {mix.takers} takers, {attempts} attempts; {dict(used)}"
    logging.getLogger(__name__).info(told)
    if os.environ.get("FAIRWAY_METER_SREPORT"):
        await _wait_for_sreport(slurm, since, used)


def _try_accounted(slurm: Instance, since: datetime) -> Used:
    try:
        return accounted(slurm, since)
    except AssertionError:
        return Counter()
    except subprocess.TimeoutExpired:
        # Seen once of 24.11: a slurmdbd that had been restarted five times answered nobody any more. What it
        # owes comes with the next one, which is what an outage of it must come to anyway.
        logging.getLogger(__name__).warning("slurmdbd answers nobody: restarted")
        slurm.end("slurmdbd", patience=30)
        slurm.of_kind.start(slurm, "slurmdbd")
        return Counter()


async def _wait_for_sreport(slurm: Instance, since: datetime, used: Used) -> None:
    """All ran within one hour or two: when the last of them is over, sreport has them all."""
    start = int(since.timestamp()) // 3600 * 3600
    end = (int(time.time()) // 3600 + 1) * 3600
    await asyncio.sleep(max(0.0, end + 10 - time.time()))
    ours: Counter[str] = Counter()
    for (team, _), seconds in used.items():
        ours[team] += seconds
    last: list[Counter[str]] = []

    def rolled_up() -> bool:
        last[:] = [reported(slurm, start, end)]
        return last[0] == ours

    await eventually(rolled_up, within=300, what=f"sreport says {ours}", pause=10)
    logging.getLogger(__name__).info("sreport says the same: %s", dict(ours))
