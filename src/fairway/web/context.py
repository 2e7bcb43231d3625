"""The dependencies of every page."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from fairway.ledger import Ledger
from fairway.services.fleets import Fleets
from fairway.services.job_actions import JobParts
from fairway.services.policy_queries import PolicyParts
from fairway.settings import Settings
from fairway.web.render import Pages


@dataclass(frozen=True, slots=True)
class PageContext:
    """The dependencies of every page."""

    app: FastAPI
    ledger: Ledger
    fleets: Fleets
    pages: Pages
    policy: PolicyParts
    jobs: JobParts
    settings: Settings
