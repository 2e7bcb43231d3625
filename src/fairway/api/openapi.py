"""The API's description, for docs and other people's clients; `make reference` writes it."""

from __future__ import annotations

import json
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.description import description
from fairway.api.fleets import NO_FLEET
from fairway.api.job_routes import JobParts
from fairway.api.policy_routes import PolicyParts
from fairway.control.planning import Planner
from fairway.files import Report
from fairway.ledger import Ledger
from fairway.ledger.connection import Connections, Limits


def _nothing(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("describing the API asks nothing of it")


NO_PARTS: Final = PolicyParts(
    check=lambda _, source: Report(source, None, ()),
    planner=Planner(_nothing),
    render=_nothing,
    import_policy=_nothing,
)
"""What an app needs to be described, and no more."""


class _Nobody:
    """Takes no jobs and reads no logs."""

    submit = dry_run = read = _nothing


NO_JOBS: Final = JobParts(_Nobody(), _Nobody())


def document() -> str:
    """The OpenAPI document as it is committed. No ledger is opened: describing the API asks nothing of it."""
    ledger = Ledger(Connections("postgresql://", Limits()))
    app = create_app(ledger, CollectorRegistry(), lambda _: NO_FLEET, NO_PARTS, NO_JOBS)
    return json.dumps(description(app), indent=2, ensure_ascii=False) + "\n"
