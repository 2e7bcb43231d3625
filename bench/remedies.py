"""Suggestions of `fairway why`, carried out on a real engine: whether jobs start within the stated time.

`--size N` (small: 20) carries out N suggestions on the first instance of the lab that is up among
FAIRWAY_BENCH_ON (slurm-24); one with spot nodes has two pools, so that moves are offered. Four teams keep a
long queue through a server of its own. Again and again a random waiting job is drawn, its owner asks `why`
until what would help is verified, one suggestion is drawn, somebody else tries its command and has to be
refused, the owner runs it, and the engine's start of the job is compared with what was stated. Every sixth
suggestion is not carried out: how many of those jobs start in time anyhow is the bare figure. SIGTERM ends
it early, with what it has.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Final

from bench.figure import Figure
from bench.lab_server import apply_by, apply_policy, cancel_all, gpu_nodes, lab_fleet, server
from bench.remedies_load import GPU, NODES, PEOPLE, SPOT, Feeder, Load, teams_fleet, wait_for_ended
from bench.remedies_rights import CeilingWatch, exceeded_right
from fairway.cli.root import root
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, UserName
from fairway.simulate.remedies import NOW_SECONDS
from fairway.wire import jobs as job_wire
from lab import Instance, find

SIZES: Final = {"small": 20}
QUEUE: Final = {GPU: 180, SPOT: 4}
"""Jobs that wait in each pool, on a cluster of the size in `NODES`; so many more on a larger one."""
LEARNT: Final = 50
"""Jobs that have ended before anybody is asked."""
AT_ONCE: Final = 14
"""Changed jobs that have not started: few, as among hundreds of users who do not know of each other."""
LEFT_ALONE: Final = 6
"""Every so many suggestions, one is not carried out."""
MAX_SECONDS: Final = float(os.environ.get("FAIRWAY_BENCH_REMEDIES_SECONDS", "2100"))
WARM_SECONDS: Final = 600.0
SEARCH_SECONDS: Final = 45.0
FOLLOW_SECONDS: Final = 2.0
LIST_SECONDS: Final = 10.0
"""How often the waiting jobs are listed."""
AGAIN_SECONDS: Final = 240.0
"""A job that had no suggestion is not drawn again sooner."""
FAR_SECONDS: Final = 360.0
"""Jobs that are expected to start sooner are not asked about: nothing would save five minutes."""
OVERDUE_SECONDS: Final = 180.0
"""How long changed jobs are followed at the end."""
TARGET: Final = 0.1
"""The part of the suggestions that may start later than stated."""
KEPT: Final = Path("build")


@dataclass(slots=True)
class Suggestion:
    """One that was offered, and what came of it. Times are seconds since 1970."""

    job: str
    user: str
    team: str
    kind: str
    command: str
    text: str
    effect: str
    stated: float
    """Seconds within which it starts."""
    sooner: float
    waited: float
    """Seconds since its submission."""
    expected: float | None
    """When it was expected to start as it is, in seconds."""
    carried_out: bool
    at: float = 0.0
    """When it was offered."""
    started: float | None = None
    outcome: str = ""
    """in time, late, overtaken (started before it was changed), refused, or lost; empty: not known yet."""
    detail: str = ""
    before: Mapping[str, object] = field(default_factory=dict)
    queue: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """What happened."""

    offered: list[Suggestion] = field(default_factory=list)
    asked: int = 0
    searched: int = 0
    silent: int = 0
    """Searches that did not answer in time."""
    outsiders: int = 0
    """Others who tried a change and were refused."""
    faults: list[str] = field(default_factory=list)
    """Rights that were exceeded."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Offered, by kind."""

    def of(self, *, carried_out: bool) -> list[Suggestion]:
        return [one for one in self.offered if one.carried_out == carried_out]


