"""Queries and writes of tokens and sessions."""
