"""Query and write tokens and sessions."""
