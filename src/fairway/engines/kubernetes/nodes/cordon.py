"""Cordon nodes and uncordon them. An annotation says that Fairway did it, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote

from fairway.engines.kubernetes.api.connection import lacks_right
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.port import CordonOutcome
from fairway.model.errors import Refused
from fairway.model.names import NodeName

REASON: Final = "fairway.dev/drain-reason"
BY: Final = "fairway.dev/drained-by"


async def cordon(requests: KubeRequests, nodes: Mapping[NodeName, str]) -> dict[NodeName, CordonOutcome]:
    """Cordon nodes that nobody has cordoned."""
    outcomes: dict[NodeName, CordonOutcome] = {}
    for name, reason in nodes.items():
        node = await requests.get(_path(name), "nodes", Json)
        if node is None:
            outcomes[name] = CordonOutcome.MISSING
        elif _is_cordoned(node):
            outcomes[name] = CordonOutcome.DONE if _is_ours(node) else CordonOutcome.NOT_OURS
        else:
            await _patch(requests, node, {REASON: reason, BY: FAIRWAY}, unschedulable=True)
            outcomes[name] = CordonOutcome.DONE
    return outcomes


async def uncordon(requests: KubeRequests, nodes: Collection[NodeName]) -> dict[NodeName, CordonOutcome]:
    """Uncordon nodes that Fairway cordoned."""
    outcomes: dict[NodeName, CordonOutcome] = {}
    for name in nodes:
        node = await requests.get(_path(name), "nodes", Json)
        if node is None:
            outcomes[name] = CordonOutcome.MISSING
        elif not _is_cordoned(node):
            outcomes[name] = CordonOutcome.DONE
        elif not _is_ours(node):
            outcomes[name] = CordonOutcome.NOT_OURS
        else:
            await _patch(requests, node, {REASON: None, BY: None}, unschedulable=None)
            outcomes[name] = CordonOutcome.DONE
    return outcomes


def _path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"


def _is_cordoned(node: Json) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _is_ours(node: Json) -> bool:
    return bool((node["metadata"].get("annotations") or {}).get(BY) == FAIRWAY)


async def _patch(
    requests: KubeRequests, node: Json, annotations: Mapping[str, str | None], *, unschedulable: bool | None
) -> None:
    """Change a node, unless somebody else changed it since it was read."""
    metadata = node["metadata"]
    body = {
        "metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": dict(annotations)},
        "spec": {"unschedulable": unschedulable},
    }
    try:
        await requests.merge(_path(metadata["name"]), "nodes", body)
    except Refused as error:
        if not lacks_right(error):
            raise
        raise Refused(
            "CordonForbidden",
            f"the cluster does not let Fairway change node {metadata['name']}: {error.message}",
            "give it the right:  kubectl apply -f deploy/kubernetes/cordon-rights.yaml",
        ) from error
