"""The commands `fairway cancel`, `hold` and `release`: change jobs by id in one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, count, output_option, show_document
from fairway.cli.output.table import ScreenLine
from fairway.client.client import Client
from fairway.model.text import first_few
from fairway.wire import jobs as wire

_NAMED = 20

Change = Callable[[Client, Sequence[str]], wire.Changed]


def change_jobs(
    ids: Sequence[str],
    change: Change,
    done: str,
    *,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Send the change and print the result; `done` is the verb for the jobs it changed."""
    with connect(context, url) as client:
        changed = change(client, list(dict.fromkeys(ids)))
    show_document(changed, lambda: _lines(ids, changed, done), output)


def _lines(ids: Sequence[str], changed: wire.Changed, done: str) -> list[ScreenLine]:
    lines: list[ScreenLine] = []
    asked = {word.lower() for word in ids}
    named = [word for word in changed.changed if word in asked]
    tasks = len(changed.changed) - len(named)
    if changed.changed:
        of = (
            f"{count(tasks, 'more task')} of the same array"
            if named
            else f"{count(tasks, 'task')} of the array"
        )
        lines.append(ScreenLine(f"{done} {' and '.join(filter(None, (_named(named), of if tasks else '')))}"))
    same = [word for word in changed.unchanged if word in asked]
    if same:
        is_ = "is" if len(same) == 1 else "are"
        lines.append(ScreenLine(f"{_named(same)} {is_} over, or already so"))
    return lines or [ScreenLine("nothing to do")]


def _named(words: Sequence[str]) -> str:
    return first_few(words, _NAMED)


def ids_argument(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument JOB..., the ids of the jobs to change."""
    return click.argument("jobs", nargs=-1, required=True, metavar="JOB...")(function)


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


@click.command(
    epilog="""\b
Examples:
  fairway hold 8f3k
  fairway hold 8f3k 8f3m
"""
)
@ids_argument
@server_options
@output_option
def hold(jobs: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """Keep jobs from starting; what runs goes on.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    change_jobs(jobs, Client.hold, "holding", context=context, url=url, output=output)


@click.command(
    epilog="""\b
Examples:
  fairway release 8f3k
  fairway get jobs --mine --state held -o json | jq -r '.[].id' | xargs fairway release
"""
)
@ids_argument
@server_options
@output_option
def release(jobs: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """Let held jobs start.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    change_jobs(jobs, Client.release, "releasing", context=context, url=url, output=output)
