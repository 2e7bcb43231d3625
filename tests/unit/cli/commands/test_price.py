"""The periods of `fairway price points --withdraw`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fairway.cli.commands.price import _parse_period, price


@pytest.mark.parametrize(
    ("text", "start", "until"),
    [
        ("2026-10-01T03:17Z", "2026-10-01T03:17:00+00:00", "2026-10-01T03:17:01+00:00"),
        ("2026-10-01", "2026-10-01T00:00:00+00:00", "2026-10-01T00:00:01+00:00"),
        ("2026-10-01..2026-10-02", "2026-10-01T00:00:00+00:00", "2026-10-02T00:00:00+00:00"),
        ("2026-10-01T02:00+02:00..", "2026-10-01T02:00:00+02:00", None),
    ],
)
def test_periods(text: str, start: str, until: str | None) -> None:
    found = _parse_period(text)
    assert [at and at.isoformat() for at in found] == [start, until]


@pytest.mark.parametrize("text", ["", "..", "..2026-10-01", "yesterday", "2026-10-02..2026-10-01"])
def test_what_is_no_period(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|ends before"):
        _parse_period(text)


def test_a_file_and_a_withdrawal_are_two_commands() -> None:
    result = CliRunner().invoke(price, ["points", "spot", "-", "--withdraw", "2026-10-01"], input="")
    assert result.exit_code == 2
    assert "not both" in result.output
