"""Differences between Slurm versions, all in one place.

Each Slurm serves several API versions at once: 24.11 v0.0.40 to 42, 26.05 v0.0.42 to 45. The fields of
`wire` are the same in all of them, so only the version to request differs. No reply says cheaply what is
served (the OpenAPI document does, at 0.8 MB), so the preferred one is tried first and the document is read
only after a 404.

Considered and rejected: `nodes?update_time=` to skip unchanged nodes. 24.11 answers 500 when nodes changed
but partitions did not, and the heartbeats of an idle cluster count as changes every few seconds.
Also rejected: `node/NAME`, whose `partitions` are another node's in 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

SUPPORTED: Final = ("v0.0.42", "v0.0.45", "v0.0.44", "v0.0.43", "v0.0.41", "v0.0.40")
"""API versions Fairway has been tested with; the first one is in both 24.11 and 26.05."""

OPENAPI_PATH: Final = "/openapi/v3"
CONF_PATH: Final = "/slurm/v0.0.45/conf"
"""The running slurm.conf, which slurmrestd serves from 26.05 on."""

_NODES_PATH: Final = re.compile(r"/slurm/(v\d+\.\d+\.\d+)/nodes/?")


def path(version: str, resource: str) -> str:
    """Return the path at which slurmrestd serves a resource of slurmctld."""
    return f"/slurm/{version}/{resource}"


def served(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the API versions that serve nodes, oldest first."""
    versions = {found[1] for name in paths if (found := _NODES_PATH.fullmatch(name))}
    return tuple(sorted(versions, key=lambda version: [int(part) for part in version[1:].split(".")]))


def choose(versions: Iterable[str]) -> str | None:
    """Choose the version to use among those served. Returns None if there is none."""
    offered = set(versions)
    return next((version for version in SUPPORTED if version in offered), None)
