"""Load what is known of the run times of some jobs from the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from fairway.ledger import Ledger
from fairway.simulate.run_times import JobGroup, JobTraits, RunTimeKey, RunTimes, keys_of

_PART = 20_000
"""Groups that are read in one statement."""


async def predictor(ledger: Ledger, jobs: Collection[JobTraits]) -> RunTimes:
    """Return what predicts the run times of these jobs; of others it knows less."""
    keys = list(await asyncio.to_thread(_keys, jobs))
    stored: dict[RunTimeKey, bytes] = {}
    for first in range(0, len(keys), _PART):
        stored |= await ledger.run_times.histograms(keys[first : first + _PART])
    return RunTimes(stored)


def _keys(jobs: Iterable[JobTraits]) -> set[RunTimeKey]:
    return {key for group in set(map(JobGroup.of, jobs)) for _, key in keys_of(group)}
