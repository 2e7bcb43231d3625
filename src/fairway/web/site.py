"""What every page needs to be made."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from fairway.api.fleets import Fleets
from fairway.api.job_routes import JobParts
from fairway.api.policy_routes import PolicyParts
from fairway.ledger import Ledger
from fairway.settings import Settings
from fairway.web.pages import Pages


@dataclass(frozen=True, slots=True)
class Site:
    """What every page needs."""

    app: FastAPI
    ledger: Ledger
    fleets: Fleets
    pages: Pages
    policy: PolicyParts
    jobs: JobParts
    settings: Settings
