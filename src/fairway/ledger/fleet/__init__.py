"""Queries and writes of fleet revisions, clusters and observations."""
