"""Policies that a real slurmrestd showed of each site of the lab (`lab/slurm/sites`), replayed.

    python -m tests.unit.engines.slurm.sites INSTANCE SITE

records them from an instance that is up; nodes are narrowed to what a policy needs of them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import msgspec

from fairway.engines.slurm.policy.read import find_policy
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.engines.slurm.rest.wire import NodesReply
from fairway.model.errors import Refused
from fairway.policy.objects import FoundPolicy

HERE = Path(__file__).parent
SITES = ("campus", "department", "faculties", "mixed", "priorities", "scripted", "standalone", "zoo")


class RecordedRest:
    """Answers what a policy is read with from a recording. None is a path that is not served."""

    def __init__(self, site: str) -> None:
        self._replies: dict[str, Any] = json.loads((HERE / f"{site}.json").read_text())

    async def nodes(self) -> NodesReply:
        return msgspec.convert(self._replies["nodes"], NodesReply)

    async def request(self, _method: str, path: str, _body: object = None) -> Any:
        reply = self._replies[path]
        if reply is None:
            raise Refused("EngineRefused", "slurmrestd refused (404): Unable find requested URL", "none")
        return reply

    async def get_if_served(self, path: str) -> Any:
        return self._replies.get(path)


def found_at(site: str) -> FoundPolicy:
    """Return what Fairway reads of a site."""
    return asyncio.run(find_policy(cast("SlurmRest", RecordedRest(site))))
