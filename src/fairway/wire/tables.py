"""Show wire types in Python sessions and notebooks: as text, as HTML and as data frames.

Everything in HTML is escaped: names of jobs and users are untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from pydantic import BaseModel

from fairway.model.errors import PermanentError
from fairway.model.text import clean

MAX_SHOWN: Final = 50
"""Rows of a table that a session or notebook shows; a data frame has all of them."""
_MAX_CELL: Final = 60
_STYLE: Final = (
    "border-collapse:collapse;font-variant-numeric:tabular-nums;"
    "text-align:left;background:transparent;color:inherit"
)
# Translucent, so that it is visible in light and in dark notebooks.
_CELL: Final = (
    "padding:2px 12px 2px 0;border-bottom:1px solid rgba(127,127,127,.35);text-align:left;white-space:nowrap"
)
_CAPTION: Final = "caption-side:top;text-align:left;padding:0 0 4px;color:inherit"
_NUMBER: Final = _CELL.replace("text-align:left", "text-align:right")

TableRow = dict[str, Any]


def record(model: BaseModel) -> TableRow:
    """Flatten a model: a model or mapping inside it gets its name as a prefix; lists of models are left out.

    Fields that are not in the repr are left out, too. `cost` of a job becomes `cost_amount` and
    `cost_currency`; amounts become floats.
    """
    found: TableRow = {}
    for name, value in model:
        if not type(model).model_fields[name].repr:
            continue  # a secret
        if isinstance(value, BaseModel):
            found |= {f"{name}_{key}": inner for key, inner in record(value).items()}
        elif isinstance(value, Mapping):
            found |= {f"{name}_{_plain(key)}": _plain(inner) for key, inner in value.items()}
        elif isinstance(value, list | tuple):
            if not any(isinstance(item, BaseModel) for item in value):
                found[name] = ", ".join(str(_plain(item)) for item in value)
        else:
            found[name] = _plain(value)
    return found


def data_frame(records: Sequence[TableRow]) -> Any:
    """Build a data frame with polars, or with pandas if only that is installed."""
    columns = dict.fromkeys(name for one in records for name in one)
    data = {name: [one.get(name) for one in records] for name in columns}
    if find_spec("polars") is not None:
        return import_module("polars").DataFrame(data, strict=False)
    if find_spec("pandas") is not None:
        return import_module("pandas").DataFrame(data)
    raise PermanentError(
        "NoDataFrames", "to_df() needs polars or pandas, and neither is installed", "pip install polars"
    )


def text_table(records: Sequence[TableRow], columns: Sequence[str] = (), more: str = "") -> str:
    """Format records as an aligned table, in the order of `columns`."""
    names = list(columns) or _columns(records)
    cells = [[name.upper().replace("_", " ") for name in names]]
    cells += [[_cell(one.get(name)) for name in names] for one in records]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    numeric = _numeric(records, names)
    lines = [
        "  ".join(
            cell.rjust(width) if name in numeric else cell.ljust(width)
            for name, cell, width in zip(names, row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, *([more] if more else [])])


def html_table(
    records: Sequence[TableRow], columns: Sequence[str] = (), more: str = "", title: str = ""
) -> str:
    """Format records as an HTML table, in the order of `columns`; `title` is its caption."""
    names = list(columns) or _columns(records)
    numeric = _numeric(records, names)
    styles = {name: _NUMBER if name in numeric else _CELL for name in names}
    head = "".join(
        f'<th scope="col" style="{styles[name]}">{escape(name.replace("_", " "))}</th>' for name in names
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{styles[name]}">{escape(_cell(one.get(name)))}</td>' for name in names)
        + "</tr>"
        for one in records
    )
    caption = f'<caption style="{_CAPTION}">{escape(title)}</caption>' if title else ""
    note = f"<p>{escape(more)}</p>" if more else ""
    return (
        f'<table style="{_STYLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'
    )


def html_fields(fields: TableRow) -> str:
    """Format one record as an HTML table with a row for each field that has a value."""
    rows = [
        {"field": name.replace("_", " "), "value": _cell(value)}
        for name, value in fields.items()
        if value not in (None, "")
    ]
    return html_table(rows, ("field", "value"))


def _columns(records: Sequence[TableRow]) -> list[str]:
    """Return the columns in which some record has a value."""
    names = dict.fromkeys(name for one in records for name in one)
    return [name for name in names if any(one.get(name) not in (None, "") for one in records)]


def _numeric(records: Sequence[TableRow], names: Iterable[str]) -> set[str]:
    """Return the columns whose values are all numbers."""
    found = set()
    for name in names:
        values = [one.get(name) for one in records if one.get(name) is not None]
        if values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            found.add(name)
    return found


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return float(value) if isinstance(value, Decimal) else value


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, date):
        return value.isoformat()
    text = clean(str(value))
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"
