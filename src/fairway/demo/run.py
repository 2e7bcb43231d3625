"""Run the demo's server: fleet, policy, users, load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fairway.client.client import Client
from fairway.client.contexts import Target, read_token
from fairway.client.private_file import write_private
from fairway.demo.history import Steps, Yesterdays
from fairway.demo.live_load import Beat, Load
from fairway.engines.virtual import VirtualEngine
from fairway.model.access import Role
from fairway.model.apply import OPEN_STATES, ApplyState
from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.server.engines import Engines
from fairway.server.listen import Serving
from fairway.server.server import Started, serve
from fairway.settings import read_settings

GUIDE: Final = "alice"
"""The user whose context the visitor gets besides the admin's."""
APPLY_SECONDS: Final = 30.0
SEED: Final = 20


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of a demo."""

    folder: Path
    """Folder of all its files; the caller removes it."""
    speed: float = 60.0
    port: int = 0
    seconds: float | None = None
    """How long it runs. None means until it is stopped."""
    days: int = 60
    """Days of history; 0 is none."""
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class Opened:
    """A demo that is ready."""

    url: str
    token_files: Mapping[str, Path]
    """Of `admin` and of the guide."""
    clusters: int
    gpus: int
    slices: int
    teams: int
    people: int


@dataclass(frozen=True, slots=True)
class Telling:
    """Callbacks that report the progress of a demo."""

    step: Callable[[str], None]
    part: Callable[[float], None]
    """Reports the completed fraction of the current step."""
    opened: Callable[[Opened], None]
    beat: Callable[[Beat], None]


def serve_demo(options: DemoOptions, telling: Telling) -> None:
    """Run a demo until SIGTERM, SIGINT or the end of its time. Raises FairwayError if it cannot start."""
    # Nothing of the visitor's own settings: a demo must never end up in somebody's database.
    settings = read_settings(
        {
            "listen_host": "127.0.0.1",
            "listen_port": options.port,
            "state_dir": str(options.folder / "state"),
            "observe_seconds": 2,
            "log_level": "warning",
        },
        environment={"XDG_CONFIG_HOME": str(options.folder / "no-settings")},
    )
    telling.step("starting PostgreSQL and the server")
    past = Yesterdays(options.days, options.seed, Steps(telling.step, telling.part))
    past.begin()
    try:
        serve(Serving(settings), lambda _: None, partial(_show, options, telling, past), past.write)
    except PermanentError as error:
        if error.code != "CannotListen":
            raise
        hint = f"choose another:  fairway demo --port {options.port + 1}   or leave it to the demo"
        raise PermanentError(error.code, error.message, hint) from error


async def _show(
    options: DemoOptions, telling: Telling, past: Yesterdays, started: Started, engines: Engines
) -> None:
    began = time.monotonic()
    fleet = past.fleet
    (options.folder / "fleet.yaml").write_text(past.text, encoding="utf-8")
    telling.step("applying the policy")
    admin = read_token(started.admin_token_file)
    tokens = await asyncio.to_thread(_prepare, started.url, admin, past.text, fleet)
    guide = options.folder / f"{GUIDE}.token"
    write_private(guide, tokens[GUIDE] + "\n")
    load = Load(
        fleet,
        _virtual(fleet, engines),
        started.url,
        {**tokens, "admin": admin},
        speed=options.speed,
        seed=options.seed,
    )
    telling.step("filling the clusters")
    await load.fill()
    telling.opened(_opened(fleet, load, started, guide))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        tasks.create_task(_tell(load, telling))
        if options.seconds is not None:
            await asyncio.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
            os.kill(os.getpid(), signal.SIGTERM)  # the one way in which a server ends in good order


async def _tell(load: Load, telling: Telling) -> None:
    while True:
        telling.beat(load.beat())
        await asyncio.sleep(1)


def _prepare(url: str, admin: str, text: str, fleet: Fleet) -> Mapping[str, str]:
    """Apply the policy and create a token for each user. Returns the tokens by name."""
    with Client(Target(url, admin)) as client:
        plan = client.plan(text, "fleet.yaml")
        begun = client.apply(
            text, "fleet.yaml", {c.cluster: c.fingerprint for c in plan.clusters}, force=True
        )
        people = sorted({str(member) for team in fleet.teams for member in team.members})
        tokens = {name: client.create_token(name, Role.MEMBER, None).secret for name in people}
        deadline = time.monotonic() + APPLY_SECONDS
        while (now := client.apply_progress(begun.id)).state in OPEN_STATES and time.monotonic() < deadline:
            time.sleep(0.1)
        if now.state is not ApplyState.DONE:
            raise TemporaryError(
                "DemoNotGoverned",
                f"the demo's policy was not applied in {APPLY_SECONDS:g} s: it is {now.state}",
                "start it again; a very busy machine may be too slow",
            )
    return tokens


def _virtual(fleet: Fleet, engines: Engines) -> Mapping[ClusterName, VirtualEngine]:
    found: dict[ClusterName, VirtualEngine] = {}
    for cluster in fleet.clusters:
        engine = engines(cluster, fleet.pools_of(cluster.name))
        if not isinstance(engine, VirtualEngine):
            raise TypeError(f"cluster {cluster.name} of the demo is not virtual")
        found[cluster.name] = engine
    return found


def _opened(fleet: Fleet, load: Load, started: Started, guide: Path) -> Opened:
    devices = load.devices
    return Opened(
        started.url,
        {"admin": started.admin_token_file, GUIDE: guide},
        clusters=len(fleet.clusters),
        gpus=sum(count for supply, count in devices.items() if supply.slice is None),
        slices=sum(count for supply, count in devices.items() if supply.slice is not None),
        teams=sum(1 for team in fleet.teams if team.members),
        people=len({member for team in fleet.teams for member in team.members}),
    )
