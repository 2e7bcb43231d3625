"""Hold the migrations for Alembic, one file per step; `fairway.ledger.migrate` runs them."""
