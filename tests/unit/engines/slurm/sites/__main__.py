"""Record what slurmrestd of a lab site that is up shows of its policy."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fairway.engines.slurm.policy import read
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import Refused
from fairway.model.fleet import SlurmConnection
from lab import find
from tests.unit.engines.slurm.sites import HERE

NODE_FIELDS = ("name", "partitions", "gres")


async def record(instance: str, site: str) -> None:
    lab = find(instance)
    assert lab is not None
    facts = lab.facts()
    connection = SlurmConnection(facts["url"], facts["user"], facts["jwt_key_file"])
    rest = SlurmRest(connection, timeout_seconds=60)
    replies: dict[str, Any] = {}

    async def keep(path: str) -> Any:
        try:
            reply = await rest.get_if_served(path)
        except Refused:
            reply = None
        if reply is not None:
            reply["meta"] = {"slurm": reply["meta"]["slurm"]}
        replies[path] = reply
        return reply

    cluster = read.cluster_of(await keep(f"{read.CTL}/partitions/"))
    for path in ("qos", "accounts", "users"):
        await keep(f"{read.DB}/{path}/")
    await keep(read.associations_path(cluster))
    await keep(f"{read.LATEST_CTL}/conf")
    nodes = await keep(f"{read.CTL}/nodes/")
    del replies[f"{read.CTL}/nodes/"]
    replies["nodes"] = {"nodes": [{field: node[field] for field in NODE_FIELDS} for node in nodes["nodes"]]}
    await rest.close()
    (HERE / f"{site}.json").write_text(json.dumps(replies, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:]))
