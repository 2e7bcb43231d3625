"""The policy of a fleet on the virtual engine."""
