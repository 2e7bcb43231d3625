"""An instance: one running thing of a kind, with a folder and ports of its own."""

from __future__ import annotations

import json
import re
import signal as signals
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab import folders, mounts, ports, processes
from lab.errors import LabError
from lab.kinds import Command, Kind, kind
from lab.processes import Process
from lab.waiting import listeners, wait_until

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
PORTS_COME_FREE_SECONDS = 3.0
State = Literal["up", "degraded", "down"]


@dataclass(slots=True)
class Instance:
    kind: str
    name: str
    version: str
    options: dict[str, int] = field(default_factory=dict)
    rows: dict[str, range] = field(default_factory=dict)  # ports by purpose

    @property
    def folder(self) -> Path:
        return folders.instances() / self.name

    @property
    def of_kind(self) -> Kind:
        return kind(self.kind)

    @property
    def _lock(self) -> str:
        return f"instance{str(self.folder).replace('/', '-')}"

    # what it is, on disk

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        making = self.folder / ".state.json"
        making.write_text(
            json.dumps(
                {
                    "kind": self.kind,
                    "name": self.name,
                    "version": self.version,
                    "options": self.options,
                    "ports": {what: [row.start, row.stop] for what, row in self.rows.items()},
                },
                indent=2,
            )
        )
        making.rename(self.folder / "state.json")

    @property
    def site(self) -> str:
        """The site as which it is set up; empty if it is the lab's own."""
        file = self.folder / "site"
        return file.read_text() if file.exists() else ""

    def choose_site(self, name: str) -> None:
        """Let it be set up as a site has it, from its first `up` on."""
        if self.rows and self.site != name:
            raise LabError(f"{self.name} exists already", hint="another --name, or wipe it first")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "site").write_text(name)

    # ports

    def reserve(self, **counts: int) -> None:
        """Have so many neighbouring ports for each purpose: chosen once, kept, never another instance's.

        They are chosen anew only if the row is too short now, or someone took them while nothing of ours ran.
        """
        with folders.locked("ports"):
            folders.note_instances()
            idle = not self.processes()
            others = {
                port
                for place in folders.all_instances()
                for other in every(place)
                if place / other.name != self.folder
                for row in other.rows.values()
                for port in row
            }
            for what, count in counts.items():
                row = self.rows.get(what, range(0))
                if len(row) >= count and (not idle or _come_free(row)):
                    continue
                mine = {port for other, row in self.rows.items() if other != what for port in row}
                try:
                    self.rows[what] = ports.choose(count, others | mine)
                except LookupError as error:
                    raise LabError(
                        f"{self.name} finds no ports",
                        str(error),
                        "python -m lab wipe NAME of one you do not need",
                    ) from None
            self.save()

    def port(self, what: str) -> int:
        """The (first) port for that purpose."""
        return self.rows[what].start

    # daemons

    def _record(self, daemon: str) -> Path:
        return self.folder / "daemons" / daemon

    def log(self, daemon: str) -> Path:
        return self.folder / "log" / f"{daemon}.log"

    def daemon(self, name: str) -> Process | None:
        """The daemon of that name, if it is alive."""
        return processes.recall(self._record(name))

    def launch(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path | str = "/"
    ) -> Process:
        """Start a daemon that stays in the foreground, and remember it by name, unless it is alive."""
        if running := self.daemon(name):
            return running
        record, log = self._record(name), self.log(name)
        return processes.start(command, instance=self.folder, record=record, log=log, env=env, cwd=cwd)

    def last_words(self, daemon: str, lines: int = 5) -> str:
        """The end of a daemon's log, for an error's `why`."""
        try:
            text = self.log(daemon).read_text(errors="replace")
        except OSError:
            return ""
        return "\n  ".join(text.splitlines()[-lines:])

    def end(self, *daemons: str, patience: float = 10.0, ask: int = signals.SIGTERM) -> None:
        """End these daemons, all at once: asked first, made to after so many seconds."""
        alive = [process for name in daemons if (process := self.daemon(name))]
        processes.end(alive, patience=patience, ask=ask)

    def processes(self) -> list[Process]:
        """Everything that runs as part of it, daemons or not."""
        return processes.inside(self.folder)

    @property
    def alive(self) -> list[str]:
        return [name for name in self.of_kind.daemons(self) if self.daemon(name)]

    @property
    def dead(self) -> list[str]:
        return [name for name in self.of_kind.daemons(self) if not self.daemon(name)]

    @property
    def state(self) -> State:
        if not self.alive:
            return "down"
        return "degraded" if self.dead else "up"

    # what people and tests do with it

    def up(self) -> None:
        """Bring it up, or heal what has died."""
        with folders.locked(self._lock):
            if known := find(self.name):  # another `up` may have chosen the ports while we waited for it
                self.rows = known.rows
            self.save()
            self.of_kind.up(self)

    def down(self) -> None:
        """End everything it started and unmount everything it mounted; its data stay."""
        with folders.locked(self._lock):
            self._end_all()

    def wipe(self) -> None:
        """Bring it down and forget it, data and all."""
        with folders.locked(self._lock):
            self._end_all()
            folders.remove(self.folder)

    def _end_all(self) -> None:
        ran = bool(self.processes())
        self.of_kind.down(self)
        for _ in range(5):  # what dies may leave children that were born meanwhile
            if not (left := self.processes()):
                break
            processes.end(left)
        mounts.release(self.folder)
        if ran:
            mine = {port for row in self.rows.values() for port in row}
            wait_until(lambda: not listeners() & mine, 10, f"something still listens on ports of {self.name}")
        running, mounted = self.processes(), mounts.below(self.folder)
        if running or mounted:
            what = [f"pid {process.pid}" for process in running] + [f"mount {point}" for point in mounted]
            raise LabError(f"{self.name} is not quite down", f"left: {', '.join(what)}", "run it again")

    def facts(self, *, secrets: bool = False) -> dict[str, str]:
        """What a client needs, by lower-case name: kind, name, version, url and what else the kind has."""
        more = self.of_kind.secrets(self) if secrets else {}
        return {
            "kind": self.kind,
            "name": self.name,
            "version": self.version,
            **self.of_kind.facts(self),
            **more,
        }

    def env(self, *, secrets: bool = False) -> dict[str, str]:
        """The same as environment variables."""
        names = {
            "kind": "FAIRWAY_LAB_KIND",
            "name": "FAIRWAY_LAB_NAME",
            "version": "FAIRWAY_LAB_VERSION",
            **self.of_kind.variables,
        }
        return {names[fact]: value for fact, value in self.facts(secrets=secrets).items() if fact in names}

    def command(self, *argv: str, user: str | None = None) -> Command:
        return self.of_kind.command(self, argv, user)

    def run(
        self,
        *argv: str,
        user: str | None = None,
        stdin: str | None = None,
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the engine's own tools and return what it said."""
        command = self.command(*argv, user=user)
        done = subprocess.run(
            list(command.argv),
            env=None if command.env is None else dict(command.env),
            cwd=command.cwd,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            raise LabError(
                f"{' '.join(argv)} failed on {self.name} (exit {done.returncode})", done.stderr or done.stdout
            )
        return done

    def kill(self, daemon: str, signal: int = signals.SIGKILL) -> None:
        """Send a daemon a signal; after one that kills, return when it is gone."""
        process = self.daemon(self._known(daemon))
        if process is None:
            raise LabError(
                f"{daemon} of {self.name} does not run", hint=f"python -m lab start {self.name} {daemon}"
            )
        process.send(signal)
        if signal in (signals.SIGKILL, signals.SIGTERM, signals.SIGINT):
            wait_until(
                lambda: not process.alive, 30, f"{daemon} of {self.name} did not end on signal {int(signal)}"
            )

    def start(self, daemon: str) -> None:
        if not self.daemon(self._known(daemon)):
            self.of_kind.start(self, daemon)

    def restart(self, daemon: str) -> None:
        self.end(self._known(daemon))
        self.of_kind.start(self, daemon)

    def _known(self, daemon: str) -> str:
        names = self.of_kind.daemons(self)
        if daemon not in names:
            shown = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
            raise LabError(f"{self.name} has no daemon {daemon}", hint=f"one of: {shown}")
        return daemon


def _come_free(row: range) -> bool:
    """A process that is about to vanish may hold its ports a moment longer than it can be recognised."""
    deadline = time.monotonic() + PORTS_COME_FREE_SECONDS
    while not (free := ports.all_free(row)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return free


def every(place: Path | None = None) -> Iterator[Instance]:
    """All known instances, up or down, by name."""
    for state in sorted((place or folders.instances()).glob("*/state.json")):
        try:
            yield _read(state)
        except FileNotFoundError:  # wiped this moment
            continue


def find(name: str) -> Instance | None:
    """The instance of that name, up or down."""
    try:
        return _read(folders.instances() / name / "state.json")
    except FileNotFoundError:
        return None


def obtain(kind_name: str, name: str | None, version: str | None, options: Mapping[str, int]) -> Instance:
    """The instance that `up` means: a known one if it fits, else a new one."""
    wanted = kind(kind_name)
    name = name or kind_name
    if not NAME.fullmatch(name):
        raise LabError(
            f"{name!r} is no name for an instance",
            hint="a letter, then letters, digits and dashes, in lower case",
        )
    if version and version not in wanted.versions:
        raise LabError(
            f"the lab has no {kind_name} {version}", hint=f"--version, one of: {', '.join(wanted.versions)}"
        )
    if unknown := options.keys() - wanted.options.keys():
        raise LabError(f"{kind_name} takes no --{min(unknown).replace('_', '-')}")
    known = find(name)
    if known is None:
        return Instance(kind_name, name, version or wanted.versions[0], {**wanted.options, **options})
    if known.kind != kind_name or version not in (None, known.version):
        raise LabError(
            f"{name} is taken",
            f"it is {known.kind} {known.version}",
            f"another --name, or: python -m lab wipe {name}",
        )
    changed = {**known.options, **options}
    if changed != known.options and known.state != "down":
        raise LabError(
            f"{name} is up with other options", f"it has {known.options}", f"first: python -m lab down {name}"
        )
    known.options = changed
    return known


def _read(state: Path) -> Instance:
    raw: dict[str, Any] = json.loads(state.read_text())
    return Instance(
        kind=raw["kind"],
        name=raw["name"],
        version=raw["version"],
        options=raw["options"],
        rows={what: range(*row) for what, row in raw["ports"].items()},
    )
