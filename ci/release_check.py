"""Check a release before it is published: `make release-check`.

Builds the sdist and the wheel, checks their metadata and contents, and installs each into a clean venv from
the hashed locks, without an index: all wheels are downloaded first. From each it starts the demo and runs a
job.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "release"
WHEELS = BUILD / "wheels"
DIST = ROOT / "dist"
TOOLS = BUILD / "tools"
LOCKS = ("runtime.txt", "release.txt")
READY_SECONDS = 180.0
NEEDED = (
    "fairway/py.typed",
    "fairway/demo/fleet.yaml",
    "fairway/web/templates/base.html",
    "fairway/engines/slurm/policy/job_submit.lua",
)
"""Files in the wheel besides modules: without them a part of Fairway does not work."""


def main() -> None:
    """Run all checks. The first that fails ends the run with exit code 1."""
    began = time.monotonic()
    version = _version()
    _step(f"Fairway {version}: downloading what the locks name")
    _download()
    _step("building sdist and wheel")
    sdist, wheel = _build(version)
    _step("checking metadata and contents")
    _run(TOOLS / "bin" / "twine", "check", "--strict", sdist, wheel)
    _run(TOOLS / "bin" / "check-wheel-contents", wheel)
    check_metadata(version, wheel)
    check_contents(sdist, wheel)
    check_changelog(version)
    for package in (sdist, wheel):
        _step(f"installing {package.name} into a clean venv without an index, and running a job in its demo")
        with _installed(package) as fairway:
            _try(fairway, version)
    _step(f"{sdist.name} and {wheel.name} can be published ({time.monotonic() - began:.0f} s)")


def check_metadata(version: str, wheel: Path) -> None:
    """Check what an index shows. Raises SystemExit."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        found: Message = Parser().parsestr(archive.read(name).decode())
    wanted = {"Name": "fairway", "Version": version, "License-Expression": "Apache-2.0"}
    for field, value in wanted.items():
        _require(found[field] == value, f"METADATA has {field}: {found[field]}, not {value}")
    for field in ("Summary", "Requires-Python", "Keywords", "Classifier", "License-File"):
        _require(bool(found.get_all(field)), f"METADATA has no {field}")
    direct = [need for need in found.get_all("Requires-Dist", []) if " @ " in need]
    _require(not direct, f"an index accepts no direct references: {direct}")


def check_contents(sdist: Path, wheel: Path) -> None:
    """Check the files of both packages. Raises SystemExit."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    for name in NEEDED:
        _require(name in in_wheel, f"{wheel.name} has no {name}")
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "requirements/runtime.txt"):
        _require(name in in_sdist, f"{sdist.name} has no {name}")
    foreign = {n for n in in_wheel if not n.startswith(("fairway/", "fairway-"))}
    _require(not foreign, f"{wheel.name} has files outside its package: {sorted(foreign)[:3]}")
    missing = {f"src/{n}" for n in in_wheel if n.startswith("fairway/")} - in_sdist
    _require(not missing, f"{sdist.name} lacks files of the wheel: {sorted(missing)[:3]}")


def check_changelog(version: str, text: str | None = None) -> None:
    """Check that a release has its section in the CHANGELOG. Raises SystemExit."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") if text is None else text
    if "dev" not in version:
        found = re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE)
        _require(found is not None, f'CHANGELOG.md has no section "## {version} - YYYY-MM-DD"')


# the packages


def _version() -> str:
    text = (ROOT / "src" / "fairway" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(version)


def _download() -> None:
    """Download the wheels of both locks, once: those of earlier runs are kept."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    _venv(TOOLS, "--seed")  # with pip: uv downloads nothing without installing it
    for lock in LOCKS:
        _run(
            *(TOOLS / "bin" / "python", "-m", "pip", "download", "--quiet", "--require-hashes"),
            *("--only-binary=:all:", "--dest", WHEELS, "--find-links", WHEELS),
            *("-r", ROOT / "requirements" / lock),
        )


def _build(version: str) -> tuple[Path, Path]:
    _install(TOOLS, "--require-hashes", "-r", ROOT / "requirements" / "release.txt")
    shutil.rmtree(DIST, ignore_errors=True)
    # The same commit gives the same files.
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    epoch = {"SOURCE_DATE_EPOCH": commit.stdout.strip()} if commit.returncode == 0 else {}
    _run(TOOLS / "bin" / "hatchling", "build", "-d", DIST, cwd=ROOT, environment=epoch)
    return DIST / f"fairway-{version}.tar.gz", DIST / f"fairway-{version}-py3-none-any.whl"


@contextmanager
def _installed(package: Path) -> Iterator[Path]:
    """Yield the command `fairway` of a venv with nothing but the package and its locked dependencies."""
    venv = BUILD / ("from-wheel" if package.suffix == ".whl" else "from-sdist")
    _venv(venv)
    _install(venv, "--require-hashes", "-r", ROOT / "requirements" / "runtime.txt")
    _install(venv, "--no-deps", package)
    yield venv / "bin" / "fairway"
    shutil.rmtree(venv)


def _venv(folder: Path, *options: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run("uv", "venv", "--quiet", *options, "--python", sys.executable, folder)


def _install(venv: Path, *arguments: object) -> None:
    python = venv / "bin" / "python"
    offline = ("--offline", "--no-index", "--find-links", WHEELS)
    _run("uv", "pip", "install", "--quiet", "--python", python, *offline, *arguments)


# trying one


def _try(fairway: Path, version: str) -> None:
    """Start the demo as a new user would, run a job, and stop it: nothing may be left."""
    with tempfile.TemporaryDirectory(prefix="fairway-release-") as home:
        temporary = Path(home) / "tmp"
        temporary.mkdir(mode=0o711)
        Path(home).chmod(0o711)
        environment = {"HOME": home, "TMPDIR": str(temporary), "PATH": os.environ["PATH"]}

        def run(*arguments: str) -> str:
            command = [str(fairway), *arguments]
            done = subprocess.run(
                command,
                check=False,
                cwd=home,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
            )
            _require(done.returncode == 0, f"failed: fairway {' '.join(arguments)}")
            return done.stdout

        _require(version in run("--version"), f"fairway --version is not {version}")
        log = Path(home) / "demo.out"
        with log.open("wb") as out:
            demo = subprocess.Popen(
                [fairway, "demo", "--days", "2", "--quiet"], cwd=home, env=environment, stdout=out, stderr=out
            )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while "is ready" not in log.read_text():
                _require(demo.poll() is None and time.monotonic() < deadline, f"no demo:\n{log.read_text()}")
                time.sleep(0.3)
            job = ("run", "--context", "demo-alice", "--name", "hello", "--gpus", "1", "--follow")
            printed = run(*job, "--", "bash", "-c", "echo hello from a job; sleep 2")
            _require("hello from a job" in printed, f"the job printed {printed!r}")
            run("get", "pools")
            run("report", "cost", "--window", "1d")
        finally:
            demo.terminate()
            code = demo.wait(60)
        _require(code == 0, f"the demo ended with {code}:\n{log.read_text()}")
        _require(not list(temporary.iterdir()), "the demo left files")


# helpers


def _run(*command: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [str(word) for word in command], check=False, cwd=cwd, env={**os.environ, **(environment or {})}
    )
    _require(done.returncode == 0, f"failed: {' '.join(str(word) for word in command[:4])} …")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SystemExit(f"error: {message}")


def _step(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    main()
