"""Generate the committed OpenAPI document, without a server; `make reference` writes it."""

from __future__ import annotations

import json
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.description import description
from fairway.files import Report
from fairway.ledger import Ledger
from fairway.ledger.connection import ConnectionLimits, Connections
from fairway.services.engine_cache import EngineCache
from fairway.services.fleets import NO_FLEET, Fleets
from fairway.services.job_changes import JobChanger
from fairway.services.job_logs import JobLogReader
from fairway.services.jobs import JobServices, Submitter
from fairway.services.plans import Planner
from fairway.services.policy import PolicyServices
from fairway.services.why import JobExplainer


def _nothing(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("describing the API calls none of it")


NO_POLICY_SERVICES: Final = PolicyServices(
    check=lambda _, source: Report(source, None, ()),
    planner=Planner(_nothing),
    render=_nothing,
    import_policy=_nothing,
)
"""Placeholders for the services of an app that is only described."""


_NO_LEDGER: Final = Ledger(Connections("postgresql://", ConnectionLimits()))
"""Never opened."""
_NO_FLEETS: Final = Fleets(_NO_LEDGER, lambda _: NO_FLEET)
_NO_ENGINES: Final = EngineCache(_nothing)
_NO_SUBMITTER: Final = Submitter(_NO_LEDGER, _NO_FLEETS, _NO_ENGINES)
NO_JOB_SERVICES: Final = JobServices(
    _NO_SUBMITTER,
    JobLogReader(_NO_LEDGER, _NO_FLEETS, _NO_ENGINES),
    JobExplainer(_NO_LEDGER, _NO_FLEETS, _NO_ENGINES),
    JobChanger(_NO_LEDGER, _NO_SUBMITTER),
)


def document() -> str:
    """Return the OpenAPI document as it is committed. No ledger is opened."""
    app = create_app(_NO_LEDGER, CollectorRegistry(), _NO_FLEETS, NO_POLICY_SERVICES, NO_JOB_SERVICES)
    return json.dumps(description(app), indent=2, ensure_ascii=False) + "\n"
