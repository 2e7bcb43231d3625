"""Convert plans, applies, drift and teams to wire types. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fairway.files import Fault as FileFault
from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount, by_team
from fairway.ledger.records.policy import Apply, ApplyCluster, Drift, StoppedApply, StoredIntervention
from fairway.model.fleet import Fleet
from fairway.model.job import PENDING_JOBS, JobState
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply, Team, TeamTree
from fairway.policy.objects import Change, ObjectKey, Value
from fairway.policy.plan import ClusterPlan
from fairway.policy.recent_use import RecentUse
from fairway.services.plans import FleetPlan
from fairway.wire import policy as wire
from fairway.wire.fleet import Fault, FileSpot, Spot


def plan(
    found: FleetPlan,
    digest: str,
    diff: list[wire.FieldDiff],
    removals: list[wire.Removal],
    warnings: Iterable[FileFault],
    stopped: Sequence[wire.StoppedApply] = (),
    objections: Sequence[wire.Objection] = (),
) -> wire.Plan:
    """Convert the plan of a fleet."""
    return wire.Plan(
        fleet=found.fleet,
        digest=digest,
        diff=diff,
        removals=removals,
        stopped=list(stopped),
        clusters=[cluster_plan(p) for p in found.clusters],
        failures=[wire.ClusterFailure(**asdict(f)) for f in found.failures],
        warnings=[file_fault(f) for f in warnings],
        objections=list(objections),
    )


def cluster_plan(p: ClusterPlan) -> wire.ClusterPlan:
    """Convert the plan of one cluster."""
    return wire.ClusterPlan(
        cluster=p.cluster,
        engine=p.engine,
        engine_version=p.engine_version,
        fingerprint=p.fingerprint,
        managed=p.managed,
        changes=[wire.Change(**_change(c)) for c in p.changes],
        in_the_way=[ref(o.key) for o in p.in_the_way],
        touched=[
            wire.Touched(kind=k.kind, name=k.name, running=a.running, waiting=a.waiting)
            for k, a in (p.touched or {}).items()
        ],
        notices=[wire.Notice(**asdict(n)) for n in p.notices],
        advice=[wire.Advice(**asdict(a)) for a in p.advice],
        objections=[wire.Objection(**asdict(o)) for o in p.objections],
        taken=[
            wire.TakenAway(what=t.what, team=t.team, user=t.user, used=recent_use(t.used)) for t in p.taken
        ],
    )


def recent_use(use: RecentUse) -> wire.RecentUse:
    """Convert who used something in the last 30 days."""
    return wire.RecentUse(
        users=[wire.UserUse(user=user, gpu_hours=hours) for user, hours in use.users],
        more=use.more,
        gpu_hours=use.gpu_hours,
        unknown=use.unknown,
    )


def apply(a: Apply) -> wire.Apply:
    """Convert an apply without its changes."""
    return wire.Apply(**_apply(a), clusters=[wire.ApplyCluster(**_cluster(c)) for c in a.clusters])


def apply_detail(a: Apply, diff: list[wire.FieldDiff]) -> wire.ApplyDetail:
    """Convert an apply with its changes."""
    return wire.ApplyDetail(
        **_apply(a),
        diff=diff,
        clusters=[
            wire.ApplyClusterDetail(
                **_cluster(c),
                changes=[wire.AppliedChange(**_change(k.change), made=k.made) for k in c.changes],
            )
            for c in a.clusters
        ],
    )


def stopped(s: StoppedApply) -> wire.StoppedApply:
    """Convert an apply that stopped, with the teams that are live, partly live and not live."""
    made: dict[str, list[bool]] = {}
    for change in s.changes:
        if change.change.team is not None:
            made.setdefault(change.change.team, []).append(change.made)
    return wire.StoppedApply(
        apply=s.apply,
        cluster=s.cluster,
        revision=s.revision,
        total=s.total,
        done=s.done,
        code=s.code,
        message=s.message,
        hint=s.hint,
        stopped_at=s.finished_at,
        live=[team for team, all_made in made.items() if all(all_made)],
        partly_live=[team for team, some in made.items() if any(some) and not all(some)],
        not_live=[team for team, some in made.items() if not any(some)],
    )


def drift(d: Drift) -> wire.Drift:
    """Convert one difference between a cluster and its applied fleet."""
    e = d.entry
    return wire.Drift(
        cluster=d.cluster,
        kind=e.key.kind,
        name=e.key.name,
        difference=e.kind,
        field=e.field,
        wanted=_value(e.wanted),
        found=_value(e.found),
        changed_by=e.changed_by,
        team=e.team,
        since=d.since,
    )


def intervention(n: StoredIntervention) -> wire.Intervention:
    """Convert a corrective action on an engine."""
    return wire.Intervention(**asdict(n))


def teams(fleet: Fleet) -> list[wire.Team]:
    """Convert the teams of a fleet, sorted by `team_key`."""
    tree = TeamTree(fleet.teams)
    clusters = {p.name: p.cluster for p in fleet.pools}
    found = [_team(team, tree, clusters) for team in fleet.teams]
    return sorted(found, key=team_key)


def with_holdings(
    teams: Sequence[wire.Team], counts: Sequence[JobCount], pools: Iterable[PoolState]
) -> list[wire.Team]:
    """Add to the grants of `teams` what each team, with its subteams, holds and requests of every supply."""
    held, waiting = by_team(counts, JobState.RUNNING), by_team(counts, *PENDING_JOBS)
    free = {Supply(p.pool, p.slice): p.free for p in pools if p.pool is not None}
    subtrees: dict[str, list[str]] = {team.name: [] for team in teams}
    for team in teams:
        for ancestor in team.path:
            subtrees[ancestor].append(team.name)

    def of(found: Mapping[Supply, Mapping[TeamName | None, int]], supply: Supply, team: wire.Team) -> int:
        return sum(found.get(supply, {}).get(TeamName(name), 0) for name in subtrees[team.name])

    def grant(g: wire.Grant, team: wire.Team) -> wire.Grant:
        pool, _, kind = g.supply.partition("/")
        supply = Supply(PoolName(pool), SliceName(kind) if kind else None)
        holds, requests = of(held, supply, team), of(waiting, supply, team)
        on_loan = max(0, g.guarantee - holds - free[supply]) if supply in free else None
        return g.model_copy(update={"held": holds, "waiting": requests, "on_loan": on_loan})

    return [team.model_copy(update={"grants": [grant(g, team) for g in team.grants]}) for team in teams]


def team_key(team: wire.Team) -> str:
    """Return the sort key that puts each team below its parent: a space sorts before any letter of a name."""
    return " ".join(team.path)


def file_fault(f: FileFault) -> Fault:
    """Convert a fault of a fleet file with everything that `fairway check` shows."""
    return Fault(
        where=f.path,
        message=f.message,
        file=FileSpot(
            line=f.line,
            column=f.column,
            path=f.path,
            found=f.found,
            source=f.source,
            severity=f.severity.value,
            code=f.code.value,
            expected=f.expected,
            hint=f.hint,
            related=[Spot(line=s.line, column=s.column, path=s.path, found=s.value) for s in f.related],
        ),
    )


def ref(key: ObjectKey) -> wire.ObjectRef:
    """Convert the key of an object."""
    return wire.ObjectRef(kind=key.kind, name=key.name)


def _value(value: Value) -> wire.Value:
    return [_value(v) for v in value] if isinstance(value, tuple) else value


def _change(c: Change) -> dict[str, Any]:
    return {
        "kind": c.key.kind,
        "name": c.key.name,
        "action": c.action,
        "stage": c.stage,
        "team": c.team,
        "fields": [
            wire.FieldChange(field=f.field, before=_value(f.before), after=_value(f.after)) for f in c.fields
        ],
    }


def _apply(a: Apply) -> dict[str, Any]:
    return {
        "id": a.id,
        "kind": a.kind,
        "state": a.state,
        "created_at": a.created_at,
        "created_by": a.created_by,
        "revision": a.revision,
        "digest": a.digest,
        "force": a.force,
        "reprice_past": a.reprice_past,
        "objects": [ref(key) for key in a.objects],
        "rollback_to": a.rollback_to,
    }


def _cluster(c: ApplyCluster) -> dict[str, Any]:
    return {
        "cluster": c.cluster,
        "state": c.state,
        "total": c.total,
        "done": c.done,
        "current": c.current,
        "code": c.code,
        "message": c.message,
        "hint": c.hint,
        "started_at": c.started_at,
        "finished_at": c.finished_at,
    }


def _team(team: Team, tree: TeamTree, clusters: dict[Any, Any]) -> wire.Team:
    ancestors = [a.name for a in tree.ancestors(team)]
    return wire.Team(
        name=team.name,
        parent=team.parent,
        path=[*reversed(ancestors), team.name],
        share=team.share,
        grants=[
            wire.Grant(
                supply=str(g.supply),
                cluster=clusters[g.supply.pool],
                guarantee=g.guarantee,
                borrow=g.borrow,
            )
            for g in team.grants
        ],
        limits=wire.Limits(**asdict(team.limits)),
        priorities=list(team.priorities),
        members=list(team.members),
        draining=team.draining,
    )
