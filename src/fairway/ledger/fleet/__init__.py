"""Query and write fleet revisions, clusters and observations."""
