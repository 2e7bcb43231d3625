"""What is only read by others, held to what can be checked here: the container file and the units."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairway.settings import SETTINGS, read_settings

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
MAX_EXPOSED = 15
"""Of systemd's 0 (closed) to 100; a plain service has 96."""


def instructions() -> list[tuple[str, str]]:
    joined = CONTAINERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_is_made_of_what_is_there() -> None:
    for word, rest in instructions():
        if word != "COPY" or "--from=" in rest:
            continue
        *sources, _ = rest.split()
        for source in sources:
            made = source.startswith("dist/")  # by `make wheel`, as the file's head says
            assert made or (ROOT / source).exists(), source
    assert "make wheel" in CONTAINERFILE.read_text()


def test_the_image_takes_only_what_the_lock_vouches_for() -> None:
    installs = [rest for word, rest in instructions() if word == "RUN" and "install" in rest]
    assert len(installs) == 2
    assert all(
        "--require-hashes" in rest or ("--no-deps" in rest and "--no-index" in rest) for rest in installs
    )
    lock = (ROOT / "requirements" / "container.txt").read_text()
    pinned = re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==\S+", lock, re.MULTILINE)
    hashed = re.findall(r"^([a-z0-9-]+)\S*==[^\n]*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) > 30
    assert pinned == hashed
    whole = (ROOT / "requirements" / "runtime.txt").read_text()
    assert set(re.findall(r"^\S+==\S+", lock, re.MULTILINE)) <= set(
        re.findall(r"^\S+==\S+", whole, re.MULTILINE)
    )
    assert "pgserver" not in lock  # a container is given its PostgreSQL


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    last = instructions()[max(n for n, (word, _) in enumerate(instructions()) if word == "FROM") :]
    (user,) = [rest for word, rest in last if word == "USER"]
    assert re.fullmatch(r"[1-9][0-9]{3,}:[1-9][0-9]{3,}", user)
    assert ("ENTRYPOINT", '["fairway"]') in last
    words = {word for word, _ in instructions()}
    assert words <= {"ARG", "FROM", "ENV", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert not re.search(r"(?i)password|secret|token|://[^/ ]*@", CONTAINERFILE.read_text())


@pytest.fixture
def own_units(tmp_path: Path) -> Path:
    """The units with a command that is there, which systemd looks for."""
    for unit in UNITS:
        here = Path(sys.executable).parent / "fairway"
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/fairway/bin/fairway", str(here)))
    return tmp_path


def systemd_analyze(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_systemd_takes_the_units(own_units: Path) -> None:
    done = systemd_analyze("verify", *(str(own_units / unit.name) for unit in UNITS))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_may_do_little(unit: Path, own_units: Path) -> None:
    words = ("security", "--offline=true", f"--threshold={MAX_EXPOSED}", str(own_units / unit.name))
    done = systemd_analyze(*words)
    assert done.returncode == 0, done.stdout[-400:]


def test_units_say_only_what_fairway_knows() -> None:
    known = {setting.variable for setting in SETTINGS} | {"FAIRWAY_LISTEN"}
    for file in [*UNITS, *(ROOT / "deploy" / "systemd").glob("*.example")]:
        named = set(re.findall(r"FAIRWAY_[A-Z_]+", file.read_text()))
        assert named <= known, file.name
    for name, part in (("server", "api"), ("control", "loops")):
        text = (ROOT / "deploy" / "systemd" / f"fairway-{name}.service").read_text()
        parser = configparser.RawConfigParser(strict=False, delimiters="=")
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(text)
        assert parser["Unit"]["Requires"] == "fairway-migrations.service"
        said = dict(re.findall(r"(FAIRWAY_(?:SERVE|MIGRATE))=(\S+)", text))
        settings = read_settings({}, said | {"HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"})
        assert (settings.serve, settings.migrate) == (part, False)


def test_the_server_cannot_read_what_belongs_to_control() -> None:
    users = {
        name: re.findall(r"^(?:User|Group)=(.+)$", (ROOT / "deploy/systemd" / name).read_text(), re.MULTILINE)
        for name in ("fairway-server.service", "fairway-control.service")
    }
    assert users == {
        "fairway-server.service": ["fairway"] * 2,
        "fairway-control.service": ["fairway-control"] * 2,
    }
    made = re.findall(r"^u (\S+)", (ROOT / "deploy/systemd/fairway.sysusers").read_text(), re.MULTILINE)
    assert made == ["fairway", "fairway-control"]
    environment = (ROOT / "deploy/systemd/server.env.example").read_text()
    control = (ROOT / "deploy/systemd/control.env.example").read_text()
    (listens,) = re.findall(r"^FAIRWAY_LISTEN=(\S+)$", control, re.MULTILINE)
    assert f"\nFAIRWAY_ENGINE_SERVER=http://{listens}\n" in environment


def test_examples_of_the_environment_can_be_used() -> None:
    for file in (ROOT / "deploy" / "systemd").glob("*.example"):
        lines = [
            line.lstrip("#") for line in file.read_text().splitlines() if "=" in line and "# " not in line
        ]
        given = dict(line.split("=", 1) for line in lines)
        assert given.pop("FAIRWAY_LISTEN").startswith("127.0.0.1:")
        read_settings({}, given | {"HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"})
