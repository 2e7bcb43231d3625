"""Templates that no test happens to open can be read too."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from jinja2 import Environment, PackageLoader

from fairway.web.format import FILTERS

NAMES = sorted(f.name for f in (files("fairway.web") / "templates").iterdir() if f.name.endswith(".html"))


@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name: str) -> None:
    environment = Environment(loader=PackageLoader("fairway.web"), autoescape=True)
    environment.filters.update(FILTERS)
    assert environment.get_template(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_no_loop_asks_the_loop_around_it(name: str) -> None:
    """In the condition of a `for`, Jinja's `loop` is the one around it: rows were lost that way."""
    text = (files("fairway.web") / "templates" / name).read_text(encoding="utf-8")
    assert re.findall(r"{%-?\s*for [^%]* if [^%]*\bloop\b[^%]*%}", text) == []
