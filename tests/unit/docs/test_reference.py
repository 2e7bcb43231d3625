"""The committed reference says what the code says, and the code leaves nothing without words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.reference import code_pages, shapes
from docs.reference.collect import collect
from docs.reference.generate import HERE
from fairway.advise.diagnosis import DIAGNOSES
from fairway.api.middleware import REQUESTS
from fairway.cli.root import root
from fairway.control.metrics import METRICS
from fairway.explain.reasons import REASONS
from fairway.files import fleet_schema, job_schema
from fairway.files.diagnostics import FaultCode
from fairway.settings import SETTINGS


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    """As `make reference` has it: click remembers how a test before this one called a command."""
    told = "import json; from docs.reference.generate import pages"
    show = "print(json.dumps({str(page): text for page, text in pages().items()}))"
    command = [sys.executable, "-c", f"{told}; {show}"]
    done = subprocess.run(
        command, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=120
    )
    return {Path(page): text for page, text in json.loads(done.stdout).items()}


def test_the_pages_are_up_to_date(made: dict[Path, str]) -> None:
    single = {page: text for page, text in made.items() if page.parent.name not in ("codes", "cli")}
    assert len(single) > 10
    old = [page.name for page, text in single.items() if page.read_text(encoding="utf-8") != text]
    assert old == [], "run `make reference`"


@pytest.mark.parametrize("folder", ["codes", "cli"])
def test_the_pages_of_codes_and_commands_are_up_to_date(folder: str, made: dict[Path, str]) -> None:
    wanted = {page: text for page, text in made.items() if page.parent.name == folder}
    there = {page: page.read_text(encoding="utf-8") for page in (HERE / folder).glob("*.md")}

    assert {page.stem for page in there} == {page.stem for page in wanted}, "run `make reference`"
    assert [page.stem for page in wanted if there[page] != wanted[page]] == [], "run `make reference`"


def test_every_code_of_the_source_has_words_and_no_word_is_without_a_code() -> None:
    written = set(code_pages.written_words())
    own = {*REASONS, *DIAGNOSES}
    assert not set(code_pages.words()["codes"]) & own, "a reason's words stand in one place"
    assert not set(REASONS) & set(DIAGNOSES), "a code means one thing"
    found = set(collect())

    assert sorted(found - written) == [], (
        "say in docs/reference/codes.yaml what they mean, then `make reference`"
    )
    assert sorted(written - found) == [], "docs/reference/codes.yaml explains codes that are gone"


def test_every_fault_of_a_file_has_words() -> None:
    assert [code for code in FaultCode if not code.explanation] == []


def test_every_code_has_a_remedy() -> None:
    without = [
        entry.name
        for entry in code_pages.entries()
        if not entry.do and not any(len(hint.replace("…", " ").split()) > 1 for _, hint in entry.sayings)
    ]
    assert without == [], "add { means, do } in docs/reference/codes.yaml"


def test_codes_are_found_however_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/part.py").write_text(
        """
class FairwayError(Exception):
    def __init__(self, code: str, message: str, hint: str) -> None: ...
class Child(FairwayError): ...
class BuiltIn(FairwayError):
    def __init__(self) -> None:
        super().__init__("OfItsOwn", "it is", "do that")
def refuse(status: int, code: str, message: str) -> None: ...
def one(x: int) -> None:
    raise Child("Positional", f"{x} of them", "try less")
def two(x: int) -> None:
    refuse(4, "EitherWay" if x else "OrThis", "no")
    refuse(4, code="Named", message="no")
    print("NotACode", "some words", "more words")
"""
    )

    found = collect(tmp_path)

    assert set(found) == {"Positional", "OfItsOwn", "EitherWay", "OrThis", "Named"}
    assert found["Positional"].sayings == [("… of them", "try less")]
    assert found["Positional"].rooms == {"room"}


@pytest.mark.parametrize("schema", [fleet_schema(), job_schema()], ids=["fleet", "job"])
def test_every_key_of_a_file_has_words(schema: shapes.Schema) -> None:
    keys = shapes.keys(schema)
    assert len(keys) > 20
    assert [key.path for key in keys if not key.means] == []


def test_every_route_has_words_and_a_role(made: dict[Path, str]) -> None:
    document = json.loads(made[HERE / "openapi.json"])
    operations = [
        (f"{method} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 30
    assert [name for name, operation in operations if not operation.get("description")] == []
    assert [name for name, operation in operations if not operation.get("x-fairway-role")] == []


def test_every_setting_and_metric_has_words() -> None:
    assert [setting.name for setting in SETTINGS if not setting.help.strip()] == []
    assert [metric.name for metric in (*METRICS, REQUESTS) if not metric.help.strip()] == []


def _verbs(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _verbs(child, f"{path} {name}")


def test_every_verb_and_option_has_words(made: dict[Path, str]) -> None:
    verbs = list(_verbs(root, "fairway"))
    assert [path for path, verb in verbs if not verb.help] == []
    heads = {text.split("\n", 1)[0] for page, text in made.items() if page.parent.name == "cli"}
    assert [path for path, _ in verbs[1:] if f"# {path}" not in heads] == []
    assert [
        f"{path} {option.name}"
        for path, verb in verbs
        for option in verb.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ] == []
