"""Build the optional compiled wheel, run the tests of simulation with it, and compare it with the pure one.

`make compiled`. See docs/adr/0067.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "compiled"
PYTHON = BUILD / "venv" / "bin" / "python"
BENCH = ("-m", "bench", "simulate", "--size", "5000", "--json")
EQUAL = ("utilisation", "waits", "preemptions")
"""What a replay must show whether or not it is compiled."""


def run(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, env=os.environ | environment)


def build() -> None:
    """Build the wheel, and install it with the tests' dependencies into a venv of its own."""
    shutil.rmtree(BUILD, ignore_errors=True)
    # mypyc leaves its modules beside the sources, where an editable installation would run them from then on.
    source = BUILD / "source"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    run("uv", "build", "--quiet", "--wheel", "--out-dir", BUILD, source, HATCH_BUILD_HOOK_ENABLE_MYPYC="1")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = ("uv", "pip", "install", "--quiet", "--python", PYTHON)
    run("uv", "venv", "--quiet", "--python", version, BUILD / "venv")
    run(*install, "--require-hashes", "-r", "requirements/dev.txt")
    run(*install, "--no-deps", *BUILD.glob("*.whl"))


def replayed(python: str | Path) -> dict[str, object]:
    """Return what a replay shows with a Python's own fairway."""
    shown = subprocess.run([str(python), *BENCH], cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(shown.stdout)["details"]
    return found


def main() -> int:
    build()
    # Without a cache, so that CI does not run a failed test again with .venv, which is not compiled.
    tests = ("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/unit/simulate")
    run(PYTHON, *tests, PYTEST_ADDOPTS="--color=no")
    pure, compiled = replayed(sys.executable), replayed(PYTHON)
    if compiled["scheduler"] != "compiled":
        print("the wheel has no compiled scheduler; hint: read the output of  uv build  above")
        return 1
    different = [key for key in EQUAL if pure[key] != compiled[key]]
    for key in different:
        print(f"{key} differ: {pure[key]} in Python, {compiled[key]} compiled")
    print(f"pure: {pure['seconds of CPU']}; compiled: {compiled['seconds of CPU']}")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
