"""Smaller requests that would fit now."""

from __future__ import annotations

import pytest

from fairway.explain.alternatives import fits, smaller_requests


@pytest.mark.parametrize(
    ("gpus", "nodes", "free", "most", "found"),
    [
        (8, 1, [0, 4, 2], 99, [(4, 1)]),
        (8, 1, [0, 4, 2], 3, [(3, 1)]),  # a limit leaves less than the nodes do
        (8, 4, [8, 8, 2, 2], 99, [(2, 4), (8, 2)]),
        (8, 2, [8, 0], 99, [(8, 1)]),
        (1, 1, [0], 99, []),
        (8, 1, [], 99, []),
        (8, 1, [0, 0], 99, []),
    ],
)
def test_the_largest_smaller_requests(
    gpus: int, nodes: int, free: list[int], most: int, found: list[tuple[int, int]]
) -> None:
    assert list(smaller_requests(gpus, nodes, free, lambda devices: devices <= most)) == found
    assert all(fits(g, n, free) for g, n in found)
