"""GPU telemetry: what dcgm-exporter serves of a fleet, with real Prometheus and real Alertmanager."""

from lab.gpus.client import Delivery, Exporter, Figure, Held, Receiver, Truth, points
from lab.gpus.kind import Gpus, build, configure_alertmanager, unpacked, write_rules

KIND = Gpus()

__all__ = [
    "KIND",
    "Delivery",
    "Exporter",
    "Figure",
    "Held",
    "Receiver",
    "Truth",
    "build",
    "configure_alertmanager",
    "points",
    "unpacked",
    "write_rules",
]
