"""Read, check and write fleet files."""
