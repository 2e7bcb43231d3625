"""Run migrations for Alembic; `fairway.ledger.migrate` provides the connection, transaction and lock."""

from __future__ import annotations

from alembic import context

from fairway.ledger.schema import (
    costs,  # noqa: F401 - adds its tables to `metadata`
    jobs,  # noqa: F401 - adds its tables to `metadata`
    slos,  # noqa: F401 - adds its tables to `metadata`
)
from fairway.ledger.schema.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
