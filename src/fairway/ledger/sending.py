"""Soon."""

from __future__ import annotations

from typing import Any


async def to_send(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def to_do(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def order_of(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def open_engine_ids(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def begin(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def keep_sent(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def keep_refused(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def keep_wish_refused(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def settle_after(*args: Any, **named: Any) -> Any:
    raise NotImplementedError
