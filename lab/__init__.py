"""Real engines on one machine: Slurm, Kubernetes with Kueue, PostgreSQL, Prometheus, GPU telemetry.

For developers, tests and the curious; no part of the product. `python -m lab --help` shows what it can do;
from Python:

    from lab import find
    slurm = find("slurm")
    slurm.run("sinfo").stdout
"""

from lab.errors import LabError
from lab.instance import Instance, every, find, obtain

__all__ = ["Instance", "LabError", "every", "find", "obtain"]
