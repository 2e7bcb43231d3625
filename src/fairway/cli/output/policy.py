"""Format teams, drift and interventions as tables. Pure: wire types in, a TableView out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from fairway.cli.output.format import UNKNOWN, Column, Fit, TableView, count, moment, number, since, span
from fairway.views.conditions import no_drift_text, unchecked_text
from fairway.views.plans import wanted_and_found
from fairway.views.stopped import stopped_notes
from fairway.wire import fleet as fleet_wire
from fairway.wire import jobs as job_wire
from fairway.wire import policy as wire

_INDENT = "  "


def with_stopped(view: TableView, stopped: Sequence[wire.StoppedApply]) -> TableView:
    """Add applies that stopped before their end to a table of what is applied."""
    if not stopped:
        return view
    notes = stopped_notes(stopped)
    empty, hint = "\n".join(notes[:-1]), notes[-1].strip().removeprefix("hint: ")
    return replace(view, notes=[*view.notes, *notes], empty=empty, hint=hint)


def teams_view(teams: Sequence[wire.Team], *, wide: bool) -> TableView:
    """Return a table with one row for each team and supply; a team is indented below its parent."""
    columns = [
        Column("TEAM", fit=Fit.MIDDLE),
        Column("SHARE", right=True),
        *Column.names("POOL", "CLUSTER"),
        *Column.numbers("GUARANTEE", "BORROW", "HELD", "ON LOAN", "WAITING"),
        Column("STATE", hide_if_empty=True),
    ]
    if wide:
        columns += [Column("JOB GPUS", right=True), Column("JOB TIME", right=True)]
        columns += [Column("USER GPUS", right=True), Column("PRIORITIES"), Column("WHO")]
    rows = []
    for team in teams:
        for i, grant in enumerate(team.grants or (None,)):
            row = [
                _INDENT * (len(team.path) - 1) + team.name if i == 0 else "",
                str(team.share) if i == 0 else "",
                grant.supply if grant else UNKNOWN,
                grant.cluster if grant else UNKNOWN,
                str(grant.guarantee) if grant else UNKNOWN,
                ("idle" if grant.borrow is None else str(grant.borrow)) if grant else UNKNOWN,
                *map(number, (grant.held, grant.on_loan, grant.waiting) if grant else (None,) * 3),
                _state(team) if i == 0 else "",
            ]
            if wide:
                row += _limits(team) if i == 0 else [""] * 5
            rows.append(row)
    return TableView(
        columns,
        rows,
        empty="no teams yet",
        hint="add teams to the fleet file, then:  fairway apply -f fleet.yaml",
    )


def drift_view(
    drift: Sequence[wire.Drift], now: datetime, clusters: Sequence[fleet_wire.Cluster] = ()
) -> TableView:
    """Return a table with one row for each difference.

    The notes name each of `clusters` that could not be compared: without them, no row means no drift.
    """
    columns = [
        *Column.names("CLUSTER", "OBJECT"),
        Column("FIELD", fit=Fit.MIDDLE, hide_if_empty=True),
        Column("APPLIED", fit=Fit.END),
        Column("FOUND", fit=Fit.END),
        Column("BY", fit=Fit.MIDDLE, hide_if_empty=True),
        Column("SINCE", right=True),
    ]
    rows = [
        [
            d.cluster,
            f"{d.kind} {d.name}",
            d.field,
            *wanted_and_found(d),
            d.changed_by or "",
            since(d.since, now),
        ]
        for d in drift
    ]
    drifted = sorted({d.cluster for d in drift})
    unchecked = unchecked_text(clusters, now)
    objects = len({(d.cluster, d.kind, d.name) for d in drift})
    notes = [
        f"{count(objects, 'object')} on {', '.join(drifted)} {'differs' if objects == 1 else 'differ'} "
        "from what was applied",
        "  hint: restore them:  fairway apply -f fleet.yaml   or change the fleet file",
    ]
    return TableView(
        columns,
        rows,
        empty=no_drift_text(clusters, now),
        hint="see the reason:  fairway get clusters" if unchecked else "see past applies:  fairway history",
        notes=[*(notes if drift else ()), *unchecked],
        alarming=frozenset(range(len(rows))),
    )


def revisions_view(revisions: Sequence[wire.FleetRevision], now: datetime) -> TableView:
    """Return a table with one row for each revision of the fleet file, newest first."""
    columns = [
        Column("REVISION", right=True),
        Column("WRITTEN"),
        Column("AGE", right=True),
        Column("BY", fit=Fit.MIDDLE),
        Column("IN FORCE ON", fit=Fit.END),
    ]
    rows = [
        [
            str(r.revision),
            moment(r.created_at, ""),
            since(r.created_at, now),
            r.created_by,
            ", ".join(r.applied_to) or UNKNOWN,
        ]
        for r in revisions
    ]
    return TableView(
        columns,
        rows,
        empty="no fleet file yet",
        hint="apply one:  fairway apply -f fleet.yaml",
    )


def idle_view(steps: Sequence[job_wire.IdleStep], now: datetime) -> TableView:
    """Return a table with one row for each step of an idle rule."""
    columns = [
        Column("WHEN", right=True),
        Column("RULE", fit=Fit.MIDDLE),
        *Column.names("STEP", "OUTCOME", "JOB"),
        Column("NAME", fit=Fit.MIDDLE),
        *Column.names("USER", "TEAM"),
        Column("WHY", fit=Fit.END),
    ]
    rows = [
        [
            f"{since(step.at, now)} ago",
            step.rule,
            step.action,
            step.outcome or "asked",
            step.job,
            step.name,
            step.user or "-",
            step.team or "-",
            step.detail or step.evidence,
        ]
        for step in steps
    ]
    return TableView(
        columns,
        rows,
        empty="idle rules have not acted yet",
        hint="see the rules:  fairway get fleet",
    )


def interventions_view(interventions: Sequence[wire.Intervention], now: datetime) -> TableView:
    """Return a table with one row for each intervention."""
    columns = [
        Column("WHEN", right=True),
        Column("CLUSTER", fit=Fit.MIDDLE),
        Column("PROMISE"),
        *Column.names("JOB", "DONE"),
        Column("WHY", fit=Fit.END),
    ]
    rows = [[f"{since(n.at, now)} ago", n.cluster, n.promise, n.job, n.verb, n.why] for n in interventions]
    return TableView(
        columns,
        rows,
        empty="no interventions: the engines kept every promise by themselves",
        hint="see which promises may need one:  fairway plan -f fleet.yaml",
    )


def _state(team: wire.Team) -> str:
    states = ["draining"] * team.draining
    states += [f"not fully applied on {', '.join(team.not_live_on)}"] if team.not_live_on else []
    return ", ".join(states)


def _limits(team: wire.Team) -> list[str]:
    limits = team.limits
    return [
        UNKNOWN if limits.job_gpus is None else str(limits.job_gpus),
        UNKNOWN if limits.job_seconds is None else span(limits.job_seconds),
        UNKNOWN if limits.user_gpus is None else str(limits.user_gpus),
        ", ".join(team.priorities) or UNKNOWN,
        ", ".join(team.members) or UNKNOWN,
    ]
