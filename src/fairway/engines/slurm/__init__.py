"""Slurm through slurmrestd: one adapter for every version that Fairway speaks.

`engine` is the way in. `client` talks and turns every failure into Unreachable or Refused; `tokens` signs;
`dialect` holds what differs between versions; `wire` names the few fields that are read; `gres`, `states`
and `translate` are pure and say what those fields mean.
"""

from fairway.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
