"""What speaks against a plan: what needs `--force`, and what even that does not overrule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Action, Activity, Change, FoundObject, Notice, ObjectKey

MOST_CHANGED: Final = 0.30
"""The part of a cluster's managed objects that may change or go without being asked again."""
FEW: Final = 10
"""So many changes are read at a glance, whatever part of a small fleet they are."""
_NAMED: Final = 5
"""How many objects a message names before it only counts."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a plan is not applied as it stands."""

    code: str
    message: str
    hint: str
    forceable: bool
    """Whether `--force` overrules it."""


@dataclass(frozen=True, slots=True)
class JobsUnder:
    """The jobs that depend on what a plan touches."""

    changes: Sequence[Change]
    touched: Mapping[ObjectKey, Activity]
    staying: frozenset[TeamName]
    """The teams that have objects on this cluster afterwards."""

    def of(self, action: Action) -> list[tuple[Change, Activity]]:
        """The objects with jobs that such a change is made to."""
        pairs = ((c, self.touched.get(c.key)) for c in self.changes if c.action is action)
        return [(c, a) for c, a in pairs if a is not None and (a.running or a.waiting)]


def objections(
    cluster: ClusterName,
    changes: Sequence[Change],
    managed: int,
    in_the_way: Sequence[FoundObject],
    jobs: JobsUnder,
) -> tuple[Objection, ...]:
    """Everything that speaks against the plan; what no force overrules comes first."""
    return (
        *_in_the_way(cluster, in_the_way),
        *_jobs_under_what_goes(jobs),
        *_too_many(changes, managed),
    )


def touched_notices(jobs: JobsUnder) -> tuple[Notice, ...]:
    """How many jobs are under objects that change: they go on, and a reader should know they are there."""
    running, waiting = _count(activity_by_kind(jobs.of(Action.UPDATE)))
    if not running and not waiting:
        return ()
    return (
        Notice(
            "JobsUnderChanges",
            f"{_jobs(running, waiting)} under objects that change: nothing that runs ends",
            "fairway plan -o wide  lists the objects",
            promise="no-surprise",
        ),
    )


def _in_the_way(cluster: ClusterName, found: Sequence[FoundObject]) -> Iterable[Objection]:
    if not found:
        return
    keys = sorted(o.key for o in found)
    one = len(keys) == 1
    yield Objection(
        "InTheWay",
        f"{_named(keys)} {'is' if one else 'are'} on {cluster} already and not Fairway's",
        f"look at {'it' if one else 'them'}, then let Fairway have {'it' if one else 'them'}:  "
        f"fairway adopt {cluster} "
        + (
            " ".join(f"{k.kind}/{k.name}" for k in keys)
            if len(keys) <= _NAMED
            else "--all-in-the-way -f fleet.yaml"
        ),
        forceable=False,
    )


def _jobs_under_what_goes(jobs: JobsUnder) -> Iterable[Objection]:
    going = jobs.of(Action.DELETE)
    teams: dict[TeamName, list[tuple[Change, Activity]]] = {}
    others = []
    for change, activity in going:
        if change.team is not None and change.team not in jobs.staying:
            teams.setdefault(change.team, []).append((change, activity))
        else:
            others.append((change, activity))
    for team, under in sorted(teams.items()):
        yield Objection(
            "TeamHasJobs",
            f"team {team} would go, and has {_jobs(*_count(activity_by_kind(under)))}",
            f"keep {team} with  draining: true  until its jobs have ended, then remove it; "
            "or end them now with --force",
            forceable=True,
        )
    if others:
        yield Objection(
            "WouldEndJobs",
            f"{_named([c.key for c, _ in others])} would go, with "
            f"{_jobs(*_count(activity_by_kind(others)))} under {'it' if len(others) == 1 else 'them'}",
            "let them end first: keep the team with  draining: true  meanwhile; or end them now with --force",
            forceable=True,
        )


def _too_many(changes: Sequence[Change], managed: int) -> Iterable[Objection]:
    changed = sum(c.action is Action.UPDATE for c in changes)
    gone = sum(c.action is Action.DELETE for c in changes)
    if changed + gone > FEW and changed + gone > MOST_CHANGED * managed:
        yield Objection(
            "TooManyChanges",
            f"{changed} of {managed} objects would change and {gone} go: "
            f"more than {MOST_CHANGED:.0%} of what is managed",
            "read the plan once more (-o wide lists every object); if it is meant, apply it with --force",
            forceable=True,
        )


def activity_by_kind(under: Iterable[tuple[Change, Activity]]) -> dict[str, Activity]:
    """Jobs summed within each kind. A job is under one object of each kind, and must not count twice."""
    sums: dict[str, Activity] = {}
    for change, activity in under:
        so_far = sums.get(change.key.kind, Activity())
        sums[change.key.kind] = Activity(so_far.running + activity.running, so_far.waiting + activity.waiting)
    return sums


def _count(by_kind: Mapping[str, Activity]) -> tuple[int, int]:
    return (
        max((a.running for a in by_kind.values()), default=0),
        max((a.waiting for a in by_kind.values()), default=0),
    )


def _jobs(running: int, waiting: int) -> str:
    said = [f"{running} running"] * bool(running) + [f"{waiting} waiting"] * bool(waiting)
    return f"{' and '.join(said)} {'job' if running + waiting == 1 else 'jobs'}"


def _named(keys: Sequence[ObjectKey]) -> str:
    listed = ", ".join(str(k) for k in keys[:_NAMED])
    return listed + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
