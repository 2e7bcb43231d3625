"""Observations to write."""

from __future__ import annotations

import psycopg

from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node, Observation


def gpus(
    *, pool: str | None = "a100", total: int = 8, in_use: int = 0, unhealthy: int = 0, kind: str = "gpu:a100"
) -> Devices:
    return Devices(PoolName(pool) if pool else None, kind, None, total, in_use, unhealthy)


def slices(*, profile: str = "1g.10gb", total: int = 7, in_use: int = 0) -> Devices:
    return Devices(PoolName("mig"), f"gpu:{profile}", SliceName(profile), total, in_use)


def node(name: str, *devices: Devices, health: Health = Health.READY, reason: str = "") -> Node:
    return Node(NodeName(name), health, reason, devices or (gpus(),))


def observation(*nodes: Node, cluster: str = "hpc", version: str = "24.11") -> Observation:
    return Observation(ClusterName(cluster), version, nodes)


def many(count: int, *, in_use: int = 3) -> Observation:
    """`count` nodes of 8 GPUs, every hundredth one down."""
    return observation(
        *(
            node(
                f"n{i:05}",
                gpus(in_use=in_use),
                health=Health.DOWN if i % 100 == 99 else Health.READY,
                reason="no answer" if i % 100 == 99 else "",
            )
            for i in range(count)
        )
    )


def pass_time(database_url: str, seconds: float) -> None:
    """As if so much time had gone by: the test need not wait, and a slow machine cannot wait too long."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE lease SET expires_at = expires_at - make_interval(secs => %s)", (seconds,))
