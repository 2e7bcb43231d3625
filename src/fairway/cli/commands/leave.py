"""The commands `fairway leave` and `fairway release-all`."""

from __future__ import annotations

import sys

import click

from fairway.cli import completion
from fairway.cli.commands.apply import check_objections
from fairway.cli.commands.plan import check_complete
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_document, show_lines, text_width
from fairway.cli.output.leave import after_lines, leave_lines
from fairway.cli.shared.apply_progress import follow
from fairway.model.errors import PermanentError

_LEAVE_EXAMPLES = """\b
Examples:
  fairway leave hpc --dry-run    show what would be restored and removed
  fairway leave hpc              do it, after you type the name of the cluster
  fairway leave hpc --yes        without confirmation, for scripts
"""

_RELEASE_EXAMPLES = """\b
Examples:
  fairway release-all cloud            lift all limits on cloud
  fairway apply -f fleet.yaml          enforce the policy again
"""


@click.command(epilog=_LEAVE_EXAMPLES)
@click.argument("cluster", shell_complete=completion.clusters)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@server_options
@output_option
def leave(
    *, cluster: str, dry_run: bool, yes: bool, context: str | None, url: str | None, output: Format
) -> None:
    """Restore a cluster to its state before Fairway.

    Adopted objects get back their original values, and objects that Fairway created are deleted. No job is
    stopped: objects that are still in use by jobs stay, and a second `fairway leave` deletes them later.
    Requires the role admin.
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
        check_objections(plan, force=False)
        click.echo(err=True)
        if not yes:
            _confirm(cluster)
        follow(client, client.leave(cluster, planned.fingerprint), output)
    show_lines(after_lines(planned, text_width()), err=True)


@click.command("release-all", epilog=_RELEASE_EXAMPLES)
@click.argument("cluster", shell_complete=completion.clusters)
@server_options
@output_option
def release_all(*, cluster: str, context: str | None, url: str | None, output: Format) -> None:
    """Lift all limits on a cluster, in an emergency.

    Admission policies are unbound, Slurm's submit gate opens and teams on hold are released. Guarantees,
    limits and shares stay configured. Until the next `fairway apply`, Fairway does not intervene on the
    cluster or report drift there. Requires the role admin.
    """
    with connect(context, url) as client:
        follow(client, client.release_all(cluster), output)
    click.echo(
        f"All limits on {cluster} are lifted. Enforce the policy again with:  fairway apply -f fleet.yaml",
        err=True,
    )


def _confirm(cluster: str) -> None:
    if not sys.stdin.isatty():
        raise PermanentError(
            "NobodyToAsk",
            "confirmation is needed, but there is no terminal",
            f"confirm with:  fairway leave {cluster} --yes",
        )
    if click.prompt(f"Type {cluster} to leave it", default="", show_default=False, err=True) != cluster:
        raise click.Abort
