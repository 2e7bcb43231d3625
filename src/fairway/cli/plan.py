"""`fairway plan`."""

from __future__ import annotations

from pathlib import Path

import click

from fairway.api import policy_wire as wire
from fairway.api.plan_words import suggested_name
from fairway.cli.connect import connect, server_options
from fairway.cli.fleet_text import FleetText, file_option, read_fleet_text
from fairway.cli.output import Format, output_option, show_document, show_lines, text_width
from fairway.cli.plan_file import write_plan
from fairway.cli.plan_view import plan_lines
from fairway.model.errors import PermanentError

CHANGES = 2
"""What `--detailed-exitcode` answers when there is something to apply, as Terraform does."""

_EXAMPLES = """\b
Examples:
  fairway plan -f fleet.yaml                        what would change, in the fleet file's words
  fairway plan -f fleet.yaml -o wide                with the engines' objects and their fields
  fairway plan -f fleet.yaml --out plan.json        keep it for  fairway apply plan.json
  fairway plan -f fleet.yaml --detailed-exitcode    for CI: 0 no changes, 2 changes, 1 error
"""


@click.command(epilog=_EXAMPLES)
@file_option(required=True)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Keep the plan, for  fairway apply FILE."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 0: no changes, 2: changes, 1: error.")
@server_options
@output_option
def plan(
    *,
    file: str,
    cluster: str | None,
    out: Path | None,
    detailed_exitcode: bool,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Show what a fleet file would change on each cluster.

    Nothing is changed. Objects without Fairway's mark are never touched, only named when they are in the way.
    """
    fleet = read_fleet_text(file)
    with connect(context, url) as client:
        made = client.plan(fleet.text, fleet.source, cluster)
    show_plan(made, output)
    check_whole(made, cluster)
    _tell_next(made, fleet, file, out)
    if detailed_exitcode and (made.changes or made.said):
        raise click.exceptions.Exit(CHANGES)


def show_plan(made: wire.Plan, output: Format | None) -> None:
    """The plan on stdout (None: on stderr, in words), what `check` would warn of before it on stderr."""
    from fairway.cli.faults import from_wire, show_fault

    for fault in filter(None, map(from_wire, made.warnings)):
        show_fault(fault)
    if output is None:
        show_lines(plan_lines(made, None, wide=False), err=True)
        return
    width, wide = text_width(), output is Format.WIDE
    show_document(made, lambda: plan_lines(made, width, wide=wide), output)


class HalfAPlan(PermanentError):
    """A cluster could not be looked at; `details` says what of the others."""

    def __init__(self, made: wire.Plan, cluster: str | None) -> None:
        first, *more = made.failures
        super().__init__(first.code, f"{first.cluster} has no plan: {first.message}", first.hint)
        self.details = [f"{f.cluster} has none either: {f.message}" for f in more]
        if made.clusters and cluster is None:
            self.details.append(f"others can be planned alone:  --cluster {made.clusters[0].cluster}")


def check_whole(made: wire.Plan, cluster: str | None) -> None:
    """Raise what kept the server from planning a cluster: half a plan is none."""
    if made.failures:
        raise HalfAPlan(made, cluster)


def _tell_next(made: wire.Plan, fleet: FleetText, file: str, out: Path | None) -> None:
    """How to go on, in one line."""
    kept = write_plan(out, made, fleet) if out else None
    if not made.changes and not made.said:
        return
    against = [o for c in made.clusters for o in c.objections]
    if not all(o.forceable for o in against):
        return
    force, how = (" --force", "If all of it is meant:") if against else ("", "Apply it with:")
    if kept is not None:
        exactly = how if against else "Apply exactly this with:"
        click.echo(f"\n{exactly}  fairway apply {kept}{force}", err=True)
    elif file == "-":
        click.echo(f"\nKeep it, to apply exactly this:  --out {suggested_name(made)}", err=True)
    else:
        click.echo(
            f"\n{how}  fairway apply -f {file}{force}\n"
            f"or keep exactly this:  fairway plan -f {file} --out {suggested_name(made)}",
            err=True,
        )
