"""The step of the starts loop: forecast when the waiting jobs of a cluster start, write briefly."""

from __future__ import annotations

from typing import Protocol

from fairway.ledger import Lease, Ledger
from fairway.ledger.sql_values import moment
from fairway.model.names import ClusterName
from fairway.services.start_forecasts import ClusterForecast


class ForecastsStarts(Protocol):
    """Forecasts the starts of a cluster's waiting jobs; implemented by `StartForecaster`."""

    async def forecast(self, cluster: ClusterName) -> ClusterForecast | None:
        """Forecast from the cluster's present. Returns None if it is in no fleet."""
        ...


class ForecastStarts:
    """Forecasts the starts of one cluster's waiting jobs, and replaces the stored forecasts."""

    def __init__(self, cluster: ClusterName, ledger: Ledger, forecaster: ForecastsStarts) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._forecaster = forecaster

    async def __call__(self, lease: Lease) -> None:
        """Compute from the ledger. Of a cluster that cannot be reached, the present is not known."""
        state = next((c for c in await self._ledger.clusters.all() if c.cluster == self._cluster), None)
        if state is None or not state.reachable:
            return
        found = await self._forecaster.forecast(self._cluster)
        if found is not None:
            async with self._ledger.writing(lease) as tx:
                await tx.job_forecasts.write(found.jobs, moment(found.at))
                await tx.job_forecasts.check(found.checks, moment(found.at))
