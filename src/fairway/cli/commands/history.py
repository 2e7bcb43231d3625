"""The command `fairway history`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.applies import applies_view, apply_lines
from fairway.cli.output.format import Format, Listing, output_option, show, show_document, text_width


@click.command(
    epilog="""\b
Examples:
  fairway history                    the newest applies: who, when, what came of it
  fairway history 12                 one of them, in the fleet file's words
  fairway history 12 -o wide         with every object, before and after
  fairway history --cluster hpc --most 100
"""
)
@click.argument("apply", required=False, type=click.IntRange(min=1), metavar="[ID]")
@click.option("--cluster", metavar="NAME", help="Only applies of this cluster.")
@click.option(
    "--most", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to show."
)
@server_options
@output_option
def history(
    *,
    apply: int | None,
    cluster: str | None,
    most: int,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Show what was applied: who, when, before and after."""
    now = datetime.now(UTC)
    with connect(context, url) as client:
        if apply is None:
            found = client.applies(cluster, most)
            show(Listing(found, applies_view(found, now, filtered=cluster is not None)), output)
        else:
            detail = client.apply_detail(apply)
            wide = output is Format.WIDE
            show_document(detail, lambda: apply_lines(detail, now, text_width(), wide=wide), output)
