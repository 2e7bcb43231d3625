"""The one place that knows every concrete part: it builds engines, ledger, loops and app, and runs them."""

from __future__ import annotations

from fairway.wiring.door import Serving
from fairway.wiring.engines import Engines, build_engine
from fairway.wiring.ledger_steps import downgrade_tables, make_admin, table_version, upgrade_tables
from fairway.wiring.server import Started, collect_garbage_less_often, serve

__all__ = [
    "Engines",
    "Serving",
    "Started",
    "build_engine",
    "collect_garbage_less_often",
    "downgrade_tables",
    "make_admin",
    "serve",
    "table_version",
    "upgrade_tables",
]
