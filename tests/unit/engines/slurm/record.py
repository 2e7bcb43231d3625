"""Records what a real slurmrestd says, small enough to keep beside the tests that replay it.

    python -m tests.unit.engines.slurm.record URL JWT_KEY_FILE [USER]

Bring the cluster to a state worth recording first: a drained node with a job, a dead slurmd, slices and
shards in use, a maintenance reservation, powered-down cloud nodes. Of nodes that are alike in states and GRES
only the first is kept; what identifies the machine is replaced.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2

from fairway.engines.slurm.rest.client import Tokens
from fairway.engines.slurm.rest.versions import SUPPORTED, path
from fairway.model.fleet import SlurmConnection

REPLIES = Path(__file__).parent / "replies"
IDENTIFYING = {"hostname": "host", "address": "127.0.0.1", "operating_system": "Linux", "source": "client"}


async def record(connection: SlurmConnection) -> None:
    token = Tokens(connection).current()
    async with httpx2.AsyncClient(base_url=connection.url, trust_env=False) as http:
        for name, resource, credential in (
            ("nodes", "nodes", token),
            ("partitions", "partitions", token),
            ("rejected", "nodes", f"{token}x"),
        ):
            headers = {"X-SLURM-USER-NAME": connection.user, "X-SLURM-USER-TOKEN": credential}
            reply = await http.get(path(SUPPORTED[0], resource), headers=headers)
            keep(name, reply.status_code, reply.json())


def keep(name: str, status: int, body: dict[str, Any]) -> None:
    if "nodes" in body:
        body["nodes"] = list({_kind(node): node for node in reversed(body["nodes"])}.values())[::-1]
    folder = REPLIES / body["meta"]["slurm"]["release"]
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"status": status, "body": _anonymous(body)}
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    sys.stdout.write(f"{folder.name}/{name}: {status}\n")


def _kind(node: dict[str, Any]) -> str:
    return f"{node['partitions']} {node['state']} {node['gres_used']}"


def _anonymous(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: IDENTIFYING[key] if key in IDENTIFYING and isinstance(inner, str) else _anonymous(inner)
            for key, inner in value.items()
        }
    return [_anonymous(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    url, key_file, *user = sys.argv[1:]
    asyncio.run(record(SlurmConnection(url, user=user[0] if user else "fairway", jwt_key_file=key_file)))
