"""Queries and writes of usage and capacity: metering, totals, partitions, the archive."""
