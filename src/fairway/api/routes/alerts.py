"""The route of alerts, which Alertmanager calls."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from fairway.api.auth import allow
from fairway.api.routes.fleet import PROBLEMS
from fairway.model.access import Role
from fairway.services.alerts import AlertServices
from fairway.wire import alerts as wire

ALERTS: Final = allow(Role.ALERTS, max_body_bytes=wire.MAX_ALERTS_BYTES)


def add_alert_routes(app: FastAPI, alerts: AlertServices) -> None:
    """Add the route of alerts."""

    @app.post("/v1/alerts", dependencies=ALERTS, responses=PROBLEMS, tags=["alerts"])
    async def receive_alerts(group: wire.AlertGroup) -> wire.AlertsReceived:
        """Receive what Alertmanager sends. An alert that is sent again is delivered to people once."""
        return await alerts.receive(group.alerts)
