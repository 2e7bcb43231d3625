"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from fairway.model.hosts import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "evil.localhost", "127.1"],
)
def test_other_machines_and_names_that_somebody_would_have_to_look_up(host: str) -> None:
    assert not is_loopback(host)
