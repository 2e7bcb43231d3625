"""Build and run a server: the only package that wires engines, ledger, loops and app together."""

from __future__ import annotations

from fairway.server.engines import EngineFactory, build_engine
from fairway.server.listen import ServerOptions
from fairway.server.migrate import downgrade_tables, make_admin, table_version, upgrade_tables
from fairway.server.server import StartedServer, serve
from fairway.simulate.garbage import collect_garbage_less_often

__all__ = [
    "EngineFactory",
    "ServerOptions",
    "StartedServer",
    "build_engine",
    "collect_garbage_less_often",
    "downgrade_tables",
    "make_admin",
    "serve",
    "table_version",
    "upgrade_tables",
]
