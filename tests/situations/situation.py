"""What a situation is: how a job gets into it, and what `fairway why` must say of it on each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

ENGINES: Final[Mapping[str, str]] = {
    "slurm-24": "Slurm 24.11",
    "slurm-26": "Slurm 26.05",
    "kubernetes": "Kubernetes + Kueue",
}
"""The lab's instances, as the page names them."""
SLURM, KUBERNETES = "slurm", "kubernetes"
FAMILIES: Final = (SLURM, KUBERNETES)

SetUp = Callable[[Any], str]
"""Brings a job into the situation; returns the id of the job to ask about."""
Resolve = Callable[[Any, str, str], str]
"""(desk, job, transcript) -> the job that must start now. It does only what the transcript suggests."""


def family(engine: str) -> str:
    """Return the kind of engine of an instance of the lab."""
    return engine.partition("-")[0]


@dataclass(frozen=True)
class Situation:
    """One situation in which a job waits."""

    name: str
    title: str
    """For the page: what is the case, in a few words."""
    codes: Mapping[str, tuple[str, ...]]
    """By kind of engine: the code of what binds, then those of what would remain without it, in order."""
    shows: Mapping[str, tuple[str, ...]]
    """By kind of engine: patterns that the command's output contains, line breaks aside."""
    not_on: Mapping[str, str]
    """By kind of engine, or by instance of the lab: why it cannot occur there."""
    scene: str
    """What the cluster runs meanwhile: a key of `scenes.SCENES`."""
    set_up: SetUp
    resolve: Resolve | None = None

    def on(self, engine: str) -> bool:
        """Return whether it can occur on an instance of the lab."""
        return not self.why_not(engine)

    def why_not(self, engine: str) -> str:
        """Return why it cannot occur on an instance of the lab; empty: it can."""
        return self.not_on.get(engine) or self.not_on.get(family(engine), "")


@dataclass
class Book:
    """The situations as they are declared, in their order."""

    found: list[Situation] = field(default_factory=list)

    def situation(
        self,
        title: str,
        *codes: str,
        slurm: Iterable[str] = (),
        kubernetes: Iterable[str] = (),
        shows: Iterable[str] = (),
        slurm_shows: Iterable[str] = (),
        kubernetes_shows: Iterable[str] = (),
        only: str = "",
        because: str = "",
        except_on: Mapping[str, str] = MappingProxyType({}),
        scene: str = "idle",
        resolve: Resolve | None = None,
    ) -> Callable[[SetUp], SetUp]:
        """Declare a situation by the function that sets it up.

        `codes` are those of every engine, `slurm` and `kubernetes` those of one. `only` is the kind of engine
        on which it occurs, `because` why the other has no such situation.
        """

        def declare(set_up: SetUp) -> SetUp:
            name = set_up.__name__.replace("_", "-")
            others = {kind: because for kind in FAMILIES if only and kind != only}
            assert not only or because, f"{name}: why not on the other engine?"
            self.found.append(
                Situation(
                    name=name,
                    title=title,
                    codes={SLURM: tuple(slurm) or codes, KUBERNETES: tuple(kubernetes) or codes},
                    shows={
                        SLURM: (*shows, *slurm_shows),
                        KUBERNETES: (*shows, *kubernetes_shows),
                    },
                    not_on={**others, **except_on},
                    scene=scene,
                    set_up=set_up,
                    resolve=resolve,
                )
            )
            return set_up

        return declare


BOOK: Final = Book()
situation = BOOK.situation
