"""`fairway hold`: keep jobs from starting."""

from __future__ import annotations

import click

from fairway.cli.changing import change_jobs, ids_argument
from fairway.cli.connect import server_options
from fairway.cli.output import Format, output_option
from fairway.client.client import Client


@click.command(
    epilog="""\b
Examples:
  fairway hold 8f3k
  fairway hold 8f3k 8f3m
"""
)
@ids_argument
@server_options
@output_option
def hold(jobs: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """Keep jobs from starting; what runs goes on.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    change_jobs(jobs, Client.hold, "holding", context=context, url=url, output=output)
