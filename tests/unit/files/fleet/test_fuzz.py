"""Thousands of broken fleet files: never an exception but InvalidFile, never a fault without place and hint.

Also: whatever the checker accepts, the schema accepts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.files import (
    InvalidFile,
    Report,
    check_bytes,
    check_text,
    fleet_schema,
    location_lines,
)
from fairway.files.diagnostics import MAX_FAULTS
from tests.tier import examples
from tests.unit.files.yaml_values import plain

# About 20 s on one idle core; a shared machine may need several times that.
pytestmark = pytest.mark.timeout(600)

EXAMPLES = {
    path.name: path.read_text() for path in sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))
}
FOLDER = Path("/etc/fairway")
SCHEMA = jsonschema.Draft202012Validator(fleet_schema())
MUTATIONS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            " ",
            "no",
            "0x1F",
            "1e999",
            "-1",
            "-0",
            "01.5",
            "~",
            "A100",
            "hpc ",
            "../x",
            "~/x",
            "a\tb",
            "a\nb",
            "\0",
        ]
    ),
    st.sampled_from(
        ["slurm", "kubernetes", "virtual", "H100-80GB", "1g.10gb", "spot", "USD", "*x", "&x", "!x y"]
    ),
    st.sampled_from(["unlimited", "7d", "lab-mig/1g.10gb", "lab-a100", "low", "alice", "research", "always"]),
    st.sampled_from(
        ["http://", "http://u:p@h", "https://[::1", "https://h:99999", "https://h/?q", "\ud800", "é" * 300]
    ),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)
PIECES = (
    ": [ ] { } &a *a !!int ! <<: | >- # ? @ ` ' no true null ~ 1_000 .nan .inf 0o7 pools: clusters: teams: "
    "unlimited 7d 0 99 urgent"
)
SNIPPETS = st.one_of(
    st.sampled_from(PIECES.split()),
    st.sampled_from(["\t", "\n", "  ", "- ", "---\n", "...", '"', "%YAML 1.1\n", "9" * 5000]),
    st.sampled_from(
        ["\0", "\ufeff", "\u2028", "\x85", "\r", "\x1b", "é", "😀", '"\\UFFFFFFFF"', '"\\ud800"']
    ),
)


def examined(report: Report) -> None:
    """What holds of every report, whatever the file."""
    for fault in report.faults:
        assert fault.line >= 1 and fault.column >= 1
        assert fault.message.strip() and fault.hint.strip()
        assert fault.code.explanation
        for spot in fault.related:
            assert spot.line >= 1 and spot.column >= 1
        said = "\n".join((fault.message, fault.hint, fault.expected, *location_lines(fault)))
        assert said.replace("\n", "").isprintable(), said
        assert len(said) < 5000
    assert len(report.faults) <= MAX_FAULTS + 1
    refused = any(f.severity == "error" for f in report.faults)
    assert refused == (report.fleet is None)
    if refused:
        error = InvalidFile(report.source, report.faults)
        assert error.message and error.hint and error.details


def accepted(text: str) -> bool:
    """Check the text; what the checker accepts, the schema must accept."""
    report = check_text(text, "fleet.yaml", FOLDER)
    examined(report)
    if report.fleet is not None:
        assert list(SCHEMA.iter_errors(plain(text))) == []
    return report.fleet is not None


def fuzz(texts: st.SearchStrategy[str], count: int) -> Counter[bool]:
    """Check `count` texts; says how many were accepted and how many refused."""
    outcomes: Counter[bool] = Counter()

    @settings(MUTATIONS, max_examples=count)
    @given(texts)
    def run(text: str) -> None:
        outcomes[accepted(text)] += 1

    run()
    assert outcomes.total() >= count
    return outcomes


# --- text: characters lost, doubled, swapped, put in -----------------------------------------------------


# A mutation within a comment shows little, so most texts have none.
WITHOUT_COMMENTS = [re.sub(r"(^|\s+)#.*", "", text) for text in EXAMPLES.values()]
TEXTS = [*WITHOUT_COMMENTS, EXAMPLES["quickstart.yaml"]]


@st.composite
def broken_text(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 12)))
        match draw(st.sampled_from(["delete", "insert", "replace", "double", "truncate", "line"])):
            case "delete":
                text = text[:at] + text[end:]
            case "insert":
                text = text[:at] + draw(SNIPPETS) + text[at:]
            case "replace":
                text = text[:at] + draw(st.text(max_size=5)) + text[end:]
            case "double":
                text = text[:end] + text[at:]
            case "truncate":
                text = text[:at]
            case "line":
                lines = text.split("\n")
                i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
                lines[i], lines[j] = lines[j], lines[i]
                text = "\n".join(lines)
    return text


def test_broken_text() -> None:
    # Both outcomes: a fuzz whose files are all refused, or all accepted, would show little.
    assert min(fuzz(broken_text(), examples(1700)).values()) > examples(1700) // 17


# --- words: one value or key of the text replaced, the rest left whole ------------------------------------

WORD = re.compile(r"[A-Za-z0-9_./+:-]+")


@st.composite
def swapped_words(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(WITHOUT_COMMENTS))
    for _ in range(draw(st.integers(1, 2))):
        spans = [m.span() for m in WORD.finditer(text)]
        start, end = draw(st.sampled_from(spans))
        other_start, other_end = draw(st.sampled_from(spans))
        new = draw(
            st.one_of(
                st.just(text[other_start:other_end]),
                SNIPPETS,
                st.from_regex(r"[a-z0-9.:/-]{1,8}", fullmatch=True),
            )
        )
        text = text[:start] + new + text[end:]
    return text


def test_swapped_words() -> None:
    assert min(fuzz(swapped_words(), examples(1500)).values()) > examples(1500) // 50


# --- structure: keys deleted, renamed, doubled, types swapped ---------------------------------------------


TREES = [yaml.safe_load(text) for text in EXAMPLES.values()]


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def containers(value: Any) -> list[Any]:
    """Every mapping and list within, itself first."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if isinstance(value, dict | list) else []) + [c for v in inner for c in containers(v)]