class People:
    """The people of the load, each with a token of their own."""

    def __init__(self, url: str, admin: Client, folder: Path) -> None:
        self._environment = {"FAIRWAY_URL": url, "FAIRWAY_CONFIG_DIR": str(folder)}
        self._tokens = {
            user: admin.create_token(f"bench-{user}", Role.MEMBER, 86_400, user).secret for user in PEOPLE
        }
        viewer = admin.create_token("bench-viewer", Role.VIEWER, 86_400, "viewer").secret
        self.viewer = Client(Target(url, viewer))
        """Sees expected starts, and may change nothing: nobody looks for what would help."""
        self.clients = {user: Client(Target(url, token)) for user, token in self._tokens.items()}

    def run(self, user: UserName, command: str) -> FairwayError | None:
        """Run one command of the command line as a user. Returns the error that it ends with."""
        name, *words = shlex.split(command)
        assert name == "fairway", command
        os.environ.update(self._environment, FAIRWAY_TOKEN=self._tokens[user])
        with redirect_stdout(StringIO()):
            try:
                root.main(args=words, prog_name="fairway", standalone_mode=False)
            except FairwayError as error:
                return error
        return None

    def close(self) -> None:
        for client in (self.viewer, *self.clients.values()):
            client.close()


class Bench:
    """Draws jobs, asks, carries out, and follows what was changed."""

    def __init__(
        self,
        fleet: Fleet,
        admin: Client,
        people: People,
        wanted: int,
        at_once: int,
        over: threading.Event,
    ) -> None:
        self.run = Run()
        self._at_once = at_once
        self._fleet = fleet
        self._admin = admin
        self._people = people
        self._wanted = wanted
        self._over = over
        self._dice = random.Random(47)
        self._drawn: dict[str, float] = {}
        self._open: list[Suggestion] = []
        self._waiting: list[job_wire.Job] = []
        self._listed = 0.0
        self._followed = 0.0

    def play(self, deadline: float) -> None:
        """Carry out suggestions until there are enough, or until the deadline; follow those under way."""
        while not self._over.is_set() and time.time() < deadline and len(self._counted()) < self._wanted:
            self._follow()
            under_way = [one for one in self._open if time.time() < one.at + one.stated]
            if sum(one.carried_out for one in under_way) >= self._at_once:
                time.sleep(FOLLOW_SECONDS)
            elif not self._suggest():
                time.sleep(0.5)
        last = time.time() + OVERDUE_SECONDS
        while self._open and time.time() < last:
            self._follow()
            time.sleep(FOLLOW_SECONDS)

    def _counted(self) -> list[Suggestion]:
        """Return what was carried out, without what started before it could be changed."""
        return [one for one in self.run.of(carried_out=True) if one.outcome not in ("overtaken", "refused")]

    def _suggest(self) -> bool:
        """Ask about one random job, and carry out a suggestion. Returns whether there was one."""
        job = self._draw()
        if job is None:
            return False
        user = UserName(job.user)
        self.run.searched += 1
        why = self._ask(job, user)
        if why is None or not why.alternatives:
            return False
        self.run.kinds.update(one.kind for one in why.alternatives)
        offered = self._dice.choice(why.alternatives)
        one = _suggestion(job, user, why, offered)
        one.carried_out = (len(self.run.offered) + 1) % LEFT_ALONE != 0
        self.run.offered.append(one)
        self._open.append(one)
        if fault := exceeded_right(self._fleet, job, offered, user):
            self.run.faults.append(f"{offered.command}: {fault}")
        if one.carried_out:
            self._try_as_another(user, offered.command)
            self._carry_out(one, user)
        return True

    def _draw(self) -> job_wire.Job | None:
        """Return a random waiting job that is not expected to start soon."""
        now = time.time()
        if now >= self._listed + LIST_SECONDS:
            self._listed = now
            self._waiting = [
                job
                for job in self._admin.jobs(states=["waiting"], most=1000)
                if job.engine_id and not job.attempt_count
            ]
        waiting = [job for job in self._waiting if now >= self._drawn.get(job.id, 0.0)]
        if not waiting:
            return None
        job = self._dice.choice(waiting)
        self._drawn[job.id] = now + AGAIN_SECONDS
        self.run.asked += 1
        try:
            expected = self._people.viewer.why(job.id).expected
        except FairwayError:
            return None
        middle = None if expected is None else expected.expected
        # Without one, it is later than the futures reach, or new.
        return job if middle is None or middle.timestamp() > now + FAR_SECONDS else None

    def _ask(self, job: job_wire.Job, user: UserName) -> job_wire.Why | None:
        """Ask `why` as the owner until what would help is verified."""
        deadline = time.time() + SEARCH_SECONDS
        while time.time() < deadline:
            try:
                why = self._people.clients[user].why(job.id)
            except FairwayError:
                return None
            if not why.alternatives_pending:
                return why
            time.sleep(1.0)
        self.run.silent += 1
        return None

    def _try_as_another(self, owner: UserName, command: str) -> None:
        """Run a command as somebody who may not: whoever else there is, in the owner's team or not."""
        other = self._dice.choice([user for user in PEOPLE if user != owner])
        error = self._people.run(other, command)
        if error is None or error.code != "NotYourJob":
            self.run.faults.append(f"{other} ran {command}: {error or 'done'}")
        self.run.outsiders += 1

    def _carry_out(self, one: Suggestion, user: UserName) -> None:
        for command in one.command.split(";"):
            error = self._people.run(user, command.strip())
            if error is not None:
                one.outcome, one.detail = "refused", f"{error.code}: {error.message}"
                self._close(one)
                return

    def _follow(self) -> None:
        """Find out which changed jobs have started."""
        if time.time() < self._followed + FOLLOW_SECONDS:
            return
        self._followed = time.time()
        for one in list(self._open):
            try:
                job = self._admin.job(one.job)
            except FairwayError:
                continue
            begun = [a.started_at.timestamp() for a in job.attempts]
            if begun:
                one.started = begun[0]
                one.outcome = "in time" if begun[0] <= one.at + one.stated else "late"
                if one.carried_out and not _is_changed(one, job):
                    one.outcome = "overtaken"
            elif job.ended_at is not None:
                one.outcome, one.detail = "lost", f"{job.state} {job.reason}"
            elif time.time() > one.at + one.stated:
                one.outcome = "late"
                one.detail = f"{job.code} {job.engine_reason}".strip()
                continue  # until it starts
            else:
                continue
            self._close(one)

    def _close(self, one: Suggestion) -> None:
        self._open.remove(one)
        took = "" if one.started is None else f" after {one.started - one.at:.0f} s"
        what = one.command if one.carried_out else f"({one.command})"
        came = f"{one.outcome}{took} {one.detail}".strip()
        done = f"{len(self._counted())}: {what}, {one.effect}, {one.stated:.0f} s: {came}"
        print(done, file=sys.stderr, flush=True)


