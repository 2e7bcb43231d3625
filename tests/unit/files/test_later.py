"""Sections that a coming release will read are told apart from typos."""

from __future__ import annotations

from fairway.files.faults import Faults
from fairway.files.growing import grow
from fairway.files.records import Key, Record
from fairway.files.shape import At, Whole
from fairway.files.tree import Mark


def test_what_comes_later_is_said_to_come() -> None:
    shape = Record("A thing", (Key("now", Whole(0, 9), "What there is."),), later=("soon",))
    faults = Faults("x")
    root = grow("now: 1\nsoon: 2\n", faults)
    assert root is not None
    shape.read(root, At((), Mark(1, 1)), faults)
    (fault,) = faults.sorted()
    assert (fault.code, fault.path) == ("NotSupportedYet", "soon")
    assert "a coming release" in fault.hint
