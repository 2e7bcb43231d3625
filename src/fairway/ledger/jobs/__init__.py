"""Queries and writes of jobs: submit, dispatch, mirror, list, search."""
