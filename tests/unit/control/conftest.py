"""Plain tracebacks: structlog's pretty ones take longer than a lease of these tests lasts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(),
        ]
    )
    yield
    structlog.reset_defaults()
