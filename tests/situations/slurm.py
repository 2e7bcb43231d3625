"""A real Slurm of the lab: sbatch, scontrol and sacctmgr, in the hands of its users and administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lab import Instance
from tests.situations.desk import Desk
from tests.waiting import until

PARTITIONS = ("gpu", "gpu-lent")
"""Of pool `gpu`: the site's own, and the one that Fairway adds beside it."""


@dataclass
class SlurmTools:
    """The tools of one Slurm."""

    instance: Instance
    settle: Callable[[], None]
    """Install what `fairway render slurm` writes."""
    nodes: tuple[str, ...] = ("gpu001", "gpu002", "gpu003", "gpu004")

    def native(self, team: str, user: str, gpus: int, *, nodes: int = 1, node: str | None = None) -> str:
        where = [f"--nodelist={node}"] if node else []
        return self.sbatch(user, f"--account={team}", f"--nodes={nodes}", f"--gres=gpu:{gpus}", *where)

    def sbatch(self, user: str | None, *words: str, wrap: str = "sleep 900", time: str = "30") -> str:
        """Submit a job as somebody who does not know Fairway; None: as root."""
        own = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", f"--time={time}")
        done = self.instance.run(*own, *words, f"--wrap={wrap}", user=user)
        return done.stdout.strip().splitlines()[-1].partition(";")[0]

    def drain(self, nodes: Iterable[str], reason: str) -> None:
        for node in nodes:
            self.control("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def resume(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.control("update", f"NodeName={node}", "State=RESUME")

    def go_away(self) -> None:
        self.instance.kill("slurmrestd")

    def come_back(self) -> None:
        self.instance.start("slurmrestd")

    def applied(self) -> None:
        self.settle()

    def control(self, *words: str) -> str:
        return self.instance.run("scontrol", *words).stdout

    def accounts(self, *words: str) -> None:
        """Change the accounting's objects as an administrator does."""
        self.instance.run("sacctmgr", "-i", *words)

    def partitions(self, setting: str) -> None:
        """Change both partitions of the pool."""
        for name in PARTITIONS:
            self.control("update", f"PartitionName={name}", setting)

    def reason(self, number: str) -> str:
        """What squeue prints."""
        return self.instance.run("squeue", "-h", "-j", number, "-o", "%r", check=False).stdout.strip()

    def until_reason(self, number: str, word: str) -> None:
        until(
            lambda: word in self.reason(number),
            45,
            f"{number} waits for {word}",
            why=lambda: self.reason(number),
        )


class SlurmDesk(Desk):
    """A desk whose engine is Slurm."""

    @property
    def slurm(self) -> SlurmTools:
        assert isinstance(self.engine, SlurmTools)
        return self.engine

    def sbatch(self, team: str, *words: str, by: str | None = None, **more: str) -> str:
        """Submit by sbatch as a member of a team; gives Fairway's id."""
        from tests.situations.desk import PEOPLE

        user = by or PEOPLE[team]
        return self.known(self.slurm.sbatch(user, f"--account={team}", *words, **more), user)
