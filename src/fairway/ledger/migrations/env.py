"""What Alembic runs: the connection, its transaction and the lock are `fairway.ledger.migrate`'s."""

from __future__ import annotations

from alembic import context

from fairway.ledger.schema import (
    costs,  # noqa: F401 - which `metadata` would not have otherwise
    jobs,  # noqa: F401 - which `metadata` would not have otherwise
)
from fairway.ledger.schema.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
