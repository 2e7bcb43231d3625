"""What an exporter says of a sick GPU becomes an event, with when it began and who held the GPU."""

from __future__ import annotations

import pytest

from fairway.model.gpu_health import (
    EventClass,
    EventCode,
    GpuSighting,
    class_of,
    ends_jobs,
    event_words,
    is_event_code,
    throttle_words,
)
from fairway.telemetry.health import event_code, onset
from fairway.telemetry.prometheus import Labels, MatrixRow


@pytest.mark.parametrize(
    ("code", "class_", "innocent"),
    [
        ("xid-79", EventClass.HARDWARE, True),
        ("xid-119", EventClass.HARDWARE, True),
        ("xid-48", EventClass.HARDWARE, True),
        ("xid-63", EventClass.RESET, False),
        ("xid-94", EventClass.RESET, True),
        ("xid-31", EventClass.APPLICATION, False),
        ("xid-45", EventClass.APPLICATION, False),
        ("xid-62", EventClass.UNKNOWN, False),
        ("gone", EventClass.HARDWARE, True),
        ("hot", EventClass.WARNING, False),
        ("something", EventClass.UNKNOWN, False),
    ],
)
def test_classes(code: str, class_: EventClass, innocent: bool) -> None:
    assert class_of(code) is class_
    assert ends_jobs(code) is innocent
    assert event_words(code)
    assert is_event_code(code) is (code != "something")


def test_every_code_has_words() -> None:
    assert all(class_of(code) is not EventClass.UNKNOWN and event_words(code) for code in EventCode)


@pytest.mark.parametrize(
    ("metric", "labels", "value", "event"),
    [
        ("xid-count", Labels(xid="79"), 1.0, ("xid-79", "")),
        ("xid-count", Labels(), 0.0, None),
        ("xid-last", Labels(), 45.0, ("xid-45", "")),
        ("xid-last", Labels(), 0.0, None),
        ("throttle", Labels(), 1.0, None),
        ("throttle", Labels(), 4.0, None),
        ("throttle", Labels(), 16.0, None),
        ("throttle", Labels(), 65.0, ("throttle", "hardware thermal slowdown")),
        ("hot", Labels(), 85.0, None),
        ("hot", Labels(), 91.0, ("hot", "91 °C")),
        ("ecc", Labels(), 1.0, ("ecc", "")),
        ("ecc", Labels(), float("nan"), None),
        ("strange", Labels(), 1.0, None),
    ],
)
def test_values_become_events(
    metric: str, labels: Labels, value: float, event: tuple[str, str] | None
) -> None:
    assert event_code(metric, labels, value) == event


def test_throttle_bits() -> None:
    assert throttle_words(5) == ""
    assert throttle_words(8 | 128) == "hardware slowdown, power brake"


def row(name: str, *values: tuple[float, str], **labels: str) -> MatrixRow:
    return MatrixRow(Labels(name=name, gpu="3", uuid="GPU-3", node="n1", **labels), values)


PRESENT = "DCGM_FI_DEV_FB_USED"
XID = "DCGM_FI_DEV_XID_ERRORS"


def sighting(code: str) -> GpuSighting:
    return GpuSighting("n1", "3", code, 100.0, 100.0, uuid="GPU-3")


def test_the_first_bad_sample_is_the_beginning() -> None:
    rows = [
        row(PRESENT, (50.0, "9"), (60.0, "9"), (70.0, "9"), hpc_job="17"),
        row(XID, (50.0, "0"), hpc_job="17"),
        row(XID, (60.0, "79"), (70.0, "79"), hpc_job="17"),
    ]
    found = onset(sighting("xid-79"), rows)
    assert (found.at, found.onset_known, found.holders) == (60.0, True, frozenset({"17"}))


def test_what_was_wrong_throughout_began_nobody_knows_when() -> None:
    rows = [row(PRESENT, (50.0, "9"), (60.0, "9")), row(XID, (50.0, "79"), (60.0, "79"))]
    assert not onset(sighting("xid-79"), rows).onset_known
    assert not onset(sighting("xid-79"), []).onset_known


def test_a_job_that_ended_before_the_next_sample_held_it() -> None:
    rows = [row(PRESENT, (50.0, "9"), hpc_job="17"), row(PRESENT, (65.0, "0")), row(XID, (65.0, "79"))]
    assert onset(sighting("xid-79"), rows).holders == frozenset({"17"})


def test_a_gpu_is_gone_since_its_last_sample() -> None:
    rows = [
        row(PRESENT, (50.0, "9"), (60.0, "9"), namespace="nlp", pod="train-fwx-0001-1-0-abcde"),
        MatrixRow(Labels(name=PRESENT, gpu="4", uuid="GPU-4", node="n1"), ((90.0, "1"),)),
    ]
    found = onset(sighting("gone"), rows)
    assert (found.at, found.onset_known) == (60.0, True)
    assert "nlp/train-fwx-0001-1-0-abcde" in found.holders
