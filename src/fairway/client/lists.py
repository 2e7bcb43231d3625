"""Lists that the clients return: they show as tables in sessions and notebooks, and become data frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from fairway.model.errors import FairwayError
from fairway.wire.fleet import Wire
from fairway.wire.tables import MAX_SHOWN, data_frame, html_table, record, text_table

Item = TypeVar("Item", bound=Wire)


class ItemList(list[Item]):
    """A list that shows as a table."""

    def to_df(self) -> Any:
        """Return a data frame of polars, or of pandas if only that is installed."""
        return data_frame([record(item) for item in self])

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


class ItemQuery(Generic[Item]):
    """A list that is read page by page when it is iterated, each time anew; nothing of it is kept."""

    def __init__(self, read: Callable[[], Iterator[Item]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Item]:
        return self._read()

    def to_df(self) -> Any:
        """Read everything into a data frame of polars, or of pandas if only that is installed."""
        return ItemList(self).to_df()

    def __repr__(self) -> str:
        return self._shown(_text)

    def _repr_html_(self) -> str:
        return self._shown(_html)

    def _shown(self, write: Callable[[Sequence[Item]], str]) -> str:
        try:
            return write(list(islice(self._read(), MAX_SHOWN + 1)))
        except FairwayError as error:  # a repr does not raise
            return f"(not readable now: {error.code})"
        except RuntimeError:
            return "(not readable: the client is closed)"


class AsyncItemQuery(Generic[Item]):
    """A list that is read page by page: `async for item in query`, or all of it by `await query`."""

    def __init__(self, read: Callable[[], AsyncIterator[Item]]) -> None:
        self._read = read

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._read()

    def __await__(self) -> Generator[Any, None, ItemList[Item]]:
        return self._all().__await__()

    async def to_df(self) -> Any:
        """Read everything into a data frame of polars, or of pandas if only that is installed."""
        return (await self).to_df()

    async def _all(self) -> ItemList[Item]:
        return ItemList([item async for item in self._read()])

    def __repr__(self) -> str:
        return "<a list that was not read yet: await it, or iterate it with `async for`>"


def _text(items: Sequence[Item]) -> str:
    return text_table([item.shown() for item in items[:MAX_SHOWN]], more=_more(items)) if items else "[]"


def _html(items: Sequence[Item]) -> str:
    if not items:
        return "<p>none</p>"
    return html_table([item.shown() for item in items[:MAX_SHOWN]], more=_more(items))


def _more(items: Sequence[Item]) -> str:
    return "… and more: to_df() has all of them" if len(items) > MAX_SHOWN else ""
