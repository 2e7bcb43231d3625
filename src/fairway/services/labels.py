"""Parse the labels of a request, and decide which labels of a job count as dimensions of cost."""

from __future__ import annotations

from collections.abc import Iterable

from fairway.model.labels import Labels, parse_label
from fairway.services.errors import ErrorKind, RequestError


def of_labels(texts: Iterable[str]) -> Labels:
    """Parse labels of a filter, `experiment=e12`. Raises RequestError."""
    found: dict[str, str] = {}
    for text in texts:
        label = parse_label(text)
        if label is None or found.setdefault(*label) != label[1]:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                f"label: {text[:200]!r} is no label, or another value of its key was given",
                "write each label once, as KEY=VALUE:  experiment=e12",
            )
    return tuple(sorted(found.items()))
