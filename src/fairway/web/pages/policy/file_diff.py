"""Format a fleet file for a page: numbered lines, and the differences between two revisions. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CONTEXT_LINES: Final = 3
MAX_DIFF_LINES: Final = 20_000
"""The most lines of both files together; comparing more takes seconds."""
_PASSWORD: Final = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+@")
"""Valid files contain none, but a comment may contain anything."""
_KEY: Final = re.compile(r"(\s*(?:- )*)([A-Za-z0-9_.\"'<-][^\s:#,{}\[\]]*:)(?=\s|$)(.*)")
_COMMENT: Final = re.compile(r"(?:^|\s)#")


@dataclass(frozen=True, slots=True)
class FileLine:
    """One line: indentation, key, value, and trailing comment."""

    number: int
    indent: str
    key: str
    rest: str
    comment: str


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a diff. The sign conveys the same as the colour."""

    sign: str
    """`+` added, `-` removed, a space: unchanged, `@`: a hunk's position."""
    before: int | None
    after: int | None
    text: str


def without_passwords(text: str) -> str:
    """Remove passwords of URLs from the text."""
    return _PASSWORD.sub("…@", text)


def file_lines(text: str) -> list[FileLine]:
    """Split the file into lines that can be linked to."""
    return [_file_line(number, line) for number, line in enumerate(_lines(text), 1)]


def diff_lines(before: str, after: str) -> list[DiffLine]:
    """Return the diff with a few lines of context. Empty if there is none, or if the files are too long."""
    old, new = _lines(before), _lines(after)
    if len(old) + len(new) > MAX_DIFF_LINES:
        return []
    found: list[DiffLine] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        where = f"lines {first[1] + 1}-{last[2]} → {first[3] + 1}-{last[4]}"
        found.append(DiffLine("@", None, None, where))
        for _, i, i_end, j, j_end in (g for g in group):
            found += _group(old, new, (i, i_end), (j, j_end))
    return found


def _group(
    old: list[str], new: list[str], gone: tuple[int, int], come: tuple[int, int]
) -> Iterator[DiffLine]:
    if old[slice(*gone)] == new[slice(*come)]:
        for i, j in zip(range(*gone), range(*come), strict=True):
            yield DiffLine(" ", i + 1, j + 1, old[i])
        return
    for i in range(*gone):
        yield DiffLine("-", i + 1, None, old[i])
    for j in range(*come):
        yield DiffLine("+", None, j + 1, new[j])


def _lines(text: str) -> list[str]:
    return without_passwords(text).splitlines()


def _file_line(number: int, line: str) -> FileLine:
    found = _COMMENT.search(line)
    at = found.start() if found and line[: found.start()].count('"') % 2 == 0 else len(line)
    code, comment = line[:at], line[at:]
    key = _KEY.fullmatch(code)
    if key is None:
        return FileLine(number, "", "", code, comment)
    return FileLine(number, key[1], key[2], key[3], comment)
