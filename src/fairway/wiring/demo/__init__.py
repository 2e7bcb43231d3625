"""What `fairway demo` runs: a server over two virtual clusters, and the people who keep them busy."""

from __future__ import annotations

from fairway.wiring.demo.load import Beat
from fairway.wiring.demo.show import GUIDE, Opened, Options, Telling, serve_demo

__all__ = ["GUIDE", "Beat", "Opened", "Options", "Telling", "serve_demo"]
