"""Who carries what belongs to no job: by what they used, by what they are guaranteed, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from fairway.cost.slicing import memory_part
from fairway.model.charge import Label
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Supply, TeamTree

Labels = tuple[str, ...]
Shares = tuple[tuple[TeamName, Fraction], ...]
"""Of one: they sum to it, or there are none."""
_ZERO: Final = Fraction(0)


class Guarantees:
    """Each team's part of what is guaranteed, without what it promised on to teams inside it."""

    def __init__(self, fleet: Fleet) -> None:
        tree = TeamTree(fleet.teams)
        self._pools: Final = {pool.name: pool for pool in fleet.pools}
        self._own: Final[dict[Supply, dict[TeamName, int]]] = {}
        for team in fleet.teams:
            for grant in team.grants:
                own = grant.guarantee and grant.guarantee - tree.guaranteed_to_children(team, grant.supply)
                if own > 0 and grant.supply.pool in self._pools:
                    self._own.setdefault(grant.supply, {})[team.name] = own

    def of_supply(self, supply: Supply) -> Shares:
        """Of one kind of device."""
        return _parts(self._own.get(supply, {}))

    def of_pool(self, name: PoolName) -> Shares:
        """Of a pool as a whole, slices by their memory."""
        return self._of_gpus(lambda pool: pool.name == name)

    def of_cluster(self, name: ClusterName) -> Shares:
        """Of a cluster as a whole: every GPU counts the same."""
        return self._of_gpus(lambda pool: pool.cluster == name)

    def _of_gpus(self, is_in: Callable[[Pool], bool]) -> Shares:
        gpus: dict[TeamName, Fraction] = {}
        for supply, teams in self._own.items():
            pool = self._pools[supply.pool]
            if is_in(pool):
                part = memory_part(pool.gpu, supply.slice)
                for team, own in teams.items():
                    gpus[team] = gpus.get(team, _ZERO) + own * part
        return _parts(gpus)


def _parts(sums: Mapping[TeamName, Fraction | int]) -> Shares:
    whole = sum(sums.values())
    return tuple((team, Fraction(own) / whole) for team, own in sums.items())


def labels_of_team(
    labels: Sequence[Label], team: TeamName, cluster: ClusterName, supply: Supply | None, day: str
) -> Labels:
    """What a team's share is told apart by: all that is known of it, and nothing of users or jobs."""
    known = {Label.TEAM: team, Label.CLUSTER: cluster, Label.DAY: day}
    if supply is not None:
        known |= {Label.POOL: supply.pool, Label.SLICE: supply.slice or ""}
    return tuple(known.get(label, "") for label in labels)
