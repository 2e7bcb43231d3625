"""The comparison of pages with what came: it must see what differs, and only that."""

from __future__ import annotations

import pytest

from tests.docs.desk import missing

CAME = """\
POOL      CLUSTER  TOTAL  FREE
hpc-a100  hpc         32    31
hpc-mig   hpc          6     6

hint: two pools, 38 devices in all
train is job 0042: hpc-a100 has 8 GPUs free
"""


@pytest.mark.parametrize(
    "shown",
    [
        ["POOL  CLUSTER  TOTAL  FREE", "hpc-a100  hpc  24  0", "hpc-mig  hpc  1  1"],
        ["POOL  CLUSTER  …", "…", "hint: two pools, 4 devices in all"],
        ["…", "train is job 8f3k: …"],
        ["POOL  CLUSTER  TOTAL  FREE", "…"],
    ],
)
def test_numbers_ids_and_what_is_left_out_may_differ(shown: list[str]) -> None:
    assert missing(shown, CAME) is None


@pytest.mark.parametrize(
    ("shown", "lacks"),
    [
        (["POOL  TOTAL  CLUSTER  FREE"], "POOL  TOTAL  CLUSTER  FREE"),
        (["POOL  CLUSTER  TOTAL  FREE", "hpc-b200  hpc  24  0"], "hpc-b200  hpc  24  0"),
        (["POOL  CLUSTER  TOTAL  FREE", "hpc-mig  hpc  1  1", "hpc-a100  hpc  1  1"], "hpc-a100  hpc  1  1"),
        (["hint: three pools, 4 devices in all"], "hint: three pools, 4 devices in all"),
        (["train is job 8f3k: …", "hint: two pools, …"], "hint: two pools, …"),
    ],
)
def test_other_columns_names_words_and_orders_are_seen(shown: list[str], lacks: str) -> None:
    assert missing(shown, CAME) == lacks
