"""What is written of an attempt sums up to what is true of it, whatever was believed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.calendar import Calendar
from fairway.model.usage import AttemptUsage, UsagePiece
from tests.unit.cost.metering_reference import difference
from tests.unit.cost.small import patient

UTC = Calendar(ZoneInfo("UTC"))
H = 3600


def test_an_hour_is_a_row() -> None:
    rows = difference(None, AttemptUsage(1, 8, 1800, 3 * H), UTC)
    assert rows == [
        UsagePiece(0, 1, 1800, H, 8),
        UsagePiece(H, 1, H, 2 * H, 8),
        UsagePiece(2 * H, 1, 2 * H, 3 * H, 8),
    ]


def test_what_runs_on_adds_only_the_tail() -> None:
    rows = difference(AttemptUsage(1, 8, 1800, 2 * H), AttemptUsage(1, 8, 1800, 2 * H + 60), UTC)
    assert rows == [UsagePiece(2 * H, 1, 2 * H, 2 * H + 60, 8)]


def test_what_ended_earlier_takes_back_only_the_tail() -> None:
    rows = difference(AttemptUsage(1, 8, 0, 2 * H), AttemptUsage(1, 8, 0, H + 600), UTC)
    assert rows == [UsagePiece(H, 1, H + 600, 2 * H, -8)]


def test_what_began_otherwise_changes_only_the_head() -> None:
    assert difference(AttemptUsage(1, 2, 600, H), AttemptUsage(1, 2, 900, H), UTC) == [
        UsagePiece(0, 1, 600, 900, -2)
    ]
    assert difference(AttemptUsage(1, 2, 600, H), AttemptUsage(1, 2, 0, H), UTC) == [
        UsagePiece(0, 1, 0, 600, 2)
    ]


def test_other_devices_are_one_row_an_hour() -> None:
    assert difference(AttemptUsage(1, 8, 0, H), AttemptUsage(1, 6, 0, H), UTC) == [UsagePiece(0, 1, 0, H, -2)]


def test_another_holder_takes_back_and_adds() -> None:
    rows = difference(AttemptUsage(1, 8, 0, H), AttemptUsage(2, 8, 0, H), UTC)
    assert rows == [UsagePiece(0, 1, 0, H, -8), UsagePiece(0, 2, 0, H, 8)]


def test_what_never_was_is_taken_back_whole() -> None:
    assert difference(AttemptUsage(1, 8, 0, H), None, UTC) == [UsagePiece(0, 1, 0, H, -8)]
    assert difference(None, None, UTC) == []


def test_nothing_between_start_and_end_is_nothing() -> None:
    assert difference(None, AttemptUsage(1, 8, 50, 50), UTC) == []
    assert difference(AttemptUsage(1, 8, 50, 50), AttemptUsage(1, 8, 50, 60), UTC) == [
        UsagePiece(0, 1, 50, 60, 8)
    ]


HOLDINGS = st.builds(
    lambda holder, devices, start, length: AttemptUsage(holder, devices, start, start + length),
    st.integers(1, 2),
    st.integers(1, 3),
    # Around both changes of the clocks of Lord Howe in 2026.
    st.sampled_from([1775314800, 1791040800]).flatmap(lambda at: st.integers(at - 6 * H, at + 6 * H)),
    st.integers(0, 9 * H),
)
ZONES = st.sampled_from(["UTC", "Australia/Lord_Howe", "Asia/Kathmandu", "America/New_York"])


def of_each_second(pieces: Sequence[UsagePiece]) -> Counter[tuple[int, int]]:
    """Devices by holder and second, every 50 seconds would not do: edges matter."""
    steps: Counter[tuple[int, int]] = Counter()
    for piece in pieces:
        steps[piece.holder, piece.start] += piece.devices
        steps[piece.holder, piece.end] -= piece.devices
    return Counter({key: step for key, step in steps.items() if step})


@patient
@given(ZONES, st.lists(st.one_of(st.none(), HOLDINGS), min_size=1, max_size=6), st.data())
def test_rows_sum_to_the_truth_however_it_came(
    zone: str, truths: list[AttemptUsage | None], data: st.DataObject
) -> None:
    calendar = Calendar(ZoneInfo(zone))
    written: list[UsagePiece] = []
    metered: AttemptUsage | None = None
    for truth in truths:
        if data.draw(st.booleans()):
            difference(metered, truth, calendar)  # killed before the transaction ended: nothing is written
            continue
        written += difference(metered, truth, calendar)
        metered = truth
        assert difference(metered, truth, calendar) == []  # told again: nothing more
    truth = truths[-1]
    written += difference(metered, truth, calendar)
    assert of_each_second(written) == of_each_second(difference(None, truth, calendar))
    whole = 0 if truth is None else truth.devices * (truth.end - truth.start)
    assert sum(piece.device_seconds for piece in written) == whole
    for piece in written:
        hour = calendar.hour_span(piece.start)
        assert piece.hour == hour.start
        assert hour.start <= piece.start < piece.end <= hour.end
        assert piece.devices != 0


@patient
@given(ZONES, HOLDINGS, st.integers(0, 5 * H))
def test_no_more_rows_than_hours_changed(zone: str, before: AttemptUsage, more: int) -> None:
    calendar = Calendar(ZoneInfo(zone))
    after = AttemptUsage(before.holder, before.devices, before.start, before.end + more)
    rows = difference(before, after, calendar)
    assert len(rows) == len(calendar.hours(type(calendar.hour_span(0))(before.end, after.end)))
