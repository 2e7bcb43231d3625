"""The command `fairway rollback`."""

from __future__ import annotations

import click

from fairway.cli import completion
from fairway.cli.commands.apply import apply_planned, removal_options
from fairway.cli.commands.plan import check_complete, show_plan
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option
from fairway.cli.shared.fleet_file import FleetText

_EXAMPLES = """\b
Examples:
  fairway get revisions           list revisions, and where each is in force
  fairway get fleet --revision 4  print a revision
  fairway rollback 4              plan, confirm, apply
  fairway rollback 4 --yes        without confirmation, for scripts
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "revision", type=click.IntRange(min=1), metavar="REVISION", shell_complete=completion.revisions
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@removal_options
@server_options
@output_option
def rollback(
    *,
    revision: int,
    yes: bool,
    force: bool,
    reprice_past: bool,
    confirmed: tuple[str, ...],
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Plan and apply an earlier revision of the fleet file.

    Objects that were added since are removed, which you must confirm as in any other apply. The text of the
    earlier revision becomes the newest revision, and the history records a rollback.
    """
    with connect(context, url) as client:
        fleet = FleetText(client.fleet_file(revision).text, f"revision {revision}")
        planned = client.plan(fleet.text, fleet.source)
        show_plan(planned, output if output in (Format.TABLE, Format.WIDE) else None)
        check_complete(planned, None)
        apply_planned(
            client,
            fleet,
            planned,
            None,
            output,
            yes=yes,
            force=force,
            reprice_past=reprice_past,
            confirmed=confirmed,
        )
