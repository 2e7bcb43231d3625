"""The schema, the examples and the checker agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fairway.files import check_fleet, fleet_schema
from fairway.model.gpu_catalogue import CATALOGUE
from tests.unit.files.fleet.test_faults import MISTAKES
from tests.unit.files.fleet.test_faults_of_teams import TEAM_MISTAKES
from tests.unit.files.fleets import SHARED, SOUND, changed, checked
from tests.unit.files.yaml_values import plain

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
SCHEMA = fleet_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# What only the checker knows: names across the file, YAML's own rules, digits and paths.
BEYOND_A_SCHEMA = {
    "AboveParent",
    "BadPath",
    "BadUrl",
    "CannotRun",
    "DuplicateKey",
    "DuplicateTeam",
    "EmptyBudget",
    "GpusDisagree",
    "GuaranteesTooHigh",
    "KeyNotText",
    "KnownGpuType",
    "NotAMember",
    "NothingIsLow",
    "NotOneDefault",
    "ParentWithout",
    "PreemptibleTooHigh",
    "ReservedName",
    "SameRank",
    "SecretInFile",
    "SeveralTeams",
    "SlicedPool",
    "SlicesDisagree",
    "SlicesDoNotFit",
    "TagNotAllowed",
    "UnknownAlias",
    "UnknownCluster",
    "UnknownGpuType",
    "UnknownPool",
    "UnknownPriority",
    "UnknownSlice",
    "UnknownTeam",
    "WholePool",
    "WrongEngine",
}


def test_there_are_examples_of_every_engine() -> None:
    assert {"quickstart.yaml", "slurm.yaml", "kubernetes.yaml", "mig.yaml"} <= {
        path.name for path in EXAMPLES
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_passes_the_checker_and_the_schema(path: Path) -> None:
    report = check_fleet(path)
    assert report.faults == () and report.fleet is not None
    VALIDATOR.validate(plain(path.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_tells_editors_its_schema(path: Path) -> None:
    first, second, *_ = path.read_text().splitlines()
    assert first == "# yaml-language-server: $schema=fleet.schema.json"
    assert second.startswith("#")


def test_the_schema_beside_the_examples_is_the_current_one() -> None:
    committed = json.loads((EXAMPLES[0].parent / "fleet.schema.json").read_text())
    assert committed == SCHEMA, "write it anew:  fairway schema > examples/fleet.schema.json"


def test_the_schema_is_a_schema_and_its_own_example_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for example in SCHEMA["examples"]:
        VALIDATOR.validate(example)
        assert checked(json.dumps(example)).faults == ()


EXPRESSIBLE = [
    (text, old, new)
    for text, mistakes in ((SOUND, MISTAKES), (SHARED, TEAM_MISTAKES))
    for old, new, code, *_ in mistakes
    if code not in BEYOND_A_SCHEMA and not re.search("1e99|0x10|010|0.0000001|[.]nan|^0[sh]$|101%", new)
]


@pytest.mark.parametrize(("text", "old", "new"), EXPRESSIBLE, ids=lambda v: str(v)[:24])
def test_the_schema_refuses_what_it_can_express(text: str, old: str, new: str) -> None:
    assert list(VALIDATOR.iter_errors(plain(changed(old, new, text))))


def test_a_sound_file_is_valid() -> None:
    VALIDATOR.validate(plain(SOUND))
    VALIDATOR.validate(plain(SHARED))


def test_a_team_inside_a_team_is_held_to_the_same() -> None:
    deep = "teams: { eyes: { members: [zoe], teams: { iris: { SHARE, members: [yan] } } } }, "
    text = changed("vision: { ", f"vision: {{ {deep}", SHARED)
    VALIDATOR.validate(plain(text.replace("SHARE", "share: 3")))
    assert list(VALIDATOR.iter_errors(plain(text.replace("SHARE", "share: 0"))))


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}.{name}", inner
        for name, inner in schema.items():
            if name != "examples":
                yield from properties(inner, f"{path}.{name}")
    elif isinstance(schema, list):
        for i, inner in enumerate(schema):
            yield from properties(inner, f"{path}[{i}]")


def test_every_key_is_described_and_every_record_has_a_title() -> None:
    found = dict(properties(SCHEMA))
    assert len(found) > 25
    assert [path for path, inner in found.items() if not inner.get("description")] == []
    assert SCHEMA["title"] and SCHEMA["$schema"].endswith("2020-12/schema")


def test_editors_are_offered_the_gpu_types() -> None:
    gpu = SCHEMA["properties"]["pools"]["additionalProperties"]["properties"]["gpu"]
    assert gpu["anyOf"][0]["enum"] == list(CATALOGUE)
