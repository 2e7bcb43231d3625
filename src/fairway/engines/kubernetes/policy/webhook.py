"""Check that Kueue answers: without its webhooks no job can be created, and without it none is started."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairway.engines.kubernetes.api.kinds import FLAVOR
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.model.condition import Condition, ConditionType

PROBE: Final = "fairway-probe"
"""The name of a ResourceFlavor that is created as a dry run only."""
HINT: Final = "kubectl -n kueue-system get pods; kubectl -n kueue-system logs deploy/kueue-controller-manager"


async def diagnose(requests: KubeRequests) -> tuple[Condition, ...]:
    """Return the condition QueuesDown if the API server cannot call Kueue's webhooks, else nothing.

    A dry run passes through the webhooks and stores nothing. Any other answer says nothing of Kueue: it may
    not be installed, or Fairway may lack the right.
    """
    body = {
        "apiVersion": FLAVOR.root.removeprefix("/apis/"),
        "kind": FLAVOR.name,
        "metadata": {"name": PROBE},
    }
    path = FLAVOR.path(PROBE).removesuffix(f"/{PROBE}")
    status, reply = await requests.send(
        requests.call("create", FLAVOR.resource), path, params={"dryRun": "All"}, body=body
    )
    message = webhook_failure(status, reply)
    if message is None:
        return ()
    return (
        Condition(
            ConditionType.QUEUES_DOWN,
            "KueueDown",
            f"Kueue does not answer the API server, so no job can be sent and none is started: {message}",
            HINT,
        ),
    )


def webhook_failure(status: int, reply: bytes) -> str | None:
    """Return why the API server could not call a webhook. Returns None if that was not the problem."""
    if status < 500:
        return None
    try:
        decoded: Any = msgspec.json.decode(reply)
        message = str(decoded.get("message") or "")
    except (msgspec.MsgspecError, AttributeError):
        return None
    return message if "calling webhook" in message else None
