"""What a job printed, for a page: its end, found without reading all of it, and text that does no harm."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from fairway.api.job_wire import MOST_LOG_BYTES, LogPart

SHOWN_BYTES: Final = 64 * 1024
_PROBE_BYTES: Final = 16

ReadsPart = Callable[[int, int], Awaitable[LogPart]]
"""From an offset, at most so many bytes."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


async def last_part(read: ReadsPart) -> LogPart:
    """The last 64 KB, or all there is.

    Engines tell no length. A short log is read at once; the end of a longer one is looked for by doubling
    and halving, a few bytes at a time.
    """
    first = await read(0, MOST_LOG_BYTES)
    if first.ended or first.next_offset < MOST_LOG_BYTES - 3:  # a character may have been cut off
        return _end_of(first)
    low = first.next_offset
    while (await read(2 * low, _PROBE_BYTES)).next_offset > 2 * low:
        low *= 2
    return await _halve(read, low, 2 * low)


async def _halve(read: ReadsPart, low: int, high: int) -> LogPart:
    """The end is between the two."""
    while high - low > SHOWN_BYTES // 2:
        middle = (low + high) // 2
        if (await read(middle, _PROBE_BYTES)).next_offset > middle:
            low = middle
        else:
            high = middle
    return await read(max(0, low - SHOWN_BYTES // 2), SHOWN_BYTES)


def _end_of(part: LogPart) -> LogPart:
    data = part.text.encode()
    if len(data) <= SHOWN_BYTES:
        return part
    text = data[-SHOWN_BYTES:].decode(errors="ignore")
    cut = text.find("\n") + 1
    return part.model_copy(update={"text": text[cut:], "offset": part.next_offset - len(text[cut:].encode())})


def printable(text: str) -> str:
    """Text as a terminal would leave it: no colours, no controls, of a line that was overwritten the last."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROLS.sub("", "\n".join(lines))
