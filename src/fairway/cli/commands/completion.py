"""The command `fairway completion`: print the script that completes commands and values in a shell."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="""\b
Examples:
  fairway completion bash > ~/.local/share/bash-completion/completions/fairway
  echo 'eval "$(fairway completion zsh)"' >> ~/.zshrc
  fairway completion fish > ~/.config/fish/completions/fairway.fish
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for your shell.

    It completes commands, options and values: jobs, teams, pools, clusters, nodes, contexts, time windows and
    revisions. Values come from the server in use; if it does not answer within a second, there are none.
    Install the script as in the examples, then open a new shell.
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    script = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    root = click.get_current_context().find_root().command
    click.echo(script(root, {}, "fairway", "_FAIRWAY_COMPLETE").source())
