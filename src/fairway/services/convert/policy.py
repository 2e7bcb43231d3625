"""Plans, applies, drift and teams in wire types. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairway.files import Fault as FileFault
from fairway.ledger.records.policy import Apply, ApplyCluster, Drift, StoredChange, StoredNudge
from fairway.model.fleet import Fleet
from fairway.model.team import Team, TeamTree
from fairway.policy.objects import Change, ObjectKey, Value
from fairway.policy.plan import ClusterPlan
from fairway.services.plans import FleetPlan
from fairway.wire import policy as wire
from fairway.wire.fleet import Fault, FileSpot, Spot


def plan(
    found: FleetPlan, digest: str, said: list[wire.FieldDiff], warnings: Iterable[FileFault]
) -> wire.Plan:
    """A whole plan."""
    return wire.Plan(
        fleet=found.fleet,
        digest=digest,
        diff=said,
        clusters=[cluster_plan(p) for p in found.clusters],
        failures=[
            wire.ClusterFailure(cluster=f.cluster, code=f.code, message=f.message, hint=f.hint)
            for f in found.failures
        ],
        warnings=[file_fault(f) for f in warnings],
    )


def cluster_plan(p: ClusterPlan) -> wire.ClusterPlan:
    """What changes on one cluster."""
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
        notices=[
            wire.Notice(code=n.code, message=n.message, hint=n.hint, promise=n.promise) for n in p.notices
        ],
        advice=[
            wire.Advice(
                file=a.file,
                line=a.line,
                running=a.running,
                why=a.why,
                restart=a.restart,
                unseen=a.unseen,
            )
            for a in p.advice
        ],
        objections=[
            wire.Objection(code=o.code, message=o.message, hint=o.hint, forceable=o.forceable)
            for o in p.objections
        ],
    )


def apply(a: Apply) -> wire.Apply:
    """An apply without its changes."""
    return wire.Apply(**_apply(a), clusters=[wire.ApplyCluster(**_cluster(c)) for c in a.clusters])


def apply_detail(a: Apply, said: list[wire.FieldDiff]) -> wire.ApplyDetail:
    """An apply with all that was kept of it."""
    return wire.ApplyDetail(
        **_apply(a),
        diff=said,
        clusters=[
            wire.ApplyClusterDetail(**_cluster(c), changes=[_kept_change(k) for k in c.changes])
            for c in a.clusters
        ],
    )


def drift(d: Drift) -> wire.Drift:
    """One difference."""
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


def nudge(n: StoredNudge) -> wire.Nudge:
    """One push."""
    return wire.Nudge(
        id=n.id, cluster=n.cluster, at=n.at, promise=n.promise, verb=n.verb, job=n.job, why=n.why
    )


def teams(fleet: Fleet) -> list[wire.Team]:
    """A fleet's teams, each below its parent, siblings by name."""
    tree = TeamTree(fleet.teams)
    clusters = {p.name: p.cluster for p in fleet.pools}
    found = [_team(team, tree, clusters) for team in fleet.teams]
    return sorted(found, key=team_key)


def team_key(team: wire.Team) -> str:
    """Where a team stands in the list; a space sorts before whatever a name may hold."""
    return " ".join(team.path)


def file_fault(f: FileFault) -> Fault:
    """A fault of a fleet file, with all that `fairway check` says of it."""
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
    """An object's name."""
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


def _kept_change(k: StoredChange) -> wire.AppliedChange:
    return wire.AppliedChange(**_change(k.change), made=k.made)


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
        "objects": [ref(key) for key in a.objects],
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
    above = [a.name for a in tree.ancestors(team)]
    return wire.Team(
        name=team.name,
        parent=team.parent,
        path=[*reversed(above), team.name],
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
        limits=wire.Limits(
            job_gpus=team.limits.job_gpus,
            job_seconds=team.limits.job_seconds,
            user_gpus=team.limits.user_gpus,
        ),
        priorities=list(team.priorities),
        members=list(team.members),
        draining=team.draining,
    )