def _suggestion(
    job: job_wire.Job, user: UserName, why: job_wire.Why, offered: job_wire.Alternative
) -> Suggestion:
    now = time.time()
    expected = why.expected.expected if why.expected is not None else None
    return Suggestion(
        job.id,
        user,
        job.team or "",
        offered.kind,
        offered.command,
        offered.text,
        offered.effect,
        NOW_SECONDS if offered.starts_within_seconds is None else offered.starts_within_seconds,
        offered.sooner_seconds or 0.0,
        now - job.submitted_at.timestamp(),
        None if expected is None else expected.timestamp() - now,
        carried_out=True,
        at=now,
        before={
            "gpus": job.gpus,
            "nodes": job.nodes,
            "pool": job.pool,
            "priority": job.priority,
            "time_seconds": job.time_seconds,
            "name": job.name,
        },
        queue={} if why.queue is None else why.queue.model_dump(mode="json", include={"position"}),
    )


def _is_changed(one: Suggestion, job: job_wire.JobDetail) -> bool:
    """Return whether a job is what its command makes of it."""
    is_now = {
        "gpus": job.gpus,
        "nodes": job.nodes,
        "pool": job.pool,
        "priority": job.priority,
        "time_seconds": job.time_seconds,
        "name": job.name,
    }
    return is_now != dict(one.before)


