"""Fairway keeps shared GPU clusters fair, full and accounted for.

In Python:  import fairway;  fairway.Client().run(["python", "train.py"], gpus="H100:8")
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import would be half of the time until Ctrl-C is answered
if TYPE_CHECKING:
    from fairway.client.async_client import AsyncClient
    from fairway.client.client import Client
    from fairway.client.function_job import job
    from fairway.client.http import ServerFailed, ServerRefused, ServerUnreachable
    from fairway.client.requests import job_spec
    from fairway.client.waiting import JobNotFinished
    from fairway.model.errors import FairwayError, PermanentError, TemporaryError
    from fairway.wire.jobs import JobSpec

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "FairwayError",
    "JobNotFinished",
    "JobSpec",
    "PermanentError",
    "ServerFailed",
    "ServerRefused",
    "ServerUnreachable",
    "TemporaryError",
    "__version__",
    "job",
    "job_spec",
]

_WHERE = {
    "AsyncClient": "fairway.client.async_client",
    "Client": "fairway.client.client",
    "FairwayError": "fairway.model.errors",
    "JobNotFinished": "fairway.client.waiting",
    "JobSpec": "fairway.wire.jobs",
    "PermanentError": "fairway.model.errors",
    "ServerFailed": "fairway.client.http",
    "ServerRefused": "fairway.client.http",
    "ServerUnreachable": "fairway.client.http",
    "TemporaryError": "fairway.model.errors",
    "job": "fairway.client.function_job",
    "job_spec": "fairway.client.requests",
}


def __getattr__(name: str) -> object:
    """Import what notebooks ask for when they ask: the command line must start without it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fairway' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """Return the names that Tab completes in notebooks."""
    return __all__
