"""Parse YAML into a tree with the line and column of every value."""
