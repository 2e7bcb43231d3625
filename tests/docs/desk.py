"""Where a page is typed in: a home of its own, a shell with `fairway`, servers that are ended with it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.docs.reading import INSTALLS, ROOT, STARTS, Block, Typed, blocks
from tests.integration.server_process import FAIRWAY, Home, temporary_home
from tests.waiting import Deadline

COMMAND_SECONDS = 180.0
READY_SECONDS = 300.0
GLANCE_SECONDS = 5.0
OBSERVED_SECONDS = 30.0
LOOSE = ("README.md", "demo.md", "high-availability.md", "jobs.md", "plan-and-apply.md")
"""Pages that show a busy or a real cluster: of each command only how its first line begins is compared."""
_READY = re.compile(r"fairway (serves|demo is ready|is ready)|^fairway .* on http", re.MULTILINE)
_ENDLESS = re.compile(r"^fairway top\b|--watch\b|^fairway logs -f\b")
_NAME = re.compile(r"[A-Za-z]+(-[A-Za-z0-9]{1,8})+[:,;.]?")
"""hpc-a100, A100-80GB, dev-mig: names that a page and its fleet share."""
_UNITS = frozenset({"s", "min", "h", "d"})
_JOB = re.compile(r"\bis job ([0-9a-z]{4,12})\b|\bjob ([0-9a-z]{4,12})\b")


class Desk:
    """One reader at one page."""

    def __init__(self, home: Home, **environment: str) -> None:
        self.home = home
        self.folder = home.folder / "desk"
        self.folder.mkdir(mode=0o755)
        tools = home.folder / "tools"
        tools.mkdir()
        self.tool("fairway", f'exec {" ".join(shlex.quote(part) for part in FAIRWAY)} "$@"')
        temporary = home.folder / "tmp"
        temporary.mkdir(mode=0o711)
        self.environment = home.environment | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "FAIRWAY_LISTEN_PORT": "0",
            "COLUMNS": "150",
            **environment,
        }
        self.called: dict[str, str] = {}
        self._servers: list[subprocess.Popen[bytes]] = []

    def tool(self, name: str, body: str) -> None:
        """A command on this reader's path."""
        path = self.home.folder / "tools" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def bring(self, *names: str) -> None:
        """What a reader in a checkout has in front of them."""
        for name in names:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, target)

    def follow(self, block: Block) -> None:
        """Do what a block of a page says; fails where the page does not hold."""
        for key, value in block.said:
            if key == "first":
                self._must(value, block)
            elif key == "job":
                name, command = value.split(" = ", 1)
                self.called[name] = self._id_in(self._must(command, block))
        if block.title:
            (self.folder / block.title).write_text(self._named(block.text))
        if block.language != "console":
            return
        typed = block.commands
        for number, one in enumerate(typed):
            if INSTALLS.search(one.command):
                continue
            last = number == len(typed) - 1
            self._type(one, block, int(block.says("exits") or 0) if last else 0)

    def _type(self, one: Typed, block: Block, exits: int) -> None:
        command = self._named(one.command)
        if STARTS.match(command):
            self._start(command, block)
            return
        if _ENDLESS.search(command):
            command, exits = f"timeout -s INT {GLANCE_SECONDS} {command}", -1
        code, came = self.run(command)
        deadline = Deadline(OBSERVED_SECONDS)
        while "not observed yet" in came and not deadline.passed:  # nobody types as soon as a server is ready
            code, came = self.run(command)
        assert exits in (-1, code), f"{block.where}\n$ {command}\nended with {code}, not {exits}:\n{came}"
        shown = [line for line in one.shown if line.strip()]
        if shown and exits >= 0 and block.says("output") in ("", "first line"):
            if block.page.name in LOOSE or block.says("output") == "first line":
                first = re.sub(r" +NOTE$", "", shown[0])  # a column that is there only if a row has one
                shown = [re.split(r"\S*\d", first)[0] + "…"]
            lacks = missing(shown, came)
            assert lacks is None, f"{block.where}\n$ {command}\nshould show\n{lacks}\nbut showed\n{came}"
        self._learn(one, came)

    def run(self, command: str) -> tuple[int, str]:
        """Type a command; its exit code and all it printed."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    def _must(self, command: str, block: Block) -> str:
        code, came = self.run(self._named(command))
        assert code == 0, f"{block.where}, first\n$ {command}\nended with {code}:\n{came}"
        return came

    def _start(self, command: str, block: Block) -> None:
        log = self.home.folder / f"background-{len(self._servers)}.log"
        command = command.rstrip().removesuffix("&")
        with log.open("wb") as out:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._servers.append(server)
        deadline = Deadline(READY_SECONDS)
        while not _READY.search(log.read_text(errors="replace")):
            assert server.poll() is None, f"{block.where}\n$ {command}\nended:\n{log.read_text()}"
            assert not deadline.passed, f"{block.where}\n$ {command}\nis not ready:\n{log.read_text()}"
            time.sleep(0.2)

    def _named(self, text: str) -> str:
        """The page's ids as those of this run."""
        for shown, real in self.called.items():
            text = re.sub(rf"\b{re.escape(shown)}\b", real, text)
        return text

    def _learn(self, one: Typed, came: str) -> None:
        for line in one.shown:
            if (shown := _JOB.search(line)) and _JOB.search(came):
                self.called.setdefault(shown[1] or shown[2], self._id_in(came))

    @staticmethod
    def _id_in(came: str) -> str:
        found = _JOB.search(came)
        assert found, f"no job's id in:\n{came}"
        return found[1] or found[2]

    def close(self) -> None:
        """End what was started, as Ctrl-C would."""
        for server in self._servers:
            if server.poll() is None:
                server.send_signal(signal.SIGINT)
        for server in self._servers:
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def missing(shown: list[str], came: str) -> str | None:
    """The first line of a page that did not come, in its order; None: all did.

    Numbers, times and ids may be others. Of a table's rows only what they are named counts: how full a pool
    is depends on the moment.
    """
    lines = [_spaced(line) for line in came.splitlines() if line.strip()]
    at, in_table = 0, False
    for line in shown:
        if not line.strip("…. "):
            in_table = False
            continue
        in_table = _is_head(line) or (in_table and bool(line.strip("…. ")))
        wanted = _row(line) if in_table and not _is_head(line) else _shape(line)
        found = next((i for i in range(at, len(lines)) if wanted.match(lines[i])), None)
        if found is None:
            return line
        at = found + bool(line.strip("…. "))
    return None


