"""Real Slurm: slurmctld, slurmdbd on MariaDB, slurmrestd with JWT, and any number of real slurmd."""

from lab.slurm.cluster import Slurm, configure

KIND = Slurm()

__all__ = ["KIND", "configure"]
