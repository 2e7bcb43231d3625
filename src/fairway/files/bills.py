"""Bills of providers, read row by row: AWS Cost and Usage Reports and FOCUS, CSV, also gzipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from types import MappingProxyType

from fairway.model.bill import Bill
from fairway.model.names import PoolName


@dataclass(frozen=True, slots=True)
class Matching:
    """How a line of a bill finds its pool: a tag first, then what the options say, in their order."""

    pools: frozenset[PoolName]
    tag: str = "fairway-pool"
    """Tag whose value is a pool's name."""
    rules: tuple[tuple[str, PoolName], ...] = ()
    """`p4d.24xlarge` or `p4d.24xlarge@us-east-1` or a resource id, and the pool it is of."""
    gpus: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """GPUs of an instance type that Fairway does not know."""


def read_bill(path: Path, matching: Matching, zone: tzinfo) -> Bill:
    """The bill in a file; raises FairwayError where it is none. Days are those of `zone`."""
    raise NotImplementedError
