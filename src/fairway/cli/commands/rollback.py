"""The command `fairway rollback`."""

from __future__ import annotations

import click

from fairway.cli.commands.apply import apply_planned, removal_options
from fairway.cli.commands.plan import check_complete, show_plan
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option
from fairway.cli.shared.fleet_file import FleetText

_EXAMPLES = """\b
Examples:
  fairway get revisions           which revisions there are, and where each is in force
  fairway get fleet --revision 4  the fleet file as it was then
  fairway rollback 4              plan it, show, ask, apply
  fairway rollback 4 --yes        without asking, for scripts
"""


@click.command(epilog=_EXAMPLES)
@click.argument("revision", type=click.IntRange(min=1), metavar="REVISION")
@click.option("--yes", is_flag=True, help="Do not ask.")
@removal_options
@server_options
@output_option
def rollback(
    *,
    revision: int,
    yes: bool,
    force: bool,
    confirmed: tuple[str, ...],
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Plan an old revision of the fleet file, and apply it.

    It is a plan and an apply like any other: what has come since is removed, and must be confirmed. The text
    of the old revision becomes the newest one, and the history calls it a rollback.
    """
    with connect(context, url) as client:
        fleet = FleetText(client.fleet_file(revision).text, f"revision {revision}")
        planned = client.plan(fleet.text, fleet.source)
        show_plan(planned, output if output in (Format.TABLE, Format.WIDE) else None)
        check_complete(planned, None)
        apply_planned(client, fleet, planned, None, output, yes=yes, force=force, confirmed=confirmed)
