"""Soon."""

from __future__ import annotations

from typing import Any


async def ledger_mark(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def submit(*args: Any, **named: Any) -> Any:
    raise NotImplementedError


async def wish(*args: Any, **named: Any) -> Any:
    raise NotImplementedError
