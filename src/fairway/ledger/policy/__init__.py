"""Queries and writes of applies and drift."""