VALUES: dict[Any, list[Any]] = {}
"""What the examples have under each key."""
for found in (c for tree in TREES for c in containers(tree) if isinstance(c, dict)):
    for known, told in found.items():
        VALUES.setdefault(known, []).append(told)


def mutate_mapping(draw: Callable[[Any], Any], mapping: dict[Any, Any], donors: list[Any]) -> None:
    keys = list(mapping)
    key = draw(st.sampled_from(keys))
    match draw(st.sampled_from(["delete", "rename", "copy", "weird", "graft", "add", "borrow", "borrow"])):
        case "delete":
            del mapping[key]
        case "rename":
            new = draw(
                st.one_of(
                    st.text(max_size=8), st.sampled_from([str(key).upper(), f"{key}s", str(key)[:-1]]), WEIRD
                )
            )
            try:
                mapping[new] = mapping.pop(key)
            except TypeError:
                mapping[str(new)] = None
        case "copy":
            mapping[f"{key}2"] = deepcopy(mapping[key])
        case "weird":
            mapping[key] = draw(WEIRD)
        case "graft":
            mapping[key] = deepcopy(draw(st.sampled_from(donors)))
        case "borrow":
            mapping[key] = deepcopy(draw(st.sampled_from(VALUES[key])) if key in VALUES else None)
        case "add":
            mapping[draw(st.text(max_size=6))] = draw(WEIRD)


@st.composite
def broken_structure(draw: st.DrawFn) -> str:
    tree = deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 3))):
        found = [c for c in containers(tree) if c]
        if not found:
            break
        chosen = draw(st.sampled_from(found))
        if isinstance(chosen, dict):
            mutate_mapping(draw, chosen, found)
        elif draw(st.booleans()):
            chosen.append(draw(WEIRD))
        else:
            chosen[draw(st.integers(0, len(chosen) - 1))] = draw(WEIRD)
    try:
        return yaml.dump(tree, Dumper=_Dumper, allow_unicode=True, width=10_000)
    except UnicodeEncodeError:
        return repr(tree)  # a lone surrogate, which YAML cannot hold; its repr is yet another bad file


def test_broken_structure() -> None:
    assert min(fuzz(broken_structure(), examples(1500)).values()) > examples(1500) // 50


# --- bytes, and text that never was a fleet ---------------------------------------------------------------


@settings(MUTATIONS, max_examples=examples(250))
@given(st.sampled_from(sorted(EXAMPLES.values())), st.integers(0, 3000), st.binary(max_size=4))
def test_broken_bytes(text: str, at: int, junk: bytes) -> None:
    data = text.encode()
    examined(check_bytes(data[:at] + junk + data[at + len(junk) :], "fleet.yaml", FOLDER))


def test_any_text() -> None:
    assert fuzz(st.text(), examples(250))[False] >= examples(250)
