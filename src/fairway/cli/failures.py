"""How the command line fails: what, where, why, then a hint; an exit code; never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from fairway.model.errors import FairwayError

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 64
"""EX_USAGE of sysexits.h; 2 is kept for `plan --detailed-exitcode`."""
INTERRUPTED: Final = 130
"""128 + SIGINT, what shells expect."""


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run `command` and say how it went. Everything that can go wrong ends here."""
    stdout = sys.stdout
    try:
        result = command.main(args=list(arguments), prog_name="fairway", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        # `fairway get nodes | head` is no error; click makes one of it, and leaves a wrapped stdout behind.
        if sys.stdout is not stdout:
            return OK
        raise
    except Exception as error:
        return _report(error)
    return result if isinstance(result, int) else OK


def _report(error: Exception) -> int:
    """Say what went wrong and give the exit code for it."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.UsageError():
            _show_usage_error(error)
            return USAGE
        case BrokenPipeError():
            # The same from our own flush; stdout is replaced so that closing it cannot complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        case click.ClickException():
            show_error(error.format_message(), "fairway --help")
        case FairwayError():
            if _show_faults(error):
                return ERROR
            show_error(error.message, error.hint, details=getattr(error, "details", ()))
        case _:
            _show_defect(error)
    return ERROR


def _show_faults(error: FairwayError) -> bool:
    """Show what a server found wrong with a file, as `check` does; False if that was not it."""
    refused = [fault for fault in getattr(error, "faults", ()) if getattr(fault, "file", None)]
    if not refused:
        return False
    from fairway.cli.faults import from_wire, show_fault

    for fault in filter(None, map(from_wire, refused)):
        show_fault(fault)
    if error.message not in [fault.message for fault in refused]:
        click.echo(error.message, err=True)
    return True


def show_error(message: str, hint: str, details: Sequence[str] = ()) -> None:
    """One error on stderr, in the shape all of them have."""
    say("error:", "red", message)
    for line in details:
        say("", "", f"  {line}")
    show_hint(hint)


def show_hint(hint: str) -> None:
    """What to do next, after a blank line."""
    click.echo(err=True)
    say("hint:", "cyan", hint)


def say(word: str, colour: str, text: str) -> None:
    """A sentence on stderr behind its coloured word; folded only where somebody reads it."""
    lines = [f"{word} {text}" if word else text]
    if sys.stderr.isatty():
        import shutil

        from fairway.cli.layout import fold

        lines = fold(lines[0], shutil.get_terminal_size((100, 24)).columns)
    first = label(word, colour) + lines[0].removeprefix(word) if word else lines[0]
    click.echo("\n".join([first, *lines[1:]]), err=True)


def label(text: str, colour: str) -> str:
    """The word a message begins with, coloured where colours are wanted."""
    # click leaves colours out where there is no terminal, but does not know NO_COLOR.
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)


def _show_usage_error(error: click.UsageError) -> None:
    path = error.ctx.command_path if error.ctx else "fairway"
    message = error.format_message().rstrip(".")
    show_error(message[:1].lower() + message[1:] if not message[:2].isupper() else message, f"{path} --help")


def _show_defect(error: Exception) -> None:
    if os.environ.get("FAIRWAY_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    where = _keep_traceback(error)
    show_error(
        f"InternalError: {type(error).__name__}, which nobody foresaw",
        f"report it with {where}, or see it now:  FAIRWAY_DEBUG=1 fairway …",
    )


def _keep_traceback(error: Exception) -> str:
    """Write the traceback where it can be attached to a report; only its owner may read it."""
    import traceback

    from fairway.client.private import write_private

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "fairway" / "last-error.log"
    try:
        write_private(path, "".join(traceback.format_exception(error)))
    except OSError:
        return "what you did"
    return str(path)
