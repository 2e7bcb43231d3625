"""Find smaller requests of a waiting job that the free GPUs of its pool allow now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def fits(gpus: int, nodes: int, free: Sequence[int]) -> bool:
    """Return whether enough nodes have as many free GPUs as a request needs on each."""
    return sum(on_node >= gpus for on_node in free) >= nodes


def smaller_requests(
    gpus: int, nodes: int, free: Sequence[int], allowed: Callable[[int], bool]
) -> Iterator[tuple[int, int]]:
    """Yield the largest smaller requests that fit, as GPUs per node and nodes.

    `free`: the free GPUs of each node of the pool. `allowed`: whether limits allow as many GPUs in all.
    """
    for fewer in range(min(gpus - 1, max(free, default=0)), 0, -1):
        if fits(fewer, nodes, free) and allowed(fewer * nodes):
            yield fewer, nodes
            break
    for fewer in range(min(nodes - 1, len(free)), 0, -1):
        if fits(gpus, fewer, free) and allowed(gpus * fewer):
            yield gpus, fewer
            break
