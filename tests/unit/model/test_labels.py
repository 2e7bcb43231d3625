"""Labels are parsed from comments, flags and dimensions."""

from __future__ import annotations

import pytest

from fairway.model.charge import JobLabel, Label, parse_dimension
from fairway.model.labels import (
    comment_words,
    is_reserved_key,
    kept_labels,
    parse_comment,
    parse_label,
)


def test_a_comment_keeps_whatever_else_people_wrote() -> None:
    assert parse_comment("ticket 7 project=llm, x=1 project=other experiment=e-1 a=b=c =x y=") == {
        "x": "1",
        "project": "other",
        "experiment": "e-1",
    }
    assert parse_comment("") == {}
    assert parse_comment("fairway:8f3k tolerates-loss") == {}
    assert parse_comment(f"project={'x' * 64}") == {}
    assert parse_comment(comment_words("llm", {"experiment": "e1"})) == {"project": "llm", "experiment": "e1"}
    assert comment_words(None, {}) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("team", Label.TEAM),
        ("project", Label.PROJECT),
        ("label:experiment", JobLabel("label:experiment")),
        ("label:app.kubernetes.io/name", JobLabel("label:app.kubernetes.io/name")),
        ("label:", None),
        ("label:a'b", None),
        ("label:a\n", None),
        ("label:" + "x" * 64, None),
        ("experiment", None),
        ("TEAM", None),
    ],
)
def test_dimensions(text: str, found: object) -> None:
    assert parse_dimension(text) == found


def test_what_is_kept_for_cost() -> None:
    labels = {"model": "m", "experiment": "not valid!", "owner": "bob"}
    assert kept_labels(labels, ("model", "experiment", "dataset")) == (("model", "m"),)
    assert parse_label("a=b") == ("a", "b")
    assert parse_label("a=(other)") == ("a", "(other)")
    assert parse_label("(other)") is None
    assert parse_label("=(other)") is None
    assert parse_label("a") is None
    assert parse_label("a=b=c") is None


def test_reserved_keys() -> None:
    assert is_reserved_key("project")
    assert is_reserved_key("fairway.dev/user")
    assert is_reserved_key("kueue.x-k8s.io/queue-name")
    assert is_reserved_key("app.kubernetes.io/name")
    assert not is_reserved_key("experiment")
    assert not is_reserved_key("mlops.example.com/experiment")
