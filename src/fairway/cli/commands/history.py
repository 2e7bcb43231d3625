"""The command `fairway history`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.applies import applies_view, apply_lines
from fairway.cli.output.format import Format, Listing, output_option, show, show_document, text_width


@click.command(
    epilog="""\b
Examples:
  fairway history                    newest first
  fairway history 12                 the changes of one apply
  fairway history 12 -o wide         also every object, before and after
  fairway history --cluster hpc --limit 100
"""
)
@click.argument("apply", required=False, type=click.IntRange(min=1), metavar="[ID]")
@click.option("--cluster", metavar="NAME", help="Only this cluster.", shell_complete=completion.clusters)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Show at most N rows.",
)
@server_options
@output_option
def history(
    *,
    apply: int | None,
    cluster: str | None,
    limit: int,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Show past applies: who, when and what changed."""
    now = datetime.now(UTC)
    with connect(context, url) as client:
        if apply is None:
            found = client.applies(cluster, limit)
            show(Listing(found, applies_view(found, now, filtered=cluster is not None)), output)
        else:
            detail = client.apply_detail(apply)
            wide = output is Format.WIDE
            show_document(detail, lambda: apply_lines(detail, now, text_width(), wide=wide), output)
