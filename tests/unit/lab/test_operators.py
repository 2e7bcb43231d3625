"""Which operators a cluster of the lab gets."""

from __future__ import annotations

import pytest

from lab.errors import LabError
from lab.kubernetes.operators import chosen


def test_one_brings_what_it_needs() -> None:
    assert chosen(["trainer"]) == ["jobset", "trainer"]
    with pytest.raises(LabError, match="no operator volcano"):
        chosen(["volcano"])
