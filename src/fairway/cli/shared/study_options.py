"""Options and output that the commands of replays share: sizes of pools, and a table, JSON or a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from fairway.cli.output.format import Format, ScreenLine, show_document

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fairway.model.fleet import Fleet, VirtualPlace
    from fairway.model.names import PoolName

WARM_UP_SECONDS: Final = 7 * 86_400.0
"""Jobs of a trace from before the replayed days fill the clusters, and do not count."""
Function = TypeVar("Function", bound=Callable[..., object])


class StudyFormat(StrEnum):
    """The output formats of a study."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


def nodes_option(function: Function) -> Function:
    """Add `--nodes`, whose values `stated_sizes` reads."""
    return click.option(
        "--nodes",
        multiple=True,
        metavar="POOL=16x8",
        help="Size of a pool: nodes x GPUs of each (repeatable). Needed for pools that are not virtual.",
    )(function)


def study_output_options(function: Function) -> Function:
    """Add `-o` and `--out`, which `study_format` and `show_study` take."""
    function = click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write to this file; its suffix (.html, .json) sets the format.",
    )(function)
    return click.option(
        "-o",
        "--output",
        type=click.Choice([f.value for f in StudyFormat]),
        help="Output format.  [default: table]",
    )(function)


def stated_sizes(fleet: Fleet, nodes: Sequence[str]) -> dict[PoolName, VirtualPlace]:
    """Return the sizes of pools that `--nodes` states."""
    from fairway.files.fleet.sweep import parse_size, pool_named, with_layout

    sizes = {}
    for text in nodes:
        pool, _, size = text.partition("=")
        named = pool_named(fleet, pool, f"--nodes {text}")
        sizes[named] = with_layout(fleet, named, parse_size(size))
    return sizes


def study_format(output: str | None, out: Path | None) -> StudyFormat:
    """Return the format that was chosen, or that the suffix of the file sets."""
    if output is not None:
        return StudyFormat(output)
    if out is None:
        return StudyFormat.TABLE
    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in (StudyFormat.HTML, StudyFormat.JSON):
        raise click.UsageError(f"the format of {out} is unknown: add -o table, json or html")
    return StudyFormat(suffix)


def show_study(
    found: BaseModel,
    lines: Callable[[], Sequence[ScreenLine]],
    page: Callable[[], str],
    shape: StudyFormat,
    out: Path | None,
) -> None:
    """Print a study, or write it to a file."""
    from fairway.cli.output.format import data_text, to_dicts
    from fairway.cli.output.report_files import write_file

    if out is None and shape is not StudyFormat.HTML:
        show_document(found, lines, Format(shape.value))
        return
    match shape:
        case StudyFormat.HTML:
            text = page()
        case StudyFormat.JSON:
            text = data_text(to_dicts([found])[0], Format.JSON)
        case StudyFormat.TABLE:
            text = "".join(f"{line.text}\n" for line in lines())
    if out is None:
        click.echo(text, nl=False)
        return
    write_file(out, text)
    click.echo(f"wrote {out}", err=True)
