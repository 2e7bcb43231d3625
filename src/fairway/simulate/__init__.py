"""Play a cluster's scheduling rules forward: snapshots, run times, futures, replays and what-if. Pure."""
