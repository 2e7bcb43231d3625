"""Error handling of the command line: print message, location and hint, return an exit code, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from fairway.cli.output.messages import for_same_server, show_error
from fairway.model.errors import FairwayError

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 64
"""EX_USAGE of sysexits.h; 2 is reserved for `plan --detailed-exitcode`."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells expect."""


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run `command` and return its exit code. Every exception is handled here."""
    stdout = sys.stdout
    try:
        result = command.main(args=list(arguments), prog_name="fairway", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        # `fairway get nodes | head` is no error; click raises SystemExit and leaves a wrapped stdout behind.
        if sys.stdout is not stdout:
            return OK
        raise
    except Exception as error:
        return _report(error, arguments)
    return result if isinstance(result, int) else OK


def _report(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error and return its exit code. Its hint is for the server that the arguments name."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.UsageError():
            _show_usage_error(error)
            return USAGE
        case BrokenPipeError():
            # The same from our own flush; replace stdout so that closing it cannot fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        case click.ClickException():
            show_error(error.format_message(), "fairway --help")
        case FairwayError():
            if _show_faults(error):
                return ERROR
            hint = for_same_server(error.hint, _given_server(arguments))
            show_error(error.message, hint, details=getattr(error, "details", ()))
        case _:
            _show_defect(error)
    return ERROR


def _given_server(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of `--context` and `--url` in the arguments of a command."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = [*pairwise(ours), *(argument.split("=", 1) for argument in ours if "=" in argument)]
    return {flag[2:]: value for flag, value in pairs if flag in ("--context", "--url")}


def _show_faults(error: FairwayError) -> bool:
    """Print the faults that a server found in a file, as `check` does. Returns False if there are none."""
    faults = [fault for fault in getattr(error, "faults", ()) if getattr(fault, "file", None)]
    if not faults:
        return False
    from fairway.cli.output.faults import from_wire, show_fault

    for fault in filter(None, map(from_wire, faults)):
        show_fault(fault)
    if error.message not in [fault.message for fault in faults]:
        click.echo(error.message, err=True)
    return True


def _show_usage_error(error: click.UsageError) -> None:
    path = error.ctx.command_path if error.ctx else "fairway"
    message = error.format_message().rstrip(".")
    show_error(message[:1].lower() + message[1:] if not message[:2].isupper() else message, f"{path} --help")


def _show_defect(error: Exception) -> None:
    if os.environ.get("FAIRWAY_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    where = _write_traceback(error)
    show_error(
        f"internal error ({type(error).__name__}): this is a bug",
        f"please report it with {where}; to see the traceback, run the command with FAIRWAY_DEBUG=1",
    )


def _write_traceback(error: Exception) -> str:
    """Write the traceback to a file that can be attached to a bug report; only its owner can read it."""
    import traceback

    from fairway.client.private_file import write_private

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "fairway" / "last-error.log"
    try:
        write_private(path, "".join(traceback.format_exception(error)))
    except OSError:
        return "the command that you ran"
    return str(path)
