"""Sections that a coming release will read are told apart from typos."""

from __future__ import annotations

from fairway.files.diagnostics import Faults
from fairway.files.schema.containers import Key, Record
from fairway.files.schema.values import FieldPath, Integer
from fairway.files.yaml import Mark, parse


def test_what_comes_later_is_said_to_come() -> None:
    shape = Record("A thing", (Key("now", Integer(0, 9), "What there is.", required=True),), later=("soon",))
    faults = Faults("x")
    root = parse("now: 1\nsoon: 2\n", faults)
    assert root is not None
    shape.read(root, FieldPath((), Mark(1, 1)), faults)
    (fault,) = faults.sorted()
    assert (fault.code, fault.path) == ("NotSupportedYet", "soon")
    assert "a coming release" in fault.hint