def play(
    instance: Instance, fleet: Fleet, sizes: Mapping[PoolName, float], wanted: int, over: threading.Event
) -> tuple[Run, CeilingWatch, Feeder]:
    """Play the whole bench against a server of its own, until somebody says that it is over."""
    with (
        server(fleet) as (url, token),
        Client(Target(url, token)) as admin,
        tempfile.TemporaryDirectory(prefix="fw-") as folder,
    ):
        apply_by(admin, fleet)
        people = People(url, admin, Path(folder))
        waiting = {pool.name: round(QUEUE[pool.name] * sizes[pool.name]) for pool in fleet.pools}
        feeder = Feeder(Target(url, token), Load(pods=instance.kind == "kubernetes"), waiting)
        watch = CeilingWatch(instance, fleet)
        bench = Bench(fleet, admin, people, wanted, round(AT_ONCE * sizes[GPU]), over)
        feeder.start()
        watch.start()
        try:
            wait_for_ended(admin, LEARNT, WARM_SECONDS)
            bench.play(time.time() + MAX_SECONDS)
        finally:
            feeder.end()
            watch.end()
            people.close()
            (KEPT / f"remedies-{instance.name}.json").write_text(
                json.dumps([asdict(one) for one in bench.run.offered], indent=1)
            )
        return bench.run, watch, feeder


async def run(size: str) -> list[Figure]:
    """Carry out suggestions on one instance of the lab."""
    names = os.environ.get("FAIRWAY_BENCH_ON", "slurm-24").split(",")
    instance = next((found for name in names if (found := find(name)) and found.state == "up"), None)
    if instance is None:
        print(f"remedies: none of {', '.join(names)} is up, left out (make lab-up)")
        return []
    wanted = SIZES[size] if size in SIZES else int(size)
    spot_nodes = int(instance.options.get("spot_nodes", 0))
    sizes = {GPU: gpu_nodes(instance) / NODES[GPU], SPOT: spot_nodes / NODES[SPOT]}
    fleet = teams_fleet(lab_fleet(instance, spot=spot_nodes > 0), sizes)
    KEPT.mkdir(exist_ok=True)
    over = threading.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await apply_policy(instance, fleet)
    try:
        done, watch, feeder = await asyncio.to_thread(play, instance, fleet, sizes, wanted, over)
    finally:
        await cancel_all(instance, PEOPLE)
        await apply_policy(instance, replace(fleet, teams=()))
    return [figure(instance, size, done, watch, feeder)]


def figure(instance: Instance, size: str, done: Run, watch: CeilingWatch, feeder: Feeder) -> Figure:
    carried, alone = done.of(carried_out=True), done.of(carried_out=False)
    kinds = sorted({one.kind for one in carried})
    return Figure(
        f"suggestions that start later than stated on {instance.name}",
        size,
        _late(carried),
        _late(alone),
        "of those carried out",
        1.0,
        "what the model does not know of the engine and of those who submit next",
        {
            "carried out": _counts(carried),
            "left alone": _counts(alone),
            **{f"by {kind}": _counts([one for one in carried if one.kind == kind]) for kind in kinds},
            "starts now": _counts([one for one in carried if one.effect == "starts now"]),
            "offered": ", ".join(f"{count} {kind}" for kind, count in sorted(done.kinds.items())),
            "asked": f"{done.asked} jobs, {done.searched} searches, {done.silent} without an answer",
            "others who tried": f"{done.outsiders} refused of {done.outsiders}"
            if not done.faults
            else f"{len(done.faults)} faults",
            "rights exceeded": "; ".join(done.faults[:5]) or "none",
            "ceilings exceeded": "; ".join(watch.exceeded[:5]) or f"none in {watch.samples} samples",
            "most held": ", ".join(f"{team} {pool} {n}" for (team, pool), n in sorted(watch.most.items())),
            "submitted": f"{feeder.submitted} jobs"
            + (f", {dict(feeder.problems)}" if feeder.problems else ""),
        },
        most=TARGET,
    )


def _known(some: Sequence[Suggestion]) -> list[Suggestion]:
    return [one for one in some if one.outcome in ("in time", "late", "lost")]


def _late(some: Sequence[Suggestion]) -> float:
    known = _known(some)
    return sum(one.outcome != "in time" for one in known) / len(known) if known else 1.0


def _counts(some: Sequence[Suggestion]) -> str:
    known = _known(some)
    in_time = sum(one.outcome == "in time" for one in known)
    others = Counter(one.outcome or "not known" for one in some if one not in known)
    text = f"{in_time} of {len(known)} in time"
    return text + "".join(f", {count} {outcome}" for outcome, count in sorted(others.items()))
