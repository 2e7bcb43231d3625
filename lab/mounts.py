"""What is mounted below a folder, and how it goes away."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


def _unescaped(text: str) -> str:
    """The kernel writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def below(folder: Path) -> list[Path]:
    """Mount points at or below the folder, the latest first: the order in which they can be unmounted."""
    folder = folder.resolve()
    points = (Path(_unescaped(line.split()[4])) for line in MOUNTINFO.read_text().splitlines())
    return [point for point in points if point == folder or folder in point.parents][::-1]


def mounted(folder: Path) -> bool:
    return folder.resolve() in below(folder)


def mount(*arguments: str | Path) -> bool:
    """Call mount(8); False when the kernel or the file system refuses."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False, timeout=30)
    return done.returncode == 0


def release(folder: Path) -> None:
    """Unmount everything at or below the folder; what is busy is detached."""
    for point in below(folder):
        for how in ([], ["--lazy"]):
            done = subprocess.run(["umount", *how, str(point)], capture_output=True, check=False, timeout=30)
            if done.returncode == 0:
                break
