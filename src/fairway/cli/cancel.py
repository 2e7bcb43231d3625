"""`fairway cancel`: end jobs."""

from __future__ import annotations

import click

from fairway.cli.changing import change_jobs, ids_argument
from fairway.cli.connect import server_options
from fairway.cli.output import Format, output_option
from fairway.client.client import Client


@click.command(
    epilog="""\b
Examples:
  fairway cancel 8f3k
  fairway cancel 8f3k 8f3m
  fairway get jobs --mine --state waiting -o json | jq -r '.[].id' | xargs fairway cancel
"""
)
@ids_argument
@server_options
@output_option
def cancel(jobs: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """End jobs, whether they run or wait.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    change_jobs(jobs, Client.cancel, "cancelling", context=context, url=url, output=output)
