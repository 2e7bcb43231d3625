"""The command `fairway run`."""

from __future__ import annotations

from typing import Unpack

import click

from fairway.cli.connect import server_options
from fairway.cli.output.format import Format, output_option
from fairway.cli.shared.submit import Flags, SubmitOptions, given, job_flags, send, sending_options

_EXAMPLES = """\b
Examples:
  fairway run --gpus A100-80GB:8 -- python train.py --lr 3e-4
  fairway run --gpus 40GB..80GB --time 2h --follow -- ./bench.sh
  fairway run --gpus 1g.10gb --array 0-99 --retries 2 -- python sweep.py
  fairway run --gpus H100:8 --nodes 4 --together rack --dry-run -- torchrun train.py
"""


@click.command(epilog=_EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@job_flags
@sending_options
@server_options
@output_option
def run(
    *,
    command: tuple[str, ...],
    hold: bool,
    as_user: str | None,
    key: str | None,
    dry_run: bool,
    follow: bool,
    context: str | None,
    url: str | None,
    output: Format,
    **flags: Unpack[Flags],
) -> None:
    """Run a command on GPUs, wherever the fleet serves it best.

    The command is run as it is, without a shell. Nothing of your own environment goes with it: name what it
    needs by --env, --workdir, --setup or --image.
    """
    from fairway.cli.output.faults import show_fault
    from fairway.files import check_flags, name_of_command

    if not flags.get("gpus"):
        raise click.UsageError("say which GPUs:  --gpus A100-80GB:8, or just how many:  --gpus 1")
    if not flags.get("name"):
        flags["name"] = name_of_command(command)
    report = check_flags(given(flags, command))
    for fault in report.warnings:
        show_fault(fault)
    send(report.jobs or (), SubmitOptions(hold, as_user, key, dry_run, follow, context, url, output))
