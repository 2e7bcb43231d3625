"""What a team holds, requests and has on loan is counted with its subteams, on each supply by itself."""

from __future__ import annotations

from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.model.job import JobState
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.services.convert.policy import with_holdings
from fairway.wire import policy as wire

POOL, SLICE = PoolName("a100"), SliceName("1g.10gb")


def count(team: str, state: JobState, devices: int, kind: SliceName | None = None) -> JobCount:
    return JobCount(ClusterName("hpc"), TeamName(team), POOL, kind, state, 1, devices)


def pool(free: int) -> PoolState:
    return PoolState(ClusterName("hpc"), POOL, None, 32, 32 - free, free, 0, 4, 0, 0)


def team(name: str, *ancestors: str, guarantees: dict[str, int]) -> wire.Team:
    return wire.Team(
        name=name,
        parent=ancestors[-1] if ancestors else None,
        path=[*ancestors, name],
        share=1,
        grants=[wire.Grant(supply=s, cluster="hpc", guarantee=g, borrow=None) for s, g in guarantees.items()],
        limits=wire.Limits(job_gpus=None, job_seconds=None, user_gpus=None),
        priorities=[],
        members=[],
        draining=False,
    )


def holdings(found: list[wire.Team], name: str) -> list[tuple[int | None, int | None, int | None]]:
    (team,) = (team for team in found if team.name == name)
    return [(g.held, g.waiting, g.on_loan) for g in team.grants]


def test_subteams_count_for_their_parent_and_free_gpus_are_not_on_loan() -> None:
    known = [
        team("research", guarantees={"a100": 16, "a100/1g.10gb": 4}),
        team("nlp", "research", guarantees={"a100": 8}),
        team("product", guarantees={"a100": 16}),
    ]
    counts = [
        count("nlp", JobState.RUNNING, 6),
        count("nlp", JobState.QUEUED, 3),
        count("research", JobState.RUNNING, 2),
        count("research", JobState.WAITING, 1),
        count("research", JobState.HELD, 9),
        count("product", JobState.RUNNING, 22),
        count("research", JobState.RUNNING, 1, SLICE),
    ]
    found = with_holdings(known, counts, [pool(free=2)])
    # 16 guaranteed, 8 held, 2 free: product uses 6 of what is guaranteed to research.
    assert holdings(found, "research") == [(8, 4, 6), (1, 0, None)]  # slices were not observed
    assert holdings(found, "nlp") == [(6, 3, 0)]
    assert holdings(found, "product") == [(22, 0, 0)]
