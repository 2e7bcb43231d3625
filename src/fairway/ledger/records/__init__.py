"""Define the rows that the ledger returns, as frozen values."""
