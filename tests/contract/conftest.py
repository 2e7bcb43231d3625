"""Gives each test of the suite a driver for each engine."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.contract.driver import Driver

# instance of the lab (or `virtual`) -> the file in drivers/ that moves it, which is also its marker
ENGINES: Final = {"virtual": "virtual", "slurm-24": "slurm", "slurm-26": "slurm", "kubernetes": "kubernetes"}


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these engines only; plain tests run on all of them."""
    return pytest.mark.parametrize("driver", [_param(n) for n in names], indirect=True)


def _param(name: str) -> object:
    kind = ENGINES[name]
    marks = () if kind == "virtual" else (getattr(pytest.mark, kind),)
    return pytest.param(name, id=name, marks=marks)


@pytest.fixture(params=[_param(n) for n in ENGINES])
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    module = importlib.import_module(f"tests.contract.drivers.{ENGINES[request.param]}")
    async with module.open_driver(request.param) as opened:
        yield opened
