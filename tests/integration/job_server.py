"""Two real servers on one ledger in front of a real cluster of the lab, and every way to disturb them."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import yaml

from fairway.model.job import JobId, job_number
from lab import Instance
from lab.kubernetes.api import Api
from tests.contract.job_line import IMAGE, OPENERS, TEAMS
from tests.integration.policy_lab import governed
from tests.integration.server_process import Home, Server

BATCH = 20
_STARTS = 10


@dataclass
class JobServers:
    """Slots for servers, of which each may be dead at any moment."""

    home: Home
    database_url: str
    fleet: Path
    instance: Instance
    engine: str
    chance: random.Random
    slots: list[Server | None] = field(default_factory=lambda: [None, None])
    kills: int = 0
    cuts: int = 0
    restarts: int = 0
    _token: str = ""

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
        assert done.returncode == 0, done.stdout + done.stderr

    # what disturbs

    async def keep_killing(self, slot: int, kills: int) -> None:
        """Kill -9 at any moment of its life, and start it anew, so often."""
        while self.kills < kills:
            await asyncio.sleep(self.chance.uniform(0, 2.5))
            self.kills += 1
            await self.kill(slot)
            await self.start(slot)

    async def keep_cutting(self, every: float) -> None:
        """Cut all connections to the ledger again and again."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * every)
            self.cuts += await asyncio.to_thread(self._cut)

    def _cut(self) -> int:
        with psycopg.connect(self.database_url, autocommit=True) as admin:
            rows = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        return len(rows)

    async def restart_engine(self, times: int, every: float) -> None:
        """The daemon that takes orders goes away and comes back; the API server also hard.

        Not slurmctld: killed hard it forgets what it took in its last seconds, before its state was saved,
        and nobody but Slurm could remember it.
        """
        daemon = "slurmctld" if self.engine.startswith("slurm") else "kube-apiserver"
        for number in range(times):
            await asyncio.sleep(every)
            if number % 2 == 0 and daemon != "slurmctld":
                await asyncio.to_thread(self.instance.kill, daemon)
                await asyncio.sleep(self.chance.uniform(0, 2))
                await asyncio.to_thread(self.instance.start, daemon)
            else:
                await asyncio.to_thread(self.instance.restart, daemon)
            self.restarts += 1

    # what people do

    async def submit(self, count: int, pause: float) -> list[JobId]:
        """In batches, each under a key, asked again wherever a server answers until one says yes."""
        made: list[JobId] = []
        async with httpx2.AsyncClient(timeout=20) as http:
            for start in range(0, count, BATCH):
                jobs = [self._job(i) for i in range(start, min(count, start + BATCH))]
                body = {"jobs": jobs, "key": f"batch-{start}", "as": "alice"}
                made += await self._until_taken(http, body)
                await asyncio.sleep(self.chance.uniform(0, 2 * pause))
        return made

    def _job(self, number: int) -> dict[str, Any]:
        return {"name": f"tiny-{number}", "command": ["true"], "image": None, "time_seconds": 600} | (
            {} if self.engine.startswith("slurm") else {"image": IMAGE}
        )

    async def _until_taken(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> list[JobId]:
        deadline = time.monotonic() + 300
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
                    numbers = [job_number(word) for job in answer.json()["jobs"] for word in job["ids"]]
                    return [n for n in numbers if n is not None]
                said = answer.text
                assert answer.status_code >= 500, said
            await asyncio.sleep(0.1)
        raise AssertionError(f"nobody took a batch: {said}")

    def last_words(self) -> str:
        """The end of each server's log."""
        logs = [s.log.splitlines()[-30:] for s in self.slots if s is not None]
        return "\n\n".join("\n".join(lines) for lines in logs)

    # what the engine has

    def engine_jobs(self, mark: str) -> Counter[tuple[str, str]]:
        """Every engine job with this ledger's mark, by name and id, over or not, as the engine tells it."""
        if self.engine.startswith("slurm"):
            rows = set[tuple[str, str]]()
            for words in (
                ("sacct", "-n", "-P", "-X", "-a", "-S", "now-1days", "--format=JobName%100,JobIDRaw"),
                ("squeue", "-h", "-t", "all", "-o", "%j|%A"),
            ):
                said = self.instance.run(*words).stdout.splitlines()
                rows |= {(name, id_) for name, _, id_ in (line.partition("|") for line in said)}
            return Counter(row for row in rows if f"-fw{mark}-" in row[0])
        api = Api.from_kubeconfig(Path(self.instance.facts()["kubeconfig"]))
        items = api.get("/apis/batch/v1/jobs")["items"]
        found = [
            (i["metadata"]["name"], f"{i['metadata']['namespace']}/{i['metadata']['name']}") for i in items
        ]
        return Counter(row for row in found if f"-fw{mark}-" in row[0])


@asynccontextmanager
async def job_servers(
    engine: str, home: Home, database_url: str, chance: random.Random
) -> AsyncIterator[JobServers]:
    """Two servers over the engine's cluster with its policy applied; everything is taken away afterwards."""
    kind = "slurm" if engine.startswith("slurm") else engine
    instance = governed(engine).instance
    async with OPENERS[kind](engine) as (head, _, settle):
        whole = yaml.safe_load(head)
        if kind == "kubernetes":  # nodes of KWOK: a real one would take an hour for what is to be shown
            whole["pools"]["work"]["kubernetes"] = {"node_labels": {"type": "kwok"}}
        text = yaml.safe_dump(whole, sort_keys=False) + TEAMS
        file = home.folder / "fleet.yaml"
        file.write_text(text)
        servers = JobServers(home, database_url, file, instance, engine, chance)
        try:
            await servers.start(0)
            await asyncio.to_thread(servers.apply)
            await settle(text)
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


async def until(true: Callable[[], Awaitable[object]], within: float, what: str) -> float:
    """Ask until it is so; seconds it took."""
    started = time.monotonic()
    while not await true():
        assert time.monotonic() - started < within, f"{what}: not within {within:g} s"
        await asyncio.sleep(0.5)
    return time.monotonic() - started
