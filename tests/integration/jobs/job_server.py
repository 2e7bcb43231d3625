"""Two real servers on one ledger in front of real clusters of the lab, and every way to disturb them."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import yaml

from fairway.model.job import JobId, parse_job_id
from fairway.model.workload_kinds import DEPLOYMENT, JOB, JOB_SET, WorkloadKind
from lab import Instance
from lab.errors import LabError
from lab.kubernetes.api import Api
from tests.contract.job_line import IMAGE, OPENERS, Settle
from tests.integration.policy.policy_lab import governed
from tests.integration.server_process import Home, Server
from tests.kinds import manifests

BATCH = 20
_STARTS = 10
_GANG = 5
"""Of ten jobs on Kubernetes, this one has two nodes: a JobSet, where that is installed."""
_KILLED_YOUNG = 0.2
"""Of the kills, how many hit a server that only begins."""


@dataclass(frozen=True)
class Target:
    """A cluster of the lab that jobs are sent to; its pool has the same name."""

    engine: str
    instance: Instance

    @property
    def is_slurm(self) -> bool:
        return self.engine.startswith("slurm")

    @property
    def daemon(self) -> str:
        """What takes orders."""
        return "slurmctld" if self.is_slurm else "kube-apiserver"

    def restart(self, *, hard: bool, pause: float) -> None:
        """The daemon ends and begins anew; on a busy machine it may take long until it serves again."""
        try:
            if hard:
                self.instance.kill(self.daemon)
                time.sleep(pause)
                self.instance.start(self.daemon)
            else:
                self.instance.restart(self.daemon)
        except LabError:
            if self.instance.daemon(self.daemon) is None:
                raise

    def made(self, mark: str) -> Counter[tuple[str, str]]:
        """Every engine job with this ledger's mark, by name and id, over or not, as the engine tells it."""
        return Counter(row for row in self._all() if f"-fw{mark}-" in row[0])

    def _all(self) -> Sequence[tuple[str, str]]:
        if self.is_slurm:
            rows = set[tuple[str, str]]()
            for words in (
                ("sacct", "-n", "-P", "-X", "-a", "-S", "now-1days", "--format=JobName%100,JobIDRaw"),
                ("squeue", "-h", "-t", "all", "-o", "%j|%A"),
            ):
                said = self.instance.run(*words, timeout=300).stdout.splitlines()
                rows |= {(name, id_) for name, _, id_ in (line.partition("|") for line in said)}
            return list(rows)
        metas = [item["metadata"] for kind in (JOB, *self.kinds) for item in self._list(kind)]
        # What a JobSet makes of its name is its own.
        own = [m for m in metas if not m.get("ownerReferences")]
        return [(m["name"], f"{m['namespace']}/{m['name']}") for m in own]

    @cached_property
    def kinds(self) -> tuple[WorkloadKind, ...]:
        """The kinds of workloads that are submitted as manifests, beside jobs."""
        if self.is_slurm:
            return ()
        groups = {group["name"] for group in self.api.get("/apis")["groups"]}
        return (DEPLOYMENT, JOB_SET) if JOB_SET.group in groups else (DEPLOYMENT,)

    @property
    def api(self) -> Api:
        return Api.from_kubeconfig(Path(self.instance.facts()["kubeconfig"]))

    def _list(self, kind: WorkloadKind) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.get(f"/apis/{kind.api_version}/{kind.plural}")["items"]
        return found

    def clear(self) -> None:
        """End the workloads that do not end by themselves."""
        for kind in self.kinds:
            for meta in (item["metadata"] for item in self._list(kind)):
                if "-fw" in meta["name"]:
                    path = kind.path(meta["namespace"], meta["name"])
                    self.api.delete(f"{path}?propagationPolicy=Background")


