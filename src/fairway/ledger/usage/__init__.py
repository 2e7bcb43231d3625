"""Query and write usage and capacity: metering, totals, partitions, the archive."""
