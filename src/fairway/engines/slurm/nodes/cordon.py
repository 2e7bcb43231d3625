"""Close nodes to new jobs and open them again through slurmrestd. The reason of a drain is its mark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from fairway.engines.port import CordonOutcome
from fairway.engines.slurm.nodes.observe import DRAINED
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.engines.slurm.rest.wire import WireNode
from fairway.model.errors import Refused
from fairway.model.names import NodeName

MARK: Final = "fairway: "
"""How the reason of a drain by Fairway begins."""


async def cordon(rest: SlurmRest, nodes: Mapping[NodeName, str]) -> dict[NodeName, CordonOutcome]:
    """Drain nodes that nobody has drained."""
    found = await _read(rest, nodes)
    outcomes: dict[NodeName, CordonOutcome] = {}
    for name, reason in nodes.items():
        node = found.get(name)
        if node is None:
            outcomes[name] = CordonOutcome.MISSING
        elif DRAINED.keys() & set(node.state):
            outcomes[name] = CordonOutcome.DONE if _is_ours(node) else CordonOutcome.NOT_OURS
        else:
            await _update(rest, name, {"state": ["DRAIN"], "reason": f"{MARK}{reason}"})
            outcomes[name] = CordonOutcome.DONE
    return outcomes


async def uncordon(rest: SlurmRest, nodes: Collection[NodeName]) -> dict[NodeName, CordonOutcome]:
    """Resume nodes that Fairway drained."""
    found = await _read(rest, nodes)
    outcomes: dict[NodeName, CordonOutcome] = {}
    for name in nodes:
        node = found.get(name)
        if node is None:
            outcomes[name] = CordonOutcome.MISSING
        elif "DRAIN" not in node.state:
            outcomes[name] = CordonOutcome.DONE
        elif not _is_ours(node):
            outcomes[name] = CordonOutcome.NOT_OURS
        else:
            await _update(rest, name, {"state": ["RESUME"]})
            outcomes[name] = CordonOutcome.DONE
    return outcomes


def _is_ours(node: WireNode) -> bool:
    return node.reason.startswith(MARK)


async def _read(rest: SlurmRest, names: Collection[NodeName]) -> dict[str, WireNode]:
    return {node.name: node for node in (await rest.nodes()).nodes if node.name in names}


async def _update(rest: SlurmRest, node: NodeName, body: Mapping[str, object]) -> None:
    response = await rest.request_jobs("POST", f"node/{quote(node, safe='')}", body)
    if response.status == HTTPStatus.OK and not response.reply.errors:
        return
    said = "; ".join(error.description or error.error or "" for error in response.reply.errors)
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or "permission" in said.lower():
        raise Refused(
            "CordonForbidden",
            f"Slurm does not let Fairway change node {node}: {said}",
            "give its user the right:  sacctmgr modify user fairway set adminlevel=Administrator",
        )
    rest.fail(response)
