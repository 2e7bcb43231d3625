"""The dependencies of every page."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from fairway.ledger import Ledger
from fairway.services.fleets import Fleets
from fairway.services.jobs import JobServices
from fairway.services.policy import PolicyServices
from fairway.settings import Settings
from fairway.web.render import PageRenderer


@dataclass(frozen=True, slots=True)
class PageContext:
    """The dependencies of every page."""

    app: FastAPI
    ledger: Ledger
    fleets: Fleets
    pages: PageRenderer
    policy: PolicyServices
    jobs: JobServices
    settings: Settings
