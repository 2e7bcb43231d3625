"""Programs that are run to their end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lab.errors import LabError


def output_of(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 900
) -> str:
    """What a program printed; an error with its last words if it failed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode:
        shown = " ".join(words[:5]) + (" …" if len(words) > 5 else "")
        raise LabError(f"{shown} failed (exit {done.returncode})", (done.stderr or done.stdout)[-800:])
    return done.stdout
