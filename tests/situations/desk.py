"""One engine with a server in front of it, and what people do there: once for all engines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from fairway.files import check_job_file
from fairway.model.errors import TemporaryError
from fairway.model.job import ENDED_JOBS, JobState
from fairway.wire import jobs as wire
from fairway.wire.jobs import JobSpec
from tests.contract.job_line import JobLine
from tests.waiting import Deadline, until

FLEET: Final = """
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 24, side: 8 }, members: [alice, bob] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 24, side: 8 }, members: [carol] }
  capped: { guarantee: { gpu: 4 }, borrow: { gpu: 0 }, members: [bob] }
  physics:
    guarantee: { gpu: 4 }
    borrow: { gpu: 4 }
    teams:
      optics: { guarantee: { gpu: 4 }, members: [alice] }
      quantum: { members: [bob] }
  limited:
    guarantee: { gpu: 4 }
    borrow: { gpu: 0 }
    limits: { user: { gpus: 2 }, job: { gpus: 3, time: 1h } }
    members: [alice, carol]
  broke: { borrow: { gpu: 8 }, members: [carol] }
  closing: { borrow: { gpu: 8 }, members: [bob] }
users:
  alice: { default_team: research }
  bob: { default_team: research }
  carol: { default_team: product }
"""
PEOPLE: Final[Mapping[str, str]] = {
    "research": "alice",
    "product": "carol",
    "capped": "bob",
    "optics": "alice",
    "quantum": "bob",
    "limited": "carol",
    "broke": "carol",
    "closing": "bob",
}
"""Who submits the jobs of a team."""
EXPLAINED_SECONDS: Final = 15.0
"""No wait stays unexplained for longer; an engine may need some seconds until it has tried a job."""
STARTED_SECONDS: Final = 60.0
GPUS_A_NODE: Final = 8


class Engine(Protocol):
    """What differs between engines: their own tools."""

    nodes: tuple[str, ...]
    """Of pool `gpu`: two racks of two."""

    def native(self, team: str, user: str, gpus: int, *, nodes: int = 1, node: str | None = None) -> str:
        """Submit a job by the engine's own tool; returns the engine's id."""
        ...

    def drain(self, nodes: Iterable[str], reason: str) -> None:
        """Close nodes to new work."""
        ...

    def resume(self, nodes: Iterable[str]) -> None:
        """Open them again."""
        ...

    def go_away(self) -> None:
        """Let the engine no longer answer."""
        ...

    def come_back(self) -> None: ...

    def applied(self) -> None:
        """Do what an administrator does after an apply."""
        ...


@dataclass
class Desk:
    """The cluster under the fleet of this module, with the jobs that are on it."""

    line: JobLine
    engine: Engine
    scene: str = ""
    people: dict[str, str] = field(default_factory=dict)
    """Who submitted a job, by its id."""
    undo: ExitStack = field(default_factory=ExitStack)
    """What the present situation has changed besides jobs."""
    _staying: set[str] = field(default_factory=set)
    """Jobs of the scene, which situations leave alone."""

    # jobs

    def submit(
        self, team: str, gpus: int = 1, *, by: str | None = None, hold: bool = False, **spec: Any
    ) -> str:
        """`fairway submit` of a member; gives the job's id."""
        user = by or PEOPLE[team]
        words = {"pool": "gpu", "command": ["sleep", "900"], "env": {"LAB_RUN_FOR": "900s"}, **spec}
        (job,) = check_job_file(self.line.file(team=team, gpus=gpus, **words)).jobs or ()
        made = self.line.client(user).submit(JobSpec.from_model(job), hold=hold)[0].id
        self.people[made] = user
        return made

    def run(self, team: str, gpus: int = 1, *, node: str | None = None, by: str | None = None) -> str:
        """Occupy GPUs, on a chosen node if it matters; gives the job's id."""
        job = self.native(team, gpus, node=node, by=by)
        self.until_running(job)
        return job

    def native(
        self, team: str, gpus: int = 1, *, nodes: int = 1, node: str | None = None, by: str | None = None
    ) -> str:
        """Submit a job by the engine's own tool; gives Fairway's id."""
        user = by or PEOPLE[team]
        return self.known(self.engine.native(team, user, gpus, nodes=nodes, node=node), user)

    def known(self, engine_id: str, user: str) -> str:
        """Wait until the mirror has a job of the engine; gives Fairway's id."""

        def found() -> str | None:
            jobs = self.line.client("admin").jobs(states=["open"], most=200)
            return next((job.id for job in jobs if job.engine_id == engine_id), None)

        job = str(until(found, EXPLAINED_SECONDS, f"{engine_id} in the mirror"))
        self.people[job] = user
        return job

    def job(self, word: str) -> wire.JobDetail:
        return self.line.client("admin").job(word)

    def engine_id(self, word: str) -> str:
        """The engine's id of a job, as soon as it has one."""
        return str(until(lambda: self.job(word).engine_id, EXPLAINED_SECONDS, f"{word} on the engine"))

    def until_running(self, *jobs: str) -> None:
        for word in jobs:
            until(
                lambda word=word: self.job(word).state is JobState.RUNNING,  # type: ignore[misc]
                STARTED_SECONDS,
                f"the start of {word}",
                why=lambda word=word: self.job(word),  # type: ignore[misc]
            )

    def cancel(self, *jobs: str) -> None:
        self.line.client("admin").cancel(list(jobs))
        for word in jobs:
            until(lambda word=word: self.job(word).state in ENDED_JOBS, 60, f"the end of {word}")  # type: ignore[misc]

    # what `why` says

    def why(self, job: str, codes: tuple[str, ...]) -> wire.Why:
        """Ask until the answer is the expected one, and gives it; fails with the last answer."""
        deadline = Deadline(EXPLAINED_SECONDS)
        client = self.line.client("admin")
        while True:
            try:
                found = client.why(job)
            except TemporaryError:  # a busy machine
                assert not deadline.passed, f"nobody says why {job} waits"
                continue
            if tuple(reason.code for reason in found.reasons) == codes:
                return found
            told = "\n".join(f"  {r.code}: {r.text} [{r.engine}] {r.evidence}" for r in found.reasons)
            assert not deadline.passed, f"expected {codes}, got\n{told}\n{found.summary}; {found.queue}"
            time.sleep(0.7)

    def transcript(self, job: str) -> str:
        """What the owner of a job reads."""
        return self.line.run("why", job, by=self.people.get(job, "alice")).stdout

    # what a person does who has read it

    def suggested(self, transcript: str, pattern: str) -> str:
        """Return the first text of the output that matches; the output has to say it, or the test fails."""
        found = re.search(pattern, flat(transcript))
        assert found, f"the output suggests nothing like {pattern}:\n{transcript}"
        return found[0]

    def fairway(self, command: str, by: str) -> str:
        """Run a `fairway` command as it was suggested."""
        words = command.removeprefix("fairway ").split()
        return self.line.run(*words, by=by).stdout

    # the policy

    def fleet(self) -> dict[str, Any]:
        """The fleet that is in force, to change and apply."""
        whole: dict[str, Any] = yaml.safe_load(self.line.fleet)
        return whole

    def apply(self, fleet: Mapping[str, Any]) -> None:
        file = self.file("changed.yaml")
        file.write_text(yaml.safe_dump(dict(fleet), sort_keys=False))
        self.line.run("apply", "-f", str(file), "--force", "--yes", by="admin")
        self.engine.applied()

    def apply_own(self) -> None:
        """The fleet as it was at the beginning."""
        self.line.run("apply", "-f", str(self.file("fleet.yaml")), "--force", "--yes", by="admin")
        self.engine.applied()

    def file(self, name: str) -> Path:
        return self.line.home.folder / name

    # between situations

    def enter(self, scene: str, set_up: Callable[[Desk], None]) -> None:
        """See that the cluster runs what a scene has it run."""
        if self.scene == scene:
            return
        self._staying.clear()
        self.clear()
        self.scene = ""
        set_up(self)
        self._staying = {job.id for job in self._open()}
        self.scene = scene

    def leave(self) -> None:
        """Undo what the situation changed, and end its jobs."""
        self.undo.close()
        self.clear()
        if self._staying - {job.id for job in self._open() if job.state is JobState.RUNNING}:
            self.scene = ""  # a job of the scene is no longer what it was: set it up again

    def clear(self, within: float = 90) -> None:
        """End every job but the scene's."""
        deadline = Deadline(within)
        while left := [job.id for job in self._open() if job.id not in self._staying]:
            self.line.client("admin").cancel(left)
            assert not deadline.passed, f"{left} do not end: {self.job(left[0])}"
            time.sleep(0.4)

    def _open(self) -> list[wire.Job]:
        return list(self.line.client("admin").jobs(states=["open"], most=200))


def flat(text: str) -> str:
    """Return a text without its line breaks and indents, to look for sentences in."""
    return re.sub(r"(?<! ) (?= )|\s*\n\s*", " ", text)
