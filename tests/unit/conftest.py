"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi._compat import v2
from pydantic import TypeAdapter


@pytest.fixture(scope="session", autouse=True)
def adapters_made_once() -> Iterator[None]:
    """Let FastAPI share validators between the apps of different tests: half of an app's creation.

    Six hundred tests create an app, each with the same few hundred parameters and answers.
    """
    made: dict[str, TypeAdapter[Any]] = {}

    def adapter(annotation: Any, *, config: Any = None) -> TypeAdapter[Any]:
        key = f"{annotation!r} {config!r}"
        if key not in made:
            made[key] = TypeAdapter(annotation, config=config)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v2, "TypeAdapter", adapter)
        yield
