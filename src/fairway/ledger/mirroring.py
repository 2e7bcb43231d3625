"""Soon."""

from __future__ import annotations

from typing import Any


async def mark(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def keep_seen(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def keep_lost(*args: Any, **named: Any) -> Any:
    raise NotImplementedError
