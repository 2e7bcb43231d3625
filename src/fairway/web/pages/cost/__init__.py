"""The page Cost: charges by team, pool and time."""
