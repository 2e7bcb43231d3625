"""Compare guarantees with the devices that a cluster really has. Pure.

`files` does the same for pools whose file says how many GPUs they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairway.model.fleet import Capacity, Fleet, Pool, VirtualPlace
from fairway.model.names import ClusterName
from fairway.model.observation import Node
from fairway.model.team import Supply, Team
from fairway.model.text import first_few
from fairway.policy.plan import Objection

_MOST_TEAMS: Final = 5


def guarantees_to_check(fleet: Fleet, cluster: ClusterName) -> tuple[Supply, ...]:
    """Return the guaranteed supplies whose size only the cluster knows.

    Pools that grow on demand are left out: what they have now is not what they can have.
    """
    return tuple(
        supply
        for pool in fleet.pools_of(cluster)
        if _is_fixed(pool)
        for supply in pool.supplies
        if any(team.parent is None and _guarantee(team, supply) for team in fleet.teams)
    )


def guarantees_too_high(
    fleet: Fleet, supplies: Iterable[Supply], observed: Mapping[Supply, int]
) -> Iterator[Objection]:
    """Yield an objection for each of these supplies of which more is guaranteed than was observed."""
    for supply in supplies:
        teams = {
            str(team.name): amount
            for team in fleet.teams
            if team.parent is None and (amount := _guarantee(team, supply))
        }
        total, there = sum(teams.values()), observed.get(supply, 0)
        if total <= there:
            continue
        listed = first_few([f"{name} {amount}" for name, amount in teams.items()], _MOST_TEAMS)
        yield Objection(
            "GuaranteesTooHigh",
            f"guarantees on {supply} add up to {total} ({listed}), but its nodes have {there}",
            f"lower one of them, or let the team borrow the rest:  borrow: {{ {supply}: {total - there} }}; "
            f"if more nodes are to come, write  gpus  at pool {supply.pool}, or apply with --force",
            forceable=True,
        )


def count_devices(nodes: tuple[Node, ...]) -> Mapping[Supply, int]:
    """Count the devices of each supply on all nodes, whatever their health."""
    found: dict[Supply, int] = {}
    for node in nodes:
        for devices in node.devices:
            if devices.pool is not None:
                supply = Supply(devices.pool, devices.slice)
                found[supply] = found.get(supply, 0) + devices.total
    return found


def _is_fixed(pool: Pool) -> bool:
    fixed = pool.capacity in (Capacity.OWNED, Capacity.RESERVED)
    return fixed and pool.gpus is None and not isinstance(pool.place, VirtualPlace)


def _guarantee(team: Team, supply: Supply) -> int:
    grant = team.grant(supply)
    return grant.guarantee if grant is not None else 0
