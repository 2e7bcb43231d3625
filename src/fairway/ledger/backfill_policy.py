"""The rest of a made-up past: applies of the fleet file, months as they were closed, the story of budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import budget_rows
from fairway.ledger.applies import encoded_changes
from fairway.ledger.cost_records import BudgetStanding
from fairway.ledger.cost_tables import budget_event
from fairway.ledger.errors import LedgerNotEmpty
from fairway.ledger.ledger import Ledger
from fairway.ledger.policy_records import ApplyKind, ApplyState, KeptChange
from fairway.ledger.tables import apply, fleet_revision
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Change

_ANY = text("SELECT EXISTS (SELECT FROM apply) OR EXISTS (SELECT FROM fleet_revision)")

# The changes as text: what is kept by an apply that really is made comes in the same way.
_CLUSTER = text("""
    INSERT INTO apply_cluster (
        apply, cluster, state, fingerprint, changes, total, done, started_at, finished_at
    )
    VALUES (
        :apply, :cluster, :state, :fingerprint, CAST(:changes AS jsonb), :total, :total, :started, :finished
    )
""")

_CLOSED_AT = text("UPDATE closed_month SET closed_at = :at WHERE month = :month")


@dataclass(frozen=True, slots=True)
class PastApply:
    """A fleet file that somebody applied, and what it changed on each cluster."""

    text: str
    digest: str
    by: str
    at: datetime
    finished: datetime
    changes: Mapping[ClusterName, tuple[str, Sequence[Change]]]
    """With the fingerprint of the plan."""


async def write_applies(ledger: Ledger, applies: Sequence[PastApply]) -> None:
    """In order of time. Raises LedgerNotEmpty where something was applied already."""
    async with ledger._connections.transaction() as connection:
        if (await connection.execute(_ANY)).scalar_one():
            raise LedgerNotEmpty(
                "LedgerNotEmpty", "this ledger has a fleet: its past is not made up", "use an empty database"
            )
        for one in applies:
            await _write_apply(connection, one)


async def date_closing(ledger: Ledger, month: date, at: datetime) -> None:
    """Have a month closed at that moment of the past."""
    async with ledger._connections.transaction() as connection:
        await connection.execute(_CLOSED_AT, {"month": month, "at": at})


async def write_budgets(
    ledger: Ledger, standings: Sequence[BudgetStanding], events: Sequence[tuple[datetime, TeamName, str]]
) -> None:
    """How budgets stand now, and what was told of them when."""
    async with ledger._connections.transaction() as connection:
        await budget_rows.keep(connection, standings, ())
        if events:
            rows = [{"at": at, "team": team, "text": said} for at, team, said in events]
            await connection.execute(insert(budget_event), rows)


async def _write_apply(connection: AsyncConnection, one: PastApply) -> None:
    revision = insert(fleet_revision).values(
        created_at=one.at, created_by=one.by, digest=one.digest, text=one.text
    )
    number = (await connection.execute(revision.returning(fleet_revision.c.id))).scalar_one()
    made = insert(apply).values(
        kind=ApplyKind.APPLY.value, created_at=one.at, created_by=one.by, revision=number, force=False
    )
    apply_id = (await connection.execute(made.returning(apply.c.id))).scalar_one()
    for cluster, (fingerprint, changes) in one.changes.items():
        values = {
            "apply": apply_id,
            "cluster": cluster,
            "state": ApplyState.DONE.value,
            "fingerprint": fingerprint,
            "changes": encoded_changes([KeptChange(change, True) for change in changes]),
            "total": len(changes),
            "started": one.at,
            "finished": one.finished,
        }
        await connection.execute(_CLUSTER, values)
