"""Read the past jobs of a server, its fleet file and the sizes of its pools, to replay them here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairway.cli.connect import connect, spinner
from fairway.cli.shared.fleet_file import FleetText
from fairway.files.traces.read import Trace, read_trace
from fairway.model.text import count
from fairway.wire import fleet as wire


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """What a server knows of the last days."""

    trace: Trace
    pools: Sequence[wire.Pool]
    fleet: FleetText | None
    """The fleet file that was applied last; None: it is not needed."""
    read_at: float


def read_history(context: str | None, url: str | None, days: int, *, with_fleet: bool) -> ServerHistory:
    """Read the history of the server that the flags name."""
    with connect(context, url) as client, spinner("reading past jobs"):
        read_at = time.time()
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            for piece in client.export_jobs(days):
                file.write(piece)
            file.flush()
            trace = read_trace(Path(file.name))
        pools = list(client.pools())
        fleet = None
        if with_fleet:
            stored = client.fleet_file()
            fleet = FleetText(stored.text, f"revision {stored.revision}")
    source = f"the last {count(days, 'day')}"
    return ServerHistory(replace(trace, source=source), pools, fleet, read_at)
