"""The whole line of jobs on one engine: a real server, a fleet with two teams, people with tokens, the CLI.

Everything a person does goes through `fairway`; what the engine itself has is asked by its own tools.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.files import check_job_file, parse_fleet
from fairway.model.job import ENDED_JOBS, JobState
from fairway.wire.jobs import JobDetail, JobSpec
from tests.integration.policy.policy_lab import Governed, governed
from tests.integration.server_process import FAIRWAY, Home, Server, temporary_home
from tests.waiting import Deadline

if TYPE_CHECKING:
    from tests.scenarios.hand import Hand

TEAMS = """
teams:
  research: { share: 1, guarantee: { work: 4 }, members: [alice, bob] }
  product: { share: 1, guarantee: { work: 4 }, members: [carol] }
cost: { labels: [experiment] }
"""
IMAGE = "localhost/python:3"
"""What pods of the lab's real node can run; Slurm takes no notice of it."""


@dataclass
class JobLine:
    """One engine with a server in front of it."""

    engine: str
    home: Home
    server: Server
    fleet: str
    native: Native
    shortest_limit: str = "1m"
    """The least time limit the engine can keep to."""
    nodes: int = 1
    """Of the pool, each with 8 GPUs."""
    tokens: dict[str, str] = field(default_factory=dict)
    _clients: dict[str, Client] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def run(
        self, *arguments: str, by: str = "alice", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """The command line, as somebody."""
        done = self.home.fairway(*arguments, **self.environment(by))
        assert code is None or done.returncode == code, (arguments, done.stdout, done.stderr, self._tail())
        return done

    def start(self, *arguments: str, by: str = "alice") -> subprocess.Popen[str]:
        """The command line in the background."""
        return subprocess.Popen(
            [*FAIRWAY, *arguments],
            env=self.home.environment | self.environment(by),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shown(self, *arguments: str, by: str = "alice") -> Any:
        return json.loads(self.run(*arguments, "-o", "json", by=by).stdout)

    def environment(self, by: str) -> dict[str, str]:
        if by == "admin":
            return {}
        return {"FAIRWAY_TOKEN": self.tokens[by], "FAIRWAY_URL": self.server.url}

    def client(self, by: str = "alice") -> Client:
        """What the command line uses; a test that asks often need not start Python each time."""
        if by not in self._clients:
            token = self.home.token_file.read_text().strip() if by == "admin" else self.tokens[by]
            self._clients[by] = Client(Target(self.server.url, token))
        return self._clients[by]

    def submit(self, by: str = "alice", **spec: object) -> str:
        """A job.yaml, the same for every engine; gives the job's id."""
        (job,) = check_job_file(self.file(**spec)).jobs or ()
        return self.client(by).submit(JobSpec.from_model(job))[0].id

    def file(self, **spec: object) -> Path:
        """The job.yaml."""
        whole: dict[str, object] = {
            "apiVersion": "fairway/v1alpha1",
            "kind": "Job",
            "name": f"job-{next(self._numbers)}",
            "pool": "work",
            "gpus": 1,
            "image": IMAGE,
            "time": "30m",
            **spec,
        }
        file = self.home.folder / f"{whole['name']}.yaml"
        file.write_text(yaml.safe_dump(whole))
        return file

    def job(self, word: str) -> JobDetail:
        return self.client().job(word)

    def until(self, word: str, *states: JobState, within: float = 60) -> JobDetail:
        """Wait for one of these states; an end that was not hoped for is told at once."""
        deadline = Deadline(within)
        while (now := self.job(word)).state not in states:
            assert now.state not in ENDED_JOBS, f"{word} is {now.state}: {now}\n{self._tail()}"
            assert not deadline.passed, f"{word} is still {now.state}: {now}\n{self._tail()}"
            time.sleep(0.2)
        return now

    def clear(self, within: float = 60) -> None:
        """End whatever is not over."""
        deadline = Deadline(within)
        while left := [job.id for job in self.client("admin").jobs(states=["open"])]:
            self.client("admin").cancel(left)
            assert not deadline.passed, f"{left} do not end\n{self._tail()}"
            time.sleep(0.5)

    def _tail(self) -> str:
        return "\n".join(self.server.log.splitlines()[-25:])


@dataclass(frozen=True)
class Native:
    """The engine's own tools, in a person's hand."""

    submit: Callable[[str, int], str]
    """(user, seconds) -> the engine's id of a job of one GPU, of project llm and experiment e1."""
    count: Callable[[Sequence[str]], Mapping[str, int]]
    """How many engine jobs, over or not, exist under each of these names."""


@asynccontextmanager
async def job_line(
    engine: str, database_url: str, adapt: Callable[[str], str] = str
) -> AsyncIterator[JobLine]:
    """A server over the engine's cluster with the policy applied; everything is taken away afterwards.

    `adapt` changes the fleet file.
    """
    async with OPENERS["slurm" if engine.startswith("slurm") else engine](engine) as (head, native, settle):
        fleet = adapt(head + TEAMS)
        with temporary_home() as home:
            (home.folder / "fleet.yaml").write_text(fleet)
            arguments = ("-f", str(home.folder / "fleet.yaml"), "--listen", "127.0.0.1:0")
            server = await asyncio.to_thread(home.start, *arguments, FAIRWAY_DATABASE_URL=database_url)
            line = JobLine(engine, home, server, fleet, native)
            if engine == "virtual":
                line.shortest_limit = "2s"
            if engine.startswith("slurm"):
                line.nodes = 4
            await asyncio.to_thread(_prepare, line)
            await settle(fleet)
            try:
                yield line
            finally:
                for client in line._clients.values():
                    client.close()
                await asyncio.to_thread(server.stop)
                assert "Traceback" not in server.log, server.log[-5000:]


def _prepare(line: JobLine) -> None:
    line.run("apply", "-f", str(line.home.folder / "fleet.yaml"), "--force", "--yes", by="admin")
    for person, role in (("alice", "member"), ("bob", "member"), ("carol", "member"), ("dana", "lead")):
        made = line.run("token", "create", person, "--role", role, "--user", person, by="admin")
        line.tokens[person] = made.stdout.strip()


Settle = Callable[[str], Any]
Opened = tuple[str, Native, Settle]


@asynccontextmanager
async def _open_virtual(name: str) -> AsyncIterator[Opened]:
    head = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: jobs
currency: USD
clusters: { lab: { engine: virtual } }
pools:
  work: { cluster: lab, gpu: A100-80GB, capacity: owned, price: 1.90, virtual: { nodes: 1 } }
"""

    async def settle(fleet: str) -> None:
        return None

    def nobody(user: str, seconds: int) -> str:
        raise NotImplementedError("a virtual cluster lives inside the server: it has no tools of its own")

    yield head, Native(nobody, lambda names: dict.fromkeys(names, 1)), settle


@asynccontextmanager
async def _open_slurm(name: str) -> AsyncIterator[Opened]:
    from tests.scenarios.stages.slurm import open_hand

    cluster = governed(name)
    instance, facts = cluster.instance, cluster.instance.facts()
    async with _cleared(cluster), open_hand(instance.name) as hand:
        whole = yaml.safe_load(hand.head)
        whole["clusters"]["lab"] |= {key: facts[key] for key in ("tools", "logs", "logs_seen_at")}
        whole["clusters"]["lab"]["checkpoints"] = f"{facts['logs']}/checkpoints"
        made = instance.run("install", "-d", "-m", "1777", whole["clusters"]["lab"]["checkpoints"])
        assert made.returncode == 0, made.stderr
        whole["pools"] = {"work": whole["pools"]["gpu"]}

        def submit(user: str, seconds: int) -> str:
            wrap = f"--wrap=sleep {seconds}"
            words = "--comment=ticket 7, project=llm experiment=e1 note=x"
            options = ("--parsable", "--gres=gpu:1", "--output=/dev/null", words)
            said = instance.run("sbatch", *options, wrap, user=user)
            assert said.returncode == 0, said.stderr
            return said.stdout.strip().partition(";")[0]

        def count(names: Sequence[str]) -> dict[str, int]:
            said = instance.run("sacct", "-n", "-P", "-X", "-a", "-S", "now-1days", "--format=JobName")
            live = said.stdout.splitlines()
            return {word: live.count(word) for word in names}

        yield yaml.safe_dump(whole, sort_keys=False), Native(submit, count), partial(_configure, hand)


@asynccontextmanager
async def _open_kubernetes(name: str) -> AsyncIterator[Opened]:
    from lab.kubernetes.api import Api
    from tests.scenarios.stages.kubernetes import open_hand

    cluster = governed(name)
    facts = cluster.instance.facts()
    numbers = itertools.count(1)
    async with _cleared(cluster), open_hand(cluster.instance.name) as hand:
        whole = yaml.safe_load(hand.head)
        real = {"kubernetes": {"node_labels": {"type": "real"}}}
        whole["pools"] = {"work": {k: v for k, v in whole["pools"]["gpu"].items() if k != "topology"} | real}

        def submit(user: str, seconds: int) -> str:
            api = Api.from_kubeconfig(Path(facts[f"{user}_kubeconfig"]))
            word = f"native-{next(numbers)}"
            container = {
                "name": "main",
                "image": IMAGE,
                "command": ["sleep", str(seconds)],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
            pods = {"restartPolicy": "Never", "containers": [container]}
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": word, "labels": {"fairway.dev/project": "llm"}},
                "spec": {"template": {"metadata": {"labels": {"experiment": "e1"}}, "spec": pods}},
            }
            api.call("POST", "/apis/batch/v1/namespaces/research/jobs", job)
            return f"research/{word}"

        def count(names: Sequence[str]) -> dict[str, int]:
            items = Api.from_kubeconfig(Path(facts["kubeconfig"])).get("/apis/batch/v1/jobs")["items"]
            live = [item["metadata"]["name"] for item in items]
            return {word: live.count(word) for word in names}

        yield yaml.safe_dump(whole, sort_keys=False), Native(submit, count), partial(_configure, hand)


@asynccontextmanager
async def _cleared(cluster: Governed) -> AsyncIterator[None]:
    await cluster.clear()
    try:
        yield
    finally:
        await cluster.clear()


async def _configure(hand: Hand, text: str) -> None:
    """What an administrator does with the plan's advice."""
    fleet = parse_fleet(text, "fleet.yaml")
    engine = hand.engine(fleet)
    try:
        await hand.configure(fleet, engine.translate(fleet, await engine.find_policy()))
    finally:
        await engine.close()


OPENERS = {"virtual": _open_virtual, "slurm": _open_slurm, "kubernetes": _open_kubernetes}
