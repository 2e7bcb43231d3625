"""Format events of GPUs, GPUs that fail and nodes that are closed, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fairway.cli.output.format import Column, Fit, TableView, since
from fairway.model.gpu_health import EventClass
from fairway.wire import gpu_health as wire


def gpu_events_view(events: Sequence[wire.GpuEvent], now: datetime, *, wide: bool) -> TableView:
    """Return a table with one row for each event."""
    columns = [
        Column("WHEN", right=True),
        *Column.names("CLUSTER", "NODE", "GPU", "CLASS"),
        Column("JOB", hide_if_empty=True),
        Column("WHAT", fit=Fit.END),
    ]
    if wide:
        columns += [Column("LASTED", right=True), *Column.names("UUID", "SERIAL", "MODEL")]
    rows = []
    for event in events:
        at = f"{since(event.at, now)} ago"
        row = [at, event.cluster, event.node, event.gpu, event.class_.value, event.job or "", event.text]
        if wide:
            row += [since(event.at, event.last_seen), event.uuid, event.serial, event.model]
        rows.append(row)
    return TableView(
        columns,
        rows,
        empty="no GPU errors were reported",
        hint="GPU errors are read from clusters with  telemetry: { prometheus: URL }  in the fleet file",
        alarming=frozenset(i for i, e in enumerate(events) if e.class_ is EventClass.HARDWARE),
    )


def failing_gpus_view(gpus: Sequence[wire.FailingGpu], now: datetime, *, wide: bool) -> TableView:
    """Return a table with one row for each GPU."""
    columns = [
        Column("GPU"),
        *Column.names("CLUSTER", "NODE", "INDEX"),
        Column("WEEKS", right=True),
        Column("EVENTS", right=True),
        Column("JOBS", right=True),
        Column("LAST", right=True),
        Column("LAST EVENT", fit=Fit.END),
    ]
    if wide:
        columns += Column.names("UUID", "MODEL")
    rows = []
    for gpu in gpus:
        name = gpu.serial or gpu.uuid or f"{gpu.node}/{gpu.gpu}"
        counts = [str(n) for n in (gpu.weeks, gpu.events, gpu.jobs)]
        last = f"{since(gpu.last_seen, now)} ago"
        row = [name, gpu.cluster, gpu.node, gpu.gpu, *counts, last, gpu.text]
        rows.append([*row, gpu.uuid, gpu.model] if wide else row)
    return TableView(
        columns,
        rows,
        empty="no GPU hardware failures were reported",
        hint="list all errors and warnings:  fairway get gpu-events",
    )


def cordons_view(cordons: Sequence[wire.Cordon], now: datetime) -> TableView:
    """Return a table with one row for each node."""
    columns = [
        *Column.names("NODE", "CLUSTER"),
        Column("SINCE", right=True),
        Column("STATE"),
        Column("WHY", fit=Fit.END),
    ]
    rows = [[c.node, c.cluster, f"{since(c.at, now)} ago", _state(c), c.reason] for c in cordons]
    return TableView(
        columns,
        rows,
        empty="Fairway has cordoned no nodes",
        hint="enable it in the fleet file:  health: { broken: { do: cordon } }",
    )


def _state(cordon: wire.Cordon) -> str:
    if cordon.lift_asked_by is not None:
        return f"being uncordoned by {cordon.lift_asked_by}"
    return "closed" if cordon.done else "is being closed"
