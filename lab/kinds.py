"""What a kind of instance must be able to do, and which kinds there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from lab.errors import LabError

if TYPE_CHECKING:
    from lab.instance import Instance

# Where each kind's `KIND` object lives; imported when it is asked for.
MODULES = {
    "slurm": "lab.slurm",
    "kubernetes": "lab.kubernetes",
    "postgres": "lab.postgres",
    "prometheus": "lab.prometheus",
    "gpus": "lab.gpus",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A program as subprocess takes it."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None  # None: that of the caller
    cwd: Path | None = None


class Kind(Protocol):
    """One kind of instance. Ports, records, locks, the last sweep of `down` are the core's work."""

    @property
    def versions(self) -> Sequence[str]:
        """Those it can run, the default first."""

    @property
    def options(self) -> Mapping[str, int]:
        """What `up` takes beyond name and version (`nodes`, `real_nodes`), with defaults."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variable for each fact: {"url": "SLURM_URL"}."""

    def up(self, instance: Instance) -> None:
        """Start every daemon that is not alive and return when all serve; so a second call heals."""

    def down(self, instance: Instance) -> None:
        """End daemons in the order that loses nothing. The core then ends and unmounts whatever is left."""

    def daemons(self, instance: Instance) -> Sequence[str]:
        """The names of the daemons that make a healthy instance."""

    def start(self, instance: Instance, daemon: str) -> None:
        """Start one daemon that is not alive."""

    def facts(self, instance: Instance) -> dict[str, str]:
        """What a client needs: URL, file names, user."""

    def secrets(self, instance: Instance) -> dict[str, str]:
        """What is only shown when asked for (`--with-token`)."""

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        """A command of the user's, with the engine's own tools at hand; `user` as in `--as`."""


def kind(name: str) -> Kind:
    try:
        module = MODULES[name]
    except KeyError:
        raise LabError(f"there is no kind {name}", hint=f"one of: {', '.join(MODULES)}") from None
    return cast("Kind", import_module(module).KIND)
