"""A fleet file of very many faults is refused in little more time than it takes to read its YAML."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairway.files import check_text
from fairway.files.diagnostics import MAX_FAULTS, Faults
from fairway.files.yaml import parse

TEXT = "\n".join(f"k{n}: 1" for n in range(20_000))


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_unknown_keys_beyond_the_shown_ones_are_only_counted() -> None:
    report = check_text(TEXT, "fleet.yaml")
    assert len(report.faults) == MAX_FAULTS + 1
    assert "more faults are not shown" in report.faults[-1].message
    # In turn, so that a busy machine slows down both alike.
    rounds = [
        (
            cpu_seconds(lambda: parse(TEXT, Faults(""))),
            cpu_seconds(lambda: check_text(TEXT, "fleet.yaml")),
        )
        for _ in range(5)
    ]
    reading, checking = (min(times) for times in zip(*rounds, strict=True))
    assert checking < 3 * reading
