"""Define a row of the metrics table in the docs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A Prometheus metric as listed in the docs: name, kind, help text and labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("loop", "cluster")
