"""The command `fairway uncordon`: open a node again that Fairway closed."""

from __future__ import annotations

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, ScreenLine, output_option, show_document
from fairway.client.client import Client


@click.command(
    epilog="""\b
Examples:
  fairway get cordons                     what Fairway closed, and why
  fairway uncordon gpu017                 open it again, once it is repaired
  fairway uncordon gpu017 --cluster hpc   where two clusters have a node of that name
"""
)
@click.argument("node")
@click.option("--cluster", metavar="NAME", help="Its cluster; needed where several have such a node.")
@server_options
@output_option
def uncordon(node: str, cluster: str | None, context: str | None, url: str | None, output: Format) -> None:
    """Open a node again that Fairway closed because of a broken GPU.

    What people closed by the engine's own tools they also open with those. An event that lasts does not close
    the node again, a new one does.
    """
    with connect(context, url) as client:
        done = client.uncordon(cluster or _cluster(client, node), node)
    text = f"node {done.node} of cluster {done.cluster} is opened again within seconds"
    show_document(done, lambda: [ScreenLine(text)], output)


def _cluster(client: Client, node: str) -> str:
    found = [cordon.cluster for cordon in client.cordons() if cordon.node == node]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{node} is closed on {', '.join(found)}: say which with --cluster")
    raise click.UsageError(f"Fairway has closed no node {node}: see  fairway get cordons")
