"""Run the demo's server: fleet, policy, users, load."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fairway.client.client import Client
from fairway.client.contexts import Target, read_token
from fairway.client.private_file import write_private
from fairway.demo.history import DemoHistory
from fairway.demo.live_load import Load, LoadStatus
from fairway.demo.live_metrics import LiveMetrics, listen, serve_metrics
from fairway.engines.virtual import VirtualEngine
from fairway.model.access import Role
from fairway.model.apply import OPEN_STATES, ApplyState
from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, NodeName
from fairway.policy.objects import ObjectKey
from fairway.server.engines import EngineFactory
from fairway.server.listen import ServerOptions
from fairway.server.server import StartedServer, serve
from fairway.settings import read_settings

EXAMPLE_USER: Final = "alice"
"""The user whose context is added besides the admin's, for trying out the demo."""
APPLY_SECONDS: Final = 30.0
LOST_NODE: Final = NodeName("hpc-a100-0011")
CHANGE_BY_HAND: Final = (ObjectKey("team", "vision"), {"user_gpus": 48}, "marek")
"""Somebody raised the limit of each user of team vision, which the fleet file sets to 32 GPUs."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of a demo."""

    folder: Path
    """Folder of all its files; the caller removes it."""
    speed: float = 20.0
    port: int = 0
    seconds: float | None = None
    """How long it runs. None means until it is stopped."""
    days: int = 60
    """Days of history; 0 is none."""
    seed: int = 20


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """What is printed of a demo that is ready."""

    url: str
    token_files: Mapping[str, Path]
    """Of `admin` and of EXAMPLE_USER."""
    clusters: int
    gpus: int
    slices: int
    teams: int
    people: int


@dataclass(frozen=True, slots=True)
class DemoCallbacks:
    """Callbacks that report the progress of a demo."""

    step: Callable[[str], None]
    progress: Callable[[float], None]
    """Gets the completed fraction of the current step."""
    ready: Callable[[DemoSummary], None]
    status: Callable[[LoadStatus], None]


def serve_demo(options: DemoOptions, callbacks: DemoCallbacks) -> None:
    """Run a demo until SIGTERM, SIGINT or the end of its time. Raises FairwayError if it cannot start."""
    # Ignore the user's own settings: a demo must never write to a real database.
    settings = read_settings(
        {
            "listen_host": "127.0.0.1",
            "listen_port": options.port,
            "state_dir": str(options.folder / "state"),
            "observe_seconds": 2,
            "drift_seconds": 5,
            "log_level": "warning",
        },
        environment={"XDG_CONFIG_HOME": str(options.folder / "no-settings")},
    )
    callbacks.step("Starting PostgreSQL and the server")
    listener = listen()
    prometheus = f"http://127.0.0.1:{listener.getsockname()[1]}"
    history = DemoHistory(options.days, options.seed, callbacks.step, callbacks.progress, prometheus)
    history.begin()
    try:
        run = partial(_run, options, callbacks, history, listener)
        serve(ServerOptions(settings), lambda _: None, run, history.write)
    except PermanentError as error:
        if error.code != "CannotListen":
            raise
        hint = f"choose another port:  fairway demo --port {options.port + 1}   or leave --port out"
        raise PermanentError(error.code, error.message, hint) from error
    finally:
        history.stop()
        listener.close()


async def _run(
    options: DemoOptions,
    callbacks: DemoCallbacks,
    history: DemoHistory,
    listener: socket.socket,
    server: StartedServer,
    engines: EngineFactory,
) -> None:
    began = time.monotonic()
    fleet = history.fleet
    virtual_engines = _virtual_engines(fleet, engines)
    # The server's loops ask for metrics from the start.
    serving = asyncio.create_task(serve_metrics(LiveMetrics(fleet, virtual_engines), listener))
    (options.folder / "fleet.yaml").write_text(history.text, encoding="utf-8")
    callbacks.step("Applying the policy")
    admin = read_token(server.admin_token_file)
    tokens = await asyncio.to_thread(_prepare, server.url, admin, history.text, fleet)
    token_file = options.folder / f"{EXAMPLE_USER}.token"
    write_private(token_file, tokens[EXAMPLE_USER] + "\n")
    load = Load(
        fleet,
        virtual_engines,
        server.url,
        {**tokens, "admin": admin},
        speed=options.speed,
        seed=options.seed,
    )
    callbacks.step("Submitting jobs")
    _break_something(virtual_engines)
    await load.fill()
    await history.finish()
    callbacks.ready(_summarize(fleet, load, server, token_file))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        tasks.create_task(_watch(serving))
        tasks.create_task(_report_status(load, callbacks))
        if options.seconds is not None:
            await asyncio.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
            os.kill(os.getpid(), signal.SIGTERM)  # the only way to stop a server gracefully


def _break_something(engines: Mapping[ClusterName, VirtualEngine]) -> None:
    """Lose a node, and change the policy of a cluster by hand: a real fleet has both to look at."""
    engine = engines[ClusterName("hpc")]
    engine.simulator.lose(LOST_NODE)
    engine.change_by_hand(*CHANGE_BY_HAND)


async def _watch(task: asyncio.Task[None]) -> None:
    """Wait for a task, and cancel it at the end: whatever it raises ends the demo."""
    try:
        await task
    finally:
        task.cancel()


async def _report_status(load: Load, callbacks: DemoCallbacks) -> None:
    while True:
        callbacks.status(load.status())
        await asyncio.sleep(1)


def _prepare(url: str, admin: str, text: str, fleet: Fleet) -> Mapping[str, str]:
    """Apply the policy and create a token for each user. Returns the tokens by name."""
    with Client(Target(url, admin)) as client:
        plan = client.plan(text, "fleet.yaml")
        fingerprints = {c.cluster: c.fingerprint for c in plan.clusters}
        apply = client.apply(text, "fleet.yaml", fingerprints, force=True)
        users = sorted({str(member) for team in fleet.teams for member in team.members})
        tokens = {name: client.create_token(name, Role.MEMBER, None).secret for name in users}
        deadline = time.monotonic() + APPLY_SECONDS
        while (state := client.apply_progress(apply.id).state) in OPEN_STATES and time.monotonic() < deadline:
            time.sleep(0.1)
        if state is not ApplyState.DONE:
            raise TemporaryError(
                "DemoNotGoverned",
                f"the demo's policy was not applied within {APPLY_SECONDS:g} s: it is {state}",
                "start the demo again when the machine is less busy:  fairway demo",
            )
    return tokens


def _virtual_engines(fleet: Fleet, engines: EngineFactory) -> Mapping[ClusterName, VirtualEngine]:
    found: dict[ClusterName, VirtualEngine] = {}
    for cluster in fleet.clusters:
        engine = engines(*fleet.engine_parts(cluster.name))
        if not isinstance(engine, VirtualEngine):
            raise TypeError(f"cluster {cluster.name} of the demo is not virtual")
        found[cluster.name] = engine
    return found


def _summarize(fleet: Fleet, load: Load, server: StartedServer, token_file: Path) -> DemoSummary:
    devices = load.devices
    return DemoSummary(
        server.url,
        {"admin": server.admin_token_file, EXAMPLE_USER: token_file},
        clusters=len(fleet.clusters),
        gpus=sum(count for supply, count in devices.items() if supply.slice is None),
        slices=sum(count for supply, count in devices.items() if supply.slice is not None),
        teams=sum(1 for team in fleet.teams if team.members),
        people=len({member for team in fleet.teams for member in team.members}),
    )
