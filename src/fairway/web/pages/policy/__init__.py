"""The page Policy: the fleet file, plans, applies and drift."""
