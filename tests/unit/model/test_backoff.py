from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.client.waiting import POLL
from fairway.engines.kubernetes.api.informer import InformerTiming
from fairway.engines.slurm.jobs.mirror import ACCOUNTING_BACKOFF
from fairway.model.backoff import Backoff
from fairway.model.job import Retries

backoffs = st.builds(
    Backoff,
    first_seconds=st.floats(0.001, 100),
    longest_seconds=st.floats(100, 10_000),
    factor=st.floats(1, 10),
)
attempts = st.integers(1, 10_000)
chances = st.floats(0, 1)


@given(backoffs, attempts, chances)
def test_a_delay_is_bounded(backoff: Backoff, attempt: int, chance: float) -> None:
    delay = backoff.seconds(attempt, chance)
    assert math.isfinite(delay)
    assert backoff.first_seconds / 2 <= delay <= backoff.longest_seconds


@given(backoffs, attempts, chances)
def test_delays_never_shrink_and_grow_by_the_factor_at_most(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    delay, following = backoff.seconds(attempt, chance), backoff.seconds(attempt + 1, chance)
    assert delay <= following <= max(delay, delay * backoff.factor) * (1 + 1e-9)


@given(backoffs, attempts, chances, chances)
def test_chance_spreads_between_half_and_all(
    backoff: Backoff, attempt: int, one: float, other: float
) -> None:
    whole = backoff.seconds(attempt)
    assert backoff.seconds(attempt, 0.0) == whole / 2
    low, high = sorted((one, other))
    assert whole / 2 <= backoff.seconds(attempt, low) <= backoff.seconds(attempt, high) <= whole


@given(backoffs, st.integers(2, 50))
def test_delays_are_those_of_one_attempt_after_the_other(backoff: Backoff, number: int) -> None:
    delays = list(islice(backoff.delays(), number))
    assert delays == [backoff.seconds(attempt) for attempt in range(1, number + 1)]
    assert all(one <= other for one, other in pairwise(delays))


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (POLL, [0.25, 0.375, 0.5625, 0.84375, 1.265625, 1.8984375, 2, 2]),
        (InformerTiming().backoff, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]),
        (ACCOUNTING_BACKOFF, [1, 2, 4, 8, 16, 30, 30]),
    ],
)
def test_who_waits_how_long(backoff: Backoff, delays: list[float]) -> None:
    assert list(islice(backoff.delays(), len(delays))) == delays


def test_retries_of_a_job_wait_whole_seconds() -> None:
    assert [Retries(5).backoff(failures) for failures in (1, 2, 3, 8, 10_000)] == [30, 60, 120, 3600, 3600]
