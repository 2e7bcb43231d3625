"""Templates that no test happens to open can be read too."""

from __future__ import annotations

from importlib.resources import files

import pytest
from jinja2 import Environment, PackageLoader

from fairway.web.words import FILTERS

NAMES = sorted(f.name for f in (files("fairway.web") / "templates").iterdir() if f.name.endswith(".html"))


@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name: str) -> None:
    environment = Environment(loader=PackageLoader("fairway.web"), autoescape=True)
    environment.filters.update(FILTERS)
    assert environment.get_template(name).name == name
