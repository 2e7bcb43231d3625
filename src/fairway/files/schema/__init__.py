"""Define schemas of files: scalars, records and lists that report every fault with its position."""
