"""One page for each command of the CLI, and an index of them, from the commands themselves."""

from __future__ import annotations

import html
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from fairway.cli.root import ALIASES, GROUPS, root

FOLDER = Path(__file__).parent / "cli"
EXIT_CODES = "| exit code | meaning |\n|---|---|\n| 0 | success |\n| 1 | failure |\n| 64 | usage error |\n| 130 | interrupted |\n"
_SHARED = frozenset({"url", "context", "output", "help"})
"""Options that nearly every command has: listed last."""


class Command(NamedTuple):
    """A command with the context that its help is rendered in."""

    path: str
    """As typed: `fairway get jobs`."""
    command: click.Command
    context: click.Context

    @property
    def file(self) -> str:
        """The name of its page: `get-jobs.md`."""
        return self.path.removeprefix("fairway ").replace(" ", "-") + ".md"

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return self.command.get_short_help_str(limit=400)


def commands() -> list[Command]:
    """Every command and subcommand of `fairway`, parents first."""
    return [found for found in _walk(root, "fairway", None) if found.command is not root]


def _walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[Command]:
    settings: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100, **command.context_settings}
    context = click.Context(command, parent, info_name=name, **settings)
    yield Command(context.command_path, command, context)
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from _walk(child, child_name, context)


def pages(note: str) -> dict[Path, str]:
    """The index of commands and a page for each one."""
    found = commands()
    made = {FOLDER / one.file: _page(one, found, note) for one in found}
    made[FOLDER / "index.md"] = _index(found, note)
    return made


def _index(found: list[Command], note: str) -> str:
    text = (
        f"# Command-line reference\n\n{note}"
        "One page for each command, with its options and examples. `fairway help COMMAND` prints the same text.\n"
    )
    for title, names in GROUPS.items():
        text += f"\n## {title}\n\n| command | purpose |\n|---|---|\n"
        for name in names:
            inside = [one for one in found if one.path.split()[1] == name]
            text += "".join(f"| [`{one.path}`]({one.file}) | {_cell(one.summary)} |\n" for one in inside)
    text += "\n## Aliases\n\n| alias | command |\n|---|---|\n"
    text += "".join(
        f"| `fairway {alias}` | `fairway {' '.join(real)}` |\n" for alias, real in ALIASES.items()
    )
    return f"{text}\n## Exit codes\n\n{EXIT_CODES}"


def _page(one: Command, found: list[Command], note: str) -> str:
    usage = " ".join([one.path, *one.command.collect_usage_pieces(one.context)])
    text = f"# {one.path}\n\n{note}{_prose(one.command.help)}\n\n## Usage\n\n```text\n{usage}\n```\n"
    children = [other for other in found if other.path.rpartition(" ")[0] == one.path]
    if children:
        text += "\n## Subcommands\n\n| command | purpose |\n|---|---|\n"
        text += "".join(
            f"| [`{child.path}`]({child.file}) | {_cell(child.summary)} |\n" for child in children
        )
    rows = [record for option in _options(one) if (record := option.get_help_record(one.context))]
    if rows:
        text += "\n## Options\n\n| option | description |\n|---|---|\n"
        text += "".join(f"| {_code(flags)} | {_cell(words)} |\n" for flags, words in rows)
    if one.command.epilog:
        lines = inspect.cleandoc(one.command.epilog.replace("\b", "")).strip().splitlines()
        title = lines.pop(0).rstrip(":") if lines and lines[0].endswith(":") else "Notes"
        text += f"\n## {title}\n\n```text\n{inspect.cleandoc(chr(10).join(lines))}\n```\n"
    parent = one.path.rpartition(" ")[0]
    above = next((f"[`{other.path}`]({other.file}), " for other in found if other.path == parent), "")
    return f"{text}\nSee also: {above}[all commands](index.md).\n"


def _options(one: Command) -> list[click.Parameter]:
    """The options of a command, those that nearly every command has last."""
    return sorted(
        one.command.get_params(one.context),
        key=lambda option: (option.name in _SHARED, option.name == "help"),
    )


def _prose(text: str | None) -> str:
    """A help text as Markdown: click marks paragraphs that keep their lines with \\b."""
    parts = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(
        f"```text\n{part.removeprefix(chr(8)).strip(chr(10))}\n```"
        if part.startswith("\b")
        else _escaped(part)
        for part in parts
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def _code(text: str) -> str:
    """Code in a table cell; HTML, because Markdown renderers disagree on a pipe between backticks."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
