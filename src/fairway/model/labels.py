"""Define the project and labels of jobs: their form, and how many values count apart in sums of usage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

MAX_LABELS: Final = 16
"""Of one job."""
MAX_COST_LABELS: Final = 4
"""Keys that a fleet can keep as dimensions of cost."""
MAX_NEW_VALUES: Final = 1_000
"""New values of one key that count apart within `VALUE_DAYS`; further ones count as `OTHER_VALUE`."""
VALUE_DAYS: Final = 30
OTHER_VALUE: Final = "(other)"

# What Kubernetes accepts as a label, so that one form is valid on every engine.
_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
MAX_LABEL_LENGTH: Final = 63
LABEL_VALUE_PATTERN: Final = _WORD
LABEL_KEY_PATTERN: Final = rf"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?{_WORD}"

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Labels by key, in the order of keys."""

_RESERVED: Final = ("kubernetes.io", "k8s.io", "fairway.dev")
_COMMENT_WORD: Final = re.compile(rf"({LABEL_KEY_PATTERN})=({LABEL_VALUE_PATTERN})", re.ASCII)
PROJECT_KEY: Final = "project"


def is_reserved_key(key: str) -> bool:
    """Return whether a label belongs to Kubernetes or Fairway, or is the project, which has its own field."""
    prefix, slash, _ = key.partition("/")
    return key == PROJECT_KEY or bool(slash and prefix.endswith(_RESERVED))


def parse_label(text: str) -> tuple[str, str] | None:
    """Parse `experiment=e12`, or `experiment=(other)`. Returns None if it is no label."""
    other = text.endswith(f"={OTHER_VALUE}")
    match = _COMMENT_WORD.fullmatch(text.removesuffix(OTHER_VALUE) + "x" if other else text)
    if match is None or not is_label_value(match[2]):
        return None
    return match[1], OTHER_VALUE if other else match[2]


def is_label_value(text: str) -> bool:
    """Return whether a text can be a project, or the value of a label."""
    return len(text) <= MAX_LABEL_LENGTH and re.fullmatch(LABEL_VALUE_PATTERN, text, re.ASCII) is not None


def kept_labels(labels: Mapping[str, str], keys: Iterable[str]) -> Labels:
    """Return the labels under these keys, in their order, without values that no job of Fairway could have.

    >>> kept_labels({"model": "llm", "owner": "bob"}, ("model", "experiment"))
    (('model', 'llm'),)
    """
    return tuple((key, labels[key]) for key in sorted(keys) if is_label_value(labels.get(key, "")))


def comment_words(project: str | None, labels: Mapping[str, str]) -> str:
    """Return project and labels as words of a comment: `project=llm experiment=e12`."""
    words = {PROJECT_KEY: project, **labels}
    return " ".join(f"{key}={value}" for key, value in words.items() if value)


def parse_comment(comment: str) -> dict[str, str]:
    """Return the words of the form `key=value` in a comment. The first one of a key counts.

    >>> parse_comment("see ticket 7, project=llm experiment=e12")
    {'project': 'llm', 'experiment': 'e12'}
    """
    found: dict[str, str] = {}
    for word in comment.split():
        match = _COMMENT_WORD.fullmatch(word)
        if match is not None and len(match[2]) <= MAX_LABEL_LENGTH:
            found.setdefault(match[1], match[2])
    return found
