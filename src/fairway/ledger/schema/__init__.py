"""SQLAlchemy definitions of the ledger's tables."""
