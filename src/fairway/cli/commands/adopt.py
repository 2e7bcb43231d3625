"""The command `fairway adopt`."""

from __future__ import annotations

import click

from fairway.cli import completion
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
  fairway adopt hpc qos/research_own account/research     these objects
  fairway adopt hpc --all-in-the-way -f fleet.yaml        all that conflict with the fleet file
"""


def _parse_object(text: str) -> wire.ObjectRef:
    """Parse KIND/NAME; the name may contain slashes."""
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        raise ValueError(f"{text!r} is not an object; use KIND/NAME, such as qos/research_own")
    return wire.ObjectRef(kind=kind, name=name)


@click.command(epilog=_EXAMPLES)
@click.argument("cluster", shell_complete=completion.clusters)
@click.argument("objects", nargs=-1, type=ParsedParam("kind/name", _parse_object), metavar="[KIND/NAME]...")
@click.option("--all-in-the-way", is_flag=True, help="Adopt every object that conflicts with the fleet file.")
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
    """Let Fairway manage objects that already exist on a cluster.

    Adopting marks the objects and changes nothing else. From then on, plans may change them and drift is
    reported.
    """
    if all_in_the_way == bool(objects) or all_in_the_way != bool(file):
        raise click.UsageError("name objects as KIND/NAME, or give --all-in-the-way with -f FILE")
    with connect(context, url) as client:
        named = list(objects) or _in_the_way(client, file or "", cluster)
        if not named:
            click.echo(f"no object on {cluster} conflicts with the fleet file", err=True)
            return
        click.echo(f"adopting {count(len(named), 'object')} on {cluster}", err=True)
        follow(client, client.adopt(cluster, named), output)


def _in_the_way(client: Client, file: str, cluster: str) -> list[wire.ObjectRef]:
    fleet = read_fleet_text(file)
    plan = client.plan(fleet.text, fleet.source, cluster)
    check_complete(plan, cluster)
    return [o for c in plan.clusters for o in c.in_the_way]
