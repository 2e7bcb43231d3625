"""The command `fairway uncordon`: open a node again that Fairway closed."""

from __future__ import annotations

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, ScreenLine, output_option, show_document
from fairway.client.client import Client


@click.command(
    epilog="""\b
Examples:
  fairway get cordons                     list cordoned nodes, with the reason
  fairway uncordon gpu017                 after it was repaired
  fairway uncordon gpu017 --cluster hpc   if several clusters have a node of this name
"""
)
@click.argument("node", shell_complete=completion.nodes)
@click.option("--cluster", metavar="NAME", help="Cluster of the node.", shell_complete=completion.clusters)
@server_options
@output_option
def uncordon(node: str, cluster: str | None, context: str | None, url: str | None, output: Format) -> None:
    """Reopen a node that Fairway cordoned for a broken GPU.

    Nodes that people drained or cordoned with the engine's own tools must be reopened with those tools.
    Fairway cordons the node again if a new GPU error occurs.
    """
    with connect(context, url) as client:
        done = client.uncordon(cluster or _cluster(client, node), node)
    text = f"Uncordoning node {done.node} on cluster {done.cluster}"
    show_document(done, lambda: [ScreenLine(text)], output)


def _cluster(client: Client, node: str) -> str:
    found = [cordon.cluster for cordon in client.cordons() if cordon.node == node]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{node} is cordoned on {', '.join(found)}: choose one with --cluster")
    raise click.UsageError(
        f"Fairway has not cordoned a node {node}; list cordoned nodes with `fairway get cordons`"
    )
