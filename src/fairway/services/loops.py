"""List the loops of all servers: which server runs each, and how those of this server are doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from fairway.ledger import FLEET, Lease, Ledger
from fairway.services.fleets import Fleets
from fairway.wire import fleet as wire


async def list_loops(ledger: Ledger, fleets: Fleets, registry: CollectorRegistry) -> list[wire.Loop]:
    """List every loop by name and cluster; `registry` has the metrics of this server's loops."""
    clusters = {FLEET, *(cluster.name for cluster in (await fleets.current()).clusters)}
    leases = [lease for lease in await ledger.leases.all() if lease.cluster in clusters]
    return loop_rows(leases, loop_samples(registry), datetime.now(UTC))


def loop_rows(
    leases: Iterable[Lease], samples: Mapping[str, Iterable[Sample]], now: datetime
) -> list[wire.Loop]:
    """Return a row for each lease; `samples` are this server's, by the name of the sample."""
    held = _by_loop(samples.get("fairway_loop_lease_held", ()))
    ages = _by_loop(samples.get("fairway_loop_last_success_age_seconds", ()))
    totals = _by_loop(samples.get("fairway_loop_duration_seconds_sum", ()))
    rounds = _by_loop(samples.get("fairway_loop_duration_seconds_count", ()))
    errors = _by_loop(samples.get("fairway_loop_errors_total", ()))
    rows = []
    for lease in leases:
        key = (lease.loop, str(lease.cluster))
        is_here = held.get(key) == 1
        count = rounds.get(key, 0)
        over = lease.expires_at <= now
        rows.append(
            wire.Loop(
                loop=lease.loop,
                cluster=None if lease.cluster == FLEET else str(lease.cluster),
                server=None if over else lease.holder,
                is_here=is_here,
                lease_expires_at=lease.expires_at,
                age_seconds=ages.get(key) if is_here else None,
                mean_seconds=totals[key] / count if is_here and count else None,
                errors=int(errors.get(key, 0)) if is_here else None,
            )
        )
    return rows


def loop_samples(registry: CollectorRegistry) -> dict[str, list[Sample]]:
    """Return the samples of loop metrics by the name of the sample."""
    found: dict[str, list[Sample]] = {}
    for metric in registry.collect():
        if metric.name.startswith("fairway_loop_"):
            for sample in metric.samples:
                found.setdefault(sample.name, []).append(sample)
    return found


def _by_loop(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = (sample.labels["loop"], sample.labels["cluster"])
        found[key] = found.get(key, 0) + sample.value
    return found
