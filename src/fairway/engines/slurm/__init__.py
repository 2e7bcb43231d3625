"""The Slurm engine, through slurmrestd: one adapter for every release that Fairway supports.

`engine` is the entry point. `rest` is the client, `nodes` turns nodes into observations, `policy` writes a
fleet as accounts, associations and QOS, `jobs` submits and mirrors jobs.
"""

from fairway.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
