"""Read and write what teams and projects will have spent when the month ends."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.costs import StoredForecast
from fairway.ledger.schema.costs import spending_forecast
from fairway.ledger.sql_values import json_rows
from fairway.model.charge import Label

_REPLACE = text("""
    WITH reported AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported (
            label text, payer text, month date, spent numeric, expected numeric, low numeric, high numeric
        )
    ), gone AS (
        DELETE FROM spending_forecast WHERE (label, payer) NOT IN (SELECT label, payer FROM reported)
    )
    INSERT INTO spending_forecast (label, payer, month, spent, expected, low, high, checked_at)
    SELECT label, payer, month, spent, expected, low, high, now() FROM reported
    ON CONFLICT (label, payer) DO UPDATE SET
        month = excluded.month, spent = excluded.spent, expected = excluded.expected, low = excluded.low,
        high = excluded.high, checked_at = excluded.checked_at
""")


class ForecastWriter(FencedWriter):
    """Writes forecasts of spending."""

    async def write(self, forecasts: Sequence[StoredForecast]) -> None:
        """Replace all forecasts with these."""
        rows = [
            {
                "label": f.label.value,
                "payer": f.payer,
                "month": f.month.isoformat(),
                "spent": str(f.spent),
                "expected": str(f.expected),
                "low": str(f.low),
                "high": str(f.high),
            }
            for f in forecasts
        ]
        await self._connection.execute(_REPLACE, {"rows": json_rows(rows)})


class ForecastStore(LedgerStore):
    """Reads forecasts of spending."""

    async def by(self, label: Label) -> tuple[StoredForecast, ...]:
        """Return the forecasts of every payer by a label, the largest first."""
        table = spending_forecast
        rows = await self._fetch(
            select(table).where(table.c.label == label.value).order_by(table.c.expected.desc(), table.c.payer)
        )
        return tuple(StoredForecast(**{**row._mapping, "label": Label(row.label)}) for row in rows)
