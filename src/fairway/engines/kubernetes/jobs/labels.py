"""Define the labels of a job's project and its own labels, on its object and pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.model.job import JobSpec
from fairway.model.labels import Labels, is_reserved_key

PROJECT: Final = "fairway.dev/project"
_GENERATED: Final = frozenset(
    {
        "controller-uid",
        "job-name",
        "pod-template-hash",
        "rollouts-pod-template-hash",
        "controller-revision-hash",
    }
)
"""Labels that controllers add, most of them different for each pod. Others have a prefix of Kubernetes."""
_PEOPLES: Final = "app.kubernetes.io/"
"""The prefix of Kubernetes under which people label."""


def labels_of(spec: JobSpec) -> dict[str, str]:
    """Return the labels of a job's object and pods."""
    return {**spec.labels, **({PROJECT: spec.project} if spec.project else {})}


def peoples_labels(labels: Mapping[str, str]) -> Labels:
    """Return the labels that people may have chosen, and the project."""
    return tuple(
        sorted(
            (key, value)
            for key, value in labels.items()
            if key == PROJECT or key.startswith(_PEOPLES) or not (is_reserved_key(key) or key in _GENERATED)
        )
    )
