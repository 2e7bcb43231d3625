"""The command `fairway apply`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fairway.cli.commands.plan import check_complete, show_plan
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_lines, text_width
from fairway.cli.output.plan import plan_lines
from fairway.cli.shared.apply_progress import follow
from fairway.cli.shared.fleet_file import FleetText, file_option, read_fleet_text
from fairway.cli.shared.plan_file import read_plan
from fairway.client.client import Client
from fairway.model.errors import PermanentError
from fairway.wire import policy as wire

_EXAMPLES = """\b
Examples:
  fairway apply plan.json               exactly what was planned, or nothing if a cluster moved on
  fairway apply -f fleet.yaml           plan, show, ask, apply
  fairway apply -f fleet.yaml --yes     without asking, for scripts
\b
Ctrl-C ends the watching, not the apply:  fairway history  shows how it goes on.
"""


@click.command(epilog=_EXAMPLES)
@click.argument("plan", required=False, type=click.Path(path_type=Path), metavar="[PLAN]")
@file_option(required=False)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Overrule what can be overruled: many changes, jobs that would end."
)
@server_options
@output_option
def apply(
    *,
    plan: Path | None,
    file: str | None,
    cluster: str | None,
    yes: bool,
    force: bool,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Make the clusters what a plan, or a fleet file, says.

    The server writes and keeps a record; it goes on if this command ends, and after a crash. It stops at the
    first refusal and says what was done and what was not.
    """
    if (plan is None) == (file is None):
        raise click.UsageError("give a plan file, or a fleet file with -f")
    with connect(context, url) as client:
        if plan is not None:
            fleet, planned = _from_file(plan)
        else:
            fleet, planned = _from_fleet(client, file or "", cluster, output)
        chosen = _chosen(planned, cluster)
        _check_objections(chosen, force=force)
        if not _has_changes(planned, chosen):
            click.echo("nothing to apply", err=True)
            return
        if plan is None:
            click.echo(err=True)
            if not yes:
                _confirm()
        fingerprints = {c.cluster: c.fingerprint for c in chosen}
        follow(client, client.apply(fleet.text, fleet.source, fingerprints, force=force), output)


def _from_file(path: Path) -> tuple[FleetText, wire.Plan]:
    """Read a plan file and print only its headline: the user has reviewed it."""
    file = read_plan(path)
    show_lines(plan_lines(file.plan, text_width(), wide=False)[:1], err=True)
    return FleetText(file.text, file.source), file.plan


def _from_fleet(
    client: Client, file: str, cluster: str | None, output: Format
) -> tuple[FleetText, wire.Plan]:
    fleet = read_fleet_text(file)
    plan = client.plan(fleet.text, fleet.source, cluster)
    show_plan(plan, output if output in (Format.TABLE, Format.WIDE) else None)
    check_complete(plan, cluster)
    return fleet, plan


def _chosen(plan: wire.Plan, cluster: str | None) -> list[wire.ClusterPlan]:
    chosen = [c for c in plan.clusters if cluster in (None, c.cluster)]
    if not chosen:
        raise PermanentError(
            "NotPlanned",
            f"the plan has no cluster {cluster}" if cluster else "the plan has no cluster",
            f"it has: {', '.join(c.cluster for c in plan.clusters) or 'none'}",
        )
    return chosen


def _has_changes(plan: wire.Plan, chosen: list[wire.ClusterPlan]) -> bool:
    """Return whether there is anything to apply: changes that touch no object still update the fleet."""
    return bool(plan.diff) or any(c.changes for c in chosen)


class ObjectionsRaised(PermanentError):
    """Raised if a plan has objections that refuse it; `details` lists all but the first."""

    def __init__(self, objections: list[tuple[str, wire.Objection]]) -> None:
        (cluster, first), *more = objections
        super().__init__(first.code, f"not applied: {first.message} (on {cluster})", first.hint)
        self.details = [f"{o.message} (on {where})" for where, o in more]


def _check_objections(chosen: list[wire.ClusterPlan], *, force: bool) -> None:
    """Raise the objections that the server would refuse the apply for, before sending it."""
    objections = [(c.cluster, o) for c in chosen for o in c.objections if not (force and o.forceable)]
    if objections:
        raise ObjectionsRaised(objections)


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise PermanentError(
            "NobodyToAsk",
            "there is no terminal to ask on",
            "say yes beforehand with --yes, or apply a plan that was read:  fairway apply plan.json",
        )
    click.confirm("Apply this?", default=False, abort=True, err=True)
