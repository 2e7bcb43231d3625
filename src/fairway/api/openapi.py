"""The API's description, for docs and other people's clients; `make reference` writes it."""

from __future__ import annotations

import json
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.description import description
from fairway.files import Report
from fairway.ledger import Ledger
from fairway.ledger.connection import ConnectionLimits, Connections
from fairway.services.engine_pool import EnginePool
from fairway.services.fleets import NO_FLEET, Fleets
from fairway.services.job_actions import JobParts
from fairway.services.job_logs import JobLogReader
from fairway.services.plans import Planner
from fairway.services.policy_queries import PolicyParts
from fairway.services.submit_jobs import Submitter


def _nothing(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("describing the API asks nothing of it")


NO_PARTS: Final = PolicyParts(
    check=lambda _, source: Report(source, None, ()),
    planner=Planner(_nothing),
    render=_nothing,
    import_policy=_nothing,
)
"""What an app needs to be described, and no more."""


_NO_LEDGER: Final = Ledger(Connections("postgresql://", ConnectionLimits()))
"""Never opened."""
_NO_FLEETS: Final = Fleets(_NO_LEDGER, lambda _: NO_FLEET)
_NO_ENGINES: Final = EnginePool(_nothing)
NO_JOBS: Final = JobParts(
    Submitter(_NO_LEDGER, _NO_FLEETS, _NO_ENGINES), JobLogReader(_NO_LEDGER, _NO_FLEETS, _NO_ENGINES)
)


def document() -> str:
    """The OpenAPI document as it is committed. No ledger is opened: describing the API asks nothing of it."""
    app = create_app(_NO_LEDGER, CollectorRegistry(), _NO_FLEETS, NO_PARTS, NO_JOBS)
    return json.dumps(description(app), indent=2, ensure_ascii=False) + "\n"
