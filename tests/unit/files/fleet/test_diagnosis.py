"""The thresholds of the diagnosis in a fleet file."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path

import pytest

from fairway.files.fleet.load import check_text, parse_fleet
from fairway.files.fleet.schema_diagnosis import THRESHOLDS
from fairway.files.fleet.write import compose_fleet
from fairway.files.schema.values import DurationValue, Percent
from fairway.model.diagnosis import DEFAULT_DIAGNOSIS, DEFAULT_THRESHOLDS, DiagnosisSettings, Thresholds
from fairway.policy.fleet_diff import describe
from tests.unit.files.fleets import SHARED, SOUND


def with_diagnosis(text: str) -> str:
    return f"{SHARED}diagnosis: {text}\n"


def test_left_out_thresholds_are_the_defaults() -> None:
    assert parse_fleet(SOUND, "f", Path("/")).diagnosis == DEFAULT_DIAGNOSIS
    assert parse_fleet(with_diagnosis("{}"), "f", Path("/")).diagnosis == DEFAULT_DIAGNOSIS


def test_each_threshold_has_a_key_and_no_other() -> None:
    assert [t.field for t in THRESHOLDS] == [field.name for field in fields(Thresholds)]


def test_units() -> None:
    text = (
        "{ services: [serve-*], idle_engine: 2.5%, idle: 1h, opened_memory_mib: 700,"
        " copy_mb_per_second: 3000, large_gpu_millicores: 2500 }"
    )
    assert parse_fleet(with_diagnosis(text), "f", Path("/")).diagnosis == DiagnosisSettings(
        Thresholds(
            idle_engine=0.025,
            idle_seconds=3600,
            opened_memory_mib=700,
            copy_bytes_per_second=3e9,
            large_gpu_cores=2.5,
        ),
        ("serve-*",),
    )


def test_every_threshold_is_written_and_read_back() -> None:
    base = parse_fleet(SHARED, "f", Path("/"))
    changed = {
        t.field: (
            float(Decimal(str(getattr(DEFAULT_THRESHOLDS, t.field))) / 2)
            if isinstance(t.key.shape, Percent)
            else 4500.0
            if isinstance(t.key.shape, DurationValue)
            else 123 * t.scale
        )
        for t in THRESHOLDS
    }
    fleet = replace(base, diagnosis=DiagnosisSettings(Thresholds(**changed), ("a-*", "b")))
    assert parse_fleet(compose_fleet(fleet), "f", Path("/")).diagnosis == fleet.diagnosis
    said = {diff.what for part in describe(base, fleet) for diff in part.changes}
    assert said == {"services", *(f"diagnosis {field.name}" for field in fields(Thresholds))}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{ idle_engine: 101% }", "OutOfRange"),
        ("{ idle_engine: 0.02 }", "WrongType"),
        ("{ idle: 3h }", "OutOfRange"),
        ("{ idle: 1m }", "OutOfRange"),
        ("{ opened_memory_mib: -1 }", "OutOfRange"),
        ("{ idle_engin: 1% }", "UnknownKey"),
        ("{ services: serve-* }", "WrongType"),
    ],
)
def test_what_is_out_of_range_is_a_fault(text: str, code: str) -> None:
    report = check_text(with_diagnosis(text), "f", Path("/"))
    assert [fault.code for fault in report.faults] == [code]
    assert all(fault.hint for fault in report.faults)
