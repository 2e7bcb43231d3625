"""What `cancel`, `hold` and `release` have in common: ids in, one request, one sentence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from fairway.api import job_wire as wire
from fairway.cli.connect import connect
from fairway.cli.layout import Line
from fairway.cli.output import Format, show_document
from fairway.cli.words import count
from fairway.client.client import Client

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
    """Ask for it, and say what came of it: `done` is the word for those that it changed."""
    with connect(context, url) as client:
        changed = change(client, list(dict.fromkeys(ids)))
    show_document(changed, lambda: _lines(ids, changed, done), output)


def _lines(ids: Sequence[str], changed: wire.Changed, done: str) -> list[Line]:
    lines: list[Line] = []
    asked = {word.lower() for word in ids}
    named = [word for word in changed.changed if word in asked]
    tasks = len(changed.changed) - len(named)
    if changed.changed:
        of = (
            f"{count(tasks, 'more task')} of the same array"
            if named
            else f"{count(tasks, 'task')} of the array"
        )
        lines.append(Line(f"{done} {' and '.join(filter(None, (_named(named), of if tasks else '')))}"))
    same = [word for word in changed.unchanged if word in asked]
    if same:
        is_ = "is" if len(same) == 1 else "are"
        lines.append(Line(f"{_named(same)} {is_} over, or already so"))
    return lines or [Line("nothing to do")]


def _named(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


def ids_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The jobs it is about."""
    return click.argument("jobs", nargs=-1, required=True, metavar="JOB...")(function)
