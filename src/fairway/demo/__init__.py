"""The demo of `fairway demo`: two virtual clusters, users who keep them busy, and sixty days of history."""

from __future__ import annotations

from fairway.demo.live_load import LoadStatus
from fairway.demo.run import DemoCallbacks, DemoOptions, DemoSummary, serve_demo

__all__ = ["DemoCallbacks", "DemoOptions", "DemoSummary", "LoadStatus", "serve_demo"]
