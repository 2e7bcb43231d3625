"""The command group `fairway context`: servers and their tokens."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click
from pydantic import BaseModel

from fairway.cli import completion
from fairway.cli.group import Group
from fairway.cli.output.fleet import contexts_view
from fairway.cli.output.format import Format, Listing, output_option, show
from fairway.client.contexts import config_file, read_contexts, read_token, validated_context, write_contexts
from fairway.client.private_file import write_private


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway context list
  fairway context add prod --url https://fairway.example.com --token-file ~/prod.token
  fairway context use prod
\b
Without a context, set FAIRWAY_URL and FAIRWAY_TOKEN or FAIRWAY_TOKEN_FILE.
""",
)
def context() -> None:
    """Manage the servers that you connect to."""


class ContextRow(BaseModel):
    """A context, for programs."""

    name: str
    url: str
    token_file: str | None
    ca_file: str | None
    current: bool


@context.command("list", epilog="\b\nExamples:\n  fairway context list\n")
@output_option
def list_(output: Format) -> None:
    """List contexts; * marks the current one."""
    contexts = read_contexts(config_file())
    rows = [ContextRow(**asdict(c), current=c.name == contexts.current) for c in contexts.entries]
    show(Listing(rows, contexts_view(contexts)), output)


@context.command(epilog="\b\nExamples:\n  fairway context use prod\n")
@click.argument("name", shell_complete=completion.contexts)
def use(name: str) -> None:
    """Make a context the current one."""
    path = config_file()
    write_contexts(path, read_contexts(path).using(name))
    click.echo(f"using {name}", err=True)


@context.command(
    epilog="""\b
Examples:
  fairway context add prod --url https://fairway.example.com --token-file ~/prod.token
  pass show fairway | fairway context add prod --url https://fairway.example.com --token-file -
"""
)
@click.argument("name")
@click.option("--url", required=True, metavar="URL", help="URL of the server.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with the token. `-` reads the token from stdin and stores it beside the contexts.",
)
@click.option(
    "--ca-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="CA certificate of the server.",
)
def add(name: str, url: str, token_file: str | None, ca_file: str | None) -> None:
    """Add or change a context."""
    path = config_file()
    added = validated_context(name, url, None, ca_file and str(Path(ca_file).absolute()))
    if token_file == "-":  # noqa: S105 - a file name
        token_file = str(path.parent / f"{name}.token")
        write_private(Path(token_file), sys.stdin.readline().strip() + "\n")
    if token_file is not None:
        file = Path(token_file).expanduser().absolute()
        read_token(file)
        added = validated_context(name, url, str(file), added.ca_file)
    contexts = read_contexts(path).adding(added)
    write_contexts(path, contexts)
    usage = "" if contexts.current == name else f"; switch to it with:  fairway context use {name}"
    click.echo(f"added {name}{usage}", err=True)


@context.command(epilog="\b\nExamples:\n  fairway context remove prod\n")
@click.argument("name", shell_complete=completion.contexts)
def remove(name: str) -> None:
    """Remove a context. Its token file is kept."""
    path = config_file()
    write_contexts(path, read_contexts(path).removing(name))
    click.echo(f"removed {name}", err=True)