@dataclass
class JobServers:
    """Slots for servers, of which each may be dead at any moment."""

    home: Home
    database_url: str
    fleet: Path
    targets: Sequence[Target]
    chance: random.Random
    slots: list[Server | None] = field(default_factory=lambda: [None, None])
    kills: int = 0
    young: int = 0
    """Of the kills, those that hit a server before it answered."""
    cuts: int = 0
    restarts: int = 0
    _token: str = ""
    _killed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self, slot: int) -> None:
        first = () if self._token else ("-f", str(self.fleet))
        for _ in range(_STARTS):
            server = self.home.launch(
                *first, "--listen", "127.0.0.1:0", FAIRWAY_DATABASE_URL=self.database_url
            )
            try:
                await asyncio.to_thread(server.wait_started)
            except AssertionError:
                # Its ledger was cut off while it began: it says so and ends, and systemd starts another.
                if server.process.poll() is None or "does not answer" not in server.log:
                    raise
                continue
            self.slots[slot] = server
            break
        assert self.slots[slot] is not None
        self._token = self._token or self.home.token_file.read_text().strip()

    async def kill(self, slot: int) -> None:
        server, self.slots[slot] = self.slots[slot], None
        if server is not None:
            server.send(signal.SIGKILL)
            await asyncio.to_thread(server.wait)
            assert "Traceback" not in server.log, server.log[-6000:]

    def apply(self) -> None:
        server = self.slots[0]
        assert server is not None
        done = self.home.fairway(
            "apply",
            "-f",
            str(self.fleet),
            "--force",
            "--yes",
            FAIRWAY_URL=server.url,
            FAIRWAY_TOKEN=self._token,
        )
        ended = server.process.poll()
        assert done.returncode == 0, f"{done.stdout}{done.stderr}(the server's own end: {ended})"

    # what disturbs

    async def keep_killing(self, slot: int, kills: int) -> None:
        """Kill -9 at any moment of its life, also while it begins, and start it anew, so often.

        It lives up to half as long again as it took to begin: so on a slow machine too it gets to work.
        """
        began = 0.0
        while self.kills < kills:
            async with self._killed:
                self.kills += 1
                self._killed.notify_all()
            if self.chance.random() < _KILLED_YOUNG:
                await self.kill(slot)
                await self._kill_young()
            else:
                await asyncio.sleep(self.chance.uniform(0, max(2.5, 1.5 * began)))
                await self.kill(slot)
            start = time.monotonic()
            await self.start(slot)
            began = time.monotonic() - start

    async def _kill_young(self) -> None:
        server = self.home.launch("--listen", "127.0.0.1:0", FAIRWAY_DATABASE_URL=self.database_url)
        await asyncio.sleep(self.chance.uniform(0, 3))
        server.send(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
        assert "Traceback" not in server.log, server.log[-6000:]
        self.young += 1

    async def keep_cutting(self, every: float, kills: int) -> None:
        """Cut all connections to the ledger again and again, each time after so many kills."""
        due = every
        while due < kills:
            await self._until_kills(due)
            await asyncio.sleep(self.chance.uniform(0, 2))
            self.cuts += await asyncio.to_thread(self._cut)
            due += self.chance.uniform(0.5, 1.5) * every

    def _cut(self) -> int:
        with psycopg.connect(self.database_url, autocommit=True) as admin:
            rows = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        return len(rows)

    async def restart_engine(self, target: Target, times: int, kills: int) -> None:
        """The daemon that takes orders goes away and comes back; the API server also hard.

        Not slurmctld: killed hard it forgets what it took in its last seconds, before its state was saved,
        and nobody but Slurm could remember it.
        """
        for number in range(times):
            await self._until_kills(kills * (number + self.chance.uniform(0.6, 1)) / (times + 1))
            hard = number % 2 == 0 and not target.is_slurm
            pause = self.chance.uniform(0, 2)
            await asyncio.to_thread(target.restart, hard=hard, pause=pause)
            self.restarts += 1

    async def _until_kills(self, count: float) -> None:
        """What happens goes by the kills and not by the clock: so a slow machine sees the same."""
        async with self._killed:
            await self._killed.wait_for(lambda: self.kills >= count)

    # what people do

    async def submit(self, count: int, kills: int) -> dict[str, list[JobId]]:
        """So many to each target until most kills are over, in batches, each under a key, asked again
        wherever a server answers until one says yes."""
        made: dict[str, list[JobId]] = {target.engine: [] for target in self.targets}
        async with httpx2.AsyncClient(timeout=20) as http:
            for start in range(0, count, BATCH):
                await self._until_kills(0.8 * kills * start / count)
                numbers = range(start, min(count, start + BATCH))
                for target in self.targets:
                    jobs = [self._job(target, number) for number in numbers]
                    body = {"jobs": jobs, "key": f"{target.engine}-{start}", "as": "alice"}
                    made[target.engine] += await self._until_taken(http, body)
        return made

    def _job(self, target: Target, number: int) -> dict[str, Any]:
        job: dict[str, Any] = {"name": f"tiny-{number}", "pool": target.engine}
        if kind := dict(enumerate(target.kinds)).get(number % 10):
            make = manifests.deployment if kind is DEPLOYMENT else manifests.job_set
            return job | {"manifest": make(job["name"], 1, 1)[0]}
        job |= {"command": ["true"], "time_seconds": 600}
        if target.is_slurm:
            return job
        return job | {"image": IMAGE, "nodes": 2 if number % 10 == _GANG else 1}

    async def _until_taken(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> list[JobId]:
        deadline = time.monotonic() + 600
        said = ""
        while time.monotonic() < deadline:
            server = self.chance.choice(self.slots)
            if server is None:
                await asyncio.sleep(0.05)
                continue
            try:
                answer = await http.post(
                    f"{server.url}/v1/jobs", json=body, headers={"Authorization": f"Bearer {self._token}"}
                )
            except httpx2.HTTPError as error:
                said = repr(error)
            else:
                if answer.status_code == 201:
                    numbers = [parse_job_id(word) for job in answer.json()["jobs"] for word in job["ids"]]
                    return [n for n in numbers if n is not None]
                said = answer.text
                assert answer.status_code >= 500, said
            await asyncio.sleep(0.1)
        raise AssertionError(f"nobody took a batch: {said}")

    def last_words(self) -> str:
        """The end of each server's log."""
        logs = [s.log.splitlines()[-30:] for s in self.slots if s is not None]
        return "\n\n".join("\n".join(lines) for lines in logs)


@asynccontextmanager
async def job_servers(
    engines: Sequence[str], home: Home, database_url: str, chance: random.Random
) -> AsyncIterator[JobServers]:
    """Two servers over these clusters with one policy applied; everything is taken away afterwards."""
    async with AsyncExitStack() as opened:
        parts: dict[str, dict[str, Any]] = {}
        settle: dict[str, Settle] = {}
        for engine in engines:
            opener = OPENERS["slurm" if engine.startswith("slurm") else engine](engine)
            head, _, settle[engine] = await opened.enter_async_context(opener)
            parts[engine] = yaml.safe_load(head)
        text = _fleet(parts, first=engines[0])
        file = home.folder / "fleet.yaml"
        file.write_text(text)
        targets = [Target(engine, governed(engine).instance) for engine in engines]
        servers = JobServers(home, database_url, file, targets, chance)
        try:
            await servers.start(0)
            await asyncio.to_thread(servers.apply)
            for engine in engines:
                await settle[engine](_fleet(parts, first=engine))
            await servers.start(1)
            yield servers
        except Exception as error:
            # What is taken away below may fail too, and must not hide this.
            error.add_note(servers.last_words())
            traceback.print_exception(error)
            raise
        finally:
            for slot in range(len(servers.slots)):
                server, servers.slots[slot] = servers.slots[slot], None
                if server is not None:
                    server.send(signal.SIGKILL)
                    await asyncio.to_thread(server.wait)
            for target in targets:
                await asyncio.to_thread(target.clear)


def _fleet(parts: dict[str, dict[str, Any]], first: str) -> str:
    """One fleet of several: each engine's cluster, and its one pool, under the engine's name."""
    order = sorted(parts, key=lambda engine: engine != first)
    whole = dict(parts[first])
    whole["clusters"] = {engine: parts[engine]["clusters"]["lab"] for engine in order}
    whole["pools"] = {engine: parts[engine]["pools"]["work"] | {"cluster": engine} for engine in order}
    if "kubernetes" in parts:  # nodes of KWOK: a real one would take an hour for what is to be shown
        whole["pools"]["kubernetes"]["kubernetes"] = {"node_labels": {"type": "kwok"}}
    whole["teams"] = {
        team: {"share": 1, "guarantee": dict.fromkeys(sorted(parts), 4), "members": members}
        for team, members in {"research": ["alice", "bob"], "product": ["carol"]}.items()
    }
    return yaml.safe_dump(whole, sort_keys=False)
