"""The command `fairway adopt`."""

from __future__ import annotations

import click

from fairway.cli.commands.plan import check_complete
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, count, output_option
from fairway.cli.parameter import ParsedParam
from fairway.cli.shared.apply_progress import follow
from fairway.cli.shared.fleet_file import file_option, read_fleet_text
from fairway.client.client import Client
from fairway.wire import policy as wire

_EXAMPLES = """\b
Examples:
  fairway adopt hpc qos/research_own account/research     these objects, by kind and name
  fairway adopt hpc --all-in-the-way -f fleet.yaml        all that a plan finds in its way there
"""


def _parse_object(text: str) -> wire.ObjectRef:
    """Parse KIND/NAME; the name may contain slashes."""
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        raise ValueError(f"{text!r} is not an object; write it like qos/research_own")
    return wire.ObjectRef(kind=kind, name=name)


@click.command(epilog=_EXAMPLES)
@click.argument("cluster")
@click.argument("objects", nargs=-1, type=ParsedParam("kind/name", _parse_object), metavar="[KIND/NAME]...")
@click.option("--all-in-the-way", is_flag=True, help="Every object that is in the way of the fleet file.")
@file_option(required=False)
@server_options
@output_option
def adopt(
    *,
    cluster: str,
    objects: tuple[wire.ObjectRef, ...],
    all_in_the_way: bool,
    file: str | None,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Put Fairway's mark on objects that somebody else made.

    Nothing else of them changes now; from then on plans may change them, and drift watches them.
    """
    if all_in_the_way == bool(objects) or all_in_the_way != bool(file):
        raise click.UsageError("name objects as KIND/NAME, or give --all-in-the-way with -f FILE")
    with connect(context, url) as client:
        named = list(objects) or _in_the_way(client, file or "", cluster)
        if not named:
            click.echo(f"nothing is in the way on {cluster}", err=True)
            return
        click.echo(f"adopting {count(len(named), 'object')} on {cluster}", err=True)
        follow(client, client.adopt(cluster, named), output)


def _in_the_way(client: Client, file: str, cluster: str) -> list[wire.ObjectRef]:
    fleet = read_fleet_text(file)
    plan = client.plan(fleet.text, fleet.source, cluster)
    check_complete(plan, cluster)
    return [o for c in plan.clusters for o in c.in_the_way]
