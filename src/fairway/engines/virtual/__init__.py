"""The virtual engine: a simulated cluster in memory, for demos, tests and what-if runs.

The cluster itself is `fairway.simulate.cluster`; this package makes an engine of it.
"""

from fairway.engines.virtual.engine import OccupiedDevices, VirtualEngine

__all__ = ["OccupiedDevices", "VirtualEngine"]
