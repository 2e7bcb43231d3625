"""Alembic's folder: one file a step, forward only, run by `fairway.ledger.migrate`."""
