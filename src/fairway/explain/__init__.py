"""Explain why a job waits: reasons with code, text and remedy, and the mapping of engines' reasons. Pure."""
