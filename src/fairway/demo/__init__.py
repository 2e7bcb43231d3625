"""The demo of `fairway demo`: two virtual clusters, users who keep them busy, and sixty days of history."""

from __future__ import annotations

from fairway.demo.live_load import Beat
from fairway.demo.run import GUIDE, DemoOptions, Opened, Telling, serve_demo

__all__ = ["GUIDE", "Beat", "DemoOptions", "Opened", "Telling", "serve_demo"]
