"""The command `fairway apply`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from fairway.cli import completion
from fairway.cli.commands.plan import check_complete, show_plan
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, Function, output_option, show_lines, text_width
from fairway.cli.output.plan import plan_lines, removal_screen
from fairway.cli.shared.apply_progress import follow
from fairway.cli.shared.fleet_file import FleetText, file_option, read_fleet_text
from fairway.cli.shared.plan_file import read_plan
from fairway.client.client import Client
from fairway.model.errors import PermanentError
from fairway.views.plans import objections_of
from fairway.views.removals import confirmation_names, removals_headline
from fairway.wire import policy as wire

_MAX_TYPED: Final = 10
"""Names that a user is asked to type one by one; whoever removes more needs --force."""
_EXAMPLES = """\b
Examples:
  fairway apply plan.json               apply exactly this plan, or fail if a cluster has changed
  fairway apply -f fleet.yaml           plan, confirm, apply
  fairway apply -f fleet.yaml --yes     without confirmation, for scripts
  fairway apply -f fleet.yaml --yes --remove cloud    and confirm the removal of cluster cloud
\b
Ctrl-C stops following the apply, not the apply itself. Follow it with `fairway history`.
"""


def removal_options(function: Function) -> Function:
    """Add the options that confirm removals and overrule objections to a plan."""
    force = click.option(
        "--force",
        is_flag=True,
        help="Apply despite removals, many changes, or jobs that would be stopped.",
    )
    remove = click.option(
        "--remove",
        "confirmed",
        multiple=True,
        metavar="NAME",
        help="Confirm the removal of this object (repeatable).",
    )
    reprice_past = click.option(
        "--reprice-past", is_flag=True, help="Apply although charges of closed months change."
    )
    return force(reprice_past(remove(function)))


@click.command(epilog=_EXAMPLES)
@click.argument("plan", required=False, type=click.Path(path_type=Path), metavar="[PLAN]")
@file_option(required=False)
@click.option("--cluster", metavar="NAME", help="Only this cluster.", shell_complete=completion.clusters)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@removal_options
@server_options
@output_option
def apply(
    *,
    plan: Path | None,
    file: str | None,
    cluster: str | None,
    yes: bool,
    force: bool,
    reprice_past: bool,
    confirmed: tuple[str, ...],
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Apply a plan or a fleet file to the clusters.

    The server applies the changes and records them. It continues if you interrupt this command, and after a
    restart. It stops at the first error and reports what was done and what was not.
    """
    if (plan is None) == (file is None):
        raise click.UsageError("give a plan file, or a fleet file with -f")
    with connect(context, url) as client:
        if plan is not None:
            fleet, planned = _from_file(plan)
        else:
            fleet, planned = _from_fleet(client, file or "", cluster, output)
        apply_planned(
            client,
            fleet,
            planned,
            cluster,
            output,
            yes=yes,
            reviewed=plan is not None,
            force=force,
            reprice_past=reprice_past,
            confirmed=confirmed,
        )


def apply_planned(
    client: Client,
    fleet: FleetText,
    planned: wire.Plan,
    cluster: str | None,
    output: Format,
    *,
    yes: bool,
    reviewed: bool = False,
    force: bool = False,
    reprice_past: bool = False,
    confirmed: Sequence[str] = (),
) -> None:
    """Ask for what must be confirmed, apply a plan that was shown, and follow it.

    Whoever applies a plan file has `reviewed` it, and is asked for the names of what goes only.
    """
    chosen = _chosen(planned, cluster)
    _check_partial(planned.removals)
    named = planned.model_copy(update={"clusters": chosen})
    check_objections(named, force=force, reprice_past=reprice_past)
    if not _has_changes(planned, chosen):
        click.echo("nothing to apply", err=True)
        return
    names = [] if force else [n for n in confirmation_names(planned.removals) if n not in confirmed]
    ask = not (yes or reviewed)
    if names or ask:
        click.echo(err=True)
    if names:
        _confirm_removals(planned.removals, names, yes=yes)
    elif ask:
        _confirm()
    fingerprints = {c.cluster: c.fingerprint for c in chosen}
    pending = client.apply(
        fleet.text,
        fleet.source,
        fingerprints,
        force=force,
        confirmed=[*confirmed, *names],
        reprice_past=reprice_past,
    )
    follow(client, pending, output)


def _from_file(path: Path) -> tuple[FleetText, wire.Plan]:
    """Read a plan file and print only its headline and removals: the user has reviewed it."""
    file = read_plan(path)
    lines = plan_lines(file.plan, text_width(), wide=False)[:1]
    show_lines([*lines, *removal_screen(file.plan.removals, text_width())], err=True)
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
            f"its clusters are: {', '.join(c.cluster for c in plan.clusters) or 'none'}",
        )
    return chosen


def _has_changes(plan: wire.Plan, chosen: list[wire.ClusterPlan]) -> bool:
    """Return whether there is anything to apply: changes that touch no object still update the fleet."""
    return bool(plan.diff) or any(c.changes for c in chosen)


class ObjectionsRaised(PermanentError):
    """Raised if a plan has objections that refuse it; `details` lists all but the first."""

    def __init__(self, objections: list[tuple[str, wire.Objection]]) -> None:
        (where, first), *more = objections
        super().__init__(first.code, f"not applied: {first.message}{where}", first.hint)
        self.details = [f"{o.message}{on}" for on, o in more]


def check_objections(plan: wire.Plan, *, force: bool, reprice_past: bool = False) -> None:
    """Raise the objections that the server would refuse the apply for, before sending it."""
    objections = [
        found
        for found in objections_of(plan)
        if not found[1].overruled(force=force, reprice_past=reprice_past)
    ]
    if objections:
        raise ObjectionsRaised(objections)


def _check_partial(removals: Sequence[wire.Removal]) -> None:
    refused = [r for r in removals if r.refused]
    if refused:
        raise PermanentError(
            "PartialFleetFile",
            f"not applied: the fleet file is partial, and {removals_headline(refused)}",
            "merge it into the complete file, which  fairway get fleet  prints; or, if this "
            "is the complete fleet, remove  partial: true",
        )


def _confirm_removals(removals: Sequence[wire.Removal], names: Sequence[str], *, yes: bool) -> None:
    """Have the user type the name of everything that is removed. Raises PermanentError if nobody can."""
    if yes or len(names) > _MAX_TYPED or not sys.stdin.isatty():
        raise PermanentError(
            "RemovalsNotConfirmed",
            f"not applied: the plan {removals_headline([r for r in removals if r.needs_force])}",
            "put it back into the fleet file; or, to remove it, apply with --force or with "
            + " ".join(f"--remove {name}" for name in names),
        )
    for name in names:
        typed = click.prompt(f"Type {name} to remove it (Ctrl-C applies nothing)", default="", err=True)
        if typed.strip() != name:
            raise PermanentError(
                "RemovalsNotConfirmed",
                f"not applied: you typed {typed.strip() or 'nothing'}, not {name}",
                "put it back into the fleet file, or apply again and type its name",
            )


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise PermanentError(
            "NobodyToAsk",
            "confirmation is needed, but there is no terminal",
            "confirm with --yes, or apply a reviewed plan:  fairway apply plan.json",
        )
    click.confirm("Apply this?", default=False, abort=True, err=True)
