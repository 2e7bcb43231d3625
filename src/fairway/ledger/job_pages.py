"""Soon."""

from __future__ import annotations

from typing import Any


async def page(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def one(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def rows(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def counts(*args: Any, **named: Any) -> Any:
    raise NotImplementedError
