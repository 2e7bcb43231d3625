"""`fairway release`: let held jobs start."""

from __future__ import annotations

import click

from fairway.cli.changing import change_jobs, ids_argument
from fairway.cli.connect import server_options
from fairway.cli.output import Format, output_option
from fairway.client.client import Client


@click.command(
    epilog="""\b
Examples:
  fairway release 8f3k
  fairway get jobs --mine --state held -o json | jq -r '.[].id' | xargs fairway release
"""
)
@ids_argument
@server_options
@output_option
def release(jobs: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """Let held jobs start.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    change_jobs(jobs, Client.release, "releasing", context=context, url=url, output=output)
