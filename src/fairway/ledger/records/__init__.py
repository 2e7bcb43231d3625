"""The rows that the ledger returns, as frozen values."""
