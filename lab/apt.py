"""Debian's own packages: installed on the machine, or fetched and unpacked without installing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab import folders
from lab.errors import LabError
from lab.programs import output_of
from lab.progress import step

MIRROR = "FAIRWAY_LAB_MIRROR"


def require(program: str, package: str) -> None:
    """Install a package of the machine's Debian if the program is missing."""
    if shutil.which(program) is None:
        with step(f"Install {package}"):
            install(package)


def install(package: str) -> None:
    update()
    _apt("install", "--yes", "--no-install-recommends", package)


def update() -> None:
    with folders.locked("apt"):
        _apt("update")


def mirror() -> str:
    """The Debian mirror this machine is set up with."""
    if chosen := os.environ.get(MIRROR):
        return chosen
    for attempt in range(2):
        found = _apt("indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian").split()
        if found:
            return found[0]
        if attempt == 0:
            update()
    raise LabError("no Debian mirror is known", "apt-get indextargets lists none", f"name one in {MIRROR}")


def candidate(package: str) -> str:
    """The version of a package that this machine would get."""
    for _ in range(2):
        for line in output_of("apt-cache", "policy", package).splitlines():
            label, _, version = line.strip().partition(": ")
            if label == "Candidate" and version != "(none)":
                return version
        update()
    raise LabError(f"this machine's Debian has no package {package}", hint="look at /etc/apt/sources.list")


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Fetch packages and unpack them into a folder; nothing is installed."""
    update()
    debs = folder / "debs"
    debs.mkdir()
    if os.geteuid() == 0:  # apt fetches as its own user, who must be able to write here
        shutil.chown(debs, "_apt")
    _apt("download", *packages, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        output_of("dpkg", "-x", str(deb), str(folder))
    shutil.rmtree(debs)


def _apt(*arguments: str, cwd: Path | None = None) -> str:
    command = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments)
    return output_of(*command, cwd=cwd, env={"DEBIAN_FRONTEND": "noninteractive"})
