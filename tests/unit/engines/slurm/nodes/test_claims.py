from __future__ import annotations

import pytest

from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.model.fleet import SlurmPlace
from tests.unit.engines.slurm.test_replies import pool

CLAIMS = PoolMatcher(
    [
        pool("a100", SlurmPlace("gpu", "a100")),
        pool("rest", SlurmPlace("gpu")),
        pool("mig", SlurmPlace("mig"), "1g.10gb", "3g.40gb"),
        pool("mig-h100", SlurmPlace("mixed", "h100"), "1g.10gb"),
    ]
)


@pytest.mark.parametrize(
    ("partitions", "kind", "pool_name", "slice_"),
    [
        (["gpu"], "a100", "a100", None),
        (["gpu"], "h100", "rest", None),
        (["gpu"], None, "rest", None),
        (["cpu", "gpu"], "a100", "a100", None),
        (["mig"], "1g.10gb", "mig", "1g.10gb"),
        (["mig"], "a100_3g.40gb", "mig", "3g.40gb"),
        (["mig"], "7g.80gb", None, "7g.80gb"),
        (["mig"], "a100", None, None),  # a whole GPU is no slice
        (["mig"], None, None, None),
        (["mixed"], "h100_1g.10gb", "mig-h100", "1g.10gb"),
        (["mixed"], "1g.10gb", "mig-h100", "1g.10gb"),
        (["mixed"], "a100_1g.10gb", None, "1g.10gb"),
        (["mixed"], "1g.10gb+me", None, "1g.10gb+me"),
        (["gpu"], "1g.10gb", None, "1g.10gb"),  # a slice is no whole GPU
        (["mig", "gpu"], "a100", "a100", None),
        ([], "a100", None, None),
        (["other"], "l4", None, None),
    ],
)
def test_whose_devices_they_are(
    partitions: list[str], kind: str | None, pool_name: str | None, slice_: str | None
) -> None:
    assert CLAIMS.match(partitions, kind) == (pool_name, slice_)


def test_each_partition_is_checked_for_the_first_pool_that_names_it() -> None:
    assert CLAIMS.partitions == {"gpu": "a100", "mig": "mig", "mixed": "mig-h100"}
