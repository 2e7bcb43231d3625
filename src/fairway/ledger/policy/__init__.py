"""Query and write applies and drift."""
