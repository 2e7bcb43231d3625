"""Who carries what belongs to no job: by what they used, by what they are guaranteed, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairway.cost.slicing import memory_part
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply, TeamTree

Labels = tuple[str, ...]
Shares = tuple[tuple[TeamName, Fraction], ...]
"""Of one: they sum to it, or there are none."""
_ZERO: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Guarantees:
    """Each team's part of what is guaranteed, without what it promised on to teams inside it."""

    of_supply: dict[Supply, Shares]
    of_pool: dict[PoolName, Shares]
    """Slices by their memory: for what a pool has as a whole."""
    of_cluster: dict[ClusterName, Shares]


NO_GUARANTEES: Final = Guarantees({}, {}, {})


def guarantees(fleet: Fleet) -> Guarantees:
    """The parts of every supply, pool and cluster on which anything is guaranteed."""
    pools = {pool.name: pool for pool in fleet.pools}
    tree = TeamTree(fleet.teams)
    supplies: dict[Supply, dict[TeamName, Fraction]] = {}
    of_pool: dict[PoolName, dict[TeamName, Fraction]] = {}
    clusters: dict[ClusterName, dict[TeamName, Fraction]] = {}
    for team in fleet.teams:
        for grant in team.grants:
            pool = pools.get(grant.supply.pool)
            own = grant.guarantee - tree.guaranteed_to_children(team, grant.supply)
            if pool is None or own <= 0:
                continue
            gpus = own * memory_part(pool.gpu, grant.supply.slice)
            _add(supplies.setdefault(grant.supply, {}), team.name, Fraction(own))
            _add(of_pool.setdefault(pool.name, {}), team.name, gpus)
            _add(clusters.setdefault(pool.cluster, {}), team.name, gpus)
    return Guarantees(
        {key: _parts(sums) for key, sums in supplies.items()},
        {key: _parts(sums) for key, sums in of_pool.items()},
        {key: _parts(sums) for key, sums in clusters.items()},
    )


def _add(sums: dict[TeamName, Fraction], team: TeamName, gpus: Fraction) -> None:
    sums[team] = sums.get(team, _ZERO) + gpus


def _parts(sums: dict[TeamName, Fraction]) -> Shares:
    whole = sum(sums.values(), _ZERO)
    return tuple((team, own / whole) for team, own in sums.items())


def labels_of_team(
    labels: Sequence[Label], team: TeamName, cluster: ClusterName, supply: Supply | None, day: str
) -> Labels:
    """What a team's share is told apart by: all that is known of it, and nothing of users or jobs."""
    known = {Label.TEAM: team, Label.CLUSTER: cluster, Label.DAY: day}
    if supply is not None:
        known |= {Label.POOL: supply.pool, Label.SLICE: supply.slice or ""}
    return tuple(known.get(label, "") for label in labels)
