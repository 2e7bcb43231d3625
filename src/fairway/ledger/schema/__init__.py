"""Define the ledger's tables with SQLAlchemy."""