def _is_head(line: str) -> bool:
    said = re.split(r"…", _spaced(line))[0].strip()
    return bool(said) and said.isupper()


def _row(line: str) -> re.Pattern[str]:
    """A row of a table by its first cell."""
    return re.compile(_word(_spaced(line).split(" ")[0]))


def _shape(line: str) -> re.Pattern[str]:
    said = re.split(r"…|\.\.\.", _spaced(line))[0].strip()
    if said.isupper():  # a table's head: the same columns in the same order
        return re.compile(re.escape(said))
    words, after_number = [], False
    for word in said.split():
        words.append(r"\S+" if after_number and word.strip(".,;:)") in _UNITS else _word(word))
        after_number = word[:1].isdigit()
    return re.compile(" ".join(words))


def _word(word: str) -> str:
    """A word as it must come: with digits it is a number, a time or an id, unless a name of the fleet."""
    loose = any(ch.isdigit() for ch in word) and not _NAME.fullmatch(word)
    return r"\S+" if loose else re.escape(word)


def _spaced(line: str) -> str:
    return " ".join(line.split())


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def follow_page(page: Path, environment: Mapping[str, str], fleet: Path | None = None) -> None:
    """Type every command of a page in a home of its own; fails where the page does not hold."""
    with temporary_home() as home:
        desk = Desk(home, **environment)
        desk.bring("examples", "deploy")
        if fleet is not None:
            (desk.folder / "fleet.yaml").write_text(fleet.read_text())
        try:
            for block in blocks(page):
                if block.typed:
                    desk.follow(block)
        finally:
            desk.close()
