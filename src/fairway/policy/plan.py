"""A plan is a value: ordered changes, what they were computed from, and what a reader should know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.policy.objects import (
    Activity,
    Advice,
    Change,
    FoundObject,
    FoundPolicy,
    Notice,
    ObjectKey,
    Translation,
)


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a plan is not applied as it stands."""

    code: str
    message: str
    hint: str
    forceable: bool
    """Whether `--force` overrules it."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What changes on one cluster."""

    cluster: ClusterName
    engine: EngineKind
    engine_version: str
    fingerprint: str
    """Of what was found and what is wanted: equal as long as nobody changed either."""
    changes: tuple[Change, ...]
    """In the order in which they are made."""
    managed: int
    """Objects with our mark that were found: what the safety limits count against."""
    in_the_way: tuple[FoundObject, ...] = ()
    """Objects without our mark that bear a wanted name."""
    touched: Mapping[ObjectKey, Activity] | None = None
    """Jobs that depend on objects which change or go."""
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()
    objections: tuple[Objection, ...] = ()


def compute_changes(wanted: Translation, found: FoundPolicy) -> tuple[Change, ...]:
    """What must be written so that `found` becomes `wanted`: ordered, each with its stage."""
    raise NotImplementedError


def touched_keys(changes: Iterable[Change]) -> tuple[ObjectKey, ...]:
    """Existing objects that change or go: whose jobs must be counted before the plan is complete."""
    raise NotImplementedError


def complete(
    cluster: ClusterName,
    engine: EngineKind,
    wanted: Translation,
    found: FoundPolicy,
    changes: tuple[Change, ...],
    activity: Mapping[ObjectKey, Activity],
) -> ClusterPlan:
    """The plan of one cluster, with its fingerprint and what speaks against it."""
    raise NotImplementedError
