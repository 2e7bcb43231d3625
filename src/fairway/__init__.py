"""Fairway keeps shared GPU clusters fair, full and accounted for.

In Python:  from fairway import Client;  Client().run(["python", "train.py"], gpus="H100:8")
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import would be half of the time until Ctrl-C is answered
if TYPE_CHECKING:
    from fairway.client.async_client import AsyncClient
    from fairway.client.client import Client
    from fairway.wire.jobs import JobSpec

__version__ = "0.1.0.dev0"
__all__ = ["AsyncClient", "Client", "JobSpec", "__version__"]

_WHERE = {
    "AsyncClient": "fairway.client.async_client",
    "Client": "fairway.client.client",
    "JobSpec": "fairway.wire.jobs",
}


def __getattr__(name: str) -> object:
    """Import what notebooks ask for when they ask: the command line must start without it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fairway' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_WHERE[name]), name)
