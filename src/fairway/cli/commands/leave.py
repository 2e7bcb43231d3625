"""The commands `fairway leave` and `fairway release-all`."""

from __future__ import annotations

import sys

import click

from fairway.cli.commands.apply import check_objections
from fairway.cli.commands.plan import check_complete
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_document, show_lines, text_width
from fairway.cli.output.leave import after_lines, leave_lines
from fairway.cli.shared.apply_progress import follow
from fairway.model.errors import PermanentError

_LEAVE_EXAMPLES = """\b
Examples:
  fairway leave hpc              what would be restored and removed; asks for the cluster's name
  fairway leave hpc --dry-run    only show it
  fairway leave hpc --yes        without asking, for scripts
"""

_RELEASE_EXAMPLES = """\b
Examples:
  fairway release-all cloud            every guard of Fairway's on cloud is lifted
  fairway apply -f fleet.yaml          the policy counts again
"""


@click.command(epilog=_LEAVE_EXAMPLES)
@click.argument("cluster")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for the cluster's name.")
@server_options
@output_option
def leave(
    *, cluster: str, dry_run: bool, yes: bool, context: str | None, url: str | None, output: Format
) -> None:
    """Return a cluster to its state before Fairway.

    What was adopted gets back what it had then, and what Fairway created is deleted. No job ends: objects
    with jobs under them stay until these have ended, and a second `fairway leave` deletes them. Needs an
    admin's token.
    """
    with connect(context, url) as client:
        plan = client.plan_leaving(cluster)
        check_complete(plan, cluster)
        (planned,) = plan.clusters
        wide = output is Format.WIDE
        if dry_run:
            show_document(plan, lambda: leave_lines(planned, text_width(), wide=wide), output)
            return
        show_lines(
            leave_lines(planned, text_width(), wide=wide), err=output not in (Format.TABLE, Format.WIDE)
        )
        check_objections([planned], force=False)
        click.echo(err=True)
        if not yes:
            _confirm(cluster)
        follow(client, client.leave(cluster, planned.fingerprint), output)
    show_lines(after_lines(planned, text_width()), err=True)


@click.command("release-all", epilog=_RELEASE_EXAMPLES)
@click.argument("cluster")
@server_options
@output_option
def release_all(*, cluster: str, context: str | None, url: str | None, output: Format) -> None:
    """Lift every guard of a cluster at once, in an emergency.

    Admission policies are unbound, Slurm's gate opens, and holds of teams end; guarantees, ceilings and
    shares stay. Fairway then neither intervenes nor reports drift there, until `fairway apply` makes the
    policy count again. Needs an admin's token.
    """
    with connect(context, url) as client:
        follow(client, client.release_all(cluster), output)
    click.echo(f"the guards of {cluster} are lifted until:  fairway apply -f fleet.yaml", err=True)


def _confirm(cluster: str) -> None:
    if not sys.stdin.isatty():
        raise PermanentError(
            "NobodyToAsk",
            "there is no terminal to ask on",
            f"say yes beforehand:  fairway leave {cluster} --yes",
        )
    if click.prompt(f"Type {cluster} to leave it", default="", show_default=False, err=True) != cluster:
        raise click.Abort
