"""A cluster in memory: for demos and tests, and later for what-if runs with a clock of its own."""

from fairway.engines.virtual.engine import Hold, VirtualEngine

__all__ = ["Hold", "VirtualEngine"]
