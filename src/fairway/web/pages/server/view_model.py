"""Build the rows of the Server page from leases and metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.samples import Sample

from fairway.ledger import Lease


@dataclass(frozen=True, slots=True)
class LoopRow:
    """One loop on one cluster: who runs it, and how it goes."""

    loop: str
    cluster: str
    holder: str
    """The server that runs it; empty if nobody does."""
    is_here: bool
    expires_at: datetime
    is_over: bool
    """Whether its lease ran out: no server runs it."""
    age_seconds: float | None
    """Since it last did its work; known of loops of this server alone, as all that follows."""
    mean_seconds: float | None
    """How long a round takes."""
    errors: int | None


def loop_rows(
    leases: Iterable[Lease], samples: Mapping[str, Iterable[Sample]], now: datetime
) -> list[LoopRow]:
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
            LoopRow(
                lease.loop,
                str(lease.cluster),
                "" if over else lease.holder,
                is_here,
                lease.expires_at,
                over,
                ages.get(key) if is_here else None,
                totals[key] / count if is_here and count else None,
                int(errors.get(key, 0)) if is_here else None,
            )
        )
    return rows


def _by_loop(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = (sample.labels["loop"], sample.labels["cluster"])
        found[key] = found.get(key, 0) + sample.value
    return found
