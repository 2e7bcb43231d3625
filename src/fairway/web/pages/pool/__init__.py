"""The page of a pool: its nodes, who holds what, and what waits."""
