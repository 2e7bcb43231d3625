"""Which addresses a secret may be sent to."""

from __future__ import annotations

import pytest

from fairway.services.outgoing import is_confidential


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://id.acme.test", True),
        ("http://127.0.0.1:9000/x", True),
        ("http://[::1]:9000", True),
        ("http://localhost:9000", True),
        ("http://id.acme.test", False),
        ("http://127.0.0.1.acme.test", False),
        ("http://localhost.acme.test", False),
        ("file:///etc/passwd", False),
        ("https://", False),
        ("http://[x", False),
        (None, False),
    ],
)
def test_only_what_stays_between_us(url: object, may: bool) -> None:
    assert is_confidential(url) is may
