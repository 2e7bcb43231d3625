"""Check parts of a fleet file that depend on each other."""
